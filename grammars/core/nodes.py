"""Nodes: allocation, hash-consing, and the constructors of sequences and repeats.

Equal nodes are one node. Sequences are right-nested, so their tail is the parse stack; adjacent repeats of one item
are one repeat. The constructors of choices, intersections and complements are in combine.py. Knows nothing of
symbols being read.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_BYTES,
    A_CLASS,
    A_CLOSED,
    A_LITERAL,
    A_PATH,
    A_REPEAT,
    A_SEQ,
    ALL,
    CALLS,
    CHECK,
    DISTINCT,
    EMPTY,
    ENDLESS,
    EPSILON,
    FULL_NODES,
    FULL_POOL,
    FULL_SCRATCH,
    H_EPOCH,
    H_HASH,
    H_HASH_MASK,
    H_NODE_CAP,
    H_NODE_COUNT,
    H_NODES,
    H_POOL,
    H_POOL_CAP,
    H_POOL_COUNT,
    H_SCRATCH,
    H_SCRATCH_CAP,
    H_SCRATCH_TOP,
    H_STATUS,
    KEYED,
    LOOKS,
    N_A,
    N_B,
    N_C,
    N_FLAGS,
    N_OP,
    NULLABLE,
    PLAIN,
    STRIDE,
    TIED,
    WIDE,
)


@inner
def reg(mem, slot):
    """A header entry as int64."""
    return np.int64(mem[slot])


@inner
def voc_at(voc, section, i):
    """Entry `i` of a section of the vocabulary array."""
    return np.int64(voc[voc[section] + i])


@inner
def bit(i):
    """Bit `i` of a 32-bit word, as the signed number that an int32 holds."""
    return 1 << i if i < 31 else -(1 << 31)


@inner
def get(mem, node, field):
    return np.int64(mem[mem[H_NODES] + node * STRIDE + field])


@inner
def put(mem, node, field, value):
    mem[mem[H_NODES] + node * STRIDE + field] = value


@inner
def flags_of(mem, node):
    return np.int64(mem[mem[H_NODES] + node * STRIDE + N_FLAGS])


@inner
def nullable(mem, node):
    return mem[mem[H_NODES] + node * STRIDE + N_FLAGS] & NULLABLE != 0


@inner
def pool(mem, offset):
    return np.int64(mem[mem[H_POOL] + offset])


@inner
def pool_set(mem, offset, value):
    mem[mem[H_POOL] + offset] = value


@inner
def pool_take(mem, count):
    """Reserve `count` integers of the pool; -1 when it is full."""
    at = np.int64(mem[H_POOL_COUNT])
    if at + count > mem[H_POOL_CAP]:
        mem[H_STATUS] = FULL_POOL
        return -1
    mem[H_POOL_COUNT] = at + count
    return at


@inner
def fresh_epoch(mem):
    """A number that no node's N_MARK has yet."""
    mem[H_EPOCH] += 1
    if mem[H_EPOCH] == 0:  # the number of a node that was never marked, after 4 billion epochs
        mem[H_EPOCH] = 1
    return np.int64(mem[H_EPOCH])


@inner
def top_of(mem):
    """Top of the scratch stack."""
    return np.int64(mem[H_SCRATCH_TOP])


@inner
def push(mem, value):
    """Push onto the scratch stack."""
    top = top_of(mem)
    if top + 1 >= mem[H_SCRATCH_CAP]:
        mem[H_STATUS] = FULL_SCRATCH
        return
    mem[mem[H_SCRATCH] + top] = value
    mem[H_SCRATCH_TOP] = top + 1


@inner
def scratch(mem, index):
    return np.int64(mem[mem[H_SCRATCH] + index])


@inner
def scratch_set(mem, index, value):
    mem[mem[H_SCRATCH] + index] = value


@inner
def mix(h, value):
    """Hash `h` with `value` taken in; never negative. Unsigned, because numba tells LLVM that signed numbers do not overflow:
    where it can see that both are positive it would leave out the last step, and equal things would get two hashes."""
    return np.int64((np.uint64(h ^ value) * np.uint64(0x2545F4914F6CDD1D) + np.uint64(h >> 29)) & np.uint64(0x7FFFFFFFFFFFFFFF))


