"""What a prefix tree is made of: blocks with their tokens and pages, and how they are named.

Inputs: token ids and page numbers. Knows nothing of who counts on a page or when it may go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from agentkit.engine.kernels.layout import PAGE

Digest = Callable[[bytes], bytes]
Part = tuple[int, ...]
"""Pages of one block, those of one group of layers."""


def domain(*, adapter: str | None = None, load_number: int = 0, scale: float = 1.0, salt: str | None = None) -> bytes:
    """The key of what may be shared: tagged and length-prefixed, so that no adapter's name can pose as a salt. scale: of what the adapter adds."""
    of_adapter = (adapter, str(load_number), scale.hex()) if adapter is not None else (None, None, None)
    parts = [*zip((b"adapter", b"load", b"scale"), of_adapter, strict=True), (b"salt", salt)]
    given = [(tag, value.encode("utf-8", "surrogatepass")) for tag, value in parts if value is not None]
    return b"".join(len(part).to_bytes(8, "little") + part for pair in given for part in pair)


def blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Node:
    """One block in the tree, or the root of a domain (no parts, no parent). users: live sequences of a root.

    parts: its pages, group by group; () for those that are evicted. let_go: when the last sequence gave up the second part.
    """

    __slots__ = ("alive", "children", "digest", "key", "let_go", "parent", "parts", "tokens", "used", "users")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], parts: Sequence[Part], digest: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.parts = list(parts)
        self.digest = digest
        self.key = b""  # of a root: its domain
        self.children: dict[int, list[Node]] = {}  # by first token
        self.used = 0
        self.let_go = 0
        self.users = 0
        self.alive = True

    @property
    def page(self) -> int:
        """The first of its pages, by which it is known."""
        return self.parts[0][0]

    @property
    def whole(self) -> bool:
        """Whether no part of it is evicted."""
        return all(self.parts)

    @property
    def full(self) -> bool:
        return len(self.tokens) == PAGE

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
