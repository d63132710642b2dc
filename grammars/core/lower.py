"""From a Program to nodes of the arena, for one vocabulary.

Bytes that no token contains are left out, and so is everything that could then not be completed. Rules that match
nothing, intersections that are empty and objects whose required keys cannot be met become EMPTY, up to a fixpoint,
so that no state that is ever entered is a dead end.
"""

from __future__ import annotations

from agentkit.grammars.core.combine import mk_alt, mk_and, mk_not
from agentkit.grammars.core.decorators import INT, INTS, LONGS, inner, kernel
from agentkit.grammars.core.distinct import mk_distinct, mk_item
from agentkit.grammars.core.layout import (
    A_BYTES,
    A_CALL,
    A_DEMAND,
    A_KEYSET,
    A_SPECIAL,
    A_TRIE,
    CALLS,
    EMPTY,
    EPSILON,
    EXTRA_SIZE,
    FIELD_SIZE,
    FIRST,
    H_NODE_COUNT,
    H_SCRATCH_TOP,
    H_STATUS,
    INFINITE,
    LOOKS,
    N_A,
    N_NEED,
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
    O_SIZE,
    O_TRIE,
    O_WORDS,
    PLAIN,
    T_COUNT,
    T_TEXT,
    V_ALPHABET,
)
from agentkit.grammars.core.nodes import (
    bit,
    cons,
    cons_list,
    get,
    mk_ahead,
    mk_class,
    mk_closed,
    mk_literal,
    mk_repeat,
    mk_seq,
    pool,
    pool_set,
    pool_take,
    push,
    put,
    reg,
    scratch,
    top_of,
    voc_at,
)
from agentkit.grammars.core.objects import mk_object
from agentkit.grammars.core.search import need
from agentkit.grammars.core.step import alive
from agentkit.grammars.core.tries import build_trie
from agentkit.grammars.expr import (
    OP_AHEAD,
    OP_ALT,
    OP_AND,
    OP_CALL,
    OP_CLASS,
    OP_CLOSED,
    OP_DISTINCT,
    OP_EPSILON,
    OP_LITERAL,
    OP_MEMBERS,
    OP_NOT,
    OP_REPEAT,
    OP_SEQ,
    OP_SPECIAL,
    OP_TRIE,
)


@inner
def _known(voc, byte):
    return (voc_at(voc, V_ALPHABET, (byte >> 5)) >> (byte & 31)) & 1 != 0


@inner
def _spellable(voc, blob, offset, length):
    for i in range(length):
        if not _known(voc, blob[offset + i]):
            return False
    return True


@inner
def find_nullable(code, starts, rules, is_null):
    """Which nodes match the empty text, as a least fixpoint, into is_null [nodes]."""
    changed = True
    while changed:
        changed = False
        for n in range(starts.shape[0]):
            at = starts[n]
            op = code[at]
            value = False
            if op == OP_EPSILON:
                value = True
            elif op == OP_SEQ or op == OP_AND:
                value = True
                for i in range(code[at + 1]):
                    value = value and is_null[code[at + 2 + i]] != 0
            elif op == OP_ALT:
                for i in range(code[at + 1]):
                    value = value or is_null[code[at + 2 + i]] != 0
            elif op == OP_REPEAT:
                value = code[at + 2] == 0 or is_null[code[at + 1]] != 0
            elif op == OP_NOT:
                value = is_null[code[at + 1]] == 0
            elif op == OP_CLOSED:
                value = is_null[code[at + 1]] != 0
            elif op == OP_AHEAD:
                value = is_null[code[at + 2]] != 0
            elif op == OP_CALL:
                value = is_null[rules[code[at + 1]]] != 0
            elif op == OP_TRIE:
                value = code[at + 3] == 0
            if value != (is_null[n] != 0):
                is_null[n] = 1 if value else 0
                changed = True


@inner
def _lower_literal(mem, voc, blob, offset, length):
    base = top_of(mem)
    for i in range(length):
        if not _known(voc, blob[offset + i]):
            mem[H_SCRATCH_TOP] = base
            return EMPTY
        push(mem, blob[offset + i])
    content = cons_list(mem, A_BYTES, base, length, 0)
    mem[H_SCRATCH_TOP] = base
    return mk_literal(mem, get(mem, content, N_A), length) if content else EMPTY


@inner
def _lower_class(mem, voc, blob, offset):
    base = top_of(mem)
    for w in range(8):
        word = 0
        for k in range(4):
            word |= blob[offset + 4 * w + k] << (8 * k)
        push(mem, (word if word < 1 << 31 else word - (1 << 32)) & voc_at(voc, V_ALPHABET, w))
    members, last = 0, 0
    for byte in range(256):
        if (scratch(mem, base + (byte >> 5)) >> (byte & 31)) & 1:
            members, last = members + 1, byte
    if members == 1:
        mem[H_SCRATCH_TOP] = base
        push(mem, last)
        node = mk_literal(mem, get(mem, cons_list(mem, A_BYTES, base, 1, 0), N_A), 1)
    else:
        node = mk_class(mem, base)
    mem[H_SCRATCH_TOP] = base
    return node


