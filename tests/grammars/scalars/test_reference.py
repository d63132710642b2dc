"""The oracle itself: derivatives against Python's re and against hand-made objects."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from agentkit.grammars.expr import ANY, DECLARED, Builder, Extra, Field
from tests.grammars.random_programs import random_program, random_text
from tests.grammars.reference import Reference, accepts, language, prefix_ok

TEXTS = ["".join(t) for n in range(6) for t in itertools.product("ab", repeat=n)]


@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (lambda b: b.repeat(b.alt(b.literal(b"ab"), b.literal(b"b")), 1, 3), "(ab|b){1,3}"),
        (lambda b: b.repeat(b.optional(b.literal(b"a")), 2, None), "a*"),
        (lambda b: b.seq(b.trie([b"", b"a", b"ab"]), b.byte_class(b"ab")), "(|a|ab)[ab]"),
        (lambda b: b.both(b.repeat(b.byte_class(b"ab"), 2, 4), b.complement(b.seq(b.literal(b"aa"), b.repeat(b.byte_class(b"ab"))))), "(?!aa)[ab]{2,4}"),
    ],
)
def test_regular_operators_agree_with_re(build, pattern):
    b = Builder()
    ref = Reference(b.program(build(b)))
    for text in TEXTS:
        assert accepts(ref, text.encode()) == (re.fullmatch(pattern, text) is not None), text
        assert prefix_ok(ref, text.encode()) == any(re.fullmatch(pattern, text + more) for more in TEXTS), text


def test_recursion_and_special_tokens():
    b = Builder()
    rule = b.rule()
    b.define(rule, b.alt(b.EPSILON, b.seq(b.literal(b"("), b.call(rule), b.literal(b")"), b.call(rule))))
    ref = Reference(b.program(b.seq(b.call(rule), b.special("<end>"))))
    assert accepts(ref, [*b"(())()", "<end>"])
    assert not accepts(ref, b"(())()<end>")
    assert prefix_ok(ref, b"((")
    assert not prefix_ok(ref, b"())")


def members(order: int, **bounds: int) -> Reference:
    b = Builder()
    one = b.literal(b"1")
    fields = [Field(b"a", one, True), Field(b"b", one), Field(b"c", b.EMPTY)]
    extra = Extra(b.repeat(b.byte_class(b"abcx"), 1, 2), b.literal(b"2"))
    return Reference(b.program(b.members(fields, [extra], order=order, **bounds)))


@pytest.mark.parametrize("order", [DECLARED, ANY])
def test_objects(order):
    ref = members(order)
    good = ['"a":1}', '"a":1,"b":1}', '"a":1,"b":1,"x":2}', '"a":1,"x":2,"xx":2}']
    bad = ["}", '"b":1}', '"a":1,"a":1}', '"a":1,"x":2,"x":2}', '"a":1,"c":2}', '"a":1,"c":1}', '"a":1,"b":2}', '"a":1,}', ',"a":1}', '"a":2}']
    assert [t for t in good if not accepts(ref, t.encode())] == []
    assert [t for t in bad if accepts(ref, t.encode())] == []
    free = ['"b":1,"a":1}', '"x":2,"a":1}']
    assert all(accepts(ref, t.encode()) == (order == ANY) for t in free)


def test_property_counts():
    ref = members(ANY, min_properties=2, max_properties=2)
    assert accepts(ref, b'"a":1,"x":2}')
    assert not accepts(ref, b'"a":1}')
    assert not accepts(ref, b'"a":1,"b":1,"x":2}')
    assert not prefix_ok(ref, b'"b":1,"x":2')  # no room left for the required a


@pytest.mark.parametrize("seed", range(40))
def test_prefix_ok_is_what_some_member_begins_with(seed):
    rng = random.Random(seed)
    ref = Reference(random_program(rng))
    short = language(ref, 5)
    for text in short:
        assert all(prefix_ok(ref, text[:n]) for n in range(len(text) + 1))
    for _ in range(20):
        text = random_text(rng, 8)
        if not prefix_ok(ref, text):
            assert not accepts(ref, text)
            assert not any(m.startswith(text) for m in short)
