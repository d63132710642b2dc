"""The shortest completion of a text, and how many tokens the model's own tokenizer would give it.

The budget guard counts the fewest tokens that can spell a completion, which is what its masks can still enforce. A
budget that a caller chooses is another matter: it is counted as the tokenizer counts, or a limit that fits no ordinary
writing of the shortest text would be accepted and then met by odd splits. Input: an arena and a state. Knows nothing of
matchers.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.grammars.arena import Arena

__all__ = ["canonical_count"]


def canonical_count(arena: Arena, state: int) -> int | None:
    """Tokens that the tokenizer gives the shortest completion; None where it cannot spell it as it is."""
    vocabulary, count = arena.vocabulary, 0
    for special, run in groupby(arena.shortest_completion(state).tolist(), key=lambda symbol: symbol >= 256):
        symbols = list(run)
        if special:
            count += len(symbols)
            continue
        text = bytes(symbols)
        ids = vocabulary.encode_bytes(text)
        if b"".join(map(vocabulary.text_of, ids)) != text:
            return None
        count += len(ids)
    return count
