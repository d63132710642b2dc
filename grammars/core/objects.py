"""Keys of JSON objects: which names may come next, and what follows once a name is complete.

All names of an object stand in one shared trie; which of them have been used is a small interned record (KEYSET)
beside it, so a key costs the same with two declared names or two thousand. Undeclared names are remembered too
(as interned PATHs), so that none is written twice.

KEYSET record, declared order: [next field, count, used undeclared paths...]
               any order:      [bits of used fields (32 a word)..., count, used undeclared paths...]
               count: twice the members written, and 1 more once the undeclared member that O_NEEDS asks for is among them
"""

from __future__ import annotations

from agentkit.grammars.core.combine import sort_scratch
from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_EXTRAKEY,
    A_KEY,
    A_KEYSET,
    A_OBJECT,
    A_PATH,
    AFTER,
    CHECK,
    EMPTY,
    ENDLESS,
    EXTRA_SIZE,
    FIELD_SIZE,
    H_HASH,
    H_HASH_MASK,
    H_NODES,
    H_SCRATCH_TOP,
    KEYED,
    N_A,
    N_B,
    NULLABLE,
    O_COLON,
    O_DFS,
    O_EXTRA,
    O_EXTRAS,
    O_FIELD,
    O_FIELDS,
    O_MAX,
    O_MIN,
    O_NEEDS,
    O_NEXT_REQUIRED,
    O_ORDER,
    O_REQUIRED,
    O_TAIL,
    O_TRIE,
    O_WORDS,
    STRIDE,
    T_CHILDREN,
    T_COUNT,
    T_HI,
    T_LO,
    T_TEXT,
    WIDE,
)
from agentkit.grammars.core.nodes import bit, cons6, cons_list, fixed_hash, flags_of, get, mk_seq, pool, push, reg, scratch, scratch_set, top_of


@inner
def trie_child(mem, node, byte):
    """Child of a trie node, 0 if there is none (no trie node has offset 0)."""
    lo, hi = 0, pool(mem, node + T_COUNT)
    while lo < hi:
        mid = (lo + hi) >> 1
        b = pool(mem, node + T_CHILDREN + 2 * mid)
        if b == byte:
            return pool(mem, node + T_CHILDREN + 2 * mid + 1)
        if b < byte:
            lo = mid + 1
        else:
            hi = mid
    return 0


@inner
def words_of(mem, obj):
    """Integers in front of `count` in a KEYSET record of this object."""
    return 1 if pool(mem, obj + O_ORDER) == 0 else pool(mem, obj + O_WORDS)


@inner
def keys_written(mem, obj, keys):
    return pool(mem, get(mem, keys, N_A) + words_of(mem, obj)) >> 1


@inner
def extra_missing(mem, obj, keys):
    """1 if an undeclared member that the object asks for has still to come, else 0."""
    return pool(mem, obj + O_NEEDS) & ~pool(mem, get(mem, keys, N_A) + words_of(mem, obj))


@inner
def is_used(mem, obj, keys, i):
    """May declared key `i` no longer come (written already, or passed by in declared order)?"""
    record = get(mem, keys, N_A)
    if pool(mem, obj + O_ORDER) == 0:
        return i < pool(mem, record)
    return (pool(mem, record + (i >> 5)) >> (i & 31)) & 1 != 0


@inner
def required_left(mem, obj, keys):
    """How many required keys are still missing."""
    record = get(mem, keys, N_A)
    required = pool(mem, obj + O_REQUIRED)
    left = 0
    if pool(mem, obj + O_ORDER) == 0:
        i, n, following = pool(mem, record), pool(mem, obj + O_FIELDS), pool(mem, obj + O_NEXT_REQUIRED)
        while i < n:
            i = pool(mem, following + i)
            if i < n:
                left += 1
                i += 1
        return left
    for w in range(pool(mem, obj + O_WORDS)):
        missing = pool(mem, required + w) & ~pool(mem, record + w) & 0xFFFFFFFF
        while missing:
            missing &= missing - 1
            left += 1
    return left