@inner
def _lower_trie(mem, voc, blob, code, at):
    base = top_of(mem)
    for i in range(code[at + 1]):
        if _spellable(voc, blob, code[at + 2 + 2 * i], code[at + 3 + 2 * i]):
            push(mem, i)
    end = top_of(mem)
    result = EMPTY
    if end > base:
        root = build_trie(mem, blob, code, at + 2, 2, base, end, False)
        if root >= 0 and pool(mem, root + T_COUNT) == 0:
            result = EPSILON
        elif root >= 0:
            result = cons(mem, A_TRIE, root, 0, 0, NULLABLE | PLAIN if pool(mem, root + T_TEXT) >= 0 else PLAIN)
    mem[H_SCRATCH_TOP] = base
    return result


@inner
def _lower_members(mem, voc, blob, code, at, lowered):
    fields, extras, order = code[at + 1], code[at + 2], code[at + 3]
    table = at + 10
    families = table + 4 * fields
    base = top_of(mem)
    words = (fields + 31) // 32
    obj = pool_take(mem, O_SIZE)
    field = pool_take(mem, FIELD_SIZE * fields)
    extra = pool_take(mem, EXTRA_SIZE * extras)
    required = pool_take(mem, words)
    following = pool_take(mem, fields + 1)
    dfs = pool_take(mem, fields)
    if reg(mem, H_STATUS):
        return EMPTY
    for w in range(words):
        pool_set(mem, required + w, 0)
    for i in range(fields):
        value = lowered[code[table + 4 * i + 2]]
        if not _spellable(voc, blob, code[table + 4 * i], code[table + 4 * i + 1]):
            value = EMPTY
        must = code[table + 4 * i + 3]
        if must and value == EMPTY:
            return EMPTY
        pool_set(mem, field + FIELD_SIZE * i, value)
        pool_set(mem, field + FIELD_SIZE * i + 1, must)
        pool_set(mem, field + FIELD_SIZE * i + 2, code[table + 4 * i + 1])
        if must:
            pool_set(mem, required + (i >> 5), pool(mem, required + (i >> 5)) | bit(i & 31))
    pool_set(mem, following + fields, fields)
    for i in range(fields - 1, -1, -1):
        pool_set(mem, following + i, i if code[table + 4 * i + 3] else pool(mem, following + i + 1))
    kept, asked, needs = 0, 0, 0
    for j in range(extras):
        language, value = lowered[code[families + 3 * j]], lowered[code[families + 3 * j + 1]]
        asked |= code[families + 3 * j + 2]
        if language != EMPTY and value != EMPTY:
            pool_set(mem, extra + EXTRA_SIZE * kept, language)
            pool_set(mem, extra + EXTRA_SIZE * kept + 1, value)
            pool_set(mem, extra + EXTRA_SIZE * kept + 2, code[families + 3 * j + 2])
            needs |= code[families + 3 * j + 2]
            kept += 1
    if asked != needs:
        return EMPTY
    for i in range(fields):
        number = code[families + 3 * extras + i]
        pool_set(mem, dfs + i, number)
        push(mem, number)
    root = build_trie(mem, blob, code, table, 4, base, base + fields, True)
    mem[H_SCRATCH_TOP] = base
    if reg(mem, H_STATUS):
        return EMPTY
    for i in range(4):
        pool_set(mem, obj + O_COLON + i, lowered[code[at + 6 + i]])
    pool_set(mem, obj + O_FIELDS, fields)
    pool_set(mem, obj + O_EXTRAS, kept)
    pool_set(mem, obj + O_ORDER, order)
    pool_set(mem, obj + O_MIN, code[at + 4])
    pool_set(mem, obj + O_MAX, code[at + 5])
    pool_set(mem, obj + O_TRIE, root)
    pool_set(mem, obj + O_FIELD, field)
    pool_set(mem, obj + O_EXTRA, extra)
    pool_set(mem, obj + O_REQUIRED, required)
    pool_set(mem, obj + O_WORDS, words)
    pool_set(mem, obj + O_NEXT_REQUIRED, following)
    pool_set(mem, obj + O_DFS, dfs)
    pool_set(mem, obj + O_NEEDS, needs)
    if lowered[code[at + 6]] == EMPTY or lowered[code[at + 8]] == EMPTY:
        return EMPTY
    for _ in range(2 if order == 0 else words + 1):
        push(mem, 0)
    keys = cons_list(mem, A_KEYSET, base, top_of(mem) - base, 0)
    mem[H_SCRATCH_TOP] = base
    return mk_object(mem, obj, keys, FIRST)


