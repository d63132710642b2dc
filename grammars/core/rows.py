"""The row of a state's mask in the bank, made if it is not there yet.

Rows are shared as far as they can be: by states whose counters no token can tell apart, by states which differ only in what items have been
written before, and by all states with equal masks. Knows nothing of how masks are made.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.combine import mk_and
from agentkit.grammars.core.decorators import INT, INTS, ROW, ROWS, inner, kernel
from agentkit.grammars.core.heads import reach_of_head
from agentkit.grammars.core.layout import (
    A_AND,
    A_REPEAT,
    A_SEQ,
    DISTINCT,
    FULL_BANK,
    H_BANK_USED,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_C,
    N_MASK,
    N_OP,
    V_MAX_DEPTH,
)
from agentkit.grammars.core.masks import fill
from agentkit.grammars.core.nodes import flags_of, get, mix, mk_repeat, mk_seq, pool, push, put, reg, top_of
from agentkit.grammars.core.repeats import relaxed, without_repeats


@inner
def clip(mem, node, limit):
    """`node` with the counters of its first repeats replaced by what a token of at most `limit` bytes can tell apart."""
    op = get(mem, node, N_OP)
    if op == A_REPEAT:
        lo, hi = get(mem, node, N_B), get(mem, node, N_C)
        if hi > limit or lo > limit + 1:
            return mk_repeat(mem, get(mem, node, N_A), min(lo, limit + 1), -1 if hi < 0 or hi > limit else hi)
    elif op == A_SEQ:
        first, rest = get(mem, node, N_A), get(mem, node, N_B)
        following = get(mem, rest, N_A) if get(mem, rest, N_OP) == A_SEQ else rest
        clipped = clip(mem, first, limit)
        if get(mem, following, N_OP) == A_REPEAT and get(mem, following, N_C) > limit:
            shorter = clip(mem, following, limit)
            rest = mk_seq(mem, shorter, get(mem, rest, N_B)) if following != rest else shorter
        if clipped != first or rest != get(mem, node, N_B):
            return mk_seq(mem, clipped, rest)
    return node


@inner
def bank_slot(rows, index, row):
    """Slot in `index` of a row equal to `row`, or the free slot where it belongs."""
    a, b, c, d = np.int64(7046029254386353131), np.int64(1442695040888963407), np.int64(3935559000370003845), np.int64(2862933555777941757)
    whole = row.shape[0] & ~3
    for w in range(0, whole, 4):  # four at a time: the multiplications do not wait for each other
        a, b = mix(a, np.int64(row[w])), mix(b, np.int64(row[w + 1]))
        c, d = mix(c, np.int64(row[w + 2])), mix(d, np.int64(row[w + 3]))
    for w in range(whole, row.shape[0]):
        a = mix(a, np.int64(row[w]))
    h = mix(mix(mix(a, b), c), d)
    mask = index.shape[0] - 1
    slot = (h >> 11) & mask
    while index[slot] >= 0:
        there = rows[index[slot]]
        same = True
        for w in range(row.shape[0]):
            if there[w] != row[w]:
                same = False
                break
        if same:
            break
        slot = (slot + 1) & mask
    return slot


@inner
def loosen(mem, node, limit):
    """`node` without the upper bounds above `limit` in the intersection it begins with, and the least of these; -1 if there is none.

    Its mask is that of `node` if the intersection can always end within that bound.
    """
    first = get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node
    if get(mem, first, N_OP) != A_AND:
        return node, -1
    base, least = top_of(mem), -1
    for i in range(get(mem, first, N_B)):
        member = pool(mem, get(mem, first, N_A) + i)
        if get(mem, member, N_OP) == A_REPEAT and get(mem, member, N_C) > limit:
            least = get(mem, member, N_C) if least < 0 else min(least, get(mem, member, N_C))
            member = mk_repeat(mem, get(mem, member, N_A), get(mem, member, N_B), -1)
        push(mem, member)
    if least < 0:
        mem[H_SCRATCH_TOP] = base
        return node, -1
    loose = mk_and(mem, base)
    return mk_seq(mem, loose, get(mem, node, N_B)) if first != node else loose, least


@inner
def _banked(mem, rows, index, work, state):
    """1 + bank row of `work`, which is the mask of `state`; 0 on status."""
    if 2 * (reg(mem, H_BANK_USED) + 1) > index.shape[0] or reg(mem, H_BANK_USED) >= rows.shape[0]:
        mem[H_STATUS] = FULL_BANK
        return 0
    slot = bank_slot(rows, index, work)
    if index[slot] < 0:
        index[slot] = reg(mem, H_BANK_USED)
        for w in range(work.shape[0]):  # an assignment of the whole costs numba two seconds, for the words of its error
            rows[reg(mem, H_BANK_USED), w] = work[w]
        mem[H_BANK_USED] += 1
    known = np.int64(index[slot]) + 1
    put(mem, state, N_MASK, known)
    return known


@inner
def _known_row(mem, voc, rows, fixed, index, work, state):
    """1 + bank row of the mask of `state`, computed if need be; 0 on status."""
    known = get(mem, state, N_MASK)
    if known:
        return known
    work[:] = 0
    fill(mem, voc, rows, fixed, work, state)
    return 0 if reg(mem, H_STATUS) else _banked(mem, rows, index, work, state)


@inner
def _plain_row(mem, voc, rows, fixed, index, work, state):
    """1 + bank row of the mask of a state with counters as far as tokens can tell them apart; 0 on status."""
    limit = reg(voc, V_MAX_DEPTH)
    short = clip(mem, state, limit)
    known = get(mem, short, N_MASK)
    if known == 0:
        loose, least = loosen(mem, short, limit)
        if least >= 0:
            known = _known_row(mem, voc, rows, fixed, index, work, loose)
            if reg(mem, H_STATUS):
                return 0
            if reach_of_head(mem, loose) + limit > least:
                known = 0
            else:
                put(mem, short, N_MASK, known)
    if known == 0:
        known = _known_row(mem, voc, rows, fixed, index, work, short)
    if reg(mem, H_STATUS):
        return 0
    put(mem, state, N_MASK, known)
    return known


@inner
def _distinct_row(mem, voc, rows, fixed, index, work, state):
    """The same of a state at which items are read that must differ."""
    loose = relaxed(mem, state)
    known = get(mem, loose, N_MASK)
    if known == 0:
        known = _plain_row(mem, voc, rows, fixed, index, work, loose)
    if reg(mem, H_STATUS):
        return 0
    for w in range(work.shape[0]):
        work[w] = rows[known - 1, w]
    without_repeats(mem, voc, work, state)
    if reg(mem, H_STATUS):
        return 0
    for w in range(work.shape[0]):
        if work[w] != rows[known - 1, w]:
            return _banked(mem, rows, index, work, state)
    put(mem, state, N_MASK, known)
    return known


@kernel(INTS, INTS, ROWS, ROWS, INTS, ROW, INT)
def mask_row(mem, voc, rows, fixed, index, work, state):
    """Bank row of `state`'s mask; -1 when H_STATUS says that something is full.

    fixed: rows that the arena began with, for runs only. work: a row of scratch.
    """
    known = get(mem, state, N_MASK)
    if known == 0 and flags_of(mem, state) & DISTINCT:
        known = _distinct_row(mem, voc, rows, fixed, index, work, state)
    elif known == 0:
        known = _plain_row(mem, voc, rows, fixed, index, work, state)
    return -1 if reg(mem, H_STATUS) else known - 1
