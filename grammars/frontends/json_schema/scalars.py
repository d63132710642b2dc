"""Sets of numbers and of strings, as shapes: what numbers.py and strings.py describe, plus finite sets.

Input: scalar keywords of a schema; output: sets with intersection, complement and nodes. A finite set (enum, const) is
kept as such, so that it filters by value and is written in one spelling: that of json.dumps, and for an integral number
a zero fraction as well. Knows nothing of other types or of unions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends import formats
from agentkit.grammars.frontends.chars import json_escape
from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.numbers import FRACTION_DIGITS, INTEGER_DIGITS, NumberFacets, number_node
from agentkit.grammars.frontends.strings import StringFacets, spellable, string_content, string_node, string_trie
from agentkit.grammars.report import Report

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

    def few(self, limit: int) -> list[Fraction] | None:
        """The integers of a bounded range, if there are at most `limit`."""
        lo, hi = self.facets.lo, self.facets.hi
        if self.only is not None or not self.facets.integer or lo is None or hi is None or hi - lo > limit:
            return None
        return [v for n in range(math.floor(lo), math.ceil(hi) + 1) if self.facets.contains(v := Fraction(n))]

    @property
    def integral(self) -> bool:
        """Are all of them integers?"""
        return self.facets.integer if self.only is None else all(v.denominator == 1 for v in self.only)

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
        return number_node(b, self.facets, whole=True)


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


@dataclass(frozen=True, slots=True)
class Strings:
    """Texts within `facets`, or exactly those in `only`."""

    facets: StringFacets
    only: frozenset[str] | None = None
    kind = STRING

    @staticmethod
    def of(values: frozenset[str]) -> Strings:
        return Strings(ANY_STRING.facets, values)

    def contains(self, text: str) -> bool:
        return text in self.only if self.only is not None else self.facets.contains(text)

    def is_empty(self) -> bool:
        return not any(map(spellable, self.only)) if self.only is not None else self.facets.is_empty()

    def count_up_to(self, limit: int) -> int:
        """How many texts are in the set, but at most `limit`."""
        if self.only is not None:
            return min(limit, len(self.only))
        return limit if self.facets.lengths_only and self.facets.max_length != 0 else self.facets.count_up_to(limit)

    def intersect(self, other: Strings) -> Strings | None:
        if self.only is None and other.only is None:
            facets = self.facets.intersect(other.facets)
            if facets == self.facets:
                return self
            return None if facets.is_empty() else Strings(facets)
        small, big = (self, other) if self.only is not None else (other, self)
        texts = frozenset(t for t in small.only or () if big.contains(t))
        return Strings.of(texts) if texts else None

    def outside(self, pointer: str, keyword: str, *, forbidden: bool = False) -> Iterator[Strings]:
        """Sets whose union is every other text; `forbidden`: they are only to be kept out (see StringFacets.complement).

        Raises UnsupportedSchema for a format whose complement is not known exactly.
        """
        if self.only is not None:
            yield Strings(StringFacets(excluded=self.only))
            return
        yield from (Strings(f) for f in self.facets.complement(pointer, keyword, forbidden=forbidden))
        if self.facets.excluded:
            yield Strings.of(self.facets.excluded)

    def node(self, builder: Builder) -> Node:
        if self.only is not None:
            return string_trie(builder, filter(spellable, self.only))
        return string_node(builder, self.facets)

    def key_node(self, builder: Builder) -> Node:
        """The text between the quotes, in the one spelling that keys have."""
        if self.only is not None:
            return builder.trie(spell_key(text) for text in self.only if spellable(text))
        return string_content(builder, self.facets)


ANY_STRING = Strings(StringFacets())


def spell_key(name: str) -> bytes:
    """A property name as it stands between its quotes."""
    return json_escape(name)


def strings_from(schema: dict[str, Any], pointer: str, report: Report, *, formats_bind: bool = True) -> Strings | None:
    """minLength, maxLength, pattern and format; None if empty. A format that is not known, or if no format binds, is an annotation and reported so."""
    pattern, form = schema.get("pattern"), schema.get("format")
    if pattern is not None and not isinstance(pattern, str):
        raise kw.malformed(pointer, "pattern", pattern, "a regular expression in a string")
    if form is not None and not isinstance(form, str):
        raise kw.malformed(pointer, "format", form, "a name")
    if form is not None and not formats_bind:
        report.irrelevant(f"{pointer}/format", "formats are annotations here (formats='annotate')")
        form = None
    if form is not None and formats.find(form) is None:
        report.irrelevant(f"{pointer}/format", f"the format {form!r} says nothing that the text could break")
        form = None
    lo, hi = kw.count(schema, "minLength", pointer) or 0, kw.count(schema, "maxLength", pointer)
    facets = StringFacets.make(min_length=lo, max_length=hi, pattern=pattern, format=form, pointer=pointer)
    return None if facets.is_empty() else Strings(facets)


def strings_matching(pattern: str, pointer: str) -> Strings:
    """The names that a key of patternProperties matches; `pointer`: of the schema, for messages about the pattern."""
    return Strings(StringFacets.make(pattern=pattern, pointer=pointer))
