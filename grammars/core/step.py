"""The state after a symbol: the derivative without the branches that can no longer end well.

Such are intersections that have become empty, undeclared keys for which no free name is left, items that can only become equal to an
earlier one, and AHEADs that have begun and that nothing which may follow can settle. Knows nothing of tokens.
"""

from __future__ import annotations

from agentkit.grammars.core.combine import mk_alt
from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.derive import derive
from agentkit.grammars.core.distinct import is_tied, mk_distinct
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_AND,
    A_CLASS,
    A_CLOSED,
    A_DISTINCT,
    A_EXTRAKEY,
    A_LITERAL,
    A_NOT,
    A_SEQ,
    ALIVE,
    CHECK,
    DEAD,
    EMPTY,
    ENDLESS,
    EPSILON,
    FULL_ROWS,
    H_ROW_CAP,
    H_ROW_COUNT,
    H_ROWS,
    H_SCRATCH_TOP,
    H_STATUS,
    INFINITE,
    MAX_STATES,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_FLAGS,
    N_MARK,
    N_OP,
    N_PRUNED,
    N_ROW,
    NULLABLE,
    TOO_MANY_STATES,
    WIDE,
)
from agentkit.grammars.core.nodes import (
    flags_of,
    fresh_epoch,
    get,
    has_begun,
    mk_closed,
    mk_path,
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
from agentkit.grammars.core.objects import can_close_extrakey, may_collide, trie_child


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
        first = 89 * ((top - base) >> 1)  # each level begins elsewhere: a search that repeats one byte walks to the end of a long bound
        following = derive(mem, current, (symbol + first) & 255)
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


@inner
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
def _inside_pruned(mem, node):
    """A DISTINCT node with its inside pruned."""
    inside = get(mem, node, N_A)
    kept = prune(mem, inside)
    return node if kept == inside else mk_distinct(mem, kept, get(mem, node, N_B), get(mem, node, N_C), get(mem, node, N_D))


@inner
def _begin_search(mem, node):
    """Push what the search below needs to know of a DISTINCT node: 10 numbers, the bytes that may follow among them."""
    push(mem, node)
    push(mem, 255)
    words = top_of(mem)
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, get(mem, node, N_A), words)


@inner
def _can_differ(mem, node):
    """Can the item being read at a DISTINCT node that is tied still become another than the earlier ones? Depth-first, only as far as it
    is tied, remembered in the flags. Once it is not, everything else can follow: the Builder's callers have seen to that."""
    if flags_of(mem, node) & (ALIVE | DEAD):
        return flags_of(mem, node) & ALIVE != 0
    base, visited, found = top_of(mem), 0, False
    _begin_search(mem, node)
    while top_of(mem) > base and not found and reg(mem, H_STATUS) == 0:
        at = top_of(mem) - 10
        current, byte = scratch(mem, at), scratch(mem, at + 1)
        while byte >= 0 and (scratch(mem, at + 2 + (byte >> 5)) >> (byte & 31)) & 1 == 0:
            byte -= 1
        scratch_set(mem, at + 1, byte - 1)
        if byte < 0:
            put(mem, current, N_FLAGS, flags_of(mem, current) | DEAD)
            mem[H_SCRATCH_TOP] = at
            continue
        following = derive(mem, current, byte)
        if get(mem, following, N_OP) == A_DISTINCT:
            following = _inside_pruned(mem, following)
        if following == EMPTY:
            continue
        f = flags_of(mem, following)
        if get(mem, following, N_OP) != A_DISTINCT or f & ALIVE or not is_tied(mem, following):
            found = True
        elif f & DEAD == 0:
            visited += 1
            if visited > MAX_STATES:
                mem[H_STATUS] = TOO_MANY_STATES
            _begin_search(mem, following)
    if found and reg(mem, H_STATUS) == 0:
        for at in range(base, top_of(mem), 10):
            put(mem, scratch(mem, at), N_FLAGS, flags_of(mem, scratch(mem, at)) | ALIVE)
    mem[H_SCRATCH_TOP] = base
    return found or reg(mem, H_STATUS) != 0


@inner
def prune(mem, node):
    """`node` without the branches whose intersection is empty."""
    known = _pruned(mem, node)
    return known if known >= 0 else _work_out(mem, node)


@inner
def _pruned(mem, node):
    """`node` pruned where that is known, else -1."""
    return node if flags_of(mem, node) & CHECK == 0 or reg(mem, H_STATUS) else get(mem, node, N_PRUNED) - 1


@inner
def _work_out(mem, node):
    result = _prune(mem, node)
    if reg(mem, H_STATUS) == 0:
        put(mem, node, N_PRUNED, result + 1)
    return result


@inner
def _prune(mem, node):
    """As `prune`, not yet known."""
    op = get(mem, node, N_OP)
    if op == A_ALT:
        base, offset = top_of(mem), get(mem, node, N_A)
        for i in range(get(mem, node, N_B)):
            push(mem, prune(mem, pool(mem, offset + i)))
        return mk_alt(mem, base)
    if op == A_SEQ:
        return _prune_seq(mem, node)
    if op == A_AHEAD:
        return node if nullable(mem, node) else EMPTY
    if op == A_CLOSED:
        return mk_closed(mem, prune(mem, get(mem, node, N_A)))
    if op == A_DISTINCT:
        kept = _inside_pruned(mem, node)
        return EMPTY if kept > EPSILON and is_tied(mem, kept) and not _can_differ(mem, kept) else kept
    if op == A_EXTRAKEY:
        rest = prune(mem, get(mem, node, N_D))
        if rest == EMPTY:
            return EMPTY
        if flags_of(mem, rest) & ENDLESS or name_left(mem, get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C), rest, get(mem, node, N_E)):
            return node
        return EMPTY
    return EMPTY if (op == A_AND or op == A_NOT) and not alive(mem, node) else node


@inner
def _prune_seq(mem, node):
    first, rest = get(mem, node, N_A), get(mem, node, N_B)
    if get(mem, first, N_OP) != A_AHEAD:
        kept = prune(mem, first)
        return mk_seq(mem, kept, rest) if kept != first else node
    result = mk_seq(mem, first, prune(mem, rest))
    if has_begun(mem, first) and not nullable(mem, node) and result != EMPTY:
        for byte in range(256):
            if prune(mem, derive(mem, node, byte)) != EMPTY:
                return result
        return EMPTY
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
