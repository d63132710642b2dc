"""How long the words of a language are, where that takes a search over its states. Knows nothing of what they are for."""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.derive import derive
from agentkit.grammars.core.layout import EMPTY, H_SCRATCH_TOP, H_STATUS, INFINITE, MAX_STATES, N_MARK, N_PLACE, TOO_MANY_STATES
from agentkit.grammars.core.nodes import fresh_epoch, get, nullable, push, put, reg, scratch, scratch_set, top_of
from agentkit.grammars.core.step import step

MANY_LETTERS = 256  # words longer than this are not counted


@inner
def shortest_word(mem, node):
    """Length of the shortest text of an intersection or complement: breadth-first over derivatives."""
    if nullable(mem, node):
        return 0
    epoch, base = fresh_epoch(mem), top_of(mem)
    push(mem, node)
    put(mem, node, N_MARK, epoch)
    level_end, distance, at = base + 1, 1, base
    found = -1
    while at < top_of(mem) and found < 0 and reg(mem, H_STATUS) == 0:
        if at == level_end:
            distance += 1
            level_end = top_of(mem)
        current = scratch(mem, at)
        at += 1
        for byte in range(256):
            following = derive(mem, current, byte)
            if following == EMPTY or get(mem, following, N_MARK) == epoch:
                continue
            if nullable(mem, following):
                found = distance
                break
            put(mem, following, N_MARK, epoch)
            push(mem, following)
        if top_of(mem) - base > MAX_STATES:
            mem[H_STATUS] = TOO_MANY_STATES
    mem[H_SCRATCH_TOP] = base
    return found if found >= 0 else INFINITE


@inner
def length_of_many(mem, language, rank):
    """(Length below which `language` has `rank` words or more, 1), or if it has fewer (length of its longest word, 0; -1: none).

    Words are counted by length, with one counter per state that words of that length lead to.
    """
    base = top_of(mem)
    push(mem, language)
    push(mem, 1)
    length, words, longest = 0, 0, -1
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        end = top_of(mem)
        for at in range(base, end, 2):
            if nullable(mem, scratch(mem, at)):
                words, longest = words + scratch(mem, at + 1), length
        if words >= rank or length >= MANY_LETTERS:
            mem[H_SCRATCH_TOP] = base
            return longest, 1 if words >= rank else 0
        epoch = fresh_epoch(mem)
        for at in range(base, end, 2):
            for byte in range(256):
                following = step(mem, scratch(mem, at), byte)
                if following == EMPTY or reg(mem, H_STATUS):
                    continue
                if get(mem, following, N_MARK) != epoch:
                    put(mem, following, N_MARK, epoch)
                    put(mem, following, N_PLACE, top_of(mem) - end)
                    push(mem, following)
                    push(mem, 0)
                    if reg(mem, H_STATUS):
                        continue
                slot = end + get(mem, following, N_PLACE) + 1
                scratch_set(mem, slot, min(scratch(mem, slot) + scratch(mem, at + 1), rank))
        left = top_of(mem) - end
        for k in range(left):
            scratch_set(mem, base + k, scratch(mem, end + k))
        mem[H_SCRATCH_TOP] = base + left
        length += 1
    mem[H_SCRATCH_TOP] = base
    return longest, 0
