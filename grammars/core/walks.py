"""Walks of the token trie against states: which tokens below a trie node can be read.

Where a walk comes into an undeclared key it does not go on byte by byte (each name would make a state of its own): it leaves
the rest to its caller as a job, a pair (trie node, state after it). Knows nothing of rows that are kept.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import (
    EMPTY,
    FULL_SCRATCH,
    H_SCRATCH,
    H_SCRATCH_CAP,
    H_SCRATCH_TOP,
    H_STATUS,
    KEYED,
    V_BYTE,
    V_DEPTH,
    V_FIRST,
    V_IDS,
    V_MAX_DEPTH,
    V_PARENT,
    V_ROOT,
    V_SKIP,
)
from agentkit.grammars.core.nodes import flags_of, push, reg, scratch, top_of, voc_at
from agentkit.grammars.core.step import step


@inner
def add_tokens(voc, row, node):
    """Add the tokens that end at a trie node."""
    first = reg(voc, V_FIRST) + node
    for k in range(reg(voc, first), reg(voc, first + 1)):
        token = voc_at(voc, V_IDS, k)
        row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@inner
def remove_tokens(voc, row, node, end):
    """Take out the tokens of the trie nodes node ... end - 1."""
    for k in range(voc_at(voc, V_FIRST, node), voc_at(voc, V_FIRST, end)):
        token = voc_at(voc, V_IDS, k)
        row[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))


@inner
def child_of(voc, node, byte):
    """Child of a token-trie node (-1: the root) by byte, or -1."""
    if node < 0:
        return voc_at(voc, V_ROOT, byte)
    at, end = node + 1, voc_at(voc, V_SKIP, node)
    while at < end:
        b = voc_at(voc, V_BYTE, at)
        if b >= byte:
            return at if b == byte else -1
        at = voc_at(voc, V_SKIP, at)
    return -1


@inner
def begins(mem, state):
    """The 8 words of bytes that may begin `state`, pushed onto the scratch stack; returns where they stand."""
    base = top_of(mem)
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, state, base)
    return base


@inner
def has_byte(mem, words, byte):
    return (scratch(mem, words + (byte >> 5)) >> (byte & 31)) & 1 != 0


@inner
def add_job(jobs, node, state):
    """Leave the tokens below `node`, reached in `state`, for later; False if there is no more room. jobs[0, 0] counts them."""
    count = jobs[0, 0] + 1
    if count >= jobs.shape[0]:
        return False
    jobs[count, 0], jobs[count, 1] = node, state
    jobs[0, 0] = count
    return True


@inner
def path_states(mem, voc, node, state):
    """Room for the states on a path below trie node `node`, on the scratch stack: where that of depth 0 would be; -1 on status.

    `state` is put down as the one after `node`. The caller takes the room off the stack again.
    """
    base, depth = top_of(mem), voc_at(voc, V_DEPTH, node) + 1
    if base + reg(voc, V_MAX_DEPTH) + 2 >= reg(mem, H_SCRATCH_CAP):
        mem[H_STATUS] = FULL_SCRATCH
        return -1
    mem[H_SCRATCH_TOP] = base + reg(voc, V_MAX_DEPTH) + 2
    mem[reg(mem, H_SCRATCH) + base] = state
    return reg(mem, H_SCRATCH) + base - depth


@inner
def push_path(mem, voc, node, top):
    """Push the bytes from trie node `node` up to below `top` (-1: the root), the last one first."""
    while node != top:
        push(mem, voc_at(voc, V_BYTE, node))
        node = voc_at(voc, V_PARENT, node)


@inner
def walk(mem, voc, row, node, state, jobs):
    """Add to `row` every token strictly below trie node `node` that `state` can read."""
    at_byte, at_depth, at_skip = reg(voc, V_BYTE), reg(voc, V_DEPTH), reg(voc, V_SKIP)
    i, end, base = node + 1, reg(voc, at_skip + node), top_of(mem)
    states = path_states(mem, voc, node, state)
    while i < end and states >= 0:
        d = reg(voc, at_depth + i)
        following = step(mem, reg(mem, states + d), reg(voc, at_byte + i))
        if following == EMPTY:
            if reg(mem, H_STATUS):
                break
            i = reg(voc, at_skip + i)
            continue
        add_tokens(voc, row, i)
        if flags_of(mem, following) & KEYED and reg(voc, at_skip + i) > i + 1 and add_job(jobs, i, following):
            i = reg(voc, at_skip + i)
            continue
        mem[states + d + 1] = following
        i += 1
    mem[H_SCRATCH_TOP] = base


@inner
def enter(mem, voc, row, node, state, jobs):
    """Add to `row` the tokens that end at trie node `node` and those below it, `state` being the one after it."""
    add_tokens(voc, row, node)
    if voc_at(voc, V_SKIP, node) > node + 1:
        if flags_of(mem, state) & KEYED == 0 or not add_job(jobs, node, state):
            walk(mem, voc, row, node, state, jobs)


@inner
def walk_all(mem, voc, row, state, jobs):
    """Add to `row` every token that `state` can read, looking only below the bytes that may come first."""
    base = begins(mem, state)
    for byte in range(256):
        if has_byte(mem, base, byte):
            node = voc_at(voc, V_ROOT, byte)
            following = step(mem, state, byte) if node >= 0 else EMPTY
            if following != EMPTY:
                enter(mem, voc, row, node, following, jobs)
    mem[H_SCRATCH_TOP] = base
