"""The Brzozowski derivative of a node by one symbol: what may follow once that symbol has been read.

Symbols 0..255 are bytes, 256 + k is special token k. Derivatives are memoised (Brzozowski 1964; Owens, Reppy and Turon 2009
for the normal forms); dead branches are still in them (step.py drops those). Rules are entered on demand, so a recursive rule's
continuation is the tail of a sequence: the parse stack.
"""

from __future__ import annotations

from agentkit.grammars.core.combine import mk_alt, mk_and, mk_not
from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.distinct import read_on
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_AND,
    A_CALL,
    A_CLASS,
    A_CLOSED,
    A_DISTINCT,
    A_EXTRAKEY,
    A_KEY,
    A_LITERAL,
    A_NOT,
    A_OBJECT,
    A_REPEAT,
    A_SEQ,
    A_SPECIAL,
    A_TRIE,
    AFTER,
    ALL,
    ANONYMOUS,
    CALLS,
    EMPTY,
    EPSILON,
    EXTRA_SIZE,
    FIRST,
    FULL_MEMO,
    H_DEPTH,
    H_MEMO,
    H_MEMO_COUNT,
    H_MEMO_MASK,
    H_SCRATCH_TOP,
    H_STATUS,
    LOOKS,
    LOOSE,
    MAX_DEPTH,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_OP,
    NEXT,
    NULLABLE,
    O_CLOSE,
    O_COMMA,
    O_EXTRA,
    O_EXTRAS,
    O_TRIE,
    PLAIN,
    T_COUNT,
    T_TEXT,
    TOO_DEEP,
)
from agentkit.grammars.core.nodes import (
    cons,
    flags_of,
    get,
    may_look,
    mix,
    mk_ahead,
    mk_closed,
    mk_literal,
    mk_path,
    mk_repeat,
    mk_seq,
    nullable,
    pool,
    push,
    reg,
    top_of,
)
from agentkit.grammars.core.objects import (
    any_key,
    can_close_extrakey,
    close_extrakey,
    close_key,
    extra_allowed,
    extras_allowed,
    key_below,
    may_close,
    mk_extrakey,
    mk_key,
    mk_object,
    trie_child,
)


@inner
def _memo_slot(mem, node, symbol):
    return reg(mem, H_MEMO) + 3 * (mix(node, symbol) >> 9 & reg(mem, H_MEMO_MASK))


@inner
def memo_find(mem, node, symbol):
    """Memoised derivative, or -1."""
    base, end = reg(mem, H_MEMO), reg(mem, H_MEMO) + 3 * (reg(mem, H_MEMO_MASK) + 1)
    at = _memo_slot(mem, node, symbol)
    while mem[at] > 0:
        if mem[at] == node and mem[at + 1] == symbol:
            return reg(mem, at + 2)
        at += 3
        if at == end:
            at = base
    return -1


@inner
def memo_store(mem, node, symbol, value):
    if 2 * reg(mem, H_MEMO_COUNT) > reg(mem, H_MEMO_MASK):
        mem[H_STATUS] = FULL_MEMO
        return
    base, end = reg(mem, H_MEMO), reg(mem, H_MEMO) + 3 * (reg(mem, H_MEMO_MASK) + 1)
    at = _memo_slot(mem, node, symbol)
    while mem[at] > 0:
        at += 3
        if at == end:
            at = base
    mem[at], mem[at + 1], mem[at + 2] = node, symbol, value
    mem[H_MEMO_COUNT] += 1


@inner
def _trie_node(mem, trie):
    """Node for "the rest of one of the texts below `trie`"."""
    if pool(mem, trie + T_COUNT) == 0:
        return EPSILON
    return cons(mem, A_TRIE, trie, 0, 0, NULLABLE | PLAIN if pool(mem, trie + T_TEXT) >= 0 else PLAIN)


@inner
def _open_key(mem, obj, keys):
    """After the opening quote of a key: a declared one, or one of the undeclared families."""
    base = top_of(mem)
    root = pool(mem, obj + O_TRIE)
    if key_below(mem, obj, keys, root):
        push(mem, mk_key(mem, obj, keys, root))
    if extras_allowed(mem, obj, keys):
        for j in range(pool(mem, obj + O_EXTRAS)):
            if not extra_allowed(mem, obj, keys, j):
                continue
            language = pool(mem, pool(mem, obj + O_EXTRA) + EXTRA_SIZE * j)
            push(mem, mk_extrakey(mem, obj, keys, root, language, 0, j))
    return mk_alt(mem, base)