@inner
def _lower_node(mem, voc, blob, code, at, lowered, records, rule_empty, is_null, rules, looks):
    op = code[at]
    base = top_of(mem)
    if op == OP_EPSILON:
        return EPSILON
    if op == OP_LITERAL:
        return _lower_literal(mem, voc, blob, code[at + 1], code[at + 2])
    if op == OP_CLASS:
        return _lower_class(mem, voc, blob, code[at + 1])
    if op == OP_SEQ:
        node = EPSILON
        for i in range(code[at + 1] - 1, -1, -1):
            node = mk_seq(mem, lowered[code[at + 2 + i]], node)
        return node
    if op == OP_ALT or op == OP_AND:
        for i in range(code[at + 1]):
            push(mem, lowered[code[at + 2 + i]])
        if op == OP_ALT:
            return mk_alt(mem, base)
        node = mk_and(mem, base)
        return node if alive(mem, node) else EMPTY
    if op == OP_REPEAT:
        return mk_repeat(mem, lowered[code[at + 1]], code[at + 2], code[at + 3])
    if op == OP_NOT:
        return mk_not(mem, lowered[code[at + 1]])
    if op == OP_AHEAD:
        return mk_ahead(mem, lowered[code[at + 1]], lowered[code[at + 2]], 0)
    if op == OP_CLOSED:
        return mk_closed(mem, lowered[code[at + 1]])
    if op == OP_DISTINCT:
        inside = lowered[code[at + 1]]
        return mk_distinct(mem, inside, mk_item(mem, 0, 0, 0, 0, 0, 0), 0, cons(mem, A_DEMAND, inside, code[at + 2], 0, 0))
    if op == OP_CALL:
        rule = code[at + 1]
        if rule_empty[rule]:
            return EMPTY
        return cons(mem, A_CALL, records[rule], 0, 0, looks | CALLS | (NULLABLE if is_null[rules[rule]] else 0))
    if op == OP_TRIE:
        return _lower_trie(mem, voc, blob, code, at)
    if op == OP_MEMBERS:
        return _lower_members(mem, voc, blob, code, at, lowered)
    return EMPTY


@inner
def _lower_all(mem, voc, code, starts, blob, rules, specials, lowered, records, rule_empty, is_null, hollow):
    """One pass: nodes, then the rules' bodies and shortest texts. Returns how many more rules and arrays turned out to be empty."""
    first_new, looks = reg(mem, H_NODE_COUNT), 0
    for n in range(starts.shape[0]):
        looks |= LOOKS if code[starts[n]] == OP_AHEAD else 0  # then in any rule, for all that is known here
    for r in range(rules.shape[0]):
        records[r] = pool_take(mem, 3)
        if reg(mem, H_STATUS):
            return 0
        pool_set(mem, records[r] + 2, INFINITE)
    for n in range(starts.shape[0]):
        at = starts[n]
        if code[at] == OP_SPECIAL:
            symbol = specials[code[at + 1]]
            lowered[n] = cons(mem, A_SPECIAL, symbol, 0, 0, 0) if symbol >= 0 else EMPTY
        else:
            lowered[n] = _lower_node(mem, voc, blob, code, at, lowered, records, rule_empty, is_null, rules, looks) if hollow[n] == 0 else EMPTY
        if reg(mem, H_STATUS):
            return 0
    for r in range(rules.shape[0]):
        pool_set(mem, records[r], lowered[rules[r]])
        pool_set(mem, records[r] + 1, is_null[rules[r]])
    changed = rules.shape[0] > 0
    while changed:  # shortest texts of rules, a least fixpoint from "none" downwards
        changed = False
        for node in range(first_new, reg(mem, H_NODE_COUNT)):
            put(mem, node, N_NEED, 0)
        for r in range(rules.shape[0]):
            value = need(mem, lowered[rules[r]])
            if reg(mem, H_STATUS):
                return 0
            if value < pool(mem, records[r] + 2):
                pool_set(mem, records[r] + 2, value)
                changed = True
    emptied = 0
    for r in range(rules.shape[0]):
        if rule_empty[r] == 0 and pool(mem, records[r] + 2) >= INFINITE:
            rule_empty[r] = 1
            emptied += 1
    for n in range(starts.shape[0]):
        if code[starts[n]] == OP_DISTINCT and hollow[n] == 0 and emptied == 0 and need(mem, lowered[n]) >= INFINITE:
            hollow[n] = 1  # the vocabulary spells too few items
            emptied += 1
    return emptied


@kernel(INTS, INTS, LONGS, LONGS, LONGS, LONGS, INT, LONGS, LONGS, LONGS, LONGS, LONGS, LONGS)
def lower(mem, voc, code, starts, blob, rules, root, specials, lowered, records, rule_empty, is_null, hollow):
    """Node of the program's root.

    All arrays but mem and voc are int64. specials: symbol of each of the program's special tokens.
    Work arrays: lowered, is_null, hollow [nodes]; records, rule_empty [rules].
    """
    find_nullable(code, starts, rules, is_null)
    for r in range(rules.shape[0]):
        rule_empty[r] = 0
    for n in range(starts.shape[0]):
        hollow[n] = 0
    while reg(mem, H_STATUS) == 0:
        if _lower_all(mem, voc, code, starts, blob, rules, specials, lowered, records, rule_empty, is_null, hollow) == 0:
            break
    whole = code[starts[root] + 1] if code[starts[root]] == OP_CLOSED else root  # nothing follows
    return lowered[whole] if reg(mem, H_STATUS) == 0 else EMPTY
