"""Shortest completions as texts: which bytes, how many tokens.

`witness` spells a shortest text by always taking the byte that brings the end nearest, so the witness of a later state is the rest
of the witness of an earlier one. `least_tokens` is the least number of tokens that spell the witness: an upper bound on what a
state still needs, and the budget guard's measure.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import INT, INTS, inner, kernel
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import EMPTY, H_SCRATCH_TOP, H_STATUS, INFINITE, LOOKS, N_TOKENS, V_COMPLETE, V_FIRST, V_SPECIAL_COUNT, V_SPECIALS
from agentkit.grammars.core.nodes import flags_of, get, nullable, push, put, reg, scratch, top_of, voc_at
from agentkit.grammars.core.repeats import relaxed
from agentkit.grammars.core.search import need
from agentkit.grammars.core.step import step
from agentkit.grammars.core.walks import child_of

MAX_WITNESS = 1 << 18  # bytes; a longer shortest completion is not spelled: its tokens are taken for as many as its bytes


@inner
def witness(mem, voc, node, out):
    """Symbols of a shortest completion into `out`; returns their number, or -1 if none of at most len(out) is found."""
    length = 0
    while not nullable(mem, node):
        left = need(mem, node)
        if length >= out.shape[0] or left >= INFINITE or reg(mem, H_STATUS):
            return -1
        base, loose = top_of(mem), relaxed(mem, node)
        for _ in range(8):
            push(mem, 0)
        first_bytes(mem, node, base)
        best, best_need, best_node = -1, INFINITE, EMPTY
        for symbol in range(256 + reg(voc, V_SPECIAL_COUNT)):
            if symbol < 256:
                if (scratch(mem, base + (symbol >> 5)) >> (symbol & 31)) & 1 == 0:
                    continue
            elif voc_at(voc, V_SPECIALS, symbol - 256) < 0:
                continue
            if loose != node and need(mem, step(mem, loose, symbol)) >= left:
                continue  # without a search
            following = step(mem, node, symbol)
            if following == EMPTY:
                continue
            n = need(mem, following)
            if n < best_need:
                best, best_need, best_node = symbol, n, following
            if n < left and flags_of(mem, node) & LOOKS == 0:  # bytes are counted closely
                break
        mem[H_SCRATCH_TOP] = base
        if best < 0:
            return -1
        out[length] = best
        length += 1
        node = best_node
    return length


@inner
def fewest_tokens(voc, symbols, length):
    """Least number of tokens that spell symbols[:length]; INFINITE if none do."""
    best = np.full(length + 1, INFINITE, np.int64)
    best[length] = 0
    for i in range(length - 1, -1, -1):
        if symbols[i] >= 256:
            best[i] = 1 + best[i + 1]
            continue
        node = -1
        for k in range(i, length):
            if symbols[k] >= 256:
                break
            node = child_of(voc, node, np.int64(symbols[k]))
            if node < 0:
                break
            if voc_at(voc, V_FIRST, node) < voc_at(voc, V_FIRST, node + 1):
                best[i] = min(best[i], 1 + best[k + 1])
    return min(best[0], INFINITE)


@inner
def least_tokens(mem, voc, node):
    """Tokens that the witness of `node` takes (of a very long one, its bytes); INFINITE if it has none or no tokens spell it."""
    if nullable(mem, node):
        return 0
    known = get(mem, node, N_TOKENS)
    if known:
        return known - 1
    if need(mem, node) < MAX_WITNESS:
        symbols = np.empty(need(mem, node) * 2 + 64, np.int32)
        length = witness(mem, voc, node, symbols)
        result = fewest_tokens(voc, symbols, length) if length >= 0 else INFINITE
    else:
        result = need(mem, node) if reg(voc, V_COMPLETE) else INFINITE
    if reg(mem, H_STATUS) == 0:
        put(mem, node, N_TOKENS, result + 1)
    return result


@inner
def is_within(mem, voc, node, budget):
    """Can `node` be completed within `budget` tokens?"""
    if reg(voc, V_COMPLETE) and need(mem, node) <= budget:
        return True
    return least_tokens(mem, voc, node) <= budget


@kernel(INTS, INTS, INT)
def tokens_needed(mem, voc, node):
    return least_tokens(mem, voc, node)


@kernel(INTS, INTS, INT, INTS)
def shortest_text(mem, voc, node, out):
    """The witness of `node` as symbols into `out`; their number, or -1 if there is none of at most len(out)."""
    return witness(mem, voc, node, out)


@kernel(INTS, INTS, INT, INT)
def fits(mem, voc, node, budget):
    return is_within(mem, voc, node, budget)