@inner
def _key_step(mem, node, symbol):
    obj, keys = get(mem, node, N_A), get(mem, node, N_B)
    child = trie_child(mem, get(mem, node, N_C), symbol)
    if child == 0:
        return EMPTY
    text = pool(mem, child + T_TEXT)
    if text >= 0:  # the closing quote: texts of a key trie end with it
        return close_key(mem, obj, keys, text) if key_below(mem, obj, keys, child) else EMPTY
    return mk_key(mem, obj, keys, child) if key_below(mem, obj, keys, child) else EMPTY


@inner
def _extrakey_step(mem, node, symbol, rest):
    """`rest`: the derivative of the key's own language."""
    base = top_of(mem)
    obj, keys, trie = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C)
    path, family = get(mem, node, N_E), get(mem, node, N_F)
    if symbol == 34 and can_close_extrakey(mem, obj, keys, trie, get(mem, node, N_D), path):
        push(mem, close_extrakey(mem, obj, keys, path, family))
    if rest != EMPTY:
        below = trie_child(mem, trie, symbol) if trie else 0
        longer = path if path == ANONYMOUS else mk_path(mem, path, symbol)
        push(mem, mk_extrakey(mem, obj, keys, below, rest, longer, family))
    return mk_alt(mem, base)


@inner
def _object_step(mem, node, symbol):
    obj, keys, phase = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C)
    base = top_of(mem)
    if phase != AFTER:
        if symbol == 34:
            push(mem, _open_key(mem, obj, keys))
    elif any_key(mem, obj, keys):
        push(mem, derive(mem, mk_seq(mem, pool(mem, obj + O_COMMA), mk_object(mem, obj, keys, NEXT)), symbol))
    if (phase == AFTER or phase == FIRST) and may_close(mem, obj, keys):
        push(mem, derive(mem, pool(mem, obj + O_CLOSE), symbol))
    return mk_alt(mem, base)


@inner
def _push_seq(mem, first, rest):
    """Push first . rest. A choice with rules or AHEADs in it is multiplied out: parses that have come to the same rule share what follows."""
    if flags_of(mem, first) & (CALLS | LOOKS) and get(mem, first, N_OP) == A_ALT:
        offset = get(mem, first, N_A)
        for i in range(get(mem, first, N_B)):
            push(mem, mk_seq(mem, pool(mem, offset + i), rest))
    else:
        push(mem, mk_seq(mem, first, rest))


@inner
def _looking_on(mem, settled, ends, following):
    """What follows, `following` after one symbol, under an AHEAD that has become (settled, ends) by it."""
    if following == EMPTY or nullable(mem, settled):
        return following
    return EMPTY if settled == EMPTY and ends == EMPTY else mk_seq(mem, mk_ahead(mem, settled, ends, 1), following)


@inner
def _looking_step(mem, first, rest, symbol):
    """Derivative of first . rest, where `first` is an AHEAD or a choice in which one may stand for the empty text."""
    base = top_of(mem)
    if get(mem, first, N_OP) == A_AHEAD:
        settled, ends = derive(mem, get(mem, first, N_A), symbol), derive(mem, get(mem, first, N_B), symbol)
        return _looking_on(mem, settled, ends, derive(mem, rest, symbol))
    for i in range(get(mem, first, N_B)):
        push(mem, derive(mem, mk_seq(mem, pool(mem, get(mem, first, N_A) + i), rest), symbol))
    return mk_alt(mem, base)


@inner
def derive(mem, node, symbol):
    """Derivative without the check of intersections. EMPTY and nothing memoised when H_STATUS is set.

    What is recursive is short, here as elsewhere: numba works through all of it for each call that comes back to it.
    """
    known = _known(mem, node, symbol)
    return known if known >= 0 else _work_out(mem, node, symbol)