@inner
def _claim(mem, slot, op, flags):
    node = np.int64(mem[H_NODE_COUNT])
    if node >= mem[H_NODE_CAP]:
        mem[H_STATUS] = FULL_NODES
        return 0
    mem[H_NODE_COUNT] = node + 1
    at = mem[H_NODES] + node * STRIDE
    mem[at + N_OP] = op
    mem[at + N_FLAGS] = flags
    mem[mem[H_HASH] + slot] = node
    return node


@inner
def fixed_hash(op, a, b, c, d, e, f):
    return mix(mix(mix(mix(mix(mix(mix(1469598103, op), a), b), c), d), e), f)


@inner
def cons6(mem, op, a, b, c, d, e, f, flags):
    """The node (op, a..f), made if it is not there yet."""
    mask = np.int64(mem[H_HASH_MASK])
    slot = fixed_hash(op, a, b, c, d, e, f) >> 7 & mask
    base, table = np.int64(mem[H_NODES]), np.int64(mem[H_HASH])
    while True:
        node = np.int64(mem[table + slot])
        if node == 0:
            break
        at = base + node * STRIDE
        if mem[at] == op and mem[at + 1] == a and mem[at + 2] == b and mem[at + 3] == c and mem[at + 4] == d and mem[at + 5] == e and mem[at + 6] == f:
            return node
        slot = (slot + 1) & mask
    node = _claim(mem, slot, op, flags)
    if node:
        at = base + node * STRIDE
        mem[at + 1], mem[at + 2], mem[at + 3], mem[at + 4], mem[at + 5], mem[at + 6] = a, b, c, d, e, f
    return node


@inner
def cons(mem, op, a, b, c, flags):
    return cons6(mem, op, a, b, c, 0, 0, 0, flags)


@inner
def list_hash(mem, op, at, count):
    h = mix(88172645463325252, op * 131071 + count)
    for i in range(count):
        h = mix(h, np.int64(mem[at + i]))
    return h


@inner
def cons_list(mem, op, start, count, flags):
    """The node (op, [scratch[start] ... scratch[start + count - 1]])."""
    source = np.int64(mem[H_SCRATCH]) + start
    mask = np.int64(mem[H_HASH_MASK])
    slot = list_hash(mem, op, source, count) >> 7 & mask
    base, table, pooled = np.int64(mem[H_NODES]), np.int64(mem[H_HASH]), np.int64(mem[H_POOL])
    while True:
        node = np.int64(mem[table + slot])
        if node == 0:
            break
        at = base + node * STRIDE
        if mem[at] == op and mem[at + N_B] == count:
            there = pooled + mem[at + N_A]
            same = True
            for i in range(count):
                if mem[there + i] != mem[source + i]:
                    same = False
                    break
            if same:
                return node
        slot = (slot + 1) & mask
    offset = pool_take(mem, count)
    if offset < 0:
        return 0
    for i in range(count):
        mem[pooled + offset + i] = mem[source + i]
    node = _claim(mem, slot, op, flags)
    if node:
        put(mem, node, N_A, offset)
        put(mem, node, N_B, count)
    return node


@inner
def mk_literal(mem, offset, length):
    return cons(mem, A_LITERAL, offset, length, 0, PLAIN) if length else EPSILON


@inner
def mk_class(mem, start):
    """CLASS of the 8 x 32 bits in scratch[start...]."""
    members = 0
    for i in range(8):
        word = scratch(mem, start + i)
        for k in range(32):
            members += (word >> k) & 1
    if members == 0:
        return EMPTY
    content = cons_list(mem, A_BYTES, start, 8, 0)
    return cons(mem, A_CLASS, get(mem, content, N_A), members, 0, PLAIN | WIDE if members >= 16 else PLAIN) if content else 0


