"""Which bytes may begin a node. Knows nothing of what follows them."""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_CALL,
    A_CLASS,
    A_CLOSED,
    A_DISTINCT,
    A_KEY,
    A_LITERAL,
    A_OBJECT,
    A_REPEAT,
    A_SEQ,
    A_SPECIAL,
    A_TRIE,
    AFTER,
    EPSILON,
    FIRST,
    H_SCRATCH_TOP,
    H_STATUS,
    LOOKS,
    N_A,
    N_B,
    N_C,
    N_MARK,
    N_OP,
    O_CLOSE,
    O_COMMA,
    T_CHILDREN,
    T_COUNT,
)
from agentkit.grammars.core.nodes import bit, flags_of, fresh_epoch, get, may_look, mk_seq, nullable, pool, push, put, reg, scratch, scratch_set, top_of


@inner
def _set_bit(mem, at, byte):
    scratch_set(mem, at + (byte >> 5), scratch(mem, at + (byte >> 5)) | bit(byte & 31))


@inner
def first_bytes(mem, node, at):
    """Set in the 8 words at scratch[at] every byte that may begin `node` (possibly more)."""
    _first_bytes(mem, node, at, fresh_epoch(mem))


@inner
def _looking_bytes(mem, node, at):
    """The bytes of a sequence that begins with an AHEAD, or a choice in which one may stand for the empty text; False if it does not."""
    first, rest = get(mem, node, N_A), get(mem, node, N_B)
    if get(mem, first, N_OP) == A_AHEAD:
        base = top_of(mem)
        for _ in range(16):
            push(mem, 0)
        _first_bytes(mem, get(mem, first, N_A), base, fresh_epoch(mem))
        _first_bytes(mem, get(mem, first, N_B), base, fresh_epoch(mem))
        _first_bytes(mem, rest, base + 8, fresh_epoch(mem))
        for i in range(8):
            scratch_set(mem, at + i, scratch(mem, at + i) | (scratch(mem, base + i) & scratch(mem, base + 8 + i)))
        mem[H_SCRATCH_TOP] = base
        return True
    if not may_look(mem, first):
        return False
    for i in range(get(mem, first, N_B)):
        _first_bytes(mem, mk_seq(mem, pool(mem, get(mem, first, N_A) + i), rest), at, fresh_epoch(mem))
    return True


@inner
def _first_bytes(mem, node, at, epoch):
    if node > EPSILON and get(mem, node, N_MARK) != epoch and reg(mem, H_STATUS) == 0:
        put(mem, node, N_MARK, epoch)
        _add_first(mem, node, at, epoch)


@inner
def _add_first(mem, node, at, epoch):
    """As `_first_bytes`, of a node that has just been marked."""
    op = get(mem, node, N_OP)
    if op == A_LITERAL:
        _set_bit(mem, at, pool(mem, get(mem, node, N_A)))
    elif op == A_CLASS:
        offset = get(mem, node, N_A)
        for i in range(8):
            scratch_set(mem, at + i, scratch(mem, at + i) | pool(mem, offset + i))
    elif op == A_SEQ:
        _first_of_seq(mem, node, at, epoch)
    elif op == A_ALT:
        for i in range(get(mem, node, N_B)):
            _first_bytes(mem, pool(mem, get(mem, node, N_A) + i), at, epoch)
    elif op == A_REPEAT or op == A_CLOSED or op == A_DISTINCT:
        _first_bytes(mem, get(mem, node, N_A), at, epoch)
    elif op == A_CALL:
        _first_bytes(mem, pool(mem, get(mem, node, N_A)), at, epoch)
    elif op == A_TRIE or op == A_KEY:
        trie = get(mem, node, N_A) if op == A_TRIE else get(mem, node, N_C)
        for i in range(pool(mem, trie + T_COUNT)):
            _set_bit(mem, at, pool(mem, trie + T_CHILDREN + 2 * i))
    elif op == A_OBJECT:
        phase = get(mem, node, N_C)
        if phase != AFTER:
            _set_bit(mem, at, 34)
        else:
            _first_bytes(mem, pool(mem, get(mem, node, N_A) + O_COMMA), at, epoch)
        if phase == AFTER or phase == FIRST:
            _first_bytes(mem, pool(mem, get(mem, node, N_A) + O_CLOSE), at, epoch)
    elif op != A_SPECIAL and op != A_AHEAD:
        for i in range(8):
            scratch_set(mem, at + i, -1)


@inner
def _first_of_seq(mem, node, at, epoch):
    rest = node
    while get(mem, rest, N_OP) == A_SEQ:
        if flags_of(mem, get(mem, rest, N_A)) & LOOKS and _looking_bytes(mem, rest, at):
            return
        _first_bytes(mem, get(mem, rest, N_A), at, epoch)
        if not nullable(mem, get(mem, rest, N_A)):
            return
        rest = get(mem, rest, N_B)
        if get(mem, rest, N_MARK) == epoch:
            return
        if get(mem, rest, N_OP) == A_SEQ:
            put(mem, rest, N_MARK, epoch)
    _first_bytes(mem, rest, at, epoch)
