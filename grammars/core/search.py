"""Length of the shortest completion of a node, in bytes.

Exact but for AHEADs that have not begun: each counts as one byte, that of a character which settles it, though what follows may
settle it as well. So it is an upper bound, and from every state some byte makes it smaller.
"""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.derive import derive
from agentkit.grammars.core.first import first_bytes
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_AND,
    A_CALL,
    A_CLASS,
    A_CLOSED,
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
    MAX_STATES,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    N_MARK,
    N_NEED,
    N_OP,
    N_PLACE,
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
    TOO_MANY_STATES,
)
from agentkit.grammars.core.nodes import fresh_epoch, get, has_begun, nullable, pool, push, put, reg, scratch, scratch_set, top_of
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

MANY_LETTERS = 256  # names longer than this are not counted


@inner
def _search_need(mem, node):
    """Length of the shortest text of an intersection or complement: breadth-first over derivatives."""
    if nullable(mem, node):
        return 0
    epoch, base = fresh_epoch(mem), top_of(mem)
    push(mem, node)
    put(mem, node, N_MARK, epoch)
    level_end, distance, at = base + 1, 1, base
    found = -1
    while at < top_of(mem) and found < 0 and reg(mem, H_STATUS) == 0:
        if at == level_end:
            distance += 1
            level_end = top_of(mem)
        current = scratch(mem, at)
        at += 1
        for byte in range(256):
            following = derive(mem, current, byte)
            if following == EMPTY or get(mem, following, N_MARK) == epoch:
                continue
            if nullable(mem, following):
                found = distance
                break
            put(mem, following, N_MARK, epoch)
            push(mem, following)
        if top_of(mem) - base > MAX_STATES:
            mem[H_STATUS] = TOO_MANY_STATES
    mem[H_SCRATCH_TOP] = base
    return found if found >= 0 else INFINITE


@inner
def _field_need(mem, obj, i):
    """Bytes of declared key `i` with its quotes, colon, value and white space."""
    field = pool(mem, obj + O_FIELD) + FIELD_SIZE * i
    value = pool(mem, field)
    if value == EMPTY:
        return INFINITE
    return pool(mem, field + 2) + 2 + need(mem, pool(mem, obj + O_COLON)) + need(mem, value) + need(mem, pool(mem, obj + O_TAIL))


@inner
def _name_length(mem, language, rank):
    """(Length below which `language` has `rank` words or more, 1), or if it has fewer (length of its longest word, 0; -1: none).

    Words are counted by length, with one counter per state that words of that length lead to.
    """
    base = top_of(mem)
    push(mem, language)
    push(mem, 1)
    length, words, longest = 0, 0, -1
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        end = top_of(mem)
        for at in range(base, end, 2):
            if nullable(mem, scratch(mem, at)):
                words, longest = words + scratch(mem, at + 1), length
        if words >= rank or length >= MANY_LETTERS:
            mem[H_SCRATCH_TOP] = base
            return longest, 1 if words >= rank else 0
        epoch = fresh_epoch(mem)
        for at in range(base, end, 2):
            for byte in range(256):
                following = step(mem, scratch(mem, at), byte)
                if following == EMPTY or reg(mem, H_STATUS):
                    continue
                if get(mem, following, N_MARK) != epoch:
                    put(mem, following, N_MARK, epoch)
                    put(mem, following, N_PLACE, top_of(mem) - end)
                    push(mem, following)
                    push(mem, 0)
                    if reg(mem, H_STATUS):
                        continue
                slot = end + get(mem, following, N_PLACE) + 1
                scratch_set(mem, slot, min(scratch(mem, slot) + scratch(mem, at + 1), rank))
        left = top_of(mem) - end
        for k in range(left):
            scratch_set(mem, base + k, scratch(mem, end + k))
        mem[H_SCRATCH_TOP] = base + left
        length += 1
    mem[H_SCRATCH_TOP] = base
    return longest, 0


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
        length, is_enough = _name_length(mem, pool(mem, at), taken + count)
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
        return _search_need(mem, node)
    if op == A_CLOSED:
        return need(mem, get(mem, node, N_A))
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
