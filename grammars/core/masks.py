"""Which tokens may come next: walks of the token trie over derivatives.

A mask is the set of tokens whose bytes can be read from a state. Walking the whole trie is only done once per kind
of character run: for `c{lo,hi} rest` (a string's inside, free text) the tokens that stay inside the run are kept as
cumulative rows by the number of characters, and only those that leave it are walked on, against `rest`. So every
length bound and every continuation shares one walk. Rows are deduplicated by content in the bank. Knows nothing of
probabilities.
"""

from __future__ import annotations

import numpy as np

from ..jit import inner, kernel
from .derive import first_bytes, step
from .layout import (
    A_ALT,
    A_EXTRAKEY,
    A_REPEAT,
    A_SEQ,
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
    N_D,
    N_E,
    N_F,
    N_HEAD,
    N_MASK,
    N_OP,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_IDS,
    V_MAX_DEPTH,
    V_NODES,
    V_PARENT,
    V_SKIP,
    V_SPECIAL_COUNT,
    V_SPECIALS,
    V_STOP_COUNT,
    V_STOPS,
    V_TOKENS,
    WIDE,
)
from .nodes import flags_of, get, mix, mk_path, mk_repeat, mk_seq, nullable, pool, pool_set, pool_take, push, put, reg, scratch, top_of, voc_at
from .objects import can_close_extrakey, close_extrakey, find_path, may_collide, trie_child
from .search import fits

# a run record in the pool: next record, byte that follows the run (256: nothing), distinct character counts, exits,
# then (count, bank row) per distinct count ascending, then (trie node, count) per exit
R_NEXT, R_BYTE, R_COUNTS, R_EXITS, R_DATA = 0, 1, 2, 3, 4
NOT_A_RUN = -1  # R_COUNTS of a repeat whose items are not self-delimiting

MAX_FOLLOWERS = 4  # more possible bytes after a run: walk it as it is


@inner
def _add_tokens(voc, row, node):
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
        _add_tokens(voc, row, i)
        i += 1
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
    histogram[0] = 0
    distinct = 0
    for n in range(histogram.shape[0]):
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
    place = record + R_DATA
    for n in range(histogram.shape[0]):
        if histogram[n] == 0:
            continue
        row = reg(mem, H_BANK_USED)
        mem[H_BANK_USED] = row + 1
        if place > record + R_DATA:
            rows[row] = rows[row - 1]
        else:
            rows[row] = 0
        for token in range(counts.shape[0]):
            if counts[token] == n:
                rows[row, token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        pool_set(mem, place, n)
        pool_set(mem, place + 1, row)
        place += 2
    for k in range(found):
        pool_set(mem, place, exits[k, 0])
        pool_set(mem, place + 1, exits[k, 1])
        place += 2
    put(mem, item, N_HEAD, record)
    return record


@inner
def _run_record(mem, voc, rows, item, byte):
    record = get(mem, item, N_HEAD)
    while record:
        if pool(mem, record + R_BYTE) == byte:
            return record
        record = pool(mem, record + R_NEXT)
    return _build_run(mem, voc, rows, item, byte)


@inner
def _add_inside(mem, rows, row, record, hi):
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
def _add_run(mem, voc, rows, row, head, rest):
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
        record = _run_record(mem, voc, rows, item, byte)
        if record < 0 or pool(mem, record + R_COUNTS) == NOT_A_RUN:
            ok = record < 0
            break
        if f == 0:
            _add_inside(mem, rows, row, record, hi)
        state = step(mem, rest, byte) if count else EMPTY
        if state == EMPTY:
            continue
        at = record + R_DATA + 2 * pool(mem, record + R_COUNTS)
        for k in range(pool(mem, record + R_EXITS)):
            node, items = pool(mem, at + 2 * k), pool(mem, at + 2 * k + 1)
            if items >= lo and (hi < 0 or items <= hi):
                _add_tokens(voc, row, node)
                end = voc_at(voc, V_SKIP, node)
                if end > node + 1:
                    walk(mem, voc, row, node + 1, end, voc_at(voc, V_DEPTH, node) + 1, state)
    mem[H_SCRATCH_TOP] = base
    return ok


@inner
def _extend_path(mem, voc, node, path, make):
    """The undeclared key `path` + the token bytes above trie node `node`; with make false only if it exists, else -1."""
    base = top_of(mem)
    at = voc_at(voc, V_PARENT, node)
    while at >= 0:
        push(mem, voc_at(voc, V_BYTE, at))
        at = voc_at(voc, V_PARENT, at)
    for k in range(top_of(mem) - 1, base - 1, -1):
        path = mk_path(mem, path, scratch(mem, k)) if make else find_path(mem, path, scratch(mem, k))
        if path < 0 or reg(mem, H_STATUS):
            break
    mem[H_SCRATCH_TOP] = base
    return path


@inner
def _extend_trie(mem, voc, node, trie):
    """The trie position of a declared name after the token bytes above `node`, 0 if it has left the trie."""
    base = top_of(mem)
    at = voc_at(voc, V_PARENT, node)
    while at >= 0:
        push(mem, voc_at(voc, V_BYTE, at))
        at = voc_at(voc, V_PARENT, at)
    k = top_of(mem) - 1
    while k >= base and trie:
        trie = trie_child(mem, trie, scratch(mem, k))
        k -= 1
    mem[H_SCRATCH_TOP] = base
    return trie


@inner
def _close_extrakey_tokens(mem, voc, row, extra, node, rest):
    """Tokens that close the undeclared key `extra` at trie node `node` (a quote), `rest` being left of the key's language before it."""
    obj, keys, family = get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_F)
    trie = _extend_trie(mem, voc, node, get(mem, extra, N_C))
    path = _extend_path(mem, voc, node, get(mem, extra, N_E), False)
    if not can_close_extrakey(mem, obj, keys, trie, rest, path):
        return
    _add_tokens(voc, row, node)
    end = voc_at(voc, V_SKIP, node)
    if end > node + 1:
        path = _extend_path(mem, voc, node, get(mem, extra, N_E), True)
        if reg(mem, H_STATUS) == 0:
            walk(mem, voc, row, node + 1, end, voc_at(voc, V_DEPTH, node) + 1, close_extrakey(mem, obj, keys, path, family))


