"""Items of an array that must all differ: which values have been written, and what the one being written may still come to equal.

A DISTINCT node is the language of an array's inside with a reader beside it that makes values of the bytes: strings without their
escapes, numbers by their value, objects whatever the order of their names. Equal values are one node. *Tied* are the
values of earlier items with which the item being read agrees so far (perhaps more: never fewer). They get fewer with each byte; an item that is
complete while it is tied to a value has been written before. The reader trusts the language to be JSON. Knows nothing of schemas.

ITEM: mode holds one of the modes below, and for
    texts    16 if it is an object's name, 32 * (1 + the ten bits of a high surrogate that waits for the low one)
             escape: while \\u is read, 65536 * digits + their value
    numbers  NEGATIVE, phase, BELOW, EXPONENT * the exponent so far; text: the digits from the first that is not 0; escape: digits behind the point
    words    length: letters that are left
"""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import (
    A_BYTES,
    A_DISTINCT,
    A_FRAME,
    A_ITEM,
    A_LIST,
    A_VALUE,
    CHECK,
    DISTINCT,
    EMPTY,
    EPSILON,
    H_SCRATCH_TOP,
    N_A,
    N_B,
    N_C,
    N_D,
    N_E,
    N_F,
    NULLABLE,
    TIED,
)
from agentkit.grammars.core.nodes import cons, cons6, cons_list, flags_of, get, mk_path, pool, push, scratch_set, top_of
from agentkit.grammars.core.ties import (
    ARRAY_VALUE,
    GOES_ON,
    IS,
    IS_NAMED,
    NAME_GOES_ON,
    NUMBER_VALUE,
    OBJECT_VALUE,
    OF_KIND,
    STRING_VALUE,
    WORD_VALUE,
    ZERO,
    keep_tied,
    linked,
)

BEFORE, NAMES, BEHIND, TEXT, ESCAPE, HEX, NUMBER, WORD, FORGOTTEN = range(9)
"""Before a value | before a name or the end of an object | behind a value | inside a text | behind \\ | behind \\u | a number | true, false, null |
not read any more."""
MODES, NAME, HIGH = 15, 16, 32
NEGATIVE, POINT, POWER, BELOW, EXPONENT = 16, 32, 64, 128, 256

QUOTE, COMMA, COLON, BACKSLASH = 34, 44, 58, 92


@inner
def mk_distinct(mem, inside, item, used, demand):
    """What is left of an array: `inside`, with the reader's state `item` and the LINK of the values `used`."""
    if inside <= EPSILON:
        return inside
    f, tied = flags_of(mem, inside), get(mem, item, N_A) != 0
    flags = DISTINCT | (f & (CHECK | TIED | NULLABLE)) | (CHECK | TIED if tied else 0)
    return cons6(mem, A_DISTINCT, inside, item, used, demand, 0, 0, flags)


@inner
def mk_item(mem, tied, frame, mode, text, length, escape):
    return cons6(mem, A_ITEM, tied, frame, mode, text, length, escape, 0)


@inner
def is_tied(mem, node):
    """May the item that is being read at a DISTINCT node still equal an earlier one?"""
    return get(mem, get(mem, node, N_B), N_A) != 0


@inner
def is_behind(mem, node):
    """Is a DISTINCT node between two items, before the comma?"""
    item = get(mem, node, N_B)
    return get(mem, item, N_C) == BEHIND and get(mem, item, N_B) == 0


@inner
def items_read(mem, node):
    """How many items have been read at a DISTINCT node, the one being read included."""
    used = get(mem, node, N_C)
    return (get(mem, used, N_C) if used else 0) + (0 if is_behind(mem, node) else 1)


@inner
def has_enough(mem, node):
    """Has a DISTINCT node all the items that are asked for, with the one being read, or can none of those to come run out?"""
    return items_read(mem, node) >= get(mem, get(mem, node, N_D), N_B)