@inner
def _available(mem, obj, keys, after):
    """Declared keys that can still come, those up to `after` excepted in declared order."""
    field, count = pool(mem, obj + O_FIELD), 0
    for i in range(pool(mem, obj + O_FIELDS)):
        if i > after and pool(mem, field + FIELD_SIZE * i) != EMPTY and not is_used(mem, obj, keys, i):
            count += 1
    return count


@inner
def field_allowed(mem, obj, keys, i):
    """May declared key `i` come next, and can the object still be completed then?"""
    field = pool(mem, obj + O_FIELD) + FIELD_SIZE * i
    if pool(mem, field) == EMPTY or is_used(mem, obj, keys, i):
        return False
    declared = pool(mem, obj + O_ORDER) == 0
    if declared and i > pool(mem, pool(mem, obj + O_NEXT_REQUIRED) + pool(mem, get(mem, keys, N_A))):
        return False
    top, least, count = pool(mem, obj + O_MAX), pool(mem, obj + O_MIN), keys_written(mem, obj, keys) + 1
    if top >= 0 and count + required_left(mem, obj, keys) - pool(mem, field + 1) + extra_missing(mem, obj, keys) > top:
        return False
    if count < least and pool(mem, obj + O_EXTRAS) == 0:
        rest = _available(mem, obj, keys, i) if declared else _available(mem, obj, keys, -1) - 1
        return count + rest >= least
    return True


@inner
def extras_allowed(mem, obj, keys):
    """May an undeclared key come next?"""
    if pool(mem, obj + O_EXTRAS) == 0:
        return False
    left = required_left(mem, obj, keys)
    if pool(mem, obj + O_ORDER) == 0 and left > 0:
        return False
    top = pool(mem, obj + O_MAX)
    return top < 0 or keys_written(mem, obj, keys) + 1 + left <= top


@inner
def extra_allowed(mem, obj, keys, family):
    """Where an undeclared key may come: one of this family? Not if it took the last place of one that is asked for."""
    top, missing = pool(mem, obj + O_MAX), extra_missing(mem, obj, keys)
    if top < 0 or missing == 0 or pool(mem, pool(mem, obj + O_EXTRA) + EXTRA_SIZE * family + 2):
        return True
    return keys_written(mem, obj, keys) + 1 + required_left(mem, obj, keys) + missing <= top


@inner
def may_close(mem, obj, keys):
    missing = required_left(mem, obj, keys) + extra_missing(mem, obj, keys)
    return missing == 0 and keys_written(mem, obj, keys) >= pool(mem, obj + O_MIN)


@inner
def key_below(mem, obj, keys, trie):
    """Is there an allowed declared key at or below this trie node?"""
    dfs = pool(mem, obj + O_DFS)
    for k in range(pool(mem, trie + T_LO), pool(mem, trie + T_HI)):
        if field_allowed(mem, obj, keys, pool(mem, dfs + k)):
            return True
    return False


@inner
def any_key(mem, obj, keys):
    return extras_allowed(mem, obj, keys) or key_below(mem, obj, keys, pool(mem, obj + O_TRIE))


@inner
def keyset_with(mem, obj, keys, i, path, family):
    """The KEYSET after declared key `i` (or, if i < 0, the undeclared key `path` of a family) has been written."""
    base = top_of(mem)
    record, length, words = get(mem, keys, N_A), get(mem, keys, N_B), words_of(mem, obj)
    for k in range(length):
        push(mem, pool(mem, record + k))
    scratch_set(mem, base + words, scratch(mem, base + words) + 2)
    if i >= 0:
        if pool(mem, obj + O_ORDER) == 0:
            scratch_set(mem, base, i + 1)
        else:
            scratch_set(mem, base + (i >> 5), scratch(mem, base + (i >> 5)) | bit(i & 31))
    else:
        scratch_set(mem, base + words, scratch(mem, base + words) | pool(mem, pool(mem, obj + O_EXTRA) + EXTRA_SIZE * family + 2))
        push(mem, path)
        sort_scratch(mem, base + words + 1, length - words)
    node = cons_list(mem, A_KEYSET, base, top_of(mem) - base, 0)
    mem[H_SCRATCH_TOP] = base
    return node


