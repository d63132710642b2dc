"""Tokens that would make an item equal to an earlier one, where all items of an array must differ.

A state inside such an array has the mask of the state without that condition (`relaxed`), which is shared by all texts, less the tokens
that the condition takes out. These are found along the earlier items that the one being read is tied to (distinct.py), and among
the tokens with a comma in them, behind which another item begins. Knows nothing of rows that are kept.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.combine import mk_alt
from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.distinct import BACKSLASH, COMMA, ESCAPE, HEX, MODES, NAME, QUOTE, TEXT
from agentkit.grammars.core.layout import (
    A_ALT,
    A_DISTINCT,
    A_SEQ,
    DISTINCT,
    EMPTY,
    H_SCRATCH_TOP,
    H_STATUS,
    N_A,
    N_B,
    N_C,
    N_E,
    N_OP,
    TIED,
    V_BYTE,
    V_BYTES,
    V_COMMA,
    V_COMMA_COUNT,
    V_NODES,
    V_QUOTED_COUNT,
    V_SKIP,
    V_START,
)
from agentkit.grammars.core.nodes import bit, flags_of, get, mk_seq, nullable, pool, push, reg, scratch, scratch_set, top_of, voc_at
from agentkit.grammars.core.step import step
from agentkit.grammars.core.ties import place_in
from agentkit.grammars.core.walks import begins, remove_tokens


@inner
def relaxed(mem, node):
    """`node` without the condition that the items being read differ."""
    if flags_of(mem, node) & DISTINCT == 0:
        return node
    op, first = get(mem, node, N_OP), get(mem, node, N_A)
    if op == A_DISTINCT:
        return relaxed(mem, first)
    if op == A_SEQ:
        rest = get(mem, node, N_B)
        return mk_seq(mem, relaxed(mem, first), relaxed(mem, rest) if nullable(mem, first) else rest)
    base = top_of(mem)
    for i in range(get(mem, node, N_B) if op == A_ALT else 0):
        push(mem, relaxed(mem, pool(mem, first + i)))
    return mk_alt(mem, base) if op == A_ALT else node


@inner
def _add_text_bytes(mem, whole, length, words):
    """The byte that follows a beginning of the BYTES `whole`, or the quote behind it, and the backslash, which may begin any character."""
    byte = pool(mem, get(mem, whole, N_A) + length) if length < get(mem, whole, N_B) else QUOTE
    for b in (byte, BACKSLASH):
        scratch_set(mem, words + (b >> 5), scratch(mem, words + (b >> 5)) | bit(b & 31))


@inner
def _tied_bytes(mem, node, words):
    """Set in the 8 words at scratch[words] the bytes after which `node` may still be tied, or dead because of what it is tied to."""
    op, first = get(mem, node, N_OP), get(mem, node, N_A)
    if flags_of(mem, node) & TIED == 0:
        return
    if op == A_SEQ:
        _tied_bytes(mem, first, words)
        if nullable(mem, first):
            _tied_bytes(mem, get(mem, node, N_B), words)
    elif op == A_ALT:
        for i in range(get(mem, node, N_B)):
            _tied_bytes(mem, pool(mem, first + i), words)
    elif op == A_DISTINCT:
        _tied_bytes(mem, first, words)
        item = get(mem, node, N_B)
        chain, frame, mode, length = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_C), get(mem, item, N_E)
        while chain:
            value = get(mem, chain, N_B)
            chain = get(mem, chain, N_A)
            if mode & MODES != TEXT:
                for i in range(8):
                    scratch_set(mem, words + i, -1)
            elif mode & NAME:
                content = get(mem, place_in(mem, value, get(mem, frame, N_A)), N_B)
                for i in range(0, get(mem, content, N_B), 2):
                    _add_text_bytes(mem, pool(mem, get(mem, content, N_A) + i), length, words)
            else:
                _add_text_bytes(mem, get(mem, place_in(mem, value, frame), N_B), length, words)


@inner
def _without_tied(mem, voc, row, state):
    """Take out of `row` the tokens along the items that `state` is tied to which it cannot read."""
    base = top_of(mem)
    push(mem, -1)
    push(mem, state)
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        mem[H_SCRATCH_TOP] -= 2
        node, current = scratch(mem, top_of(mem)), scratch(mem, top_of(mem) + 1)
        first, words = begins(mem, current), np.zeros(8, np.int64)
        for _ in range(8):
            push(mem, 0)
        _tied_bytes(mem, current, first + 8)
        for i in range(8):
            words[i] = scratch(mem, first + i) & scratch(mem, first + 8 + i)
        mem[H_SCRATCH_TOP] = first
        at, end = node + 1, voc_at(voc, V_SKIP, node) if node >= 0 else reg(voc, V_NODES)
        while at < end:
            byte = voc_at(voc, V_BYTE, at)
            if (words[byte >> 5] >> (byte & 31)) & 1:
                following = step(mem, current, byte)
                if following == EMPTY:
                    remove_tokens(voc, row, at, voc_at(voc, V_SKIP, at))
                elif flags_of(mem, following) & TIED and voc_at(voc, V_SKIP, at) > at + 1:
                    push(mem, at)
                    push(mem, following)
            at = voc_at(voc, V_SKIP, at)
    mem[H_SCRATCH_TOP] = base


@inner
def _in_text(mem, item):
    mode = get(mem, item, N_C) & MODES
    return mode == TEXT or mode == ESCAPE or mode == HEX


@inner
def _only_texts(mem, node):
    """Is a text being read by every DISTINCT that is being read at `node`?"""
    op, first = get(mem, node, N_OP), get(mem, node, N_A)
    if flags_of(mem, node) & DISTINCT == 0:
        return True
    if op == A_DISTINCT:
        return _in_text(mem, get(mem, node, N_B)) and _only_texts(mem, first)
    if op == A_SEQ:
        return _only_texts(mem, first) and (not nullable(mem, first) or _only_texts(mem, get(mem, node, N_B)))
    for i in range(get(mem, node, N_B)):
        if not _only_texts(mem, pool(mem, first + i)):
            return False
    return True


@inner
def _begins_item(mem, voc, token, item):
    """Does a token come to the comma behind the item that is being read?"""
    in_text, escaped, depth, frame = _in_text(mem, item), get(mem, item, N_C) & MODES == ESCAPE, 0, get(mem, item, N_B)
    while frame:
        depth, frame = depth + 1, get(mem, frame, N_A)
    for at in range(reg(voc, V_BYTES) + voc_at(voc, V_START, token), reg(voc, V_BYTES) + voc_at(voc, V_START, token + 1)):
        byte = reg(voc, at)
        if in_text:
            in_text = escaped or byte != QUOTE
            escaped = not escaped and byte == BACKSLASH
        elif byte == QUOTE:
            in_text = True
        elif byte == 91 or byte == 123:
            depth += 1
        elif byte == 93 or byte == 125:
            depth -= 1
        elif byte == COMMA and depth == 0:
            return True
        if depth < 0:
            return False
    return False


@inner
def begins_item(mem, voc, token, node):
    """Does a token come to the comma behind an item of some array at `node` whose items must differ?"""
    op, first = get(mem, node, N_OP), get(mem, node, N_A)
    if flags_of(mem, node) & DISTINCT == 0:
        return False
    if op == A_DISTINCT:
        return _begins_item(mem, voc, token, get(mem, node, N_B)) or begins_item(mem, voc, token, first)
    if op == A_SEQ:
        return begins_item(mem, voc, token, first) or (nullable(mem, first) and begins_item(mem, voc, token, get(mem, node, N_B)))
    for i in range(get(mem, node, N_B)):
        if begins_item(mem, voc, token, pool(mem, first + i)):
            return True
    return False


@inner
def read_token(mem, voc, state, token):
    """The state after the bytes of a token."""
    for at in range(reg(voc, V_BYTES) + voc_at(voc, V_START, token), reg(voc, V_BYTES) + voc_at(voc, V_START, token + 1)):
        state = step(mem, state, reg(voc, at))
        if state == EMPTY:
            break
    return state


@inner
def comma_tokens(mem, voc, state):
    """How many of the tokens at V_COMMA may come to the comma behind an item."""
    return reg(voc, V_QUOTED_COUNT) if _only_texts(mem, state) else reg(voc, V_COMMA_COUNT)


@inner
def without_repeats(mem, voc, row, state):
    """Take out of `row`, the mask of `relaxed(state)`, what would make an item equal to an earlier one."""
    if flags_of(mem, state) & TIED:
        _without_tied(mem, voc, row, state)
    for k in range(comma_tokens(mem, voc, state)):
        token = voc_at(voc, V_COMMA, k)
        here = np.uint32(1) << np.uint32(token & 31)
        if row[token >> 5] & here and begins_item(mem, voc, token, state) and read_token(mem, voc, state, token) == EMPTY:
            row[token >> 5] &= ~here
