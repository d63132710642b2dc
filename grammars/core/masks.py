"""Which tokens may come next: the mask of a state.

A state is taken apart into its beginnings, and each is treated as it deserves: runs of characters (runs.py) and plain heads
(heads.py) are walked once for all states that begin so, undeclared keys as the texts they are (keys.py), everything else by a
walk of the token trie (walks.py). Rows are deduplicated by content in the bank. Knows nothing of probabilities.
"""

from __future__ import annotations

import numpy as np

from agentkit.grammars.core.combine import mk_alt
from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.heads import add_head, add_run, behind_head, head_of
from agentkit.grammars.core.keys import QUOTE, add_key_tokens, as_text, could_take, long_tokens, without_taken
from agentkit.grammars.core.layout import (
    A_AHEAD,
    A_ALT,
    A_CALL,
    A_EXTRAKEY,
    A_OBJECT,
    A_REPEAT,
    A_SEQ,
    AFTER,
    EMPTY,
    EPSILON,
    H_SCRATCH_TOP,
    H_STATUS,
    KEYED,
    LOOKS,
    LOOSE,
    N_A,
    N_B,
    N_C,
    N_OP,
    NEXT,
    NULLABLE,
    O_CLOSE,
    O_COMMA,
    PLAIN,
    V_LONG_COUNT,
    V_NODES,
    V_ROOT,
    V_SKIP,
    V_SPECIAL_COUNT,
    V_SPECIALS,
    V_STOP_COUNT,
    V_STOPS,
    WIDE,
)
from agentkit.grammars.core.nodes import flags_of, get, mix, mk_repeat, mk_seq, nullable, pool, push, reg, scratch, top_of, voc_at
from agentkit.grammars.core.objects import any_key, may_close, mk_object
from agentkit.grammars.core.step import step
from agentkit.grammars.core.walks import begins, enter, has_byte, walk, walk_all

FEW_PARTS = 32  # parts of a state that are taken without looking whether they came before
MANY_PARTS = 1024  # parts of a state; further ones are walked as they are
BROAD = 16  # tokens below the bytes that may begin a plain head are many if they are more than one in so many of all
MANY_CALLS = 128  # rules entered while a state is taken apart; those of more are left to the walk
MANY_JOBS = 1024  # places in one mask at which a walk may leave an undeclared key for later; further ones are walked


@inner
def _is_split(mem, first):
    """Is a sequence that begins with `first` looked at part by part? Otherwise its plain beginning stays together."""
    return get(mem, first, N_OP) == A_REPEAT or flags_of(mem, first) & (PLAIN | WIDE) != PLAIN


@inner
def _is_broad(mem, voc, node):
    """May a large part of all tokens begin with what begins `node`? So they may with a blank."""
    words, nodes = begins(mem, node), 0
    for byte in range(256):
        top = voc_at(voc, V_ROOT, byte) if has_byte(mem, words, byte) else -1
        nodes += voc_at(voc, V_SKIP, top) - top if top >= 0 else 0
    mem[H_SCRATCH_TOP] = words
    return BROAD * nodes > reg(voc, V_NODES)


@inner
def _is_front(mem, voc, first, front):
    """Is `first`, which stands before what holds AHEADs, to be put in front of each part of that? So white space before many terminals is."""
    f = flags_of(mem, first)
    if get(mem, first, N_OP) == A_AHEAD:
        return front == EPSILON
    if f & PLAIN == 0 or (front == EPSILON and f & WIDE and get(mem, first, N_OP) == A_REPEAT):
        return False
    return f & NULLABLE != 0 or _is_broad(mem, voc, first)


@inner
def _is_new(seen, front, node, after):
    """Is the triple not in the hash table `seen` [slots, 3] yet? Then it is from now on."""
    mask = seen.shape[0] - 1
    slot = mix(mix(node, after), front) >> 7 & mask
    while seen[slot, 0] != 0:
        if seen[slot, 0] == node and seen[slot, 1] == after and seen[slot, 2] == front:
            return False
        slot = (slot + 1) & mask
    seen[slot, 0], seen[slot, 1], seen[slot, 2] = node, after, front
    return True


@inner
def _push_part(mem, front, node, after):
    push(mem, node)
    push(mem, after)
    push(mem, front)


@inner
def _factored(mem, node):
    """A choice with what its members' heads have in common in front."""
    start = top_of(mem)
    for i in range(get(mem, node, N_B)):
        push(mem, pool(mem, get(mem, node, N_A) + i))
    return mk_alt(mem, start)


@inner
def _look_in_front(mem, node):
    """`node` with the AHEAD in front that the members of the choice which it begins with have in common."""
    first = get(mem, node, N_A) if get(mem, node, N_OP) == A_SEQ else node
    if get(mem, first, N_OP) != A_ALT or flags_of(mem, first) & LOOSE == 0:
        return node
    whole = _factored(mem, first)
    return mk_seq(mem, whole, get(mem, node, N_B)) if first != node else whole


