"""A token tree: several guesses of what follows, sharing their beginnings, to be computed in one forward.

Nodes are numbered in the order they were added, parents before children; the root, -1, is the last known token and no node
of the tree. Knows nothing of who guesses, of models or of grammars. Tree attention follows SpecInfer (arXiv:2305.09781).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

ROOT = -1


class TokenTree:
    """Grows by `add`. tokens[i] is the token of node i, parents[i] < i the node before it (ROOT: it follows what is known).

    forced[i]: a grammar leaves no other choice after its parent, so that it is no guess.
    chances[i]: the proposer's own estimate that all of the path to node i comes true; 0 where it has none.
    kinds[i]: what kind of guess it is, for whoever keeps books on how often kinds come true (see pace.py): the higher, the surer.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []  # 1 for a child of the root
        self.forced: list[bool] = []
        self.chances: list[float] = []
        self.kinds: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> TokenTree:
        """One branch."""
        tree = cls()
        tree.extend(ROOT, tokens)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, *, forced: bool = False, chance: float = 0.0, kind: int = 0) -> int:
        """The child of `parent` with this token: the one that is there, or a new node."""
        node = self._children.get((parent, token))
        if node is None:
            node = self._children[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
            self.forced.append(forced)
            self.chances.append(chance)
            self.kinds.append(kind)
        return node

    def extend(self, parent: int, tokens: Iterable[int], kind: int = 0) -> int:
        """A branch below `parent`; returns its last node (`parent` if there are no tokens)."""
        for token in tokens:
            parent = self.add(parent, token, kind=kind)
        return parent

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` (ROOT too) with this token."""
        return self._children.get((node, token))

    def children(self, node: int) -> list[int]:
        """In the order they were added."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Nodes from the first one below the root to `node`; empty for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    @property
    def guesses(self) -> int:
        """Nodes that are not forced."""
        return len(self.forced) - sum(self.forced)

    @property
    def is_chain(self) -> bool:
        """One branch, each node following the one before: an ordinary causal span."""
        return self.parents == list(range(-1, len(self.tokens) - 1))

    def trimmed(self, size: int) -> TokenTree:
        """The first `size` nodes: parents come before children, so this is a tree."""
        if size >= len(self):
            return self
        tree = TokenTree()
        for i in range(size):
            self.copy(i, tree, self.parents[i])
        return tree

    def copy(self, node: int, to: TokenTree, parent: int) -> int:
        """Adds this tree's node `node` to another tree below `parent`; returns its number there."""
        return to.add(parent, self.tokens[node], forced=self.forced[node], chance=self.chances[node], kind=self.kinds[node])

    def trunk(self) -> TokenTree:
        """Its first branch alone."""
        tree, node = TokenTree(), ROOT
        for i, parent in enumerate(self.parents):
            if parent == node:
                self.copy(i, tree, len(tree) - 1)
                node = i
        return tree

    def visible(self) -> npt.NDArray[np.bool_]:
        """[N, N]: whether node i sees node j, that is, whether j is i or one of its ancestors."""
        return ancestry(self.parents)

    def __repr__(self) -> str:
        return f"TokenTree(tokens={self.tokens}, parents={self.parents})"


def ancestry(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """[N, N] of a forest given by its parents (-1: none): entry i, j is true when j is i or an ancestor of i."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents):
        if parent != ROOT:
            seen[i] |= seen[parent]
    return seen