@inner
def _add_extrakey(mem, voc, rows, row, extra):
    """Tokens from inside an undeclared key; its written characters are not walked into states of their own."""
    rest = get(mem, extra, N_D)
    endless = get(mem, rest, N_OP) == A_REPEAT and get(mem, rest, N_C) < 0
    if not endless and may_collide(mem, get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_C), get(mem, extra, N_E)):
        walk(mem, voc, row, 0, reg(voc, V_NODES), 0, extra)
        return
    if get(mem, rest, N_OP) == A_REPEAT:
        record = _run_record(mem, voc, rows, get(mem, rest, N_A), 34)
        if record < 0:
            return
        if pool(mem, record + R_COUNTS) != NOT_A_RUN:
            lo, hi = get(mem, rest, N_B), get(mem, rest, N_C)
            _add_inside(mem, rows, row, record, hi)
            at = record + R_DATA + 2 * pool(mem, record + R_COUNTS)
            for k in range(pool(mem, record + R_EXITS)):
                items = pool(mem, at + 2 * k + 1)
                if items >= lo and (hi < 0 or items <= hi):
                    _close_extrakey_tokens(mem, voc, row, extra, pool(mem, at + 2 * k), EPSILON)
            return
    states = np.empty(reg(voc, V_MAX_DEPTH) + 2, np.int32)
    states[0] = rest
    i = 0
    while i < reg(voc, V_NODES) and reg(mem, H_STATUS) == 0:
        d, byte = voc_at(voc, V_DEPTH, i), voc_at(voc, V_BYTE, i)
        if byte == 34 and nullable(mem, np.int64(states[d])):
            _close_extrakey_tokens(mem, voc, row, extra, i, np.int64(states[d]))
        following = step(mem, np.int64(states[d]), byte)
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        states[d + 1] = following
        _add_tokens(voc, row, i)
        i += 1