@inner
def _fill_parts(mem, voc, rows, fixed, row, state, jobs, keys):
    """Add to `row` every token that `state` can read, but for those of undeclared keys that are left in `keys`; returns their number.

    The state is taken apart into heads with what follows each. Runs of characters and plain heads have records, objects are
    opened up to get at theirs, and all other heads are put together again and walked at once.
    """
    base, calls, parts = top_of(mem), 0, 0
    plain, seen = np.empty(64, np.int64), np.empty((0, 3), np.int64)
    count, found = 0, 0
    jobs[0, 0] = 0
    _push_part(mem, EPSILON, state, EPSILON)
    while top_of(mem) > base and reg(mem, H_STATUS) == 0:
        mem[H_SCRATCH_TOP] -= 3
        node, after, front = scratch(mem, top_of(mem)), scratch(mem, top_of(mem) + 1), scratch(mem, top_of(mem) + 2)
        op, f = get(mem, node, N_OP), flags_of(mem, node)
        parts += 1
        if parts == FEW_PARTS:
            seen = np.zeros((2 * MANY_PARTS, 3), np.int64)
        if parts >= FEW_PARTS and parts < MANY_PARTS and not _is_new(seen, front, node, after):
            continue
        if parts >= MANY_PARTS:
            walk_all(mem, voc, row, mk_seq(mem, front, mk_seq(mem, node, after)), jobs)
        elif node == EPSILON and after != EPSILON:
            _push_part(mem, front, after, EPSILON)
        elif op == A_AHEAD and front == EPSILON and after != EPSILON:
            _push_part(mem, node, after, EPSILON)
        elif op == A_SEQ and f & LOOKS and _is_front(mem, voc, get(mem, node, N_A), front):
            _push_part(mem, mk_seq(mem, front, get(mem, node, N_A)), get(mem, node, N_B), after)
        elif f & PLAIN and node > EPSILON and flags_of(mem, after) & LOOKS and _look_in_front(mem, after) != after:
            _push_part(mem, front, node, _look_in_front(mem, after))
        elif f & PLAIN and node > EPSILON and flags_of(mem, after) & LOOKS and _is_front(mem, voc, node, front):
            _push_part(mem, mk_seq(mem, front, node), after, EPSILON)
        elif op == A_SEQ and _is_split(mem, get(mem, node, N_A)):
            _push_part(mem, front, get(mem, node, N_A), mk_seq(mem, get(mem, node, N_B), after))
        elif op == A_ALT and (f & PLAIN == 0 or flags_of(mem, after) & LOOKS == 0):
            whole = _factored(mem, node) if f & LOOSE else node
            if whole != node:
                _push_part(mem, front, whole, after)
            for i in range(get(mem, node, N_B) if whole == node else 0):
                _push_part(mem, front, pool(mem, get(mem, node, N_A) + i), after)
        elif op == A_EXTRAKEY and front == EPSILON and found < keys.shape[0]:
            keys[found, 0], keys[found, 1] = node, after
            found += 1
        elif op == A_EXTRAKEY and front == EPSILON:
            add_key_tokens(mem, voc, row, -1, node, after, jobs)
        elif op == A_OBJECT and front == EPSILON:
            _open_object(mem, voc, row, node, after, jobs)
        elif op == A_CALL and calls < MANY_CALLS:
            calls += 1
            _push_part(mem, front, pool(mem, get(mem, node, N_A)), after)
        elif op == A_REPEAT and f & WIDE and front == EPSILON and add_run(mem, voc, rows, fixed, row, node, after, jobs):
            if nullable(mem, node):
                _push_part(mem, EPSILON, after, EPSILON)
        elif op == A_REPEAT and f & PLAIN == 0 and not nullable(mem, get(mem, node, N_A)):
            child, hi = get(mem, node, N_A), get(mem, node, N_C)
            again = mk_repeat(mem, child, max(get(mem, node, N_B) - 1, 0), hi - 1 if hi > 0 else hi)
            _push_part(mem, front, child, mk_seq(mem, again, after))
            if nullable(mem, node):
                _push_part(mem, front, after, EPSILON)
        elif node > EPSILON or front != EPSILON:
            whole = mk_seq(mem, front, mk_seq(mem, node, after))
            if flags_of(mem, whole) & PLAIN == 0 and head_of(mem, whole) != EPSILON and add_head(mem, voc, row, whole, jobs):
                if nullable(mem, head_of(mem, whole)):
                    _push_part(mem, EPSILON, behind_head(mem, whole), EPSILON)
            elif count == plain.shape[0]:
                walk_all(mem, voc, row, whole, jobs)
            else:
                plain[count] = whole
                count += 1
    if count and reg(mem, H_STATUS) == 0:
        for k in range(count):
            push(mem, plain[k])
        walk_all(mem, voc, row, mk_alt(mem, base), jobs)
    _do_jobs(mem, voc, row, jobs)
    if reg(mem, H_STATUS):
        mem[H_SCRATCH_TOP] = base
    return found


