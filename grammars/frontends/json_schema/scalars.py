"""Sets of numbers and of strings, as shapes: what numbers.py and strings.py describe, plus finite sets.

Input: scalar keywords of a schema; output: sets with intersection, complement and nodes. A finite set (enum, const) is
kept as such, so that it filters by value and is written in one spelling: that of json.dumps, and for an integral number
a zero fraction as well. Knows nothing of other types or of unions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.numbers import FRACTION_DIGITS, INTEGER_DIGITS, NumberFacets, number_node

NUMBER, STRING = "number", "string"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers within `facets`, or exactly those in `only`; `whole`: written without a fraction (integers of draft-04)."""

    facets: NumberFacets
    only: frozenset[Fraction] | None = None
    whole: bool = False
    kind = NUMBER

    @staticmethod
    def of(values: frozenset[Fraction], whole: bool = False) -> Numbers:
        return Numbers(ANY_NUMBER.facets, values, whole)

    def contains(self, value: Fraction) -> bool:
        return value in self.only if self.only is not None else self.facets.contains(value)

    def is_empty(self) -> bool:
        return not self.only if self.only is not None else self.facets.is_empty()

    def intersect(self, other: Numbers) -> Numbers | None:
        whole = self.whole or other.whole
        if self.only is None and other.only is None:
            both = Numbers(self.facets.intersect(other.facets), None, whole)
            return None if both.is_empty() else both
        small, big = (self, other) if self.only is not None else (other, self)
        values = frozenset(v for v in small.only or () if big.contains(v))
        return Numbers.of(values, whole) if values else None

    def outside(self, pointer: str, keyword: str) -> Iterator[Numbers]:
        """Sets whose union is every other number."""
        if self.only is None:
            yield from (Numbers(f) for f in self.facets.complement())
            return
        lower: Fraction | None = None
        for value in (*sorted(self.only), None):
            yield Numbers(NumberFacets(lo=lower, hi=value, lo_open=lower is not None, hi_open=value is not None))
            lower = value

    def node(self, builder: Builder) -> Node:
        if self.only is None:
            return self._whole(builder) if self.whole else number_node(builder, self.facets)
        texts = {t for v in self.only for t in _spellings(v)}
        whole = builder.trie(str(v.numerator).encode() for v in self.only if v.denominator == 1)
        if self.whole:
            return whole
        zeros = builder.seq(builder.literal(b"."), builder.repeat(builder.literal(b"0"), 1, FRACTION_DIGITS))
        return builder.alt(builder.trie(texts), builder.seq(whole, builder.optional(zeros)))

    def _whole(self, b: Builder) -> Node:
        sign, digit = b.optional(b.literal(b"-")), b.byte_class(b"0123456789")
        if self.facets == INTEGERS.facets:
            return b.seq(sign, b.alt(b.literal(b"0"), b.seq(b.byte_class(b"123456789"), b.repeat(digit, 0, INTEGER_DIGITS - 1))))
        return b.both(number_node(b, self.facets), b.seq(sign, b.repeat(digit, 1)))


def _spellings(value: Fraction) -> set[bytes]:
    """How json.dumps writes a number that is not an integer, or an integral one with an exponent; plain digits too."""
    texts = set()
    if value.denominator != 1:
        places = 0
        while (value * 10**places).denominator != 1:
            places += 1
        digits = str(abs(value.numerator) * 10**places // value.denominator).zfill(places + 1)
        texts.add(("-" if value < 0 else "") + digits[:-places] + "." + digits[-places:])
    if abs(value) < Fraction(10) ** 308:
        dumped = json.dumps(float(value))
        if "e" in dumped and Fraction(dumped) == value:
            texts.add(dumped)
    return {t.encode() for t in texts}


ANY_NUMBER = Numbers(NumberFacets())
INTEGERS = Numbers(NumberFacets.make(integer=True))
WHOLE = Numbers(INTEGERS.facets, None, True)


def numbers_from(schema: dict[str, Any], pointer: str, *, integer: bool, whole: bool) -> Numbers | None:
    """minimum, maximum, exclusiveMinimum, exclusiveMaximum (numbers, or draft-04 booleans) and multipleOf; None if empty.

    integer: only integers; whole: these are written without a fraction.
    """
    given: dict[str, Fraction | bool] = {}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if keyword in schema:
            value = schema[keyword]
            given[keyword] = value if isinstance(value, bool) and keyword.startswith("exclusive") else kw.number(value, keyword, pointer)
    low, high, step = given.get("minimum"), given.get("maximum"), given.get("multipleOf")
    above, below = given.get("exclusiveMinimum"), given.get("exclusiveMaximum")
    if step is not None and step <= 0:
        raise kw.malformed(pointer, "multipleOf", schema["multipleOf"], "greater than 0")
    if isinstance(above, bool):
        low, above = (None, low) if above else (low, None)
    if isinstance(below, bool):
        high, below = (None, high) if below else (high, None)
    facets = NumberFacets.make(integer=integer, minimum=low, maximum=high, exclusive_minimum=above, exclusive_maximum=below, multiple_of=step)
    return None if facets.is_empty() else Numbers(facets, None, integer and whole)


# TEMP
from agentkit.grammars.frontends.chars import SCALARS, json_char, json_escape


@dataclass(frozen=True, slots=True)
class Strings:
    lo: int = 0
    hi: int | None = None
    only: frozenset[str] | None = None
    kind = STRING
    @staticmethod
    def of(values):
        return Strings(0, None, values)
    def contains(self, v):
        return v in self.only if self.only is not None else self.lo <= len(v) and (self.hi is None or len(v) <= self.hi)
    def is_empty(self):
        return not self.only if self.only is not None else self.hi is not None and self.lo > self.hi
    def intersect(self, o):
        if self.only is None and o.only is None:
            r = Strings(max(self.lo, o.lo), min((h for h in (self.hi, o.hi) if h is not None), default=None))
            return None if r.is_empty() else r
        s, b = (self, o) if self.only is not None else (o, self)
        v = frozenset(x for x in s.only if b.contains(x))
        return Strings.of(v) if v else None
    def outside(self, pointer, keyword):
        if self.only is not None: raise UnsupportedSchema(pointer, keyword)
        if self.lo: yield Strings(0, self.lo-1)
        if self.hi is not None: yield Strings(self.hi+1)
    def node(self, b):
        q = b.literal(b'"')
        return b.seq(q, self.key_node(b), q)
    def key_node(self, b):
        if self.only is not None: return b.trie(json_escape(s) for s in self.only)
        return b.repeat(json_char(b, SCALARS), self.lo, self.hi)
    def has_at_least(self, n): return self.only is None
    def count_up_to(self, n): return n
ANY_STRING = Strings()
def spell_key(name): return json_escape(name)
from agentkit.errors import UnsupportedSchema


def strings_from(schema, pointer, report):
    if "pattern" in schema or "format" in schema: raise UnsupportedSchema(pointer, "pattern")
    return Strings(kw.count(schema,"minLength",pointer) or 0, kw.count(schema,"maxLength",pointer))
def strings_matching(p, pointer, k): raise UnsupportedSchema(pointer, k)
