"""The Brzozowski derivative of a node by one symbol: what may follow once that symbol has been read.

Symbols 0..255 are bytes, 256 + k is special token k. Derivatives are memoised; the state after a symbol is
`step`, which also drops branches whose intersections can no longer end well (Brzozowski 1964; Owens, Reppy and
Turon 2009 for the normal forms). Rules are entered on demand, so a recursive rule's continuation is the tail of a
sequence: the parse stack.
"""

from __future__ import annotations

from agentkit.grammars.core.combine import mk_alt, mk_and, mk_not
from agentkit.grammars.core.layout import (
    A_ALT,
    A_AND,
    A_CALL,
    A_CLASS,
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
    ALIVE,
    ALL,
    ANONYMOUS,
    CALLS,
    CHECK,
    DEAD,
    EMPTY,
    ENDLESS,
    EPSILON,
    EXTRA_SIZE,
    FIRST,
    FULL_MEMO,
    FULL_ROWS,
    H_DEPTH,
    H_MEMO,
    H_MEMO_COUNT,
    H_MEMO_MASK,
    H_ROW_CAP,
    H_ROW_COUNT,
    H_ROWS,
    H_SCRATCH_TOP,
    H_STATUS,
    INFINITE,
    LOOSE,
    MAX_DEPTH,
    MAX_STATES,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_FLAGS,
    N_MARK,
    N_OP,
    N_PRUNED,
    N_ROW,
    NEXT,
    NULLABLE,
    O_CLOSE,
    O_COMMA,
    O_EXTRA,
    O_EXTRAS,
    O_TRIE,
    PLAIN,
    T_CHILDREN,
    T_COUNT,
    T_TEXT,
    TOO_DEEP,
    TOO_MANY_STATES,
    WIDE,
)
from agentkit.grammars.core.nodes import (
    bit,
    cons,
    flags_of,
    fresh_epoch,
    get,
    mix,
    mk_literal,
    mk_path,
    mk_repeat,
    mk_seq,
    nullable,
    pool,
    push,
    put,
    reg,
    scratch,
    scratch_set,
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
    may_collide,
    mk_extrakey,
    mk_key,
    mk_object,
    trie_child,
)
from agentkit.grammars.jit import inlined, inner


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


@inlined
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
    """Push first . rest. A choice with rules in it is multiplied out: parses that have come to the same rule then share what follows."""
    if flags_of(mem, first) & CALLS and get(mem, first, N_OP) == A_ALT:
        offset = get(mem, first, N_A)
        for i in range(get(mem, first, N_B)):
            push(mem, mk_seq(mem, pool(mem, offset + i), rest))
    else:
        push(mem, mk_seq(mem, first, rest))


@inner
def derive(mem, node, symbol):
    """Derivative without the check of intersections. EMPTY and nothing memoised when H_STATUS is set."""
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
    known = memo_find(mem, node, symbol)
    if known >= 0:
        return known
    mem[H_DEPTH] += 1
    if reg(mem, H_DEPTH) > MAX_DEPTH:
        mem[H_STATUS] = TOO_DEEP
    base = top_of(mem)
    result = EMPTY
    if op == A_SEQ:
        rest = node
        while get(mem, rest, N_OP) == A_SEQ:
            first, rest = get(mem, rest, N_A), get(mem, rest, N_B)
            _push_seq(mem, derive(mem, first, symbol), rest)
            if not nullable(mem, first):
                rest = EMPTY
        push(mem, derive(mem, rest, symbol))
        result = mk_alt(mem, base)
    elif op == A_ALT:
        for i in range(get(mem, node, N_B)):
            push(mem, pool(mem, first + i))
        whole = mk_alt(mem, base) if flags_of(mem, node) & LOOSE else node
        if whole != node:
            result = derive(mem, whole, symbol)
        else:
            mem[H_SCRATCH_TOP] = base
            for i in range(get(mem, node, N_B)):
                push(mem, derive(mem, pool(mem, first + i), symbol))
            result = mk_alt(mem, base)
    elif op == A_REPEAT:
        lo, hi = get(mem, node, N_B), get(mem, node, N_C)
        inner = derive(mem, first, symbol)
        if inner != EMPTY:
            _push_seq(mem, inner, mk_repeat(mem, first, max(lo - 1, 0), hi - 1 if hi > 0 else hi))
            result = mk_alt(mem, base)
    elif op == A_AND:
        for i in range(get(mem, node, N_B)):
            inner = derive(mem, pool(mem, first + i), symbol)
            push(mem, inner)
            if inner == EMPTY:
                break
        result = mk_and(mem, base)
    elif op == A_NOT:
        if symbol < 256:
            result = mk_not(mem, derive(mem, first, symbol))
    elif op == A_CALL:
        result = derive(mem, pool(mem, first), symbol)
    elif op == A_TRIE:
        child = trie_child(mem, first, symbol)
        if child:
            result = _trie_node(mem, child)
    elif op == A_OBJECT:
        result = _object_step(mem, node, symbol)
    elif op == A_KEY:
        result = _key_step(mem, node, symbol)
    elif op == A_EXTRAKEY:
        result = _extrakey_step(mem, node, symbol, derive(mem, get(mem, node, N_D), symbol))
    mem[H_SCRATCH_TOP] = base
    mem[H_DEPTH] -= 1
    if reg(mem, H_STATUS):
        return EMPTY
    memo_store(mem, node, symbol, result)
    return result


