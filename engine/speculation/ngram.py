"""Prompt lookup: what followed the last time the text ended like this.

Input: the tokens of a request, prompt, tool results and output alike. A suffix automaton (Blumer et al. 1985) over them is
kept up to date token by token, O(1) amortised each; it knows the longest ending that occurred before and where. The idea is
prompt lookup decoding (Saxena 2023), the index that of SAM decoding (arXiv:2411.10666). How sure a guess is, the automaton tells, too: by how
long the match is, and by how long an ending has ever been followed by something else. Knows nothing of models or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import ROOT, TokenTree


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

    def match(self) -> tuple[int, int] | None:
        """(end, length) of an earlier occurrence of the longest ending that has one: tokens[end - length : end] is that ending."""
        state = self._link[self._whole]
        if state <= 0 or self._last[state] == len(self.tokens):
            return None
        return self._last[state], self._length[state]

    def following(self, limit: int) -> list[tuple[int, int, int]]:
        """What followed the match, at most `limit` tokens, as it would go on if it came so again: where it runs into the end, from the beginning.

        Each as (token, length of the match by then, length of the longest ending by then that also has been followed by other tokens).
        """
        found = self.match()
        if found is None:
            return []
        end, length = found
        period = len(self.tokens) - end
        out: list[tuple[int, int, int]] = []
        state = self._link[self._whole]
        for i in range(limit):
            token = self.tokens[end + i % period]
            doubtful = state
            while doubtful > 0 and len(self._next[doubtful]) < 2:
                doubtful = self._link[doubtful]
            out.append((token, length + i, min(self._length[doubtful], length + i)))
            while token not in self._next[state]:
                state = self._link[state]
            state = self._next[state][token]
        return out


@dataclass
class _State:
    index: SuffixIndex


class NgramProposer:
    """Guesses that the text goes on as it did after the longest earlier match."""

    name = "ngram"
    features = 0
    wants_choices = False

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        state = request.draft_state
        if not isinstance(state, _State):
            state = request.draft_state = _State(SuffixIndex())
        index = state.index
        if index.tokens != request.tokens[: len(index.tokens)]:
            index = state.index = SuffixIndex()  # the request was rewound
        index.extend(request.tokens[len(index.tokens) :])
        tree, node = TokenTree(), ROOT
        for token, match, doubtful in index.following(limit):
            node = tree.add(node, token, kind=_kind(match, doubtful))
        return tree

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing that is not in the tokens."""

    def release(self, request: Draftable) -> None:
        request.draft_state = None


def _kind(match: int, doubtful: int) -> int:
    """By how much longer the match is than what has been followed otherwise, and by how long that is."""
    return 8 * min((match - doubtful).bit_length(), 6) + 7 - min(doubtful.bit_length(), 4)
