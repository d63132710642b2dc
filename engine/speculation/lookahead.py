"""Lookahead decoding (Fu et al. 2024, arXiv:2402.02057): the model makes its own n-grams while it decodes.

Each forward carries, beside the n-grams to verify, a window of guesses that Jacobi iteration improves: a trunk of W tokens that
may follow, and behind each trunk token the tokens that earlier forwards gave for its later levels. All of it is one token
tree: the guess of level r behind trunk token i stands at depth i + 1 + r. What the forward chooses behind the last level
completes W new n-grams for the pool. Knows nothing of models or grammars; needs no second model and no training.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import ROOT, TokenTree

POOL = 512  # first tokens remembered per request
PER_TOKEN = 4  # n-grams per first token


class NgramPool:
    """What came after a token, the latest last; bounded, the least recently used first token goes."""

    def __init__(self) -> None:
        self._tails: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def add(self, first: int, tail: tuple[int, ...]) -> None:
        tails = self._tails.setdefault(first, OrderedDict())
        self._tails.move_to_end(first)
        tails[tail] = None
        tails.move_to_end(tail)
        if len(tails) > PER_TOKEN:
            tails.popitem(last=False)
        if len(self._tails) > POOL:
            self._tails.popitem(last=False)

    def after(self, first: int) -> list[tuple[int, ...]]:
        """Tails, the latest first."""
        return list(reversed(self._tails.get(first, ())))


@dataclass
class _State:
    pool: NgramPool = field(default_factory=NgramPool)
    levels: list[list[int]] = field(default_factory=list)  # levels[0] the trunk, each W tokens
    columns: list[list[int]] = field(default_factory=list)  # nodes of the tree just proposed: by trunk token, the trunk node first


class LookaheadProposer:
    """window: trunk tokens W.   ngram: length N of the n-grams, so N - 1 levels.   verify: n-grams from the pool per forward."""

    name = "lookahead"
    features = 0
    wants_choices = True

    def __init__(self, window: int = 4, ngram: int = 4, verify: int = 2) -> None:
        self._window, self._ngram, self._verify = window, ngram, verify

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        state = request.draft_state
        if not isinstance(state, _State):
            recent = request.tokens[-self._window :]
            state = request.draft_state = _State(levels=[[recent[i % len(recent)] for i in range(self._window)]])
        tails = state.pool.after(request.tokens[-1])[: self._verify]
        tree = TokenTree()
        for tail in tails:
            tree.extend(ROOT, tail[: limit - len(tree)], kind=1)
        state.columns = []
        if len(tree) + self._window * len(state.levels) <= limit:
            trunk = ROOT
            for i in range(self._window):
                trunk = tree.add(trunk, state.levels[0][i])
                column = [trunk]
                for level in state.levels[1:]:
                    column.append(tree.add(column[-1], level[i]))
                state.columns.append(column)
        return tree

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        state = request.draft_state
        if not isinstance(state, _State) or not state.columns or state.columns[-1][-1] + 1 >= len(chosen):
            return
        fresh = [chosen[column[-1] + 1] for column in state.columns]
        if len(state.levels) == self._ngram - 1:
            for column, new in zip(state.columns, fresh, strict=True):
                words = [tree.tokens[node] for node in column] + [new]
                state.pool.add(words[0], tuple(words[1:]))
            state.levels.pop(0)  # level r now stands where level r - 1 did: the text has moved on by one token
        state.levels.append(fresh)

    def release(self, request: Draftable) -> None:
        request.draft_state = None
