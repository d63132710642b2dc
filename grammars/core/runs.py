"""Runs of characters: which tokens stay inside `c{lo,hi}`, and where the others leave it.

One walk of the token trie per kind of character and following byte serves every bound and every continuation: the
tokens that stay inside are kept as cumulative bank rows by the number of characters they begin, the places where a
token leaves the run as a list that is walked on against whatever follows.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.derive import first_bytes, step
from agentkit.grammars.core.layout import (
    EMPTY,
    EPSILON,
    FULL_BANK,
    FULL_SCRATCH,
    H_BANK_USED,
    H_SCRATCH,
    H_SCRATCH_CAP,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_C,
    N_HEAD,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_IDS,
    V_MAX_DEPTH,
    V_NODES,
    V_ROOT,
    V_SKIP,
    V_TOKENS,
)
from agentkit.grammars.core.nodes import get, nullable, pool, pool_set, pool_take, push, put, reg, scratch, top_of, voc_at
from agentkit.grammars.jit import inner

# a run record in the pool: next record, byte that follows the run (256: nothing), distinct character counts, exits,
# then (count, bank row) per distinct count ascending, then (trie node, count) per exit
R_NEXT, R_BYTE, R_COUNTS, R_EXITS, R_DATA = 0, 1, 2, 3, 4
NOT_A_RUN = -1  # R_COUNTS of a repeat whose items are not self-delimiting

MAX_FOLLOWERS = 4  # more possible bytes after a run: walk it as it is


@inner
def add_tokens(voc, row, node):
    first = reg(voc, V_FIRST) + node
    for k in range(reg(voc, first), reg(voc, first + 1)):
        token = voc_at(voc, V_IDS, k)
        row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@inner
def walk(mem, voc, row, start, end, depth, state):
    """Add to `row` every token of the trie nodes start..end (all below one node at `depth` - 1) that `state` can read."""
    at_byte, at_depth, at_skip = reg(voc, V_BYTE), reg(voc, V_DEPTH), reg(voc, V_SKIP)
    base = top_of(mem)
    if base + reg(voc, V_MAX_DEPTH) + 2 >= reg(mem, H_SCRATCH_CAP):
        mem[H_STATUS] = FULL_SCRATCH
        return
    mem[H_SCRATCH_TOP] = base + reg(voc, V_MAX_DEPTH) + 2
    states = reg(mem, H_SCRATCH) + base - depth
    mem[states + depth] = state
    i = start
    while i < end:
        d = reg(voc, at_depth + i)
        following = step(mem, reg(mem, states + d), reg(voc, at_byte + i))
        if following == EMPTY:
            if reg(mem, H_STATUS):
                break
            i = reg(voc, at_skip + i)
            continue
        mem[states + d + 1] = following
        add_tokens(voc, row, i)
        i += 1
    mem[H_SCRATCH_TOP] = base


@inner
def walk_all(mem, voc, row, state):
    """Add to `row` every token that `state` can read, looking only below the bytes that may come first."""
    base = top_of(mem)
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, state, base)
    for byte in range(256):
        if (scratch(mem, base + (byte >> 5)) >> (byte & 31)) & 1:
            node = voc_at(voc, V_ROOT, byte)
            following = step(mem, state, byte) if node >= 0 else EMPTY
            if following != EMPTY:
                add_tokens(voc, row, node)
                end = voc_at(voc, V_SKIP, node)
                if end > node + 1:
                    walk(mem, voc, row, node + 1, end, 1, following)
    mem[H_SCRATCH_TOP] = base


@inner
def _walk_run(mem, voc, item, byte, counts, exits):
    """One walk inside item*: counts[token] = items begun (0: not inside); exits: (node, items complete). Number of exits, -1: not a run."""
    depth_cap = reg(voc, V_MAX_DEPTH) + 2
    states, begun = np.empty(depth_cap, np.int32), np.zeros(depth_cap, np.int32)
    states[0] = EPSILON
    found, i, end = 0, 0, reg(voc, V_NODES)
    while i < end:
        d, b = voc_at(voc, V_DEPTH, i), voc_at(voc, V_BYTE, i)
        state, count = np.int64(states[d]), np.int64(begun[d])
        if state == EPSILON:
            if b == byte:
                exits[found, 0], exits[found, 1] = i, count
                found += 1
            state, count = item, count + 1
        following = step(mem, state, b)
        if reg(mem, H_STATUS):
            return 0
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        if following != EPSILON and nullable(mem, following):
            return -1
        states[d + 1], begun[d + 1] = following, count
        first = reg(voc, V_FIRST) + i
        for k in range(reg(voc, first), reg(voc, first + 1)):
            counts[voc_at(voc, V_IDS, k)] = count
        i += 1
    return found


@inner
def _count_rows(mem, rows, record, counts, histogram):
    """Cumulative rows: bank row k of the record holds the tokens with at most the k-th distinct count."""
    index = np.full(histogram.shape[0], -1, np.int32)
    used = reg(mem, H_BANK_USED)
    distinct = 0
    for n in range(1, histogram.shape[0]):
        if histogram[n]:
            index[n] = distinct
            rows[used + distinct] = 0
            pool_set(mem, record + R_DATA + 2 * distinct, n)
            pool_set(mem, record + R_DATA + 2 * distinct + 1, used + distinct)
            distinct += 1
    for token in range(counts.shape[0]):
        if counts[token]:
            rows[used + index[counts[token]], token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(1, distinct):
        for w in range(rows.shape[1]):
            rows[used + k, w] |= rows[used + k - 1, w]
    mem[H_BANK_USED] = used + distinct


@inner
def _build_run(mem, voc, rows, item, byte):
    """Make the record of runs of `item` followed by `byte` and hang it onto the item. Returns its pool offset, -1 on status."""
    counts = np.zeros(reg(voc, V_TOKENS), np.int32)
    exits = np.empty((reg(voc, V_NODES), 2), np.int32)
    found = _walk_run(mem, voc, item, byte, counts, exits)
    if reg(mem, H_STATUS):
        return -1
    histogram = np.zeros(reg(voc, V_MAX_DEPTH) + 2, np.int32)
    if found >= 0:
        for token in range(counts.shape[0]):
            histogram[counts[token]] += 1
    distinct = 0
    for n in range(1, histogram.shape[0]):
        distinct += 1 if histogram[n] else 0
    if reg(mem, H_BANK_USED) + distinct > rows.shape[0]:
        mem[H_STATUS] = FULL_BANK
        return -1
    record = pool_take(mem, R_DATA + 2 * distinct + 2 * max(found, 0))
    if record < 0:
        return -1
    pool_set(mem, record + R_NEXT, get(mem, item, N_HEAD))
    pool_set(mem, record + R_BYTE, byte)
    pool_set(mem, record + R_COUNTS, distinct if found >= 0 else NOT_A_RUN)
    pool_set(mem, record + R_EXITS, max(found, 0))
    _count_rows(mem, rows, record, counts, histogram)
    place = record + R_DATA + 2 * distinct
    for k in range(found):
        pool_set(mem, place + 2 * k, np.int64(exits[k, 0]))
        pool_set(mem, place + 2 * k + 1, np.int64(exits[k, 1]))
    put(mem, item, N_HEAD, record)
    return record


@inner
def run_record(mem, voc, rows, item, byte):
    record = get(mem, item, N_HEAD)
    while record:
        if pool(mem, record + R_BYTE) == byte:
            return record
        record = pool(mem, record + R_NEXT)
    return _build_run(mem, voc, rows, item, byte)


@inner
def add_inside(mem, rows, row, record, hi):
    """Tokens that stay inside a run of at most `hi` items."""
    best = -1
    for k in range(pool(mem, record + R_COUNTS)):
        if hi >= 0 and pool(mem, record + R_DATA + 2 * k) > hi:
            break
        best = pool(mem, record + R_DATA + 2 * k + 1)
    if best >= 0:
        for w in range(row.shape[0]):
            row[w] |= rows[best, w]


@inner
def _followers(mem, node):
    """Bytes that may begin `node`, left in scratch from the old top on (the caller resets it); their number, or -1 if too many."""
    base = top_of(mem)
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, node, base)
    count = 0
    for byte in range(256):
        if (scratch(mem, base + (byte >> 5)) >> (byte & 31)) & 1:
            push(mem, byte)
            count += 1
            if count > MAX_FOLLOWERS:
                return -1
    return count


@inner
def add_run(mem, voc, rows, row, head, rest):
    """Tokens of `head rest` that begin inside the run `head`. False if it is not a run that can be treated so."""
    item, lo, hi = get(mem, head, N_A), get(mem, head, N_B), get(mem, head, N_C)
    base = top_of(mem)
    count = _followers(mem, rest)
    if count < 0:
        mem[H_SCRATCH_TOP] = base
        return False
    ok = True
    for f in range(max(count, 1)):
        byte = scratch(mem, base + 8 + f) if count else 256
        record = run_record(mem, voc, rows, item, byte)
        if record < 0 or pool(mem, record + R_COUNTS) == NOT_A_RUN:
            ok = record < 0
            break
        if f == 0:
            add_inside(mem, rows, row, record, hi)
        state = step(mem, rest, byte) if count else EMPTY
        if state == EMPTY:
            continue
        at = record + R_DATA + 2 * pool(mem, record + R_COUNTS)
        for k in range(pool(mem, record + R_EXITS)):
            node, items = pool(mem, at + 2 * k), pool(mem, at + 2 * k + 1)
            if items >= lo and (hi < 0 or items <= hi):
                add_tokens(voc, row, node)
                end = voc_at(voc, V_SKIP, node)
                if end > node + 1:
                    walk(mem, voc, row, node + 1, end, voc_at(voc, V_DEPTH, node) + 1, state)
    mem[H_SCRATCH_TOP] = base
    return ok
