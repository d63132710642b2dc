"""Sets of Unicode code points, and the nodes that spell them: UTF-8 text and the inside of JSON strings.

Input: code point sets; output: Builder nodes. Knows nothing of regular expressions or schemas.

A set is spelled by cutting its ranges into mixed-radix digits (bytes of UTF-8, nibbles of \\uXXXX, the two halves of a
surrogate pair) and building the minimal trie over them, so `\\p{L}` is a few hundred shared nodes, not thousands of
alternatives. Surrogates are not characters: no set spells them, raw or escaped (RFC 8259 section 8.2, RFC 3629).
The project's choice of spellings is in docs/spelling.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring
from typing import Literal

from agentkit.grammars.expr import Builder, Node

LAST = 0x10FFFF
Spelling = Literal["canonical", "full"]
Range = tuple[int, int]


@dataclass(frozen=True)
class CharSet:
    """A set of code points as sorted inclusive ranges that neither overlap nor touch."""

    ranges: tuple[Range, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.ranges)

    @staticmethod
    def of(*items: int | str | Range) -> CharSet:
        """From code points, characters of strings, and (first, last) pairs."""
        if len(items) == 1 and isinstance(items[0], str) and len(items[0]) == 1:
            return CharSet(((ord(items[0]), ord(items[0])),))
        pairs: list[Range] = []
        for item in items:
            if isinstance(item, tuple):
                pairs.append(item)
            elif isinstance(item, str):
                pairs += [(ord(c), ord(c)) for c in item]
            else:
                pairs.append((item, item))
        return CharSet.from_ranges(pairs)

    @staticmethod
    def from_ranges(pairs: Iterable[Range]) -> CharSet:
        out: list[Range] = []
        for lo, hi in sorted(pairs):
            if out and lo <= out[-1][1] + 1:
                out[-1] = (out[-1][0], max(hi, out[-1][1]))
            else:
                out.append((lo, hi))
        return CharSet(tuple(out))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, char: int | str) -> bool:
        c = ord(char) if isinstance(char, str) else char
        i = bisect_right(self.ranges, (c, LAST)) - 1
        return i >= 0 and self.ranges[i][1] >= c

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.from_ranges(self.ranges + other.ranges)

    def __and__(self, other: CharSet) -> CharSet:
        out: list[Range] = []
        a, b, i, j = self.ranges, other.ranges, 0, 0
        while i < len(a) and j < len(b):
            lo, hi = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
            if lo <= hi:
                out.append((lo, hi))
            if a[i][1] < b[j][1]:
                i += 1
            else:
                j += 1
        return CharSet(tuple(out))

    def __invert__(self) -> CharSet:
        """Every code point that is not in the set, surrogates included (they are dropped where a set is spelled)."""
        out: list[Range] = []
        start = 0
        for lo, hi in self.ranges:
            if start < lo:
                out.append((start, lo - 1))
            start = hi + 1
        return CharSet((*out, (start, LAST)) if start <= LAST else tuple(out))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    @cached_property
    def size(self) -> int:
        return sum(hi - lo + 1 for lo, hi in self.ranges)

    def single(self) -> str | None:
        """The only character, or None."""
        return chr(self.ranges[0][0]) if self.size == 1 else None


EVERY = CharSet(((0, LAST),))
SURROGATES = CharSet(((0xD800, 0xDFFF),))
SCALARS = EVERY - SURROGATES
CONTROLS = CharSet(((0, 0x1F),))
SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
JSON_SPECIAL = CharSet.of('"\\') | CONTROLS


@dataclass(frozen=True)
class _Digit:
    """One position of a mixed-radix spelling: `radix` values, spelled by `spell`."""

    radix: int
    spell: Callable[[Builder, list[int]], Node]


def _bytes_from(base: int) -> Callable[[Builder, list[int]], Node]:
    return lambda b, values: b.byte_class([base + v for v in values])


def _hex(base: int, lower_only: bool = False) -> Callable[[Builder, list[int]], Node]:
    def spell(b: Builder, values: list[int]) -> Node:
        digits = "".join(f"{base + v:x}" for v in values)
        return b.byte_class((digits if lower_only else digits + digits.upper()).encode())

    return spell


def _half(base: int, before: bytes = b"") -> Callable[[Builder, list[int]], Node]:
    """The first two hexadecimal digits of one half of a surrogate pair: d8 to db, or dc to df."""
    digits = _hex(base)
    return lambda b, values: b.seq(b.literal(before), b.byte_class(b"dD"), digits(b, values))


_TAIL = _Digit(64, _bytes_from(0x80))
_NIBBLE = _Digit(16, _hex(0))
# (first code point, last, value of the first as a mixed-radix number, digits)
_UTF8: tuple[tuple[int, int, int, tuple[_Digit, ...]], ...] = (
    (0, 0x7F, 0, (_Digit(128, _bytes_from(0)),)),
    (0x80, 0x7FF, 0x80, (_Digit(32, _bytes_from(0xC0)), _TAIL)),
    (0x800, 0xFFFF, 0x800, (_Digit(16, _bytes_from(0xE0)), _TAIL, _TAIL)),
    (0x10000, LAST, 0x10000, (_Digit(8, _bytes_from(0xF0)), _TAIL, _TAIL, _TAIL)),
)
_ESCAPED: tuple[tuple[int, int, int, tuple[_Digit, ...]], ...] = (
    (0, 0xFFFF, 0, (_NIBBLE,) * 4),
    (0x10000, LAST, 0, (_Digit(4, _half(0x8)), _NIBBLE, _NIBBLE, _Digit(4, _half(0xC, b"\\u")), _NIBBLE, _NIBBLE)),
)


def _spell(builder: Builder, ranges: tuple[Range, ...], digits: tuple[_Digit, ...]) -> Node:
    """The trie over the digits of all numbers in `ranges` (sorted, disjoint), equal suffixes shared."""
    memo: dict[tuple[int, tuple[Range, ...]], Node] = {}

    def build(level: int, part: tuple[Range, ...]) -> Node:
        if level == len(digits):
            return builder.EPSILON
        key = (level, part)
        if key not in memo:
            memo[key] = choose(level, part)
        return memo[key]

    def choose(level: int, part: tuple[Range, ...]) -> Node:
        unit = 1
        for d in digits[level + 1 :]:
            unit *= d.radix
        whole = ((0, unit - 1),)
        below: dict[int, list[Range]] = {}
        groups: dict[tuple[Range, ...], list[int]] = {whole: []}
        for lo, hi in part:
            first, last = -(-lo // unit), (hi + 1) // unit  # digits from first to last - 1 are covered in full
            groups[whole].extend(range(first, last))
            if first * unit > lo:
                below.setdefault(first - 1, []).append((lo % unit, min(unit - 1, hi - (first - 1) * unit)))
            if last * unit <= hi and last >= first:
                below.setdefault(last, []).append((0, hi - last * unit))
        for v, rest in below.items():
            groups.setdefault(tuple(rest), []).append(v)
        if not groups[whole]:
            del groups[whole]
        return builder.alt(*(builder.seq(digits[level].spell(builder, values), build(level + 1, rest)) for rest, values in groups.items()))

    return build(0, ranges)


def _pieces(chars: CharSet, table: tuple[tuple[int, int, int, tuple[_Digit, ...]], ...]) -> Iterable[tuple[tuple[Range, ...], tuple[_Digit, ...]]]:
    for first, last, value, digits in table:
        part = chars & CharSet(((first, last),))
        if part:
            yield tuple((lo - first + value, hi - first + value) for lo, hi in part.ranges), digits


def _ascii_bits(chars: CharSet) -> int:
    """The set as a bitmap if it is ASCII only, else 0."""
    if not chars.ranges or chars.ranges[-1][1] > 0x7F:
        return 0
    bits = 0
    for lo, hi in chars.ranges:
        bits |= (2 << hi) - (1 << lo)
    return bits


_SPECIAL_BITS = _ascii_bits(JSON_SPECIAL)


def utf8_class(builder: Builder, chars: CharSet) -> Node:
    """One character of the set, as UTF-8. The empty set gives EMPTY."""
    bits = _ascii_bits(chars)
    if bits:
        return builder.byte_class(bits)
    chars = chars & SCALARS
    return builder.named(("utf8", chars), lambda: builder.alt(*(_spell(builder, r, d) for r, d in _pieces(chars, _UTF8))))


def json_char(builder: Builder, chars: CharSet, universe: Spelling = "canonical") -> Node:
    """One character of the set, as it may stand between the quotes of a JSON string (RFC 8259 section 7).

    canonical: one spelling per character, that of json.dumps(ensure_ascii=False): raw where JSON permits, else the short
               escape, else \\u00xx in lower case.
    full:      every legal spelling: raw, short escapes with \\/, \\uXXXX in either case, surrogate pairs beyond U+FFFF.
    """
    bits = _ascii_bits(chars)
    if bits and universe == "canonical" and not bits & _SPECIAL_BITS:
        return builder.byte_class(bits)
    chars = chars & SCALARS
    return builder.named(("json", universe, chars), lambda: _json_char(builder, chars, universe))


def _json_char(b: Builder, chars: CharSet, universe: Spelling) -> Node:
    raw = utf8_class(b, chars - JSON_SPECIAL)
    short = dict(SHORT_ESCAPES, **({"/": "/"} if universe == "full" else {}))
    after = [b.byte_class(ord(letter) for char, letter in short.items() if char in chars)]
    if universe == "full":
        after += [b.seq(b.literal(b"u"), _spell(b, ranges, digits)) for ranges, digits in _pieces(chars, _ESCAPED)]
    else:
        hexed = (chars & CONTROLS) - CharSet.of("".join(SHORT_ESCAPES))
        digits = (_Digit(2, _hex(0, True)), _Digit(16, _hex(0, True)))
        if hexed:
            after.append(b.seq(b.literal(b"u00"), _spell(b, hexed.ranges, digits)))
    return b.alt(raw, b.seq(b.literal(b"\\"), b.alt(*after)))


def json_escape(text: str) -> bytes:
    """The canonical spelling of a text between the quotes.

    Raises ValueError for lone surrogates, which no UTF-8 text can hold.
    """
    return encode_basestring(text)[1:-1].encode()


@dataclass(frozen=True)
class Alphabet:
    """How characters are spelled: what a regular expression is compiled over."""

    name: str

    def chars(self, builder: Builder, chars: CharSet) -> Node:
        """Node of one character of the set."""
        if self.name == "utf8":
            return utf8_class(builder, chars)
        return json_char(builder, chars, "full" if self.name == "json-full" else "canonical")

    def text(self, builder: Builder, text: str) -> Node:
        """Node of a fixed text."""
        if self.name == "json-full":
            return builder.seq(*(self.chars(builder, CharSet.of(c)) for c in text))
        return builder.literal(self.spelled(text))

    def spelled(self, text: str) -> bytes:
        """The bytes of a fixed text; not for the full JSON universe, where there are several."""
        return text.encode("utf-8") if self.name == "utf8" else json_escape(text)

    def anything(self, builder: Builder) -> Node:
        """Any text."""
        return builder.repeat(self.chars(builder, SCALARS))

    @property
    def one_spelling(self) -> bool:
        return self.name != "json-full"


UTF8 = Alphabet("utf8")
JSON = Alphabet("json-canonical")
JSON_FULL = Alphabet("json-full")