@inner
def forgetting(mem, node):
    """A DISTINCT node without the memory of the item being read, nor of those to come; they are read no more."""
    return mk_distinct(mem, get(mem, node, N_A), mk_item(mem, 0, 0, FORGOTTEN, 0, 0, 0), get(mem, node, N_C), get(mem, node, N_D))


@inner
def is_forgetting(mem, node):
    return get(mem, get(mem, node, N_B), N_C) == FORGOTTEN


@inner
def _listed(mem, op, chain, count):
    """The last `count` of a chain of PATHs or LINKs as a node that holds them in order."""
    base = top_of(mem)
    for _ in range(count):
        push(mem, 0)
    for i in range(top_of(mem) - 1, base - 1, -1):
        scratch_set(mem, i, get(mem, chain, N_B))
        chain = get(mem, chain, N_A)
    node = cons_list(mem, op, base, top_of(mem) - base, 0)
    mem[H_SCRATCH_TOP] = base
    return node


@inner
def _with_member(mem, members, name, value):
    """The LIST of an object's names and values with one more."""
    base, placed = top_of(mem), False
    for i in range(0, get(mem, members, N_B) if members else 0, 2):
        other = pool(mem, get(mem, members, N_A) + i)
        if other > name and not placed:
            push(mem, name)
            push(mem, value)
            placed = True
        push(mem, other)
        push(mem, pool(mem, get(mem, members, N_A) + i + 1))
    if not placed:
        push(mem, name)
        push(mem, value)
    node = cons_list(mem, A_LIST, base, top_of(mem) - base, 0)
    mem[H_SCRATCH_TOP] = base
    return node


@inner
def _deliver(mem, item, frame, used, value):
    """(ITEM, used) behind a value; used is -1 where that is an item which has been written before."""
    tied = keep_tied(mem, get(mem, item, N_A), frame, IS, value, 0, 0)
    if frame == 0:
        return mk_item(mem, 0, 0, BEHIND, 0, 0, 0), (-1 if tied else linked(mem, used, value))
    outer, kind, members, count = get(mem, frame, N_A), get(mem, frame, N_B), get(mem, frame, N_C), get(mem, frame, N_E)
    members = _with_member(mem, members, get(mem, frame, N_D), value) if kind == OBJECT_VALUE else linked(mem, members, value)
    return mk_item(mem, tied, cons6(mem, A_FRAME, outer, kind, members, 0, count + 1, 0, 0), BEHIND, 0, 0, 0), used


@inner
def _closed_box(mem, frame):
    """The VALUE of an array or object that closes."""
    kind, members, count = get(mem, frame, N_B), get(mem, frame, N_C), get(mem, frame, N_E)
    if kind == ARRAY_VALUE or members == 0:
        members = _listed(mem, A_LIST, members, count)
    return cons(mem, A_VALUE, kind, members, 0, 0)