@inner
def _known(mem, node, symbol):
    """The derivative where it is plain to see or memoised, else -1."""
    if node <= EPSILON or reg(mem, H_STATUS):
        return EMPTY
    if node == ALL:
        return ALL if symbol < 256 else EMPTY
    op = get(mem, node, N_OP)
    if op == A_LITERAL:
        at, length = get(mem, node, N_A), get(mem, node, N_B)
        return mk_literal(mem, at + 1, length - 1) if pool(mem, at) == symbol else EMPTY
    if op == A_CLASS:
        return EPSILON if symbol < 256 and (pool(mem, get(mem, node, N_A) + (symbol >> 5)) >> (symbol & 31)) & 1 else EMPTY
    if op == A_SPECIAL:
        return EPSILON if symbol == 256 + get(mem, node, N_A) else EMPTY
    first = get(mem, node, N_A)
    if op == A_SEQ and get(mem, first, N_OP) == A_LITERAL and pool(mem, get(mem, first, N_A)) != symbol:
        return EMPTY
    return memo_find(mem, node, symbol)


@inner
def _work_out(mem, node, symbol):
    mem[H_DEPTH] += 1
    if reg(mem, H_DEPTH) > MAX_DEPTH:
        mem[H_STATUS] = TOO_DEEP
    base = top_of(mem)
    result = _derive(mem, node, symbol)
    mem[H_SCRATCH_TOP] = base
    mem[H_DEPTH] -= 1
    if reg(mem, H_STATUS):
        return EMPTY
    memo_store(mem, node, symbol, result)
    return result


@inner
def _derive(mem, node, symbol):
    """As `derive`; it may leave things on the scratch stack."""
    op, first, base = get(mem, node, N_OP), get(mem, node, N_A), top_of(mem)
    if op == A_SEQ:
        return _seq_step(mem, node, symbol)
    if op == A_ALT:
        return _alt_step(mem, node, symbol)
    if op == A_REPEAT:
        lo, hi = get(mem, node, N_B), get(mem, node, N_C)
        item = derive(mem, first, symbol)
        if item == EMPTY:
            return EMPTY
        _push_seq(mem, item, mk_repeat(mem, first, max(lo - 1, 0), hi - 1 if hi > 0 else hi))
        return mk_alt(mem, base)
    if op == A_AND:
        for i in range(get(mem, node, N_B)):
            member = derive(mem, pool(mem, first + i), symbol)
            push(mem, member)
            if member == EMPTY:
                break
        return mk_and(mem, base)
    if op == A_NOT:
        return mk_not(mem, derive(mem, first, symbol)) if symbol < 256 else EMPTY
    if op == A_CALL:
        return derive(mem, pool(mem, first), symbol)
    if op == A_CLOSED:
        return mk_closed(mem, derive(mem, first, symbol))
    if op == A_TRIE:
        child = trie_child(mem, first, symbol)
        return _trie_node(mem, child) if child else EMPTY
    if op == A_OBJECT:
        return _object_step(mem, node, symbol)
    if op == A_DISTINCT:
        return read_on(mem, node, derive(mem, first, symbol), symbol)
    if op == A_KEY:
        return _key_step(mem, node, symbol)
    if op == A_EXTRAKEY:
        return _extrakey_step(mem, node, symbol, derive(mem, get(mem, node, N_D), symbol))
    return EMPTY


@inner
def _seq_step(mem, node, symbol):
    base, rest, looks = top_of(mem), node, flags_of(mem, node) & LOOKS
    while get(mem, rest, N_OP) == A_SEQ:
        first, rest = get(mem, rest, N_A), get(mem, rest, N_B)
        if looks and (get(mem, first, N_OP) == A_AHEAD or may_look(mem, first)):
            push(mem, _looking_step(mem, first, rest, symbol))
            rest = EMPTY
            break
        _push_seq(mem, derive(mem, first, symbol), rest)
        if not nullable(mem, first):
            rest = EMPTY
    push(mem, derive(mem, rest, symbol))
    return mk_alt(mem, base)


@inner
def _alt_step(mem, node, symbol):
    base, first = top_of(mem), get(mem, node, N_A)
    if flags_of(mem, node) & LOOSE:
        for i in range(get(mem, node, N_B)):
            push(mem, pool(mem, first + i))
        whole = mk_alt(mem, base)
        if whole != node:
            return derive(mem, whole, symbol)
    for i in range(get(mem, node, N_B)):
        push(mem, derive(mem, pool(mem, first + i), symbol))
    return mk_alt(mem, base)