@inner
def fill(mem, voc, rows, row, state):
    """Add to `row` every token that `state` can read, special and stop tokens included."""
    base = top_of(mem)
    push(mem, state)
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        mem[H_SCRATCH_TOP] -= 1
        node = scratch(mem, top_of(mem))
        op = get(mem, node, N_OP)
        if node <= EPSILON:
            continue
        if op == A_ALT:
            for i in range(get(mem, node, N_B)):
                push(mem, pool(mem, get(mem, node, N_A) + i))
            continue
        if op == A_EXTRAKEY:
            _add_extrakey(mem, voc, rows, row, node)
            continue
        head = get(mem, node, N_A) if op == A_SEQ else node
        if get(mem, head, N_OP) == A_REPEAT and flags_of(mem, head) & WIDE:
            rest = get(mem, node, N_B) if op == A_SEQ else EPSILON
            if _add_run(mem, voc, rows, row, head, rest):
                if nullable(mem, head):
                    push(mem, rest)
                continue
        walk(mem, voc, row, 0, reg(voc, V_NODES), 0, node)
    for k in range(reg(voc, V_SPECIAL_COUNT)):
        token = voc_at(voc, V_SPECIALS, k)
        if token >= 0 and step(mem, state, 256 + k) != EMPTY:
            row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(reg(voc, V_STOP_COUNT)):
        token = voc_at(voc, V_STOPS, k)
        bit = np.uint32(1) << np.uint32(token & 31)
        row[token >> 5] = row[token >> 5] | bit if nullable(mem, state) else row[token >> 5] & ~bit
    if reg(mem, H_STATUS):
        mem[H_SCRATCH_TOP] = base


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
    h = mix(7046029254386353131, 0)
    for w in range(row.shape[0]):
        h = mix(h, np.int64(row[w]))
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


@kernel
def mask_row(mem, voc, rows, index, work, state):
    """Bank row of `state`'s mask; -1 when H_STATUS says that something is full. `work`: a row of scratch."""
    known = get(mem, state, N_MASK)
    if known:
        return known - 1
    short = clip(mem, state, reg(voc, V_MAX_DEPTH))
    known = get(mem, short, N_MASK)
    if known == 0:
        if 2 * (reg(mem, H_BANK_USED) + 1) > index.shape[0] or reg(mem, H_BANK_USED) >= rows.shape[0]:
            mem[H_STATUS] = FULL_BANK
            return -1
        work[:] = 0
        fill(mem, voc, rows, work, short)
        if reg(mem, H_STATUS):
            return -1
        slot = bank_slot(rows, index, work)
        if index[slot] < 0:
            if reg(mem, H_BANK_USED) >= rows.shape[0]:
                mem[H_STATUS] = FULL_BANK
                return -1
            index[slot] = reg(mem, H_BANK_USED)
            rows[reg(mem, H_BANK_USED)] = work
            mem[H_BANK_USED] += 1
        known = np.int64(index[slot]) + 1
        put(mem, short, N_MASK, known)
    put(mem, state, N_MASK, known)
    return known - 1


@kernel
def guarded_row(mem, voc, row, state, budget):
    """Into `row` only the tokens after which the text can still be completed within budget - 1 more; stop tokens as ever."""
    row[:] = 0
    states = np.empty(reg(voc, V_MAX_DEPTH) + 2, np.int32)
    states[0] = state
    i = 0
    while i < reg(voc, V_NODES) and reg(mem, H_STATUS) == 0:
        d = voc_at(voc, V_DEPTH, i)
        following = step(mem, np.int64(states[d]), voc_at(voc, V_BYTE, i))
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        states[d + 1] = following
        first = reg(voc, V_FIRST) + i
        if reg(voc, first) < reg(voc, first + 1) and fits(mem, voc, following, budget - 1):
            _add_tokens(voc, row, i)
        i += 1
    for k in range(reg(voc, V_SPECIAL_COUNT)):
        token = voc_at(voc, V_SPECIALS, k)
        if token >= 0:
            following = step(mem, state, 256 + k)
            if following != EMPTY and fits(mem, voc, following, budget - 1):
                row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(reg(voc, V_STOP_COUNT)):
        token = voc_at(voc, V_STOPS, k)
        if nullable(mem, state):
            row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
