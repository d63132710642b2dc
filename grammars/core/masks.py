"""Which tokens may come next: walks of the token trie over derivatives.

A mask is the set of tokens whose bytes can be read from a state. Walking the whole trie is only done once per kind
of character run: for `c{lo,hi} rest` (a string's inside, free text) the tokens that stay inside the run are kept as
cumulative rows by the number of characters, and only those that leave it are walked on, against `rest`. So every
length bound and every continuation shares one walk. Rows are deduplicated by content in the bank. Knows nothing of
probabilities.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.combine import mk_alt
from agentkit.grammars.core.derive import name_left, step
from agentkit.grammars.core.layout import (
    A_ALT,
    A_EXTRAKEY,
    A_REPEAT,
    A_SEQ,
    ANONYMOUS,
    EMPTY,
    ENDLESS,
    EPSILON,
    FULL_BANK,
    H_BANK_USED,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_MASK,
    N_OP,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_MAX_DEPTH,
    V_NODES,
    V_PARENT,
    V_SKIP,
    V_SPECIAL_COUNT,
    V_SPECIALS,
    V_STOP_COUNT,
    V_STOPS,
    WIDE,
)
from agentkit.grammars.core.nodes import flags_of, get, mix, mk_path, mk_repeat, mk_seq, nullable, pool, push, put, reg, scratch, top_of, voc_at
from agentkit.grammars.core.objects import can_close_extrakey, close_extrakey, find_path, may_collide, mk_extrakey, trie_child
from agentkit.grammars.core.runs import NOT_A_RUN, R_COUNTS, R_DATA, R_EXITS, add_inside, add_run, add_tokens, run_record, walk, walk_all
from agentkit.grammars.core.search import fits
from agentkit.grammars.jit import inner, kernel


@inner
def _close_extrakey_tokens(mem, voc, row, extra, node, trie, path, after):
    """Tokens that close the undeclared key `extra` with the quote at trie node `node`; `path` is the whole name, -1: one not written yet.

    `after` follows the whole object.
    """
    obj, keys, family = get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_F)
    if not can_close_extrakey(mem, obj, keys, trie, EPSILON, path):
        return
    add_tokens(voc, row, node)
    end = voc_at(voc, V_SKIP, node)
    if end > node + 1:
        path = _make_path(mem, voc, node, get(mem, extra, N_E))
        if reg(mem, H_STATUS) == 0:
            walk(mem, voc, row, node + 1, end, voc_at(voc, V_DEPTH, node) + 1, mk_seq(mem, close_extrakey(mem, obj, keys, path, family), after))


@inner
def _make_path(mem, voc, node, path):
    """The undeclared key `path` + the token bytes above trie node `node`."""
    base = top_of(mem)
    at = voc_at(voc, V_PARENT, node)
    while at >= 0:
        push(mem, voc_at(voc, V_BYTE, at))
        at = voc_at(voc, V_PARENT, at)
    for k in range(top_of(mem) - 1, base - 1, -1):
        path = mk_path(mem, path, scratch(mem, k))
    mem[H_SCRATCH_TOP] = base
    return path


@inner
def _key_position(mem, voc, node, extra):
    """Where the token bytes above trie node `node` lead from inside the key `extra`: (trie position or 0, name if it exists or -1)."""
    base = top_of(mem)
    at = voc_at(voc, V_PARENT, node)
    while at >= 0:
        push(mem, voc_at(voc, V_BYTE, at))
        at = voc_at(voc, V_PARENT, at)
    trie, path = get(mem, extra, N_C), get(mem, extra, N_E)
    for k in range(top_of(mem) - 1, base - 1, -1):
        trie = trie_child(mem, trie, scratch(mem, k)) if trie else 0
        path = find_path(mem, path, scratch(mem, k)) if path >= 0 else -1
    mem[H_SCRATCH_TOP] = base
    return trie, path


@inner
def _add_extrakey_run(mem, voc, rows, row, extra, after):
    """As `_add_extrakey` for a key that is a run of characters. False if it has to be walked."""
    obj, keys, rest = get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_D)
    if get(mem, rest, N_OP) != A_REPEAT:
        return False
    lo, hi = get(mem, rest, N_B), get(mem, rest, N_C)
    if hi >= 0 and may_collide(mem, obj, keys, get(mem, extra, N_C), get(mem, extra, N_E)):
        return False
    record = run_record(mem, voc, rows, get(mem, rest, N_A), 34)
    if record < 0 or pool(mem, record + R_COUNTS) == NOT_A_RUN:
        return record < 0
    add_inside(mem, rows, row, record, hi)
    at = record + R_DATA + 2 * pool(mem, record + R_COUNTS)
    for k in range(pool(mem, record + R_EXITS)):
        items = pool(mem, at + 2 * k + 1)
        if items >= lo and (hi < 0 or items <= hi):
            node = pool(mem, at + 2 * k)
            trie, path = _key_position(mem, voc, node, extra)
            _close_extrakey_tokens(mem, voc, row, extra, node, trie, path, after)
    return True


@inner
def _add_extrakey(mem, voc, rows, row, extra, after):
    """Tokens from inside an undeclared key; its written characters are not walked into states of their own."""
    if _add_extrakey_run(mem, voc, rows, row, extra, after):
        return
    obj, keys = get(mem, extra, N_A), get(mem, extra, N_B)
    depth_cap = reg(voc, V_MAX_DEPTH) + 2
    states, tries, paths = np.empty(depth_cap, np.int64), np.zeros(depth_cap, np.int64), np.full(depth_cap, -1, np.int64)
    states[0], tries[0], paths[0] = get(mem, extra, N_D), get(mem, extra, N_C), get(mem, extra, N_E)
    i = 0
    while i < reg(voc, V_NODES) and reg(mem, H_STATUS) == 0:
        d, byte = voc_at(voc, V_DEPTH, i), voc_at(voc, V_BYTE, i)
        if byte == 34 and nullable(mem, states[d]):
            _close_extrakey_tokens(mem, voc, row, extra, i, tries[d], paths[d], after)
        following = step(mem, states[d], byte)
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        trie = trie_child(mem, tries[d], byte) if tries[d] else 0
        path = find_path(mem, paths[d], byte) if paths[d] >= 0 else -1
        states[d + 1], tries[d + 1], paths[d + 1] = following, trie, path
        free = flags_of(mem, following) & ENDLESS or not may_collide(mem, obj, keys, trie, path)
        if free or name_left(mem, obj, keys, trie, following, _make_path(mem, voc, i, get(mem, extra, N_E)) if path < 0 else path):
            add_tokens(voc, row, i)
        i += 1


@inner
def fill(mem, voc, rows, row, state):
    """Add to `row` every token that `state` can read, special and stop tokens included.

    The state is taken apart into heads with what follows each; runs and undeclared keys have their own ways, all
    other heads are put together again and walked at once.
    """
    base = top_of(mem)
    plain = np.empty(64, np.int64)
    count = 0
    push(mem, state)
    push(mem, EPSILON)
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        mem[H_SCRATCH_TOP] -= 2
        node, after = scratch(mem, top_of(mem)), scratch(mem, top_of(mem) + 1)
        op = get(mem, node, N_OP)
        if node == EPSILON and after != EPSILON:
            push(mem, after)
            push(mem, EPSILON)
        elif op == A_SEQ:
            push(mem, get(mem, node, N_A))
            push(mem, mk_seq(mem, get(mem, node, N_B), after))
        elif op == A_ALT:
            for i in range(get(mem, node, N_B)):
                push(mem, pool(mem, get(mem, node, N_A) + i))
                push(mem, after)
        elif op == A_EXTRAKEY:
            _add_extrakey(mem, voc, rows, row, node, after)
        elif op == A_REPEAT and flags_of(mem, node) & WIDE and add_run(mem, voc, rows, row, node, after):
            if nullable(mem, node):
                push(mem, after)
                push(mem, EPSILON)
        elif node > EPSILON:
            if count == plain.shape[0]:
                walk_all(mem, voc, row, mk_seq(mem, node, after))
            else:
                plain[count] = mk_seq(mem, node, after)
                count += 1
    if count and reg(mem, H_STATUS) == 0:
        for k in range(count):
            push(mem, plain[k])
        walk_all(mem, voc, row, mk_alt(mem, base))
    _add_symbols(mem, voc, row, state)
    if reg(mem, H_STATUS):
        mem[H_SCRATCH_TOP] = base


@inner
def _add_symbols(mem, voc, row, state):
    """Special tokens that `state` can read, and the stop tokens if the text may end here."""
    for k in range(reg(voc, V_SPECIAL_COUNT)):
        token = voc_at(voc, V_SPECIALS, k)
        if token >= 0 and step(mem, state, 256 + k) != EMPTY:
            row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(reg(voc, V_STOP_COUNT)):
        token = voc_at(voc, V_STOPS, k)
        bit = np.uint32(1) << np.uint32(token & 31)
        row[token >> 5] = row[token >> 5] | bit if nullable(mem, state) else row[token >> 5] & ~bit


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


@inner
def _anonymous(mem, node):
    """`node` with the undeclared keys that are being written made nameless, so that their characters make no states."""
    op = get(mem, node, N_OP)
    if op == A_SEQ:
        return mk_seq(mem, _anonymous(mem, get(mem, node, N_A)), get(mem, node, N_B))
    if op == A_ALT:
        base = top_of(mem)
        for i in range(get(mem, node, N_B)):
            push(mem, _anonymous(mem, pool(mem, get(mem, node, N_A) + i)))
        return mk_alt(mem, base)
    if op == A_EXTRAKEY:
        return mk_extrakey(mem, get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C), get(mem, node, N_D), ANONYMOUS, get(mem, node, N_F))
    return node


@kernel
def guarded_row(mem, voc, row, state, budget):
    """Into `row` the tokens after which the text can still be completed within budget - 1 more; stop tokens as ever.

    Names of undeclared keys are not compared here: intersect the row with the state's mask.
    """
    row[:] = 0
    state = _anonymous(mem, state)
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
            add_tokens(voc, row, i)
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
