"""The entry points that Python calls; everything else in this package is inlined into them.

All take the arena and the vocabulary as int32 arrays and leave H_STATUS set when they stopped early: a full section
(enlarge it and call again) or a passed limit. Nothing is half-done then: nodes are only ever added.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import BYTES, INT, INTS, OUT_BYTES, ROWS, inner, kernel
from agentkit.grammars.core.derive import memo_store
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import (
    A_ALT,
    A_AND,
    A_BYTES,
    A_KEYSET,
    A_LIST,
    EMPTY,
    H_BANK_USED,
    H_HASH,
    H_HASH_MASK,
    H_MEMO,
    H_MEMO_COUNT,
    H_MEMO_MASK,
    H_NODE_COUNT,
    H_NODES,
    H_POOL,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_HEAD,
    N_MASK,
    N_OP,
    STRIDE,
    V_BYTES,
    V_SPECIAL_COUNT,
    V_SPECIALS,
    V_START,
)
from agentkit.grammars.core.nodes import fixed_hash, get, list_hash, nullable, pool, pool_set, push, put, reg, scratch, top_of, voc_at
from agentkit.grammars.core.rows import bank_slot
from agentkit.grammars.core.runs import ITEM, R_COUNTS, R_DATA, R_KEY, R_NEXT
from agentkit.grammars.core.step import step


@kernel(INTS, INT, BYTES)
def advance_bytes(mem, state, data):
    """State after the bytes `data`; EMPTY if they are not allowed (or H_STATUS is set)."""
    for k in range(data.shape[0]):
        state = step(mem, state, np.int64(data[k]))
        if state == EMPTY:
            break
    return state


@kernel(INTS, INT, INTS)
def successors(mem, state, out):
    """Fills `out` [256] with the state after each byte, EMPTY where it is not allowed (or H_STATUS is set)."""
    for byte in range(256):
        out[byte] = step(mem, state, byte)
        if reg(mem, H_STATUS):
            break


@kernel(INTS, INTS, INT, INT)
def advance_token(mem, voc, state, token):
    """State after `token`; EMPTY if it is not allowed (or H_STATUS is set). Tokens without bytes are special symbols."""
    start, end = voc_at(voc, V_START, token), voc_at(voc, V_START, token + 1)
    if start == end:
        for k in range(reg(voc, V_SPECIAL_COUNT)):
            if voc_at(voc, V_SPECIALS, k) == token:
                return step(mem, state, 256 + k)
        return EMPTY
    for k in range(reg(voc, V_BYTES) + start, reg(voc, V_BYTES) + end):
        state = step(mem, state, reg(voc, k))
        if state == EMPTY:
            break
    return state


@kernel(INTS, INTS, INT, OUT_BYTES)
def forced_bytes(mem, voc, state, out):
    """The bytes that must follow, as long as there is exactly one choice and the text may not end; their number."""
    count = 0
    while count < out.shape[0] and not nullable(mem, state) and reg(mem, H_STATUS) == 0:
        base = top_of(mem)
        for _ in range(8):
            push(mem, 0)
        first_bytes(mem, state, base)
        only, following = -1, EMPTY
        for byte in range(256):
            if (scratch(mem, base + (byte >> 5)) >> (byte & 31)) & 1:
                after = step(mem, state, byte)
                if after != EMPTY:
                    if only >= 0:
                        only = -2
                        break
                    only, following = byte, after
        mem[H_SCRATCH_TOP] = base
        if only < 0:
            break
        for k in range(reg(voc, V_SPECIAL_COUNT)):
            if voc_at(voc, V_SPECIALS, k) >= 0 and step(mem, state, 256 + k) != EMPTY:
                only = -1
        if only < 0:
            break
        out[count] = only
        count += 1
        state = following
    return count


@kernel(INTS, INTS, INT)
def rehash(old, new, memo):
    """Fill the empty hash and memo tables of `new` from the nodes and memo entries of `old` (sections already copied); memo: 0 without the memo."""
    table, mask = reg(new, H_HASH), reg(new, H_HASH_MASK)
    for node in range(3, new[H_NODE_COUNT]):
        at = reg(new, H_NODES) + node * STRIDE
        op, a, b = reg(new, at + N_OP), reg(new, at + N_A), reg(new, at + N_B)
        if is_list(op):
            slot = list_hash(new, op, reg(new, H_POOL) + a, b) >> 7 & mask
        else:
            slot = fixed_hash(op, a, b, reg(new, at + 3), reg(new, at + 4), reg(new, at + 5), reg(new, at + 6)) >> 7 & mask
        while new[table + slot] > 0:
            slot = (slot + 1) & mask
        new[table + slot] = node
    new[H_MEMO_COUNT] = 0
    for k in range(old[H_MEMO_MASK] + 1 if memo else 0):
        at = old[H_MEMO] + 3 * k
        if old[at] > 0:
            memo_store(new, reg(old, at), reg(old, at + 1), reg(old, at + 2))


@inner
def is_list(op):
    """Nodes whose content stands in the pool."""
    return op == A_ALT or op == A_AND or op == A_KEYSET or op == A_BYTES or op == A_LIST


@kernel(INTS)
def forget_masks(mem):
    """Drop all references into the bank."""
    mem[H_BANK_USED] = 0
    for node in range(reg(mem, H_NODE_COUNT)):
        at = reg(mem, H_NODES) + node * STRIDE
        mem[at + N_MASK], mem[at + N_HEAD] = 0, 0


@kernel(INTS)
def settle(mem):
    """Make the arena one to begin others with: its masks are forgotten, and its runs name their bank rows as rows of `fixed`."""
    mem[H_BANK_USED] = 0
    for node in range(reg(mem, H_NODE_COUNT)):
        put(mem, node, N_MASK, 0)
        record = get(mem, node, N_HEAD)
        while record:
            if pool(mem, record + R_KEY) == ITEM:
                for k in range(pool(mem, record + R_COUNTS)):
                    at = record + R_DATA + 2 * k + 1
                    pool_set(mem, at, -1 - pool(mem, at))
            record = pool(mem, record + R_NEXT)


@kernel(ROWS, INTS, INTS)
def reindex(rows, old, new):
    """Enter the rows that `old` refers to into the larger index `new`."""
    for k in range(old.shape[0]):
        if old[k] >= 0:
            new[bank_slot(rows, new, rows[old[k]])] = old[k]


@kernel(BYTES, INTS, INTS, INTS, INTS, INTS, INTS, INTS)
def build_vocabulary(data, starts, ids, byte, depth, skip, parent, first):
    """Token trie in depth-first order over tokens sorted by bytes (token k: data[starts[k]:starts[k + 1]], id ids[k]).

    Fills byte, depth, skip, parent [nodes] and first [nodes + 1]; returns the number of nodes. With empty arrays only counts.
    """
    count, previous = 0, 0
    path = np.empty(1 << 16, np.int32)
    length, fill = 0, byte.shape[0] > 0
    for k in range(ids.shape[0]):
        start, end = starts[k], starts[k + 1]
        common = 0
        while common < length and common < end - start and data[previous + common] == data[start + common]:
            common += 1
        if fill:
            for d in range(common, length):
                skip[path[d]] = count
        for d in range(common, end - start):
            path[d] = count
            if fill:
                byte[count], depth[count], first[count] = data[start + d], d, k
                parent[count] = path[d - 1] if d else -1
            count += 1
        if fill and count:
            first[count] = k + 1
        length, previous = end - start, start
    if fill:
        for d in range(length):
            skip[path[d]] = count
    return count
