"""Heads: the part of a state that can be walked once for every continuation.

A state is a sequence, and what stands in front of its first rule, object or key is a plain byte language: its head. Which
tokens end inside the head, and where others leave it, does not depend on what follows, so it is kept as a record on the head's
node and shared by all states that begin so (white space before each value of an object, the end of a string ...).

    record (N_HEAD): next | item of the run in front of the head, or EPSILON | tokens inside, or -1: as a row of bits | exits | reach
                     | (token, items) ... or bits ... | (trie node, items) per exit: the head is complete in front of that node
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.derive import derive
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_SEQ,
    CHECK,
    EMPTY,
    EPSILON,
    H_SCRATCH_TOP,
    H_STATUS,
    INFINITE,
    LOOKS,
    N_A,
    N_B,
    N_C,
    N_OP,
    PLAIN,
    V_AT,
    V_BY_BYTE,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_IDS,
    V_NODES,
    V_ROOT,
    V_SKIP,
    V_TOKENS,
)
from agentkit.grammars.core.nodes import flags_of, get, mk_seq, nullable, pool, pool_set, pool_take, push, reg, scratch, top_of, voc_at
from agentkit.grammars.core.runs import add_inside, find_record, hang_record, is_run, item_record, items_before
from agentkit.grammars.core.step import reach, step
from agentkit.grammars.core.walks import begins, enter, has_byte, path_states

R_INSIDE, R_EXITS, R_REACH, R_LISTS = 2, 3, 4, 5
MANY_EXITS = 8192  # more exits than this: walk the state as it is
TOO_MANY = -2  # R_INSIDE of such a head


@inner
def _is_ahead(mem, node):
    """Is `node` an AHEAD, or does it begin with one?"""
    return get(mem, get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node, N_OP) == A_AHEAD


@inner
def _settles_inside(mem, settled, ends, plain):
    """Is an AHEAD in front of the plain node `plain` always settled before that may end? Then what follows has nothing to do with it."""
    if nullable(mem, plain):
        return False
    words, result = begins(mem, plain), True
    for byte in range(256):
        if result and has_byte(mem, words, byte):
            after = derive(mem, settled, byte)
            left = derive(mem, ends, byte)
            if not nullable(mem, after) and (after != EMPTY or left != EMPTY):
                following = derive(mem, plain, byte)
                result = following == EMPTY or _settles_inside(mem, after, left, following)
    mem[H_SCRATCH_TOP] = words
    return result


@inner
def _is_whole(mem, head):
    """Can a head be walked without what follows it?"""
    look = get(mem, head, N_A)
    if get(mem, head, N_OP) != A_SEQ or get(mem, look, N_OP) != A_AHEAD:
        return True
    plain = get(mem, head, N_B)
    if _is_ahead(mem, plain):
        return False
    return _settles_inside(mem, get(mem, look, N_A), get(mem, look, N_B), _without_look(mem, plain))


@inner
def _without_look(mem, node):
    """A plain node without the AHEAD at its end, if there is one."""
    base = top_of(mem)
    while get(mem, node, N_OP) == A_SEQ:
        push(mem, get(mem, node, N_A))
        node = get(mem, node, N_B)
    plain = EPSILON if get(mem, node, N_OP) == A_AHEAD else node
    while top_of(mem) > base:
        mem[H_SCRATCH_TOP] -= 1
        plain = mk_seq(mem, scratch(mem, top_of(mem)), plain)
    return plain


@inner
def head_of(mem, node):
    """The plain beginning of `node` as a node of its own, EPSILON if there is none.

    An AHEAD in front of it belongs to it. So does one behind it: it says at which places nothing but the head goes on.
    """
    if flags_of(mem, node) & PLAIN:
        return node
    base, looks = top_of(mem), flags_of(mem, node) & LOOKS != 0
    while looks and _is_ahead(mem, node) and get(mem, node, N_OP) == A_SEQ:
        push(mem, get(mem, node, N_A))
        node = get(mem, node, N_B)
    leading = top_of(mem)
    while get(mem, node, N_OP) == A_SEQ and flags_of(mem, get(mem, node, N_A)) & PLAIN:
        push(mem, get(mem, node, N_A))
        node = get(mem, node, N_B)
    if node > EPSILON and flags_of(mem, node) & PLAIN:
        push(mem, node)
    elif looks and top_of(mem) > leading and _is_ahead(mem, node):
        look = get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node
        if nullable(mem, look):
            push(mem, look)
    if top_of(mem) == leading:
        mem[H_SCRATCH_TOP] = base
    head = EPSILON
    while top_of(mem) > base:
        mem[H_SCRATCH_TOP] -= 1
        head = mk_seq(mem, scratch(mem, top_of(mem)), head)
    return head


@inner
def behind_head(mem, node):
    """What follows the plain beginning of `node`."""
    if flags_of(mem, node) & PLAIN:
        return EPSILON
    begin, looks = node, flags_of(mem, node) & LOOKS != 0
    while looks and _is_ahead(mem, node) and get(mem, node, N_OP) == A_SEQ:
        node = get(mem, node, N_B)
    plain = node
    while get(mem, node, N_OP) == A_SEQ and flags_of(mem, get(mem, node, N_A)) & PLAIN:
        node = get(mem, node, N_B)
    if flags_of(mem, node) & PLAIN:
        return EPSILON
    return node if node != plain else begin


@inner
def _note(voc, lists, sizes, node, items):
    """Note the tokens that end at trie node `node` as inside the head."""
    first = reg(voc, V_FIRST) + node
    for k in range(reg(voc, first), reg(voc, first + 1)):
        if sizes[0] < lists.shape[1]:
            lists[0, sizes[0], 0], lists[0, sizes[0], 1] = voc_at(voc, V_IDS, k), items
            sizes[0] += 1


@inner
def _note_below(mem, voc, lists, sizes, node, state, items, after):
    """Walk the head from `state`, reached at trie node `node`: tokens inside and exits below it, at the bytes `after`."""
    at_byte, at_depth, at_skip = reg(voc, V_BYTE), reg(voc, V_DEPTH), reg(voc, V_SKIP)
    _note(voc, lists, sizes, node, items)
    sizes[2] = max(sizes[2], reach(mem, state))
    i, end, base = node + 1, reg(voc, at_skip + node), top_of(mem)
    states = path_states(mem, voc, node, state)
    while i < end and states >= 0 and sizes[1] < MANY_EXITS:
        d = reg(voc, at_depth + i)
        current = reg(mem, states + d)
        if nullable(mem, current) and has_byte(mem, after, reg(voc, at_byte + i)):
            lists[1, sizes[1], 0], lists[1, sizes[1], 1] = i, items
            sizes[1] += 1
        following = step(mem, current, reg(voc, at_byte + i))
        if following == EMPTY:
            if reg(mem, H_STATUS):
                break
            i = reg(voc, at_skip + i)
            continue
        _note(voc, lists, sizes, i, items)
        if flags_of(mem, following) & CHECK:
            sizes[2] = max(sizes[2], reach(mem, following))
        mem[states + d + 1] = following
        i += 1
    mem[H_SCRATCH_TOP] = base


@inner
def _bytes_behind(mem, head):
    """The bytes that may follow a head, pushed as 8 words: what the AHEAD at its end lets through, or all."""
    while get(mem, head, N_OP) == A_SEQ:
        head = get(mem, head, N_B)
    base = top_of(mem)
    is_look = get(mem, head, N_OP) == A_AHEAD
    for _ in range(8):
        push(mem, 0 if is_look else -1)
    if is_look:
        first_bytes(mem, get(mem, head, N_A), base)
        first_bytes(mem, get(mem, head, N_B), base)
    return base


@inner
def _note_all(mem, voc, lists, sizes, item, run, head):
    """Walk a head: from the top of the trie, or (item not EPSILON) from wherever a token leaves the run `run` after an item."""
    words, after = begins(mem, head), _bytes_behind(mem, head)
    for byte in range(256):
        if has_byte(mem, words, byte) and reg(mem, H_STATUS) == 0 and sizes[1] < MANY_EXITS:
            state = step(mem, head, byte)
            if state == EMPTY:
                continue
            if item == EPSILON:
                node = voc_at(voc, V_ROOT, byte)
                if node >= 0:
                    _note_below(mem, voc, lists, sizes, node, state, 0, after)
                continue
            for k in range(voc_at(voc, V_AT, byte), voc_at(voc, V_AT, byte + 1)):
                node = voc_at(voc, V_BY_BYTE, k)
                items = items_before(mem, voc, run, node)
                if items > 0:
                    _note_below(mem, voc, lists, sizes, node, state, items, after)
    mem[H_SCRATCH_TOP] = words


@inner
def _head_record(mem, voc, item, run, head, width):
    """The record of a head, made if it is not there yet; -1 on status. width: words of a row."""
    record = find_record(mem, head, item)
    if record:
        return record
    lists, sizes = np.empty((2, reg(voc, V_TOKENS) + MANY_EXITS, 2), np.int32), np.zeros(3, np.int64)
    if _is_whole(mem, head):
        _note_all(mem, voc, lists, sizes, item, run, head)
    else:
        sizes[1] = MANY_EXITS
    if reg(mem, H_STATUS):
        return -1
    inside, exits = sizes[0], sizes[1]
    too_many = exits >= MANY_EXITS or inside >= lists.shape[1]
    dense = item == EPSILON and 2 * inside > width
    if too_many:
        inside = exits = 0
    record = pool_take(mem, R_LISTS + (width if dense else 2 * inside) + 2 * exits)
    if record < 0:
        return -1
    hang_record(mem, head, record, item)
    pool_set(mem, record + R_INSIDE, TOO_MANY if too_many else (-1 if dense else inside))
    pool_set(mem, record + R_EXITS, exits)
    pool_set(mem, record + R_REACH, sizes[2])
    at = record + R_LISTS
    if dense:
        bits = np.zeros(width, np.uint32)
        for k in range(inside):
            bits[lists[0, k, 0] >> 5] |= np.uint32(1) << np.uint32(lists[0, k, 0] & 31)
        for w in range(width):
            word = np.int64(bits[w])
            pool_set(mem, at + w, word if word < 1 << 31 else word - (1 << 32))
        at += width
    else:
        for k in range(inside):
            pool_set(mem, at + 2 * k, np.int64(lists[0, k, 0]))
            pool_set(mem, at + 2 * k + 1, np.int64(lists[0, k, 1]))
        at += 2 * inside
    for k in range(exits):
        pool_set(mem, at + 2 * k, np.int64(lists[1, k, 0]))
        pool_set(mem, at + 2 * k + 1, np.int64(lists[1, k, 1]))
    return record


@inner
def _add_record(mem, voc, row, record, lo, hi, rest, jobs):
    """Tokens of a head behind lo ... hi items of its run, and of what follows it."""
    inside, exits, at = pool(mem, record + R_INSIDE), pool(mem, record + R_EXITS), record + R_LISTS
    if inside < 0:
        for w in range(row.shape[0]):
            row[w] |= np.uint32(pool(mem, at + w) & 0xFFFFFFFF)
        at += row.shape[0]
    else:
        for k in range(inside):
            items = pool(mem, at + 2 * k + 1)
            if items >= lo and (hi < 0 or items <= hi):
                token = pool(mem, at + 2 * k)
                row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        at += 2 * inside
    if rest == EPSILON or exits == 0:
        return
    words = begins(mem, rest)
    for k in range(exits):
        node, items = pool(mem, at + 2 * k), pool(mem, at + 2 * k + 1)
        byte = voc_at(voc, V_BYTE, node)
        if has_byte(mem, words, byte) and items >= lo and (hi < 0 or items <= hi):
            state = step(mem, rest, byte)
            if state != EMPTY:
                enter(mem, voc, row, node, state, jobs)
    mem[H_SCRATCH_TOP] = words


@inner
def add_head(mem, voc, row, node, jobs):
    """Tokens of the state `node` that begin with its head, which must not be empty. False: it has to be walked as it is."""
    record = _head_record(mem, voc, EPSILON, 0, head_of(mem, node), row.shape[0])
    if record < 0:
        return True
    if pool(mem, record + R_INSIDE) == TOO_MANY:
        return False
    _add_record(mem, voc, row, record, 0, -1, behind_head(mem, node), jobs)
    return True


@inner
def reach_of_head(mem, node):
    """Bytes that can end the intersection that the state `node` begins with, after whatever token: an upper bound, or INFINITE."""
    record = find_record(mem, head_of(mem, node), EPSILON)
    return pool(mem, record + R_REACH) if record and pool(mem, record + R_INSIDE) != TOO_MANY else INFINITE


@inner
def add_run(mem, voc, rows, fixed, row, repeat, rest, jobs):
    """Tokens of `repeat rest` that begin with an item of the run `repeat`. False if it is not a run that can be treated so."""
    item, lo, hi = get(mem, repeat, N_A), get(mem, repeat, N_B), get(mem, repeat, N_C)
    run = item_record(mem, voc, rows, item)
    if run < 0:
        return True
    if not is_run(mem, run):
        return False
    head = head_of(mem, rest)
    if rest != EPSILON and not nullable(mem, head):
        record = _head_record(mem, voc, item, run, head, row.shape[0])
        if record < 0:
            return True
        if pool(mem, record + R_INSIDE) == TOO_MANY:
            return False
        add_inside(mem, rows, fixed, row, run, hi)
        _add_record(mem, voc, row, record, lo, hi, behind_head(mem, rest), jobs)
        return True
    words, nodes = begins(mem, rest), 0
    for byte in range(256):
        if has_byte(mem, words, byte):
            nodes += voc_at(voc, V_AT, byte + 1) - voc_at(voc, V_AT, byte)
    few = 4 * nodes <= reg(voc, V_NODES)
    if few:
        add_inside(mem, rows, fixed, row, run, hi)
        for byte in range(256):
            state = step(mem, rest, byte) if has_byte(mem, words, byte) else EMPTY
            if state == EMPTY:
                continue
            for k in range(voc_at(voc, V_AT, byte), voc_at(voc, V_AT, byte + 1)):
                node = voc_at(voc, V_BY_BYTE, k)
                items = items_before(mem, voc, run, node)
                if items > 0 and items >= lo and (hi < 0 or items <= hi):
                    enter(mem, voc, row, node, state, jobs)
    mem[H_SCRATCH_TOP] = words
    return few