@inner
def reach(mem, node):
    """Bytes that can end the intersection that `node` is, or begins with: an upper bound; INFINITE if none is known."""
    if get(mem, node, N_OP) == A_ALT:
        best, offset = INFINITE, get(mem, node, N_A)
        for i in range(get(mem, node, N_B)):
            best = min(best, _reach_first(mem, pool(mem, offset + i)))
        return best
    return _reach_first(mem, node)


@inner
def _reach_first(mem, node):
    first = get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node
    if nullable(mem, first):
        return 0
    op = get(mem, first, N_OP)
    if op == A_AND:
        known = get(mem, first, N_C)
        return known - 1 if known else INFINITE
    return 0 if op == A_LITERAL or op == A_CLASS else INFINITE


@inner
def alive(mem, node):
    """Does a node without calls match anything at all? Depth-first search over derivatives, remembered in the flags."""
    f = flags_of(mem, node)
    if f & (ALIVE | NULLABLE):
        return True
    if f & DEAD:
        return False
    epoch, visited = fresh_epoch(mem), 1
    base = top_of(mem)
    put(mem, node, N_MARK, epoch)
    seen = base  # scratch holds pairs: node, next symbol to try; finished nodes go dead when the search fails
    push(mem, node)
    push(mem, 0)
    found = False
    while top_of(mem) > seen and not found and reg(mem, H_STATUS) == 0:
        top = top_of(mem)
        current, symbol = scratch(mem, top - 2), scratch(mem, top - 1)
        if symbol == 256:
            mem[H_SCRATCH_TOP] = top - 2
            continue
        scratch_set(mem, top - 1, symbol + 1)
        following = derive(mem, current, symbol)
        if following == EMPTY:
            continue
        f = flags_of(mem, following)
        if f & (ALIVE | NULLABLE):
            found = True
        elif f & DEAD == 0 and get(mem, following, N_MARK) != epoch:
            put(mem, following, N_MARK, epoch)
            visited += 1
            if visited > MAX_STATES:
                mem[H_STATUS] = TOO_MANY_STATES
            push(mem, following)
            push(mem, 0)
    if found:
        far = reach(mem, following)
        for at in range(top_of(mem) - 2, base - 1, -2):
            on_path, far = scratch(mem, at), min(far + 1, INFINITE)
            put(mem, on_path, N_FLAGS, flags_of(mem, on_path) | ALIVE)
            if get(mem, on_path, N_OP) == A_AND and far < INFINITE:
                put(mem, on_path, N_C, far + 1)
    mem[H_SCRATCH_TOP] = base
    if reg(mem, H_STATUS):
        return True
    if not found:
        put(mem, node, N_FLAGS, flags_of(mem, node) | DEAD)
    return found


@inlined
def name_left(mem, obj, keys, trie, rest, path):
    """Is there a name in `rest`, begun as `path`, that is neither declared nor used? Depth-first, only as far as names collide."""
    base = top_of(mem)
    push(mem, trie)
    push(mem, rest)
    push(mem, path)
    found = False
    while top_of(mem) > base and not found and mem[H_STATUS] == 0:
        mem[H_SCRATCH_TOP] -= 3
        at = top_of(mem)
        trie, rest, path = scratch(mem, at), scratch(mem, at + 1), scratch(mem, at + 2)
        found = can_close_extrakey(mem, obj, keys, trie, rest, path)
        for byte in range(256):
            if found:
                break
            following = prune(mem, derive(mem, rest, byte))
            if following != EMPTY:
                below = trie_child(mem, trie, byte) if trie else 0
                longer = mk_path(mem, path, byte)
                found = not may_collide(mem, obj, keys, below, longer)
                push(mem, below)
                push(mem, following)
                push(mem, longer)
    mem[H_SCRATCH_TOP] = base
    return found


