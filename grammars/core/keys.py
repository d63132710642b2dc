"""Tokens from inside an undeclared key of an object.

As long as the name written so far may still become many names, a key is an ordinary text followed by a quote, a colon and a value:
its tokens are those of that sequence, without the names that are taken already (`without_taken`). The few tokens that close a
key, hold a member's colon, value and comma, and open the next key are looked at one by one: there the name just written counts.
Below other trie nodes than the root every token is (`add_key_tokens`). The characters of a name make no states of their own.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_BYTES,
    A_LITERAL,
    ANONYMOUS,
    EMPTY,
    ENDLESS,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    PLAIN,
    T_CHILDREN,
    T_COUNT,
    T_TEXT,
    V_BYTE,
    V_BYTES,
    V_DEPTH,
    V_LONG,
    V_LONG_COUNT,
    V_MAX_DEPTH,
    V_NODES,
    V_PARENT,
    V_SKIP,
    V_START,
)
from agentkit.grammars.core.nodes import cons, cons_list, flags_of, get, mk_path, mk_seq, nullable, pool, push, reg, scratch, top_of, voc_at
from agentkit.grammars.core.objects import can_close_extrakey, close_extrakey, find_path, may_collide, trie_child, words_of
from agentkit.grammars.core.step import name_left, step
from agentkit.grammars.core.walks import add_tokens, child_of, enter, push_path, remove_tokens

QUOTE = 34
MANY_LONG = 64  # long tokens, which are looked at one by one; with more of them, so are all tokens


@inner
def _make_path(mem, voc, node, top, path):
    """The undeclared key `path` + the token bytes from below trie node `top` (-1: the root) down to `node`."""
    base = top_of(mem)
    push_path(mem, voc, node, top)
    for k in range(top_of(mem) - 1, base - 1, -1):
        path = mk_path(mem, path, scratch(mem, k))
    mem[H_SCRATCH_TOP] = base
    return path


@inner
def add_key_tokens(mem, voc, row, top, extra, after, jobs):
    """Add the tokens below trie node `top` (-1: all) that the undeclared key `extra` can read; `after` follows the whole object."""
    obj, keys, family, begun = get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_F), get(mem, extra, N_E)
    cap = reg(voc, V_MAX_DEPTH) + 2
    states, tries, paths = np.empty(cap, np.int64), np.zeros(cap, np.int64), np.full(cap, -1, np.int64)
    depth = voc_at(voc, V_DEPTH, top) + 1 if top >= 0 else 0
    states[depth], tries[depth], paths[depth] = get(mem, extra, N_D), get(mem, extra, N_C), begun
    i, end = top + 1, voc_at(voc, V_SKIP, top) if top >= 0 else reg(voc, V_NODES)
    while i < end and reg(mem, H_STATUS) == 0:
        d, byte = voc_at(voc, V_DEPTH, i), voc_at(voc, V_BYTE, i)
        if byte == QUOTE and can_close_extrakey(mem, obj, keys, tries[d], states[d], paths[d]):
            add_tokens(voc, row, i)
            if voc_at(voc, V_SKIP, i) > i + 1:
                path = _make_path(mem, voc, voc_at(voc, V_PARENT, i), top, begun) if paths[d] < 0 else paths[d]
                enter(mem, voc, row, i, mk_seq(mem, close_extrakey(mem, obj, keys, path, family), after), jobs)
        following = step(mem, states[d], byte)
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        trie = trie_child(mem, tries[d], byte) if tries[d] else 0
        path = find_path(mem, paths[d], byte) if paths[d] >= 0 else -1
        states[d + 1], tries[d + 1], paths[d + 1] = following, trie, path
        free = flags_of(mem, following) & ENDLESS or not may_collide(mem, obj, keys, trie, path)
        if free or name_left(mem, obj, keys, trie, following, _make_path(mem, voc, i, top, begun) if path < 0 else path):
            add_tokens(voc, row, i)
        i += 1


@inner
def as_text(mem, voc, extra, after):
    """The undeclared key `extra` and what follows it, as if no name were taken; EMPTY if its tokens cannot be told from that."""
    obj, rest = get(mem, extra, N_A), get(mem, extra, N_D)
    if reg(voc, V_LONG_COUNT) > MANY_LONG or flags_of(mem, rest) & PLAIN == 0:
        return EMPTY
    base = top_of(mem)
    push(mem, QUOTE)
    quote = cons(mem, A_LITERAL, get(mem, cons_list(mem, A_BYTES, base, 1, 0), N_A), 1, 0, PLAIN)
    mem[H_SCRATCH_TOP] = base
    closed = mk_seq(mem, close_extrakey(mem, obj, get(mem, extra, N_B), ANONYMOUS, get(mem, extra, N_F)), after)
    return mk_seq(mem, rest, mk_seq(mem, quote, closed))


@inner
def _check(mem, voc, row, extra, node, top_path, trie, following):
    """Take out the tokens that end at `node`, on the way to a taken name, if no free name is left from there."""
    obj, keys = get(mem, extra, N_A), get(mem, extra, N_B)
    if following != EMPTY and flags_of(mem, following) & ENDLESS == 0:
        if not name_left(mem, obj, keys, trie, following, _make_path(mem, voc, node, -1, top_path)):
            remove_tokens(voc, row, node, node + 1)


@inner
def _without_declared(mem, voc, row, extra):
    """Take out of `row` the tokens that close a declared name: both tries are gone down side by side."""
    base = top_of(mem)
    push(mem, -1)
    push(mem, get(mem, extra, N_C))
    push(mem, get(mem, extra, N_D))
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        mem[H_SCRATCH_TOP] -= 3
        at = top_of(mem)
        node, trie, state = scratch(mem, at), scratch(mem, at + 1), scratch(mem, at + 2)
        below, end = node + 1, voc_at(voc, V_SKIP, node) if node >= 0 else reg(voc, V_NODES)
        k, count = 0, pool(mem, trie + T_COUNT)
        while below < end and k < count:
            byte, wanted = voc_at(voc, V_BYTE, below), pool(mem, trie + T_CHILDREN + 2 * k)
            if byte == wanted:
                child = pool(mem, trie + T_CHILDREN + 2 * k + 1)
                if pool(mem, child + T_TEXT) >= 0:
                    remove_tokens(voc, row, below, voc_at(voc, V_SKIP, below))
                else:
                    following = step(mem, state, byte)
                    _check(mem, voc, row, extra, below, get(mem, extra, N_E), child, following)
                    if following != EMPTY:
                        push(mem, below)
                        push(mem, child)
                        push(mem, following)
            if byte <= wanted:
                below = voc_at(voc, V_SKIP, below)
            if byte >= wanted:
                k += 1
    mem[H_SCRATCH_TOP] = base


@inner
def _without_used(mem, voc, row, extra, used):
    """Take out of `row` the tokens that close the undeclared name `used`."""
    base, begun = top_of(mem), get(mem, extra, N_E)
    at = used
    while at != begun and at != 0:
        push(mem, get(mem, at, N_B))
        at = get(mem, at, N_A)
    node, state, trie = -1, get(mem, extra, N_D), get(mem, extra, N_C)
    if at == begun:
        for k in range(top_of(mem) - 1, base - 1, -1):
            byte = scratch(mem, k)
            node, state = child_of(voc, node, byte), step(mem, state, byte)
            if node < 0 or state == EMPTY:
                break
            trie = trie_child(mem, trie, byte) if trie else 0
            _check(mem, voc, row, extra, node, begun, trie, state)
        if state != EMPTY and (node >= 0 or top_of(mem) == base):
            node = child_of(voc, node, QUOTE)
            if node >= 0 and nullable(mem, state):
                remove_tokens(voc, row, node, voc_at(voc, V_SKIP, node))
    mem[H_SCRATCH_TOP] = base


@inner
def without_taken(mem, voc, row, extra):
    """Take out of `row`, the tokens of `as_text(extra)`, those of names that are declared or written already."""
    if get(mem, extra, N_C):
        _without_declared(mem, voc, row, extra)
    keys = get(mem, extra, N_B)
    record = get(mem, keys, N_A)
    for k in range(words_of(mem, get(mem, extra, N_A)) + 1, get(mem, keys, N_B)):
        _without_used(mem, voc, row, extra, pool(mem, record + k))


@inner
def long_tokens(mem, voc, row, state):
    """Decide for each long token by itself whether `state` can read it."""
    for k in range(reg(voc, V_LONG_COUNT)):
        token, following = voc_at(voc, V_LONG, k), state
        for at in range(voc_at(voc, V_START, token), voc_at(voc, V_START, token + 1)):
            following = step(mem, following, voc_at(voc, V_BYTES, at))
            if following == EMPTY:
                break
        bit = np.uint32(1) << np.uint32(token & 31)
        row[token >> 5] = row[token >> 5] & ~bit if following == EMPTY else row[token >> 5] | bit


@inner
def could_take(mem, extra):
    """May a token lead from inside `extra` to a name that is taken?"""
    return may_collide(mem, get(mem, extra, N_A), get(mem, extra, N_B), get(mem, extra, N_C), get(mem, extra, N_E))
