"""Tries over texts in the pool: the names of an object, or many literals. Knows nothing of what they are for."""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import H_SCRATCH_TOP, H_STATUS, INFINITE, T_CHILDREN, T_COUNT, T_DEPTH, T_HI, T_LO, T_NEED, T_TEXT
from agentkit.grammars.core.nodes import pool, pool_set, pool_take, push, reg, scratch, scratch_set, top_of


@inner
def _child_count(mem, blob, code, table, stride, lo, hi, depth, quoted):
    """Distinct next bytes of the texts lo..hi (numbers in scratch) at `depth`."""
    count, last = 0, -1
    for k in range(lo, hi):
        text = table + stride * scratch(mem, k)
        if code[text + 1] == depth:
            count += 1 if quoted else 0
        elif blob[code[text] + depth] != last:
            last = blob[code[text] + depth]
            count += 1
    return count


@inner
def _enqueue(mem, first, end, depth, patch):
    push(mem, first)
    push(mem, end)
    push(mem, depth)
    push(mem, patch)


@inner
def build_trie(mem, blob, code, table, stride, lo, hi, quoted):
    """Trie over texts whose numbers stand sorted in scratch[lo:hi]; text t is blob[code[table + stride t]] of length code[.. + 1].

    quoted: each text is followed by a closing quote, and ends behind it. Returns the root's pool offset.
    """
    base = top_of(mem)
    _enqueue(mem, lo, hi, 0, -1)
    root, at = -1, base
    while at < top_of(mem) and reg(mem, H_STATUS) == 0:  # a queue: parents come before children
        first, end, depth, patch = scratch(mem, at), scratch(mem, at + 1), scratch(mem, at + 2), scratch(mem, at + 3)
        at += 4
        closing = depth < 0
        count = 0 if closing else _child_count(mem, blob, code, table, stride, first, end, depth, quoted)
        node = pool_take(mem, T_CHILDREN + 2 * count)
        if node < 0:
            break
        scratch_set(mem, at - 4, node)
        pool_set(mem, node + T_TEXT, scratch(mem, first) if closing else -1)
        pool_set(mem, node + T_LO, first - lo)
        pool_set(mem, node + T_HI, end - lo)
        pool_set(mem, node + T_DEPTH, -depth if closing else depth)
        pool_set(mem, node + T_NEED, 0 if closing else INFINITE)
        pool_set(mem, node + T_COUNT, count)
        if patch < 0:
            root = node
        else:
            pool_set(mem, patch, node)
        if closing:
            continue
        slot, start = node + T_CHILDREN, first
        if first < end and code[table + stride * scratch(mem, first) + 1] == depth:  # the shortest text of the range ends here
            start = first + 1
            if not quoted:
                pool_set(mem, node + T_TEXT, scratch(mem, first))
                pool_set(mem, node + T_NEED, 0)
        ends_here = quoted and start > first
        k = start
        while k < end or ends_here:
            byte = blob[code[table + stride * scratch(mem, k)] + depth] if k < end else 256
            if ends_here and byte > 34:
                pool_set(mem, slot, 34)
                _enqueue(mem, first, first + 1, -depth - 1, slot + 1)
                ends_here = False
                slot += 2
                continue
            group = k
            while k < end and blob[code[table + stride * scratch(mem, k)] + depth] == byte:
                k += 1
            pool_set(mem, slot, byte)
            _enqueue(mem, group, k, depth + 1, slot + 1)
            slot += 2
    if reg(mem, H_STATUS):
        mem[H_SCRATCH_TOP] = base
        return -1
    for entry in range(at - 4, base - 1, -4):
        node = scratch(mem, entry)
        for i in range(pool(mem, node + T_COUNT)):
            below = pool(mem, pool(mem, node + T_CHILDREN + 2 * i + 1) + T_NEED)
            pool_set(mem, node + T_NEED, min(pool(mem, node + T_NEED), below + 1))
    mem[H_SCRATCH_TOP] = base
    return root
