"""The budget guard's masks: the tokens after which the text can still be completed.

Every token is tried, so names of undeclared keys are forgotten as soon as they can no longer be a taken one, and items that must
differ as soon as they do: their characters would make a state for each token of the vocabulary.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.combine import mk_alt
from agentkit.grammars.core.decorators import INT, INTS, ROW, inner, kernel
from agentkit.grammars.core.distinct import forgetting, has_enough, is_behind, is_forgetting, is_tied, mk_distinct
from agentkit.grammars.core.keys import QUOTE, could_take
from agentkit.grammars.core.layout import (
    A_ALT,
    A_DISTINCT,
    A_EXTRAKEY,
    A_SEQ,
    ANONYMOUS,
    DISTINCT,
    EMPTY,
    EXTRA_SIZE,
    H_SCRATCH_TOP,
    H_STATUS,
    KEYED,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_OP,
    O_EXTRA,
    O_MIN,
    V_BYTE,
    V_COMMA,
    V_COMPLETE,
    V_DEPTH,
    V_FIRST,
    V_MAX_DEPTH,
    V_NODES,
    V_SKIP,
    V_SPECIAL_COUNT,
    V_SPECIALS,
    V_STOP_COUNT,
    V_STOPS,
)
from agentkit.grammars.core.nodes import flags_of, get, mk_seq, nullable, pool, push, reg, scratch, top_of, voc_at
from agentkit.grammars.core.objects import extra_missing, keys_written, mk_extrakey, required_left
from agentkit.grammars.core.repeats import begins_item, comma_tokens, read_token
from agentkit.grammars.core.search import need
from agentkit.grammars.core.step import step
from agentkit.grammars.core.walks import add_tokens, child_of, push_path
from agentkit.grammars.core.witness import MAX_WITNESS, is_within, witness

GUARDED = 1024  # tokens that are tried with the names they write
GUARDED_ITEMS = 4  # tokens that are tried with what they write of an item which those to come must differ from: each is a search


@inner
def _anonymous(mem, node):
    """`node` with the undeclared keys being written, which can no longer be a taken name, made nameless, and the items being
    written, which can no longer equal another, forgotten: their characters make no states."""
    if flags_of(mem, node) & (KEYED | DISTINCT) == 0:
        return node
    op = get(mem, node, N_OP)
    if op == A_DISTINCT:
        if is_tied(mem, node):  # what follows may be more than the shortest, so all that it may not be is to be known
            return node
        inside = _anonymous(mem, get(mem, node, N_A))
        if has_enough(mem, node):
            return inside
        node = mk_distinct(mem, inside, get(mem, node, N_B), get(mem, node, N_C), get(mem, node, N_D))
        return node if is_behind(mem, node) else forgetting(mem, node)
    if op == A_SEQ:
        return mk_seq(mem, _anonymous(mem, get(mem, node, N_A)), get(mem, node, N_B))
    if op == A_ALT:
        base = top_of(mem)
        for i in range(get(mem, node, N_B)):
            push(mem, _anonymous(mem, pool(mem, get(mem, node, N_A) + i)))
        return mk_alt(mem, base)
    if op == A_EXTRAKEY and not could_take(mem, node):
        return mk_extrakey(mem, get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C), get(mem, node, N_D), ANONYMOUS, get(mem, node, N_F))
    return node


@inner
def _names_to_come(mem, node):
    """Must further undeclared names follow the nameless key that is being written, or further items one that is forgotten? What
    they may not be is then not known."""
    while get(mem, node, N_OP) == A_SEQ or (get(mem, node, N_OP) == A_DISTINCT and not is_forgetting(mem, node)):
        node = get(mem, node, N_A)
    if get(mem, node, N_OP) == A_DISTINCT:
        return True
    if get(mem, node, N_OP) == A_ALT:
        for i in range(get(mem, node, N_B)):
            if _names_to_come(mem, pool(mem, get(mem, node, N_A) + i)):
                return True
        return False
    if get(mem, node, N_OP) != A_EXTRAKEY or get(mem, node, N_E) != ANONYMOUS:
        return False
    obj, keys = get(mem, node, N_A), get(mem, node, N_B)
    if extra_missing(mem, obj, keys) > pool(mem, pool(mem, obj + O_EXTRA) + EXTRA_SIZE * get(mem, node, N_F) + 2):
        return True
    return keys_written(mem, obj, keys) + 1 + required_left(mem, obj, keys) < pool(mem, obj + O_MIN)


@inner
def _read(mem, voc, state, node):
    """The state after the token bytes down to trie node `node`."""
    base = top_of(mem)
    push_path(mem, voc, node, -1)
    for k in range(top_of(mem) - 1, base - 1, -1):
        state = step(mem, state, scratch(mem, k))
    mem[H_SCRATCH_TOP] = base
    return state


@inner
def _guard_witness(mem, voc, row, state, budget):
    """The tokens that the shortest completion of `state` may begin with, where the rest then fits."""
    if need(mem, state) >= MAX_WITNESS:
        return
    symbols = np.empty(need(mem, state) * 2 + 64, np.int32)
    length, node = witness(mem, voc, state, symbols), -1
    for k in range(length):
        node = child_of(voc, node, np.int64(symbols[k])) if symbols[k] < 256 else -1
        if node < 0:
            break
        state = step(mem, state, np.int64(symbols[k]))
        if voc_at(voc, V_FIRST, node) < voc_at(voc, V_FIRST, node + 1) and is_within(mem, voc, state, budget - 1):
            add_tokens(voc, row, node)


@inner
def _guard_items(mem, voc, row, state, budget):
    """Take out the tokens that go on into another item after which the text cannot be completed: what they write has been forgotten above."""
    for k in range(comma_tokens(mem, voc, state)):
        token = voc_at(voc, V_COMMA, k)
        here = np.uint32(1) << np.uint32(token & 31)
        if row[token >> 5] & here and begins_item(mem, voc, token, state):
            following = read_token(mem, voc, state, token)
            if following == EMPTY or not is_within(mem, voc, following, budget - 1):
                row[token >> 5] &= ~here


@kernel(INTS, INTS, ROW, INT, INT)
def guarded_row(mem, voc, row, state, budget):
    """Into `row` the tokens after which the text can still be completed within budget - 1 more; stop tokens as ever.

    Where further undeclared names have to follow, or items that must differ, at most GUARDED (GUARDED_ITEMS) tokens are looked at with
    what they write; others only if they fit whatever that is.
    """
    row[:] = 0
    states = np.empty(reg(voc, V_MAX_DEPTH) + 2, np.int32)
    states[0] = _anonymous(mem, state)
    i, looked_at, most = 0, 0, GUARDED_ITEMS if flags_of(mem, state) & DISTINCT else GUARDED
    while i < reg(voc, V_NODES) and reg(mem, H_STATUS) == 0:
        d, byte = voc_at(voc, V_DEPTH, i), voc_at(voc, V_BYTE, i)
        following = step(mem, np.int64(states[d]), byte)
        if following != EMPTY and byte == QUOTE and _names_to_come(mem, np.int64(states[d])):
            following = _read(mem, voc, state, i)  # a name may be complete, and those to come must differ from it
        if following == EMPTY:
            i = voc_at(voc, V_SKIP, i)
            continue
        following = _anonymous(mem, following)
        states[d + 1] = following
        first = reg(voc, V_FIRST) + i
        if reg(voc, first) < reg(voc, first + 1) and is_within(mem, voc, following, budget - 1):
            if _names_to_come(mem, following) and (reg(voc, V_COMPLETE) == 0 or need(mem, following) >= budget):
                looked_at += 1
                if looked_at <= most and is_within(mem, voc, _read(mem, voc, state, i), budget - 1):
                    add_tokens(voc, row, i)
            else:
                add_tokens(voc, row, i)
        i += 1
    if flags_of(mem, state) & DISTINCT:
        _guard_items(mem, voc, row, state, budget)
    _guard_witness(mem, voc, row, state, budget)
    for k in range(reg(voc, V_SPECIAL_COUNT)):
        token = voc_at(voc, V_SPECIALS, k)
        if token >= 0:
            following = step(mem, state, 256 + k)
            if following != EMPTY and is_within(mem, voc, following, budget - 1):
                row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(reg(voc, V_STOP_COUNT)):
        token = voc_at(voc, V_STOPS, k)
        if nullable(mem, state):
            row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
