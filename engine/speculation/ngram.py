"""Prompt lookup: what followed the last time the text ended like this.

Input: the tokens of a request, prompt, tool results and output alike. A suffix automaton (Blumer et al. 1985) over them is
kept up to date token by token, O(1) amortised each; it knows the longest ending that occurred before and where. The idea is
prompt lookup decoding (Saxena 2023), the index that of SAM decoding (arXiv:2411.10666). Knows nothing of models or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import ROOT, TokenTree

MIN_MATCH = 1  # tokens; Pace finds out whether short matches pay


class SuffixIndex:
    """The suffix automaton of a growing token sequence.

    State s stands for a set of substrings that end at the same places; length[s] is the longest one's, link[s] the state of the
    longest suffix that ends at more places, next[s] the transitions, and last[s] the end of an occurrence, the latest that was asked for.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._last = [0]
        self._whole = 0  # state of the whole sequence

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._push(token)

    def _push(self, token: int) -> None:
        following, link, length = self._next, self._link, self._length
        self._note()
        self.tokens.append(token)
        new = self._state({}, 0, length[self._whole] + 1, len(self.tokens))
        p = self._whole
        while p != -1 and token not in following[p]:
            following[p][token] = new
            p = link[p]
        if p != -1:
            q = following[p][token]
            if length[p] + 1 == length[q]:
                link[new] = q
            else:
                clone = self._state(dict(following[q]), link[q], length[p] + 1, self._last[q])
                while p != -1 and following[p].get(token) == q:
                    following[p][token] = clone
                    p = link[p]
                link[q] = link[new] = clone
        self._whole = new

    def _state(self, following: dict[int, int], link: int, length: int, last: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._last.append(last)
        return len(self._next) - 1

    def _note(self) -> None:
        """Remembers the end of the sequence as the latest place of its repeated endings; called before they are left behind."""
        state = self._link[self._whole]
        if state > 0:
            self._last[state] = len(self.tokens)

    def matches(self) -> list[tuple[int, int]]:
        """(end, length) of earlier occurrences of the sequence's endings, the longest ending first, one place each.

        tokens[end - length : end] is that ending, and tokens[end:] what followed then.
        """
        found: list[tuple[int, int]] = []
        state = self._link[self._whole]
        while state > 0:
            end = self._last[state]
            if end < len(self.tokens):
                found.append((end, self._length[state]))
            state = self._link[state]
        return found


@dataclass
class _State:
    index: SuffixIndex


class NgramProposer:
    """Guesses that the text goes on as it did after the longest earlier match, and in a second branch after a shorter one."""

    name = "ngram"
    features = 0
    wants_choices = False

    def __init__(self, branches: int = 2) -> None:
        self._branches = branches

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        state = request.draft_state
        if not isinstance(state, _State):
            state = request.draft_state = _State(SuffixIndex())
        index = state.index
        if index.tokens != request.tokens[: len(index.tokens)]:
            index = state.index = SuffixIndex()  # the request was rewound
        index.extend(request.tokens[len(index.tokens) :])
        matches = [m for m in index.matches() if m[1] >= MIN_MATCH]
        if not matches:
            return TokenTree()
        tree = TokenTree(confidence=matches[0][1].bit_length())
        for end, _ in matches[: self._branches]:
            tree.extend(ROOT, index.tokens[end : end + limit - len(tree)])
        return tree

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing that is not in the tokens."""

    def release(self, request: Draftable) -> None:
        request.draft_state = None