@inner
def _mk_seq2(mem, first, rest):
    """first . rest, where `first` is not itself a sequence."""
    if get(mem, first, N_OP) == A_REPEAT:
        joined = get(mem, rest, N_A) if get(mem, rest, N_OP) == A_SEQ else rest
        if get(mem, joined, N_OP) == A_REPEAT and get(mem, joined, N_A) == get(mem, first, N_A):
            hi1, hi2 = get(mem, first, N_C), get(mem, joined, N_C)
            hi = -1 if hi1 < 0 or hi2 < 0 else hi1 + hi2
            first = mk_repeat(mem, get(mem, first, N_A), get(mem, first, N_B) + get(mem, joined, N_B), hi)
            rest = get(mem, rest, N_B) if joined != rest else EPSILON
            if rest == EPSILON:
                return first
    f, r = flags_of(mem, first), flags_of(mem, rest)
    flags = (f & r & (NULLABLE | PLAIN)) | (f & (CHECK | WIDE | KEYED | DISTINCT | TIED)) | ((f | r) & (ENDLESS | CALLS | LOOKS))
    if f & NULLABLE or get(mem, first, N_OP) == A_AHEAD:
        flags |= r & (CHECK | WIDE | KEYED | DISTINCT | TIED)
    return cons(mem, A_SEQ, first, rest, 0, flags)


@inner
def mk_seq(mem, first, rest):
    if first == EMPTY or rest == EMPTY:
        return EMPTY
    if first == EPSILON:
        return rest
    if rest == EPSILON:
        return first
    if get(mem, first, N_OP) != A_SEQ:
        return _mk_seq2(mem, first, rest)
    base = top_of(mem)
    while get(mem, first, N_OP) == A_SEQ:
        push(mem, get(mem, first, N_A))
        first = get(mem, first, N_B)
    node = _mk_seq2(mem, first, rest)
    while mem[H_SCRATCH_TOP] > base and mem[H_STATUS] == 0:
        mem[H_SCRATCH_TOP] -= 1
        node = _mk_seq2(mem, scratch(mem, top_of(mem)), node)
    mem[H_SCRATCH_TOP] = base
    return node


@inner
def mk_repeat(mem, child, lo, hi):
    if hi == 0 or child == EPSILON:
        return EPSILON
    if child == EMPTY:
        return EPSILON if lo == 0 else EMPTY
    f = flags_of(mem, child)
    if f & NULLABLE:
        lo = 0
    if lo == 1 and hi == 1:
        return child
    if lo == 0 and hi < 0 and get(mem, child, N_OP) == A_CLASS and get(mem, child, N_B) == 256:
        return ALL
    return cons(mem, A_REPEAT, child, lo, hi, (NULLABLE if lo == 0 else 0) | (ENDLESS if hi < 0 else f & ENDLESS) | (f & (WIDE | PLAIN | CALLS | LOOKS)))


@inner
def mk_ahead(mem, settled, ends, begun):
    """What follows must begin with a text of `settled`, or be one of `ends`. Once begun, it has to be looked at whether it still can."""
    return cons(mem, A_AHEAD, settled, ends, begun, LOOKS | (CHECK if begun else 0) | (NULLABLE if nullable(mem, ends) else 0))


@inner
def has_begun(mem, node):
    """Is `node` an AHEAD that has read some of what follows, and has not been settled by it?"""
    return get(mem, node, N_OP) == A_AHEAD and get(mem, node, N_C) != 0


@inner
def may_look(mem, node):
    """Is `node` a choice in which an AHEAD may stand for the empty text? In front of something it has to be multiplied out."""
    return get(mem, node, N_OP) == A_ALT and flags_of(mem, node) & (LOOKS | NULLABLE) == LOOKS | NULLABLE


@inner
def mk_closed(mem, child):
    """`child`, in which AHEADs do not see what follows it."""
    f = flags_of(mem, child)
    return cons(mem, A_CLOSED, child, 0, 0, f & ~(PLAIN | LOOKS)) if f & LOOKS else child


@inner
def mk_path(mem, parent, byte):
    return cons(mem, A_PATH, parent, byte, 0, 0)
