"""Which earlier items of an array agree with what has been read of the one being read: see distinct.py.

An earlier item is a VALUE. Where in it the reading stands is told by the FRAMEs of the arrays and objects that are open.
"""

from __future__ import annotations

from agentkit.grammars.core.decorators import inner
from agentkit.grammars.core.layout import A_LINK, H_SCRATCH_TOP, N_A, N_B, N_C, N_D, N_E
from agentkit.grammars.core.nodes import cons, get, pool, push, scratch, top_of

STRING_VALUE, WORD_VALUE, NUMBER_VALUE, ARRAY_VALUE, OBJECT_VALUE = range(5)  # kinds of VALUEs

IS, OF_KIND, GOES_ON, NAME_GOES_ON, IS_NAMED = range(5)  # what `_agrees` asks

ZERO = 48  # the digit


@inner
def linked(mem, chain, value):
    return cons(mem, A_LINK, chain, value, get(mem, chain, N_C) + 1 if chain else 1, 0)


@inner
def find_named(mem, box, name):
    """Under `name` in an object's VALUE: its value, 0 if there is none."""
    content = get(mem, box, N_B)
    at = get(mem, content, N_A)
    for i in range(0, get(mem, content, N_B), 2):
        if pool(mem, at + i) == name:
            return pool(mem, at + i + 1)
    return 0


@inner
def place_in(mem, value, frame):
    """The value in an earlier item at the place that is being read inside `frame`; 0 if it has none there."""
    if frame == 0 or value == 0:
        return value
    box = place_in(mem, value, get(mem, frame, N_A))
    if box == 0 or get(mem, frame, N_B) == OBJECT_VALUE:
        return find_named(mem, box, get(mem, frame, N_D)) if box else 0
    content, count = get(mem, box, N_B), get(mem, frame, N_E)
    return pool(mem, get(mem, content, N_A) + count) if count < get(mem, content, N_B) else 0


@inner
def _begins_so(mem, whole, text, length, byte):
    """Do the BYTES `whole` begin with the path `text` of a length, and then `byte`?"""
    at = get(mem, whole, N_A)
    if length >= get(mem, whole, N_B) or pool(mem, at + length) != byte:
        return False
    for i in range(length - 1, -1, -1):
        if pool(mem, at + i) != get(mem, text, N_B):
            return False
        text = get(mem, text, N_A)
    return True


@inner
def _agrees(mem, value, frame, question, a, b, c):
    """Does an earlier item agree with what is read now?

    IS: value a | OF_KIND: a value of kind a (and content b) | GOES_ON: byte a at place b of a text or number | NAME_GOES_ON: byte a at place b of
    a name begun as c | IS_NAMED: the name a
    """
    if question == NAME_GOES_ON or question == IS_NAMED:
        box = place_in(mem, value, get(mem, frame, N_A))
        if question == IS_NAMED:
            return find_named(mem, box, a) != 0
        content = get(mem, box, N_B)
        for i in range(0, get(mem, content, N_B), 2):
            if _begins_so(mem, pool(mem, get(mem, content, N_A) + i), c, b, a):
                return True
        return False
    here = place_in(mem, value, frame)
    if question == IS or here == 0:
        return here != 0 and here == a
    content = get(mem, here, N_B)
    if question == OF_KIND:
        return get(mem, here, N_A) == a and (b == 0 or content == b)
    if b < get(mem, content, N_B):
        return pool(mem, get(mem, content, N_A) + b) == a
    return get(mem, here, N_A) == NUMBER_VALUE and a == ZERO


@inner
def keep_tied(mem, tied, frame, question, a, b, c):
    """Those of the LINK `tied` that agree."""
    base, chain, count = top_of(mem), tied, 0
    while chain:
        count += 1
        if _agrees(mem, get(mem, chain, N_B), frame, question, a, b, c):
            push(mem, get(mem, chain, N_B))
        chain = get(mem, chain, N_A)
    if top_of(mem) - base == count:
        chain = tied
    else:
        for i in range(top_of(mem) - 1, base - 1, -1):
            chain = linked(mem, chain, scratch(mem, i))
    mem[H_SCRATCH_TOP] = base
    return chain