@inner
def prune(mem, node):
    """`node` without the branches whose intersection is empty."""
    if flags_of(mem, node) & CHECK == 0 or reg(mem, H_STATUS):
        return node
    known = get(mem, node, N_PRUNED)
    if known:
        return known - 1
    op = get(mem, node, N_OP)
    result = node
    if op == A_ALT:
        base, offset = top_of(mem), get(mem, node, N_A)
        for i in range(get(mem, node, N_B)):
            push(mem, prune(mem, pool(mem, offset + i)))
        result = mk_alt(mem, base)
    elif op == A_SEQ:
        first = get(mem, node, N_A)
        kept = prune(mem, first)
        if kept != first:
            result = mk_seq(mem, kept, get(mem, node, N_B))
    elif op == A_EXTRAKEY:
        rest = prune(mem, get(mem, node, N_D))
        if rest == EMPTY:
            result = EMPTY
        elif flags_of(mem, rest) & ENDLESS == 0:
            if not name_left(mem, get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C), rest, get(mem, node, N_E)):
                result = EMPTY
    elif (op == A_AND or op == A_NOT) and not alive(mem, node):
        result = EMPTY
    if reg(mem, H_STATUS) == 0:
        put(mem, node, N_PRUNED, result + 1)
    return result


@inner
def step(mem, node, symbol):
    """The state after `symbol`; EMPTY if it is not allowed."""
    row = get(mem, node, N_ROW)
    if row and symbol < 256:
        known = reg(mem, reg(mem, H_ROWS) + (row - 1) * 256 + symbol)
        if known >= 0:
            return known
    result = prune(mem, derive(mem, node, symbol))
    if reg(mem, H_STATUS):
        return EMPTY
    if flags_of(mem, node) & WIDE and symbol < 256:
        if row == 0:
            if reg(mem, H_ROW_COUNT) >= reg(mem, H_ROW_CAP):
                mem[H_STATUS] = FULL_ROWS
                return EMPTY
            mem[H_ROW_COUNT] += 1
            row = reg(mem, H_ROW_COUNT)
            at = reg(mem, H_ROWS) + (row - 1) * 256
            for i in range(256):
                mem[at + i] = -1
            put(mem, node, N_ROW, row)
        mem[reg(mem, H_ROWS) + (row - 1) * 256 + symbol] = result
    return result


@inner
def _set_bit(mem, at, byte):
    scratch_set(mem, at + (byte >> 5), scratch(mem, at + (byte >> 5)) | bit(byte & 31))


@inner
def first_bytes(mem, node, at):
    """Set in the 8 words at scratch[at] every byte that may begin `node` (possibly more)."""
    _first_bytes(mem, node, at, fresh_epoch(mem))


@inner
def _first_bytes(mem, node, at, epoch):
    op = get(mem, node, N_OP)
    if node <= EPSILON or get(mem, node, N_MARK) == epoch or reg(mem, H_STATUS):
        return
    put(mem, node, N_MARK, epoch)
    if op == A_LITERAL:
        _set_bit(mem, at, pool(mem, get(mem, node, N_A)))
    elif op == A_CLASS:
        offset = get(mem, node, N_A)
        for i in range(8):
            scratch_set(mem, at + i, scratch(mem, at + i) | pool(mem, offset + i))
    elif op == A_SEQ:
        rest = node
        while get(mem, rest, N_OP) == A_SEQ:
            _first_bytes(mem, get(mem, rest, N_A), at, epoch)
            if not nullable(mem, get(mem, rest, N_A)):
                return
            rest = get(mem, rest, N_B)
            if get(mem, rest, N_MARK) == epoch:
                return
            if get(mem, rest, N_OP) == A_SEQ:
                put(mem, rest, N_MARK, epoch)
        _first_bytes(mem, rest, at, epoch)
    elif op == A_ALT:
        for i in range(get(mem, node, N_B)):
            _first_bytes(mem, pool(mem, get(mem, node, N_A) + i), at, epoch)
    elif op == A_REPEAT:
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
    elif op != A_SPECIAL:
        for i in range(8):
            scratch_set(mem, at + i, -1)
