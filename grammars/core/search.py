"""Length of the shortest completion of a node, in bytes.

Exact but for items that must differ, each of which is taken as short as it can be, whatever that means for the next, and for AHEADs that
have not begun: each counts as one byte, that of a character which settles it, though what follows may settle it as well. So it is an upper
bound, and from every state some byte makes it smaller.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.distinct import BEFORE, has_enough, is_tied, items_read, mk_distinct, mk_item
from agentkit.grammars.core.first import first_bytes
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
    EMPTY,
    EPSILON,
    EXTRA_SIZE,
    FIELD_SIZE,
    FIRST,
    H_SCRATCH_TOP,
    H_STATUS,
    INFINITE,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_MARK,
    N_NEED,
    N_OP,
    N_PRUNED,
    NEXT,
    O_CLOSE,
    O_COLON,
    O_COMMA,
    O_DFS,
    O_EXTRA,
    O_EXTRAS,
    O_FIELD,
    O_FIELDS,
    O_MIN,
    O_TAIL,
    T_DEPTH,
    T_HI,
    T_LO,
    T_NEED,
)
from agentkit.grammars.core.lengths import length_of_many, shortest_word
from agentkit.grammars.core.nodes import fresh_epoch, get, has_begun, pool, pool_set, pool_take, push, put, reg, scratch, scratch_set, top_of
from agentkit.grammars.core.objects import (
    can_close_extrakey,
    close_extrakey,
    close_key,
    extra_missing,
    field_allowed,
    is_used,
    keys_written,
    may_collide,
    words_of,
)
from agentkit.grammars.core.step import step

MOST_TIED = 1024  # states that are looked at for a shortest item that differs from those before


@inner
def _field_need(mem, obj, i):
    """Bytes of declared key `i` with its quotes, colon, value and white space."""
    field = pool(mem, obj + O_FIELD) + FIELD_SIZE * i
    value = pool(mem, field)
    if value == EMPTY:
        return INFINITE
    return pool(mem, field + 2) + 2 + need(mem, pool(mem, obj + O_COLON)) + need(mem, value) + need(mem, pool(mem, obj + O_TAIL))


@inner
def _free_extra_need(mem, obj, keys, count, asked):
    """Bytes that suffice for each of `count` more undeclared members: quotes, name, colon, value and white space.

    asked: 1 for members of the families that O_NEEDS asks for only.

    As many of the shortest names of a family as may be taken already are passed over. A family that has fewer names counts only
    if there is no other, and then with its longest one.
    """
    taken = pool(mem, obj + O_FIELDS) + get(mem, keys, N_B) - words_of(mem, obj) - 1
    enough, last = INFINITE, -1
    around = 2 + need(mem, pool(mem, obj + O_COLON)) + need(mem, pool(mem, obj + O_TAIL))
    for j in range(pool(mem, obj + O_EXTRAS)):
        at = pool(mem, obj + O_EXTRA) + EXTRA_SIZE * j
        if asked > pool(mem, at + 2):
            continue
        length, is_enough = length_of_many(mem, pool(mem, at), taken + count)
        if length >= 0:
            total = around + length + need(mem, pool(mem, at + 1))
            if is_enough:
                enough = min(enough, total)
            else:
                last = max(last, total)
    return enough if enough < INFINITE or last < 0 else min(last, INFINITE)


@inner
def _cheapest_members(mem, obj, keys, count):
    """Bytes of `count` optional members beside the required ones (without commas): declared ones first, the cheapest of them."""
    total = 0
    base = top_of(mem)
    for i in range(pool(mem, obj + O_FIELDS)):
        field = pool(mem, obj + O_FIELD) + FIELD_SIZE * i
        if pool(mem, field + 1) == 0 and not is_used(mem, obj, keys, i):
            push(mem, _field_need(mem, obj, i))
    extra = _free_extra_need(mem, obj, keys, count + extra_missing(mem, obj, keys), 0)
    for _ in range(count):
        best, at = extra, -1
        for i in range(base, top_of(mem)):
            if scratch(mem, i) < best:
                best, at = scratch(mem, i), i
        if at >= 0:
            scratch_set(mem, at, INFINITE)
        total = min(total + best, INFINITE)
    mem[H_SCRATCH_TOP] = base
    return total


@inner
def _object_need(mem, node):
    obj, keys, phase = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C)
    members = 0
    total = 0
    for i in range(pool(mem, obj + O_FIELDS)):
        if pool(mem, pool(mem, obj + O_FIELD) + FIELD_SIZE * i + 1) and not is_used(mem, obj, keys, i):
            members += 1
            total = min(total + _field_need(mem, obj, i), INFINITE)
    missing = extra_missing(mem, obj, keys)
    members += missing
    more = max(pool(mem, obj + O_MIN) - keys_written(mem, obj, keys) - members, 0)
    if phase == NEXT and members == 0:
        more = max(more, 1)
    if missing:
        total = min(total + _free_extra_need(mem, obj, keys, more + 1, 1), INFINITE)
    if more:
        total = min(total + _cheapest_members(mem, obj, keys, more), INFINITE)
        members += more
    commas = members if phase != FIRST and phase != NEXT else max(members - 1, 0)
    return min(total + commas * need(mem, pool(mem, obj + O_COMMA)) + need(mem, pool(mem, obj + O_CLOSE)), INFINITE)


@inner
def _key_need(mem, node):
    obj, keys, trie = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C)
    best = INFINITE
    depth = pool(mem, trie + T_DEPTH)
    for k in range(pool(mem, trie + T_LO), pool(mem, trie + T_HI)):
        i = pool(mem, pool(mem, obj + O_DFS) + k)
        if field_allowed(mem, obj, keys, i):
            length = pool(mem, pool(mem, obj + O_FIELD) + FIELD_SIZE * i + 2) + 1
            best = min(best, length - depth + need(mem, close_key(mem, obj, keys, i)))
    return best


@inner
def _extrakey_need(mem, node):
    obj, keys, path, rest = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_E), get(mem, node, N_D)
    after = 1 + need(mem, close_extrakey(mem, obj, keys, path, get(mem, node, N_F)))
    if not may_collide(mem, obj, keys, get(mem, node, N_C), path):
        return min(need(mem, rest) + after, INFINITE)
    result = after if can_close_extrakey(mem, obj, keys, get(mem, node, N_C), rest, path) else INFINITE
    for taken in range(2):  # names that could become a taken one only where they might be shorter than all others
        for byte in range(256):
            following = step(mem, node, byte) if result > after else EMPTY
            if following == EMPTY:
                continue
            collides = get(mem, following, N_OP) == A_EXTRAKEY and may_collide(mem, obj, keys, get(mem, following, N_C), get(mem, following, N_E))
            if (taken == 0 and not collides) or (taken == 1 and collides and 1 + need(mem, get(mem, following, N_D)) + after < result):
                result = min(result, 1 + need(mem, following))
    return result


@inner
def _inside_need(mem, node):
    """Bytes that the inside of a DISTINCT node takes, equal items or not; of another node, what it needs."""
    return need(mem, get(mem, node, N_A) if get(mem, node, N_OP) == A_DISTINCT else node)


@inner
def _nearer(mem, node):
    """The state of a DISTINCT node after a byte that brings the end of its inside nearer."""
    words, result = top_of(mem), EMPTY
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, get(mem, node, N_A), words)
    for byte in range(256):
        if result == EMPTY and (scratch(mem, words + (byte >> 5)) >> (byte & 31)) & 1:
            if need(mem, step(mem, get(mem, node, N_A), byte)) < _inside_need(mem, node):
                result = step(mem, node, byte)
    mem[H_SCRATCH_TOP] = words
    return result


@inner
def _push_untied(mem, node):
    """Push the states on a shortest way from a DISTINCT node that is tied to one that is not, without the last. Returns that, and the
    bytes to the end of the array on this way, whatever the items to come.

    A best-first search over the tied states (Hart, Nilsson and Raphael 1968): what their insides need is a lower bound.
    """
    states = np.empty((MOST_TIED, 4), np.int64)  # node, bytes so far, where it was come to from, bytes in all at least; INFINITE once gone on from
    states[0, 0], states[0, 1], states[0, 2], states[0, 3] = node, 0, -1, _inside_need(mem, node)
    count, best, last, come_from, epoch = 1, INFINITE, EMPTY, -1, fresh_epoch(mem)
    while reg(mem, H_STATUS) == 0:
        at = 0
        for i in range(count):
            at = i if states[i, 3] < states[at, 3] else at
        if states[at, 3] >= best:
            break
        states[at, 3] = INFINITE
        words = top_of(mem)
        for _ in range(8):
            push(mem, 0)
        first_bytes(mem, get(mem, states[at, 0], N_A), words)
        for byte in range(256):
            total = INFINITE
            if (scratch(mem, words + (byte >> 5)) >> (byte & 31)) & 1:
                total = states[at, 1] + 1 + need(mem, step(mem, get(mem, states[at, 0], N_A), byte))
            following = step(mem, states[at, 0], byte) if total < best else EMPTY
            if following == EMPTY or get(mem, following, N_MARK) == epoch:
                continue
            put(mem, following, N_MARK, epoch)
            if get(mem, following, N_OP) == A_DISTINCT and is_tied(mem, following):
                if count < MOST_TIED:
                    states[count, 0], states[count, 1], states[count, 2], states[count, 3] = following, states[at, 1] + 1, at, total
                    count += 1
            elif total < best:
                best, last, come_from = total, following, at
        mem[H_SCRATCH_TOP] = words
    first, at = top_of(mem), come_from
    while at >= 0:
        push(mem, states[at, 0])
        at = states[at, 2]
    for i in range(top_of(mem) - 1, first - 1, -1):
        scratch_set(mem, i, states[come_from, 0])
        come_from = states[come_from, 2]
    return last, best


@inner
def _note_extra(mem, demand):
    """For each number of items, the bytes that those still asked for take beyond the shortest item each, as integers in the pool.

    There are at least i items that are no longer than the i-th one of those which are taken the shortest first. So the i-th of
    any others need not be longer either.
    """
    least = get(mem, demand, N_B)
    extra, base = np.zeros(least + 2, np.int64), top_of(mem)
    current = mk_distinct(mem, get(mem, demand, N_A), mk_item(mem, 0, 0, BEFORE, 0, 0, 0), 0, demand)
    while get(mem, current, N_OP) == A_DISTINCT and reg(mem, H_STATUS) == 0:
        if is_tied(mem, current):
            i, without = items_read(mem, current), _inside_need(mem, current)
            current, total = _push_untied(mem, current)
            mem[H_SCRATCH_TOP] = base
            extra[i] = min(total - without, INFINITE)
        elif has_enough(mem, current):
            break
        else:
            current = _nearer(mem, current)
    if current == EMPTY:
        extra[least] = INFINITE
    table = pool_take(mem, least + 1)
    for i in range(least, -1, -1):
        extra[i] = min(extra[i] + extra[i + 1], INFINITE)
        if table >= 0:
            pool_set(mem, table + i, extra[i + 1])
    if reg(mem, H_STATUS) == 0:
        put(mem, demand, N_PRUNED, table + 1)


@inner
def _extra_need(mem, node):
    """As above, for a DISTINCT node whose item is not tied."""
    demand = get(mem, node, N_D)
    if get(mem, demand, N_PRUNED) == 0:
        _note_extra(mem, demand)
    return pool(mem, get(mem, demand, N_PRUNED) - 1 + items_read(mem, node)) if reg(mem, H_STATUS) == 0 else 0


@inner
def _distinct_need(mem, node):
    """Bytes of a completion in which the item being read is one of the shortest, and the next are no longer than they have to be. Noted
    down for all states on its way, so that each has one after which less is needed."""
    inside = need(mem, get(mem, node, N_A))
    if inside >= INFINITE:
        return INFINITE
    if not is_tied(mem, node):
        return inside if has_enough(mem, node) else min(inside + _extra_need(mem, node), INFINITE)
    base = top_of(mem)
    last, _ = _push_untied(mem, node)
    result = need(mem, last)
    while top_of(mem) > base:
        mem[H_SCRATCH_TOP] -= 1
        result = min(result + 1, INFINITE)
        if get(mem, scratch(mem, top_of(mem)), N_NEED):
            result = get(mem, scratch(mem, top_of(mem)), N_NEED) - 1
        elif reg(mem, H_STATUS) == 0:
            put(mem, scratch(mem, top_of(mem)), N_NEED, result + 1)
    return result


@inner
def need(mem, node):
    """Bytes of the shortest text of `node` (a special token counts as one); INFINITE if there is none."""
    known = _known(mem, node)
    return known if known >= 0 else _work_out(mem, node)


@inner
def _known(mem, node):
    """What is needed where that is known, else -1."""
    if node <= EPSILON or reg(mem, H_STATUS):
        return INFINITE if node == EMPTY else 0
    known = get(mem, node, N_NEED)
    if known == 0 and get(mem, node, N_OP) == A_CALL:
        return pool(mem, get(mem, node, N_A) + 2)
    return known - 1


@inner
def _work_out(mem, node):
    result = _need(mem, node, get(mem, node, N_OP))
    if reg(mem, H_STATUS) == 0:
        put(mem, node, N_NEED, result + 1)
    return result


@inner
def _need(mem, node, op):
    """As `need`, not yet known."""
    if op == A_LITERAL:
        return get(mem, node, N_B)
    if op == A_CLASS or op == A_SPECIAL:
        return 1
    if op == A_AHEAD:  # what settles it is one byte long
        return INFINITE if has_begun(mem, node) else 1
    if op == A_SEQ:
        return _looking_need(mem, node) if has_begun(mem, get(mem, node, N_A)) else _seq_need(mem, node)
    if op == A_ALT:
        result = INFINITE
        for i in range(get(mem, node, N_B)):
            result = min(result, need(mem, pool(mem, get(mem, node, N_A) + i)))
        return result
    if op == A_REPEAT:
        lo = get(mem, node, N_B)
        return min(lo * need(mem, get(mem, node, N_A)), INFINITE) if lo else 0
    if op == A_AND or op == A_NOT:
        return shortest_word(mem, node)
    if op == A_CLOSED:
        return need(mem, get(mem, node, N_A))
    if op == A_DISTINCT:
        return _distinct_need(mem, node)
    if op == A_TRIE:
        return pool(mem, get(mem, node, N_A) + T_NEED)
    if op == A_OBJECT:
        return _object_need(mem, node)
    if op == A_KEY:
        return _key_need(mem, node)
    return _extrakey_need(mem, node) if op == A_EXTRAKEY else 0


@inner
def _looking_need(mem, node):
    """Of a sequence whose AHEAD has begun: what settles it is not known but by reading on."""
    result, words = INFINITE, top_of(mem)
    for _ in range(8):
        push(mem, 0)
    first_bytes(mem, node, words)
    for byte in range(256):
        if (scratch(mem, words + (byte >> 5)) >> (byte & 31)) & 1:
            result = min(result, 1 + need(mem, step(mem, node, byte)))
    mem[H_SCRATCH_TOP] = words
    return result


@inner
def _seq_need(mem, node):
    """Of all the sequences that follow one another, from the last one on: long ones would be too deep for recursion."""
    base, rest = top_of(mem), node
    while get(mem, rest, N_OP) == A_SEQ and get(mem, rest, N_NEED) == 0 and reg(mem, H_STATUS) == 0:
        push(mem, rest)
        rest = get(mem, rest, N_B)
    result = need(mem, rest)
    while top_of(mem) > base:
        mem[H_SCRATCH_TOP] -= 1
        link = scratch(mem, top_of(mem))
        result = min(result + need(mem, get(mem, link, N_A)), INFINITE)
        if reg(mem, H_STATUS) == 0:
            put(mem, link, N_NEED, result + 1)
    return result