@inner
def _open_object(mem, voc, row, node, after, jobs):
    """An object between two members: leave on the scratch stack what may follow, as parts; the opening quote of a key is read here."""
    obj, keys, phase = get(mem, node, N_A), get(mem, node, N_B), get(mem, node, N_C)
    if phase != AFTER:
        top = voc_at(voc, V_ROOT, QUOTE)
        opened = step(mem, node, QUOTE) if top >= 0 else EMPTY
        if opened != EMPTY:
            enter(mem, voc, row, top, mk_seq(mem, opened, after), jobs)
    elif any_key(mem, obj, keys):
        _push_part(mem, EPSILON, pool(mem, obj + O_COMMA), mk_seq(mem, mk_object(mem, obj, keys, NEXT), after))
    if phase != NEXT and may_close(mem, obj, keys):
        _push_part(mem, EPSILON, pool(mem, obj + O_CLOSE), after)


@inner
def _do_jobs(mem, voc, row, jobs):
    """Do what walks have left: the tokens below a trie node whose state is inside an undeclared key."""
    base = top_of(mem)
    while jobs[0, 0] > 0 and reg(mem, H_STATUS) == 0:
        top, state = jobs[jobs[0, 0], 0], jobs[jobs[0, 0], 1]
        jobs[0, 0] -= 1
        push(mem, state)
        push(mem, EPSILON)
        while top_of(mem) > base and reg(mem, H_STATUS) == 0:
            mem[H_SCRATCH_TOP] -= 2
            node, after = scratch(mem, top_of(mem)), scratch(mem, top_of(mem) + 1)
            op = get(mem, node, N_OP)
            if flags_of(mem, node) & KEYED == 0:
                walk(mem, voc, row, top, mk_seq(mem, node, after), jobs)
            elif op == A_SEQ and flags_of(mem, get(mem, node, N_A)) & KEYED:
                push(mem, get(mem, node, N_A))
                push(mem, mk_seq(mem, get(mem, node, N_B), after))
            elif op == A_ALT:
                for i in range(get(mem, node, N_B)):
                    push(mem, pool(mem, get(mem, node, N_A) + i))
                    push(mem, after)
            elif op == A_EXTRAKEY:
                add_key_tokens(mem, voc, row, top, node, after, jobs)
            else:
                walk(mem, voc, row, top, mk_seq(mem, node, after), jobs)


@inner
def fill(mem, voc, rows, fixed, row, state):
    """Add to `row` every token that `state` can read, special and stop tokens included."""
    jobs, keys, none = np.empty((MANY_JOBS, 2), np.int64), np.empty((16, 2), np.int64), np.empty((0, 2), np.int64)
    found = _fill_parts(mem, voc, rows, fixed, row, state, jobs, keys)
    for k in range(found):
        if reg(mem, H_STATUS):
            return
        extra, after = keys[k, 0], keys[k, 1]
        text = as_text(mem, voc, extra, after)
        if text == EMPTY:
            add_key_tokens(mem, voc, row, -1, extra, after, jobs)
            _do_jobs(mem, voc, row, jobs)
        elif reg(voc, V_LONG_COUNT) == 0 and not could_take(mem, extra):
            _fill_parts(mem, voc, rows, fixed, row, text, jobs, none)
        else:
            own = np.zeros(row.shape[0], np.uint32)
            _fill_parts(mem, voc, rows, fixed, own, text, jobs, none)
            without_taken(mem, voc, own, extra)
            long_tokens(mem, voc, own, mk_seq(mem, extra, after))
            for w in range(row.shape[0]):
                row[w] |= own[w]
    _add_symbols(mem, voc, row, state)


@inner
def _add_symbols(mem, voc, row, state):
    """Special tokens that `state` can read, and the stop tokens if the text may end here."""
    for k in range(reg(voc, V_SPECIAL_COUNT)):
        token = voc_at(voc, V_SPECIALS, k)
        if token >= 0 and step(mem, state, 256 + k) != EMPTY:
            row[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
    for k in range(reg(voc, V_STOP_COUNT)):
        token = voc_at(voc, V_STOPS, k)
        bit = np.uint32(1) << np.uint32(token & 31)
        row[token >> 5] = row[token >> 5] | bit if nullable(mem, state) else row[token >> 5] & ~bit