@inner
def path_used(mem, obj, keys, path):
    """Has the undeclared key `path` been written already?"""
    record, words = get(mem, keys, N_A), words_of(mem, obj)
    for k in range(words + 1, get(mem, keys, N_B)):
        if pool(mem, record + k) == path:
            return True
    return False


@inner
def find_path(mem, parent, byte):
    """The PATH node parent + byte if it exists, else -1; makes nothing."""
    mask, base, table = reg(mem, H_HASH_MASK), reg(mem, H_NODES), reg(mem, H_HASH)
    slot = fixed_hash(A_PATH, parent, byte, 0, 0, 0, 0) >> 7 & mask
    while True:
        node = mem[table + slot]
        if node == 0:
            return -1
        at = base + node * STRIDE
        if mem[at] == A_PATH and mem[at + 1] == parent and mem[at + 2] == byte and mem[at + 3] == 0:
            return node
        slot = (slot + 1) & mask


@inner
def mk_object(mem, obj, keys, phase):
    return cons6(mem, A_OBJECT, obj, keys, phase, 0, 0, 0, 0)


@inner
def mk_key(mem, obj, keys, trie):
    return cons6(mem, A_KEY, obj, keys, trie, 0, 0, 0, 0)


@inner
def mk_extrakey(mem, obj, keys, trie, rest, path, family):
    if rest == EMPTY:
        return EMPTY
    flags = flags_of(mem, rest) & (CHECK | WIDE) | KEYED
    if flags_of(mem, rest) & ENDLESS == 0 and may_collide(mem, obj, keys, trie, path):
        flags |= CHECK  # are all the names that it could still become taken?
    return cons6(mem, A_EXTRAKEY, obj, keys, trie, rest, path, family, flags)


@inner
def after_key(mem, obj, value, keys):
    """Colon, value, white space, and the rest of the object with `keys` written."""
    rest = mk_object(mem, obj, keys, AFTER)
    return mk_seq(mem, pool(mem, obj + O_COLON), mk_seq(mem, value, mk_seq(mem, pool(mem, obj + O_TAIL), rest)))


@inner
def close_key(mem, obj, keys, i):
    """What follows the closing quote of declared key `i`."""
    value = pool(mem, pool(mem, obj + O_FIELD) + FIELD_SIZE * i)
    return after_key(mem, obj, value, keyset_with(mem, obj, keys, i, 0, 0))


@inner
def close_extrakey(mem, obj, keys, path, family):
    """What follows the closing quote of the undeclared key `path`."""
    value = pool(mem, pool(mem, obj + O_EXTRA) + EXTRA_SIZE * family + 1)
    return after_key(mem, obj, value, keyset_with(mem, obj, keys, -1, path, family))


@inner
def can_close_extrakey(mem, obj, keys, trie, rest, path):
    """May the closing quote come here: a complete name, not a declared one, not written before?"""
    if flags_of(mem, rest) & NULLABLE == 0:
        return False
    if trie:
        end = trie_child(mem, trie, 34)
        if end and pool(mem, end + T_TEXT) >= 0:
            return False
    return not path_used(mem, obj, keys, path)


@inner
def _leads_to(mem, path, longer):
    """Is the key `path` a beginning of the key `longer`?"""
    while longer:
        if longer == path:
            return True
        longer = get(mem, longer, N_A)
    return path == 0


@inner
def may_collide(mem, obj, keys, trie, path):
    """Could the undeclared key begun as `path` still become a declared or a used name?"""
    if trie and pool(mem, trie + T_LO) < pool(mem, trie + T_HI):
        return True
    if path < 0:
        return False
    record = get(mem, keys, N_A)
    for k in range(words_of(mem, obj) + 1, get(mem, keys, N_B)):
        if _leads_to(mem, path, pool(mem, record + k)):
            return True
    return False
