"""The shortest completion of a text, and how many tokens the model's own tokenizer would give it.

The budget guard counts the fewest tokens that can spell a completion, which is what its masks can still enforce. A
budget that a caller chooses is another matter: it is counted as the tokenizer counts, or a limit that fits no ordinary
writing of the shortest text would be accepted and then met by odd splits. Input: an arena and a state. Knows nothing of
matchers.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from agentkit.grammars.core import layout

if TYPE_CHECKING:
    from agentkit.grammars.arena import Arena

__all__ = ["canonical_count", "shortest_completion"]


def shortest_completion(arena: Arena, state: int) -> list[int | bytes]:
    """A shortest text (in bytes) that completes `state`: pieces of it, and ids of special tokens."""
    units: list[int | bytes] = []
    while not arena.is_accepting(state):
        forced = arena.forced_bytes(state)
        unit: int | bytes = forced or _nearest(arena, state)
        state = arena.advance_bytes(state, unit) if isinstance(unit, bytes) else arena.advance_token(state, unit)
        units.append(unit)
    return units


def _nearest(arena: Arena, state: int) -> int | bytes:
    """The first byte, or else special token, that brings the end nearer."""
    left = arena.bytes_needed(state)
    for byte in range(256):
        following = arena.advance_bytes(state, bytes([byte]))
        if following != layout.EMPTY and arena.bytes_needed(following) < left:
            return bytes([byte])
    for token in arena.vocabulary.special_tokens.values():
        following = arena.advance_token(state, token)
        if following != layout.EMPTY and arena.bytes_needed(following) < left:
            return token
    raise AssertionError("a state with a completion has a first step of it")


def canonical_count(arena: Arena, state: int) -> int | None:
    """Tokens that the tokenizer gives the shortest completion; None where it cannot spell it as it is."""
    vocabulary, count = arena.vocabulary, 0
    for special, run in groupby(shortest_completion(arena, state), key=lambda unit: isinstance(unit, int)):
        units = list(run)
        if special:
            count += len(units)
            continue
        text = b"".join(unit for unit in units if isinstance(unit, bytes))
        ids = vocabulary.encode_bytes(text)
        if b"".join(map(vocabulary.text_of, ids)) != text:
            return None
        count += len(ids)
    return count