@inner
def _number_value(mem, item):
    mode, digits, count = get(mem, item, N_C), get(mem, item, N_D), get(mem, item, N_E)
    power = (mode // EXPONENT) * (-1 if mode & BELOW else 1) - get(mem, item, N_F)
    while count and get(mem, digits, N_B) == ZERO:
        digits, count, power = get(mem, digits, N_A), count - 1, power + 1
    content = _listed(mem, A_BYTES, digits, count)
    if count == 0:
        return cons(mem, A_VALUE, NUMBER_VALUE, content, 0, 0)
    return cons6(mem, A_VALUE, NUMBER_VALUE, content, power, 1 if mode & NEGATIVE else 0, 0, 0, 0)


@inner
def _is_of_number(byte):
    """Digits, signs, points and exponents."""
    return (byte >= ZERO and byte <= 57) or byte == 43 or byte == 45 or byte == 46 or byte == 69 or byte == 101


@inner
def _read_number(mem, item, byte):
    """One more byte of a number."""
    tied, frame, mode, digits = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_C), get(mem, item, N_D)
    count, places = get(mem, item, N_E), get(mem, item, N_F)
    if byte == 46:
        mode |= POINT
    elif byte == 69 or byte == 101:
        mode |= POWER
    elif byte == 45:
        mode |= BELOW if mode & POWER else NEGATIVE
    elif byte != 43 and mode & POWER:
        mode += EXPONENT * (9 * (mode // EXPONENT) + byte - ZERO)
    elif byte != 43:
        places += 1 if mode & POINT else 0
        if count or byte != ZERO:
            tied = keep_tied(mem, tied, frame, GOES_ON, byte, count, 0)
            digits, count = mk_path(mem, digits, byte), count + 1
    return mk_item(mem, tied, frame, mode, digits, count, places)


@inner
def _append(mem, item, mode, byte):
    """`item` with one more byte of its text, in `mode` behind it."""
    tied, frame, text, length = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_D), get(mem, item, N_E)
    tied = keep_tied(mem, tied, frame, NAME_GOES_ON if mode & NAME else GOES_ON, byte, length, text)
    return mk_item(mem, tied, frame, mode, mk_path(mem, text, byte), length + 1, 0)


@inner
def _append_character(mem, item, mode, character):
    """The same with a character, as UTF-8."""
    if character < 0x80:
        return _append(mem, item, mode, character)
    more = 1 if character < 0x800 else 2 if character < 0x10000 else 3
    item = _append(mem, item, mode, (0xE0 if more == 2 else 0xC0 if more == 1 else 0xF0) | character >> 6 * more)
    for k in range(more - 1, -1, -1):
        item = _append(mem, item, mode, 0x80 | character >> 6 * k & 0x3F)
    return item


@inner
def _read_escape(mem, item, byte):
    """One byte behind a backslash."""
    mode = get(mem, item, N_C)
    if byte == 117:
        return mk_item(mem, get(mem, item, N_A), get(mem, item, N_B), mode - ESCAPE + HEX, get(mem, item, N_D), get(mem, item, N_E), 0)
    character = 10 if byte == 110 else 9 if byte == 116 else 13 if byte == 114 else 8 if byte == 98 else 12 if byte == 102 else byte
    return _append(mem, item, TEXT | mode & NAME, character)


@inner
def _read_hex(mem, item, byte):
    """One hexadecimal digit of an escaped character."""
    tied, frame, mode, text, length = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_C), get(mem, item, N_D), get(mem, item, N_E)
    digit = byte - ZERO if byte <= 57 else (byte | 32) - 87
    count, code = (get(mem, item, N_F) >> 16) + 1, (get(mem, item, N_F) & 0xFFFF) << 4 | digit
    if count < 4:
        return mk_item(mem, tied, frame, mode, text, length, count << 16 | code)
    high = mode // HIGH
    if code & 0xFC00 == 0xD800:
        return mk_item(mem, tied, frame, TEXT | mode & NAME | HIGH * (1 + (code & 0x3FF)), text, length, 0)
    if high:
        code = 0x10000 + (high - 1 << 10) + (code & 0x3FF)
    return _append_character(mem, item, TEXT | mode & NAME, code)


@inner
def _close_text(mem, item, used):
    """(ITEM, used) behind the closing quote of a text."""
    tied, frame, mode = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_C)
    content = _listed(mem, A_BYTES, get(mem, item, N_D), get(mem, item, N_E))
    if mode & NAME == 0:
        return _deliver(mem, item, frame, used, cons(mem, A_VALUE, STRING_VALUE, content, 0, 0))
    tied = keep_tied(mem, tied, frame, IS_NAMED, content, 0, 0)
    frame = cons6(mem, A_FRAME, get(mem, frame, N_A), OBJECT_VALUE, get(mem, frame, N_C), content, get(mem, frame, N_E), 0, 0)
    return mk_item(mem, tied, frame, BEHIND, 0, 0, 0), used


