"""Runs of characters: which tokens stay inside `item{lo,hi}`.

One walk of the token trie per kind of item serves every bound and every continuation. Its record keeps the tokens that stay
inside as cumulative bank rows by the number of items they begin, and for each trie node how many items are complete there,
so that any continuation can be taken up where a token leaves the run.

    record on the item (N_HEAD): next record | ITEM | distinct counts, or NOT_A_RUN | (count, bank row) ascending ...
                                 | items complete at each trie node, one byte each (255: not there)
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    EMPTY,
    EPSILON,
    FULL_BANK,
    H_BANK_USED,
    H_STATUS,
    N_HEAD,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_IDS,
    V_MAX_DEPTH,
    V_NODES,
    V_PARENT,
    V_SKIP,
    V_TOKENS,
)
from agentkit.grammars.core.nodes import get, nullable, pool, pool_set, pool_take, put, reg, voc_at
from agentkit.grammars.core.step import step

R_NEXT, R_KEY, R_COUNTS, R_DATA = 0, 1, 2, 3
ITEM = -1  # R_KEY of these records; other records on the same node are those of heads.py
NOT_A_RUN = -1  # R_COUNTS of an item that is not self-delimiting
NOWHERE = 255
NO_ROW = -(1 << 30)


@inner
def find_record(mem, node, key):
    """The record `key` on `node`, 0 if there is none."""
    record = get(mem, node, N_HEAD)
    while record and pool(mem, record + R_KEY) != key:
        record = pool(mem, record + R_NEXT)
    return record


@inner
def hang_record(mem, node, record, key):
    pool_set(mem, record + R_NEXT, get(mem, node, N_HEAD))
    pool_set(mem, record + R_KEY, key)
    put(mem, node, N_HEAD, record)


@inner
def _walk_run(mem, voc, item, counts, complete):
    """One walk inside item*: counts[token] = items begun (0: not inside); complete[node]: items complete there. False: not a run."""
    depth_cap = reg(voc, V_MAX_DEPTH) + 2
    states, begun = np.empty(depth_cap, np.int32), np.zeros(depth_cap, np.int32)
    states[0] = EPSILON
    i, end = 0, reg(voc, V_NODES)
    while i < end:
        d = voc_at(voc, V_DEPTH, i)
        state, count = np.int64(states[d]), np.int64(begun[d])
        if state == EPSILON:
            state, count = item, count + 1
        following = step(mem, state, voc_at(voc, V_BYTE, i))
        if reg(mem, H_STATUS):
            return False
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        if following == EPSILON:
            complete[i] = count
        elif nullable(mem, following):
            return False
        states[d + 1], begun[d + 1] = following, count
        first = reg(voc, V_FIRST) + i
        for k in range(reg(voc, first), reg(voc, first + 1)):
            counts[voc_at(voc, V_IDS, k)] = count
        i += 1
    return True


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
def item_record(mem, voc, rows, item):
    """The record of runs of `item`, made if it is not there yet. Its pool offset, -1 on status."""
    record = find_record(mem, item, ITEM)
    if record:
        return record
    counts = np.zeros(reg(voc, V_TOKENS), np.int32)
    size = (reg(voc, V_NODES) + 3) // 4
    complete = np.full(4 * size, NOWHERE, np.uint8)
    is_run = reg(voc, V_MAX_DEPTH) < NOWHERE and _walk_run(mem, voc, item, counts, complete)
    if reg(mem, H_STATUS):
        return -1
    histogram = np.zeros(reg(voc, V_MAX_DEPTH) + 2, np.int32)
    distinct = 0
    if is_run:
        for token in range(counts.shape[0]):
            histogram[counts[token]] += 1
        for n in range(1, histogram.shape[0]):
            distinct += 1 if histogram[n] else 0
    if reg(mem, H_BANK_USED) + distinct > rows.shape[0]:
        mem[H_STATUS] = FULL_BANK
        return -1
    record = pool_take(mem, R_DATA + 2 * distinct + (size if is_run else 0))
    if record < 0:
        return -1
    hang_record(mem, item, record, ITEM)
    pool_set(mem, record + R_COUNTS, distinct if is_run else NOT_A_RUN)
    if is_run:
        _count_rows(mem, rows, record, counts, histogram)
        at = record + R_DATA + 2 * distinct
        for k in range(size):
            word = np.int64(complete[4 * k]) | np.int64(complete[4 * k + 1]) << 8 | np.int64(complete[4 * k + 2]) << 16
            pool_set(mem, at + k, word | (np.int64(complete[4 * k + 3]) - (256 if complete[4 * k + 3] > 127 else 0)) << 24)
    return record


@inner
def is_run(mem, record):
    return pool(mem, record + R_COUNTS) != NOT_A_RUN


@inner
def add_inside(mem, rows, fixed, row, record, hi):
    """Tokens that stay inside a run of at most `hi` items. A bank row -1 - k is row k of `fixed`."""
    best = NO_ROW
    for k in range(pool(mem, record + R_COUNTS)):
        if hi >= 0 and pool(mem, record + R_DATA + 2 * k) > hi:
            break
        best = pool(mem, record + R_DATA + 2 * k + 1)
    if best >= 0:
        for w in range(row.shape[0]):
            row[w] |= rows[best, w]
    elif best != NO_ROW:
        for w in range(row.shape[0]):
            row[w] |= fixed[-1 - best, w]


@inner
def items_before(mem, voc, record, node):
    """Items that are complete in front of trie node `node`; -1 if an item is being written there, or the run has been left."""
    parent = voc_at(voc, V_PARENT, node)
    if parent < 0:
        return 0
    word = pool(mem, record + R_DATA + 2 * pool(mem, record + R_COUNTS) + (parent >> 2))
    count = (word >> (8 * (parent & 3))) & 255
    return -1 if count == NOWHERE else count
