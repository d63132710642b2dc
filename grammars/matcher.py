"""A matcher: one text being written under a grammar, token by token.

Its whole state is one node number of an arena; states never change, so rollback and fork are assignments. Knows
the vocabulary and the grammar, nothing of models or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.errors import BudgetTooSmall, GrammarViolation, NoTokenPath
from agentkit.grammars.completion import canonical_count
from agentkit.grammars.core import layout
from agentkit.grammars.forced import CONTEXT, canonical_tokens
from agentkit.grammars.rows import fill_row

if TYPE_CHECKING:
    from agentkit.grammars.arena import Arena
    from agentkit.grammars.grammar import Grammar
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Matcher"]

_FORCED_KEPT = 1 << 14  # forced runs that an arena remembers


class Matcher:
    """Position in a text; made by `Grammar.matcher(vocabulary)`. Belongs to one thread at a time."""

    __slots__ = ("_arena", "_finished", "_history", "_state", "_units", "grammar", "vocabulary")

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary, arena: Arena, state: int) -> None:
        self.grammar = grammar
        self.vocabulary = vocabulary
        self._arena = arena
        self._state = state
        self._finished = False
        self._history: list[int] = []  # states; a finished matcher's last one is the state it stopped in
        self._units: list[int | bytes] = []  # what was accepted, one per entry of the history

    @property
    def is_accepting(self) -> bool:
        """May the text end here?"""
        return not self._finished and self._arena.is_accepting(self._state)

    @property
    def is_finished(self) -> bool:
        """Has a stop token been accepted? The mask is all zero then and further tokens are ignored."""
        return self._finished

    @property
    def state(self) -> int:
        """Node number of the state: equal numbers in one arena mean equal futures."""
        return self._state

    @property
    def arena(self) -> Arena:
        """Where the states of this matcher lie."""
        return self._arena

    def is_guarded(self, remaining: int | None) -> bool:
        """Is `mask(remaining)` narrower than the state's own mask, since the end of the budget is near?"""
        return remaining is not None and not self._arena.fits(self._state, remaining - self.vocabulary.longest)

    def mask(self, remaining: int | None = None) -> np.ndarray:
        """Allowed tokens: read-only uint32 [ceil(width / 32)], bit i % 32 of word i // 32 for token i.

        Stop tokens are allowed exactly where `is_accepting`. Valid until the matcher moves.

        Args:
            remaining: tokens that may still be written, the next one included (the stop token does not count). Where
                that comes within a token's length of what the shortest completion takes, only tokens after which the
                text can still be completed stay: the budget guard. Farther off a token may still begin something
                long; check the one that was picked with `fits` and, if it does not, pick from `guarded_mask`.

        Raises:
            NoTokenPath: the grammar can go on, but no token of the vocabulary spells how.
        """
        if self._finished:
            return np.zeros(self.vocabulary.words, np.uint32)
        if remaining is not None and self.is_guarded(remaining):
            return self.guarded_mask(remaining)
        rows = self._arena.rows
        row = rows.masks.get(self._state)
        if row is None:
            return self._arena.mask(self._state, self.grammar)
        rows.hits += 1
        return row

    def guarded_mask(self, remaining: int) -> np.ndarray:
        """The mask without the tokens after which `remaining` - 1 more tokens could not complete the text; own memory."""
        return self._arena.guarded(self._state, remaining)

    def fill_mask(self, out: Any) -> None:
        """Copy the mask into `out`: an int32 or uint32 array or torch tensor of [ceil(width / 32)]; what is beyond is not allowed.

        Raises:
            TypeError, ValueError: `out` has other elements, or is too small.
        """
        fill_row(self, out)

    def allows(self, token_id: int) -> bool:
        """Could `token_id` come next? Does not move. Raises TypeError for what is no integer."""
        token_id = index(token_id)
        if self._finished or not 0 <= token_id < self.vocabulary.width:
            return False
        if token_id in self.vocabulary.stop_token_ids:
            return self.is_accepting
        return self._arena.advance_token(self._state, token_id) != layout.EMPTY

    def fits(self, token_id: int, remaining: int) -> bool:
        """Could the text still be completed if `token_id` came next, with `remaining` tokens left including it?"""
        if self._finished or token_id in self.vocabulary.stop_token_ids:
            return True
        following = self._arena.advance_token(self._state, token_id)
        return following != layout.EMPTY and self._arena.fits(following, remaining - 1)

    def accept(self, token_id: int) -> None:
        """Move on by a token; a stop token finishes. Ignored once finished.

        Raises:
            GrammarViolation: not allowed here; the state is unchanged.
            TypeError: not an integer (numpy's and torch's are).
        """
        token_id = index(token_id)
        if self._finished:
            return
        following = self._arena.advance_token(self._state, token_id) if 0 <= token_id < self.vocabulary.width else layout.EMPTY
        if following:
            self._history.append(self._state)
            self._units.append(token_id)
            self._state = following
        else:
            self._stop(token_id)

    def _stop(self, token_id: int) -> None:
        """Accept a token that is not text here: a stop token where the text may end, or refuse it."""
        if token_id not in self.vocabulary.stop_token_ids:
            text = self.vocabulary.tokens[token_id] if 0 <= token_id < len(self.vocabulary.tokens) else None
            raise GrammarViolation(f"token {token_id} ({text!r}) is not allowed here")
        if not self.is_accepting:
            raise GrammarViolation(f"stop token {token_id} is not allowed here: the text is not complete")
        self._history.append(self._state)
        self._units.append(token_id)
        self._finished = True

    def accept_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Move on by bytes, all or none; they may end inside a token or a character. One unit for `rollback`. A special token has
        no bytes: `accept` its id.

        Raises:
            GrammarViolation: not allowed here; the state is unchanged.
            TypeError: not bytes.
        """
        data = data if isinstance(data, bytes) else memoryview(data).tobytes()
        if self._finished:
            return
        following = self._arena.advance_bytes(self._state, data) or self._advance_any_bytes(data)
        if following == layout.EMPTY:
            raise GrammarViolation(f"the text {data[:80]!r}{'...' if len(data) > 80 else ''} is not allowed here")
        self._history.append(self._state)
        self._units.append(data)
        self._state = following

    def _advance_any_bytes(self, data: bytes) -> int:
        """State after `data` where it holds bytes that no token has: the text so far, read again by the language of all bytes."""
        if self.vocabulary.alphabet.issuperset(data):
            return layout.EMPTY
        state = self._arena.root(self.grammar.program, every_byte=True)
        for unit in (*self._units, data):
            if state == layout.EMPTY:
                break
            state = self._arena.advance_token(state, unit) if isinstance(unit, int) else self._arena.advance_bytes(state, unit)
        return state

    def rollback(self, n: int = 1) -> None:
        """Undo the last `n` accepted tokens (or byte strings).

        Raises:
            ValueError: n is negative or larger than what has been accepted.
        """
        if not 0 <= n <= len(self._history):
            raise ValueError(f"cannot roll back {n} of {len(self._history)} accepted units")
        if n:
            self._state, self._finished = self._history[-n], False
            del self._history[-n:], self._units[-n:]

    def fork(self) -> Matcher:
        """An independent matcher at the same position."""
        twin = Matcher(self.grammar, self.vocabulary, self._arena, self._state)
        twin._finished = self._finished
        twin._history, twin._units = list(self._history), list(self._units)
        return twin

    def forced_bytes(self) -> bytes:
        """The bytes that must come next, as far as the grammar leaves no choice."""
        return b"" if self._finished else self._arena.forced_bytes(self._state)

    def forced_tokens(self, before: Sequence[int | bytes] | None = None) -> list[int]:
        """The tokens that must come next, split as the model's own tokenizer would; empty if there is a choice. A special token
        that must come is one too.

        Only tokens that the tokenizer gives whatever follows: one that the text after the forced stretch could merge with
        is left out (see forced.py). Where the text ends with the stretch, all of it is returned.

        Args:
            before: the last tokens of the text so far, so that the split is the one in context. Default: what this
                matcher has accepted.
        """
        written = self._units if before is None else before
        key = (self._state, *written[-CONTEXT:])
        known = self._arena.forced.get(key)
        if known is None:
            if len(self._arena.forced) >= _FORCED_KEPT:
                self._arena.forced.clear()
            known = self._arena.forced[key] = self._forced_tokens(written)
        return [] if self._finished else list(known)

    def _forced_tokens(self, written: Sequence[int | bytes]) -> list[int]:
        forced = self._arena.forced_bytes(self._state)
        if not forced:
            return self._forced_special(self._state)
        state = self._arena.advance_bytes(self._state, forced)
        ends = self._arena.is_final(state) or bool(self._forced_special(state))  # no text merges with a special token
        follows = None if ends else lambda more: self._arena.advance_bytes(state, more) != layout.EMPTY
        return canonical_tokens(self.vocabulary, forced, written, follows)

    def _forced_special(self, state: int) -> list[int]:
        """The special token that must come next, if one must."""
        if not self.grammar.program.specials or self._arena.is_accepting(state):
            return []
        bits = np.flatnonzero(np.unpackbits(self._arena.mask(state).view(np.uint8), bitorder="little"))
        return bits.tolist() if len(bits) == 1 and int(bits[0]) in self.vocabulary.special_tokens.values() else []

    def completion_tokens(self) -> int:
        """Upper bound on the tokens that complete the text from here; 0 if it may end here.

        The fewest tokens that spell the shortest completion: what the budget guard's masks can still enforce.

        Raises:
            NoTokenPath: no tokens of the vocabulary spell the shortest completion.
        """
        if self._finished:
            return 0
        needed = self._arena.tokens_needed(self._state)
        if needed >= layout.INFINITE:
            raise NoTokenPath("no tokens of the vocabulary spell the shortest completion of the text")
        return needed

    def check_budget(self, budget: int) -> None:
        """Can the text be completed within `budget` tokens (a stop token does not count), as the tokenizer counts them?

        This counts the shortest completion in the tokenizer's own split, not in the fewest tokens that could spell it: a
        limit that only an odd split could meet is refused.

        Raises:
            BudgetTooSmall: no.
            NoTokenPath: no tokens of the vocabulary spell the shortest completion.
        """
        needed = self.completion_tokens()
        if needed <= budget < self._arena.bytes_needed(self._state):  # else even one token a byte would fit
            known = self._arena.completions
            if self._state not in known:
                known[self._state] = canonical_count(self._arena, self._state) or needed
            needed = known[self._state]
        if needed > budget:
            raise BudgetTooSmall(needed, budget)