@inner
def _begin(mem, item, byte):
    """The state inside the value that begins with `byte`."""
    tied, frame = get(mem, item, N_A), get(mem, item, N_B)
    if byte == QUOTE:
        return mk_item(mem, keep_tied(mem, tied, frame, OF_KIND, STRING_VALUE, 0, 0), frame, TEXT, 0, 0, 0)
    if byte == 91 or byte == 123:
        kind = ARRAY_VALUE if byte == 91 else OBJECT_VALUE
        tied = keep_tied(mem, tied, frame, OF_KIND, kind, 0, 0)
        return mk_item(mem, tied, cons6(mem, A_FRAME, frame, kind, 0, 0, 0, 0, 0), BEFORE if byte == 91 else NAMES, 0, 0, 0)
    if byte == 102 or byte == 110 or byte == 116:
        return mk_item(mem, keep_tied(mem, tied, frame, OF_KIND, WORD_VALUE, byte, 0), frame, WORD, byte, 4 if byte == 102 else 3, 0)
    return _read_number(mem, mk_item(mem, keep_tied(mem, tied, frame, OF_KIND, NUMBER_VALUE, 0, 0), frame, NUMBER, 0, 0, 0), byte)


@inner
def _read_between(mem, item, used, byte):
    """(ITEM, used) after a byte that is not inside a text, number or word."""
    tied, frame, mode = get(mem, item, N_A), get(mem, item, N_B), get(mem, item, N_C)
    if byte <= 32 or (frame == 0 and byte == 93):  # white space, or the array is over
        return item, used
    if byte == COMMA:
        names = frame and get(mem, frame, N_B) == OBJECT_VALUE
        return mk_item(mem, tied if frame else used, frame, NAMES if names else BEFORE, 0, 0, 0), used
    if byte == COLON:
        return mk_item(mem, tied, frame, BEFORE, 0, 0, 0), used
    if byte == 93 or byte == 125:
        return _deliver(mem, item, get(mem, frame, N_A), used, _closed_box(mem, frame))
    if mode == NAMES:
        return mk_item(mem, tied, frame, TEXT | NAME, 0, 0, 0), used
    return _begin(mem, item, byte), used


@inner
def _read_text(mem, item, used, byte):
    """(ITEM, used) after a byte inside a text."""
    mode = get(mem, item, N_C)
    if mode & MODES == ESCAPE:
        return _read_escape(mem, item, byte), used
    if mode & MODES == HEX:
        return _read_hex(mem, item, byte), used
    if byte == QUOTE:
        return _close_text(mem, item, used)
    if byte == BACKSLASH:
        return mk_item(mem, get(mem, item, N_A), get(mem, item, N_B), mode - TEXT + ESCAPE, get(mem, item, N_D), get(mem, item, N_E), 0), used
    return _append(mem, item, mode, byte), used


@inner
def _read(mem, item, used, byte):
    """(ITEM, used) after one more byte of the array; used is -1 where an item has been completed that equals an earlier one."""
    kind = get(mem, item, N_C) & MODES
    if kind == TEXT or kind == ESCAPE or kind == HEX:
        return _read_text(mem, item, used, byte)
    if kind == FORGOTTEN:
        return item, used
    if kind == WORD:
        letters, first = get(mem, item, N_E) - 1, get(mem, item, N_D)
        if letters == 0:
            return _deliver(mem, item, get(mem, item, N_B), used, cons(mem, A_VALUE, WORD_VALUE, first, 0, 0))
        return mk_item(mem, get(mem, item, N_A), get(mem, item, N_B), WORD, first, letters, 0), used
    if kind == NUMBER:
        if _is_of_number(byte):
            return _read_number(mem, item, byte), used
        item, used = _deliver(mem, item, get(mem, item, N_B), used, _number_value(mem, item))
        if used < 0:
            return item, used
    return _read_between(mem, item, used, byte)


@inner
def read_on(mem, node, inside, symbol):
    """The DISTINCT node after `symbol`, which has led its language to `inside`. Not looked at: whether it can be completed."""
    if inside == EMPTY:
        return EMPTY
    item, used = _read(mem, get(mem, node, N_B), get(mem, node, N_C), symbol)
    return EMPTY if used < 0 else mk_distinct(mem, inside, item, used, get(mem, node, N_D))
