"""Number languages against exact arithmetic on the same texts."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar
from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.numbers import NumberFacets, exact, number_node
from tests.grammars.reference import Reference, accepts

STEPS = [None, None, Fraction(1), Fraction(5), Fraction(1, 100), Fraction(1, 2), Fraction(7), Fraction(3, 2), Fraction(12), Fraction(3, 10)]
LEFT_OUT = [[], [], [Fraction(1)], [Fraction(2)], [Fraction(3), Fraction(1, 10)]]
NOT_NUMBERS = ["", "-", "01", "1.", ".5", "--1", "+1", "1.0.0", "00", "0x1", "NaN", "1e", "-.5"]


def reference(facets: NumberFacets) -> Reference:
    b = Builder()
    return Reference(b.program(number_node(b, facets)))


def made(**keywords: object) -> Reference:
    return reference(NumberFacets.make(**keywords))  # type: ignore[arg-type]


def random_facets(rng: random.Random) -> NumberFacets:
    def bound() -> Fraction | None:
        return Fraction(rng.randint(-1200, 1200), 10 ** rng.choice([0, 0, 1, 2, 3])) if rng.random() < 0.6 else None

    lo, hi = bound(), bound()
    opens = (lo is not None and rng.random() < 0.3, hi is not None and rng.random() < 0.3)
    return NumberFacets(lo, hi, *opens, rng.choice(STEPS), frozenset(rng.choice(LEFT_OUT)))


def random_number(rng: random.Random, near: list[Fraction]) -> str:
    whole = str(rng.choice([0, rng.randint(0, 9), rng.randint(0, 30), rng.randint(0, 1300), *(abs(int(v)) for v in near)]))
    fraction = rng.choice(["", ".0", ".5", ".50", ".000", ".00001", f".{rng.randint(0, 99):02}", f".{rng.randint(0, 9999)}"])
    if near and rng.random() < 0.3:
        fraction = f".{int(abs(rng.choice(near)) % 1 * 1000):03}"
    return rng.choice(["", "-"]) + whole + fraction


@pytest.mark.parametrize("seed", range(120))
def test_membership_is_exact(seed):
    rng = random.Random(seed)
    facets = random_facets(rng)
    b = Builder()
    node = number_node(b, facets)
    assert (node == b.EMPTY) == facets.is_empty()
    ref = Reference(b.program(node))
    near = [v for v in (facets.lo, facets.hi) if v is not None]
    for _ in range(60):
        text = random_number(rng, near)
        assert accepts(ref, text.encode()) == facets.contains(text), text
    assert not any(accepts(ref, text.encode()) for text in NOT_NUMBERS)


@pytest.mark.parametrize("seed", range(60))
def test_no_dead_ends_and_what_comes_out_is_a_member(seed):
    rng = random.Random(seed)
    facets = random_facets(rng)
    if facets.is_empty():
        return
    ref = reference(facets)
    state, text = ref.root, ""
    for _ in range(70):
        if ref.nullable(state) and rng.random() < 0.1:
            break
        ways = [c for c in b"-0123456789.eE+" if ref.nonempty(ref.derive(state, c))]
        if not ways:
            break
        c = rng.choice(ways)
        state, text = ref.derive(state, c), text + chr(c)
    while not ref.nullable(state):
        c = next(c for c in b"0123456789.e-" if ref.nonempty(ref.derive(state, c)))
        state, text = ref.derive(state, c), text + chr(c)
    assert facets.contains(text), text


@pytest.mark.parametrize("seed", range(60))
def test_complement_and_intersection(seed):
    rng = random.Random(seed)
    a, b = random_facets(rng), random_facets(rng)
    others = a.complement()
    for _ in range(40):
        value = exact(random_number(rng, [v for v in (a.lo, a.hi, b.lo, b.hi) if v is not None]))
        assert a.contains(value) != any(o.contains(value) for o in others)
        assert a.intersect(b).contains(value) == (a.contains(value) and b.contains(value))


@pytest.mark.parametrize(
    ("keywords", "good", "bad"),
    [
        ({"minimum": 1, "maximum": 5}, "1 5 4.999 1.0 5.0 1e0 4.9e+00 5.0E0", "5.7 0.99 5.0001 -1 50 1e1 5.1e0 9e-1"),
        ({"integer": True}, "1 0 -3 9007199254740993 1.0 5.00 -0", "1.5 1e2 .0"),
        ({"integer": True, "minimum": 0, "maximum": 2**64 - 1}, "0 9223372036854775808 18446744073709551615", "18446744073709551616 -1 99999999999999999999"),
        ({"integer": True, "multiple_of": 5}, "0 5 -10 100 5.0", "1 -3 12 7.5"),
        ({"multiple_of": 0.01}, "0 0.01 19.99 -3.5 4.10 4.100", "0.001 19.999"),
        ({"multiple_of": 0.5, "exclusive_minimum": 0, "exclusive_maximum": 2}, "0.5 1 1.5 1.0", "0 2 2.0 0.75"),
        ({}, "0 -0 1e308 -1.5E-7 3.14 1e5 12e5 1e-299", "1e 01 1e+ Infinity 1e12345 1e400 2e308"),
        ({"minimum": 0}, "0 -0 -0.0 1e-5 7", "-1 -1e-5 -0.1"),
        ({"exclusive_minimum": 0}, "1e-5 0.1 7", "0 -0 0.0 0e5 -1"),
        ({"minimum": Decimal("1e-30"), "maximum": Decimal("2e-30")}, "0." + "0" * 29 + "15", "0 0.00000000000000000001"),
        ({"minimum": 1e308}, "1" + "0" * 308, "1" + "0" * 307),
        ({"minimum": 5, "maximum": 5}, "5 5.0", "4 6 5.1 -5"),
        ({"maximum": -1}, "-1 -1.0 -1.5 -20", "0 -0 1 -0.5"),
    ],
)
def test_json_schema_keywords(keywords, good, bad):
    ref = made(**keywords)
    assert [t for t in good.split() if not accepts(ref, t.encode())] == []
    assert [t for t in bad.split() if accepts(ref, t.encode())] == []


def test_open_interval_between_close_bounds_has_room():
    lo, hi = Decimal("0.12345678901234567890"), Decimal("0.12345678901234567891")
    ref = made(exclusive_minimum=lo, exclusive_maximum=hi)
    assert accepts(ref, b"0.123456789012345678905")
    assert not accepts(ref, str(lo).encode())


@pytest.mark.parametrize(
    "facets",
    [
        NumberFacets.make(minimum=5, maximum=3),
        NumberFacets.make(minimum=5, exclusive_maximum=5),
        NumberFacets.make(integer=True, exclusive_minimum=1, exclusive_maximum=2),
        NumberFacets.make(multiple_of=7, minimum=1, maximum=6),
        NumberFacets(multiple_of=Fraction(4), not_multiple_of=frozenset([Fraction(2)])),
        NumberFacets(Fraction(2), Fraction(4), True, True, Fraction(1), frozenset([Fraction(3)])),
    ],
)
def test_contradictions_are_found(facets):
    assert facets.is_empty()
    b = Builder()
    assert number_node(b, facets) == b.EMPTY


def test_least_common_multiple_of_decimals():
    both = NumberFacets.make(multiple_of=0.4).intersect(NumberFacets.make(multiple_of=0.6))
    assert both.multiple_of == Fraction(6, 5)
    assert NumberFacets.make(integer=True, multiple_of=0.5).integer


def test_limits_and_malformed_values_are_named():
    with pytest.raises(GrammarTooComplex, match="multipleOf"):
        made(integer=True, multiple_of=0.123456789)
    with pytest.raises(GrammarTooComplex, match="digits"):
        made(minimum=Decimal("1e5000"))
    for value in (float("inf"), float("nan"), "abc"):
        with pytest.raises(InvalidGrammar, match="finite"):
            exact(value)
    for step in (0, -1):
        with pytest.raises(InvalidGrammar, match="greater than 0"):
            NumberFacets.make(multiple_of=step)
    with pytest.raises(InvalidGrammar, match="decimal"):
        reference(NumberFacets(multiple_of=Fraction(1, 3)))
