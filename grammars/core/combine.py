"""Choices, intersections and complements in normal form.

Choice is associative, commutative, idempotent and factored by its members' heads (h k | h m = h (k | m)), which
keeps the number of parallel parses bounded by the grammar and shares their stacks; adjacent and overlapping
counters of one repeat are merged (counting sets); intersections drop what cannot matter. Knows nothing of symbols
being read.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_ALT,
    A_AND,
    A_NOT,
    A_REPEAT,
    A_SEQ,
    ALL,
    CALLS,
    CHECK,
    DISTINCT,
    EMPTY,
    ENDLESS,
    EPSILON,
    H_SCRATCH,
    H_SCRATCH_TOP,
    H_STATUS,
    KEYED,
    LOOKS,
    LOOSE,
    N_A,
    N_B,
    N_C,
    N_OP,
    NULLABLE,
    PLAIN,
    TIED,
    WIDE,
)
from agentkit.grammars.core.nodes import cons, cons_list, flags_of, get, mix, mk_repeat, mk_seq, nullable, pool, push, scratch, scratch_set, top_of

MANY = 16  # members of a choice; in larger ones equal heads are found by hashing


@inner
def mk_not(mem, child):
    if child == EMPTY:
        return ALL
    if child == ALL:
        return EMPTY
    if get(mem, child, N_OP) == A_NOT:
        return get(mem, child, N_A)
    return cons(mem, A_NOT, child, 0, 0, (0 if nullable(mem, child) else NULLABLE) | CHECK | WIDE | (flags_of(mem, child) & PLAIN))


@inner
def _sift(mem, base, root, count):
    value = np.int64(mem[base + root])
    while True:
        child = 2 * root + 1
        if child >= count:
            break
        if child + 1 < count and mem[base + child + 1] > mem[base + child]:
            child += 1
        if mem[base + child] <= value:
            break
        mem[base + root] = mem[base + child]
        root = child
    mem[base + root] = value


@inner
def sort_scratch(mem, start, count):
    """Sort scratch[start...] ascending, drop repeats; returns how many stay."""
    base = np.int64(mem[H_SCRATCH]) + start
    if count <= 24:
        for i in range(1, count):
            value = np.int64(mem[base + i])
            k = i
            while k > 0 and mem[base + k - 1] > value:
                mem[base + k] = mem[base + k - 1]
                k -= 1
            mem[base + k] = value
    else:
        for i in range(count // 2 - 1, -1, -1):
            _sift(mem, base, i, count)
        for end in range(count - 1, 0, -1):
            mem[base], mem[base + end] = mem[base + end], mem[base]
            _sift(mem, base, 0, end)
    kept = 0
    for i in range(count):
        if i == 0 or mem[base + i] != mem[base + kept - 1]:
            mem[base + kept] = mem[base + i]
            kept += 1
    return kept


@inner
def _flatten(mem, start, op, zero, unit):
    """Members of nested `op` nodes side by side from scratch[start] on, sorted; -1 if there is only `zero`, which swallows the others.

    ALL swallows byte strings, so members that may hold special tokens stay beside it.
    """
    end, swallow = top_of(mem), False
    for i in range(start, end):
        node = scratch(mem, i)
        if node == zero and op == A_AND:
            return -1
        if get(mem, node, N_OP) == op:
            offset = get(mem, node, N_A)
            for k in range(get(mem, node, N_B)):
                push(mem, pool(mem, offset + k))
        elif node != unit:
            push(mem, node)
    if mem[H_STATUS]:
        return -1
    count = top_of(mem) - end
    for i in range(count):
        node = scratch(mem, end + i)
        swallow |= node == zero
        scratch_set(mem, start + i, node)
    if swallow:
        kept = 1
        for i in range(count):
            node = scratch(mem, end + i)
            if flags_of(mem, node) & PLAIN == 0:
                scratch_set(mem, start + kept, node)
                kept += 1
        if kept == 1:
            return -1
        scratch_set(mem, start, zero)
        count = kept
    count = sort_scratch(mem, start, count)
    mem[H_SCRATCH_TOP] = start + count
    return count


@inner
def _head(mem, node):
    return get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node


@inner
def _tail(mem, node):
    return get(mem, node, N_B) if get(mem, node, N_OP) == A_SEQ else EPSILON


@inner
def _merge_counters(mem, x, y):
    """One node for x | y where both are the same repeat with the same rest and their counts touch; else -1."""
    hx, hy = _head(mem, x), _head(mem, y)
    if get(mem, hx, N_OP) != A_REPEAT or get(mem, hy, N_OP) != A_REPEAT or get(mem, hx, N_A) != get(mem, hy, N_A):
        return -1
    if _tail(mem, x) != _tail(mem, y):
        return -1
    lo1, hi1, lo2, hi2 = get(mem, hx, N_B), get(mem, hx, N_C), get(mem, hy, N_B), get(mem, hy, N_C)
    if (hi1 >= 0 and lo2 > hi1 + 1) or (hi2 >= 0 and lo1 > hi2 + 1):
        return -1
    hi = -1 if hi1 < 0 or hi2 < 0 else max(hi1, hi2)
    return mk_seq(mem, mk_repeat(mem, get(mem, hx, N_A), min(lo1, lo2), hi), _tail(mem, x))


@inner
def _alt_node(mem, start, count, flags):
    """The ALT of the sorted nodes in scratch[start ...]; takes them off the stack. flags: further ones for it."""
    plain = PLAIN
    for i in range(count):
        f = flags_of(mem, scratch(mem, start + i))
        flags |= f & (NULLABLE | CHECK | WIDE | ENDLESS | KEYED | CALLS | LOOKS | DISTINCT | TIED)
        plain &= f
    node = cons_list(mem, A_ALT, start, count, flags | plain)
    mem[H_SCRATCH_TOP] = start
    return node


@inner
def _union(mem, start):
    """Choice of scratch[start ...] as it stands: what lies behind a shared head is factored when it is reached, not before (that could take for ever)."""
    count = _flatten(mem, start, A_ALT, ALL, EMPTY)
    if count > 1:
        return _alt_node(mem, start, count, LOOSE)
    result = ALL if count < 0 else (EMPTY if count == 0 else scratch(mem, start))
    mem[H_SCRATCH_TOP] = start
    return result


@inner
def _same_heads(mem, start, count):
    """[count]: for each of the nodes in scratch[start ...] the next one with an equal head, -1 if there is none."""
    size = 64
    while size < 2 * count:
        size *= 2
    table, chain = np.full(size, -1, np.int64), np.full(count, -1, np.int64)
    for i in range(count - 1, -1, -1):
        head = _head(mem, scratch(mem, start + i))
        slot = mix(head, 7) >> 7 & (size - 1)
        while table[slot] >= 0 and _head(mem, scratch(mem, start + table[slot])) != head:
            slot = (slot + 1) & (size - 1)
        chain[i], table[slot] = table[slot], i
    return chain


@inner
def _join_heads(mem, start, count):
    """Join nodes in scratch[start ...] that have a head in common: h k | h m = h (k | m). EMPTY stays where one was. Were there any?"""
    merged, few = False, count <= MANY
    chain = np.empty(0, np.int64) if few else _same_heads(mem, start, count)
    for i in range(count):
        x, top = scratch(mem, start + i), top_of(mem)
        k = i + 1 if few else chain[i]
        while x > EPSILON and k >= 0 and k < count:
            y = scratch(mem, start + k)
            if y > EPSILON and _head(mem, x) == _head(mem, y):
                push(mem, _tail(mem, y))
                scratch_set(mem, start + k, EMPTY)
            k = k + 1 if few else chain[k]
        if top_of(mem) > top:
            push(mem, _tail(mem, x))
            scratch_set(mem, start + i, mk_seq(mem, _head(mem, x), _union(mem, top)))
            merged = True
    return merged


@inner
def _join_counters(mem, start, count):
    """Join counters in scratch[start ...] that touch; as above."""
    merged, top = False, top_of(mem)
    for i in range(count):
        if get(mem, _head(mem, scratch(mem, start + i)), N_OP) == A_REPEAT:
            push(mem, start + i)
    end = top_of(mem)
    for i in range(top, end):
        at = scratch(mem, i)
        for k in range(i + 1, end if scratch(mem, at) > EPSILON else 0):
            other = scratch(mem, k)
            joined = _merge_counters(mem, scratch(mem, at), scratch(mem, other)) if scratch(mem, other) > EPSILON else -1
            if joined >= 0:
                scratch_set(mem, at, joined)
                scratch_set(mem, other, EMPTY)
                merged = True
    mem[H_SCRATCH_TOP] = top
    return merged


@inner
def mk_alt(mem, start):
    """Choice of the nodes in scratch[start ... top]; takes them off the stack."""
    while True:
        count = _flatten(mem, start, A_ALT, ALL, EMPTY)
        if count <= 1:
            result = ALL if count < 0 else (EMPTY if count == 0 else scratch(mem, start))
            mem[H_SCRATCH_TOP] = start
            return result
        merged = _join_heads(mem, start, count)
        merged |= _join_counters(mem, start, count)
        if mem[H_STATUS]:
            mem[H_SCRATCH_TOP] = start
            return EMPTY
        if not merged:
            break
    return _alt_node(mem, start, count, 0)


@inner
def mk_and(mem, start):
    """Intersection of the nodes in scratch[start ... top]; takes them off the stack."""
    count = _flatten(mem, start, A_AND, EMPTY, ALL)
    if count <= 0:
        mem[H_SCRATCH_TOP] = start
        return EMPTY if count < 0 else ALL
    flags = NULLABLE | PLAIN
    for i in range(count):
        x = scratch(mem, start + i)
        flags &= flags_of(mem, x)  # only NULLABLE and PLAIN are left
        if get(mem, x, N_OP) == A_NOT:
            for k in range(count):
                if scratch(mem, start + k) == get(mem, x, N_A):
                    mem[H_SCRATCH_TOP] = start
                    return EMPTY
        if x == EPSILON:
            for k in range(count):
                if not nullable(mem, scratch(mem, start + k)):
                    mem[H_SCRATCH_TOP] = start
                    return EMPTY
            mem[H_SCRATCH_TOP] = start
            return EPSILON
    node = scratch(mem, start) if count == 1 else cons_list(mem, A_AND, start, count, flags | CHECK | WIDE)
    mem[H_SCRATCH_TOP] = start
    return node
