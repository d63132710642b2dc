"""JSON numbers with an exponent: `d.ddde+x` with one digit other than 0 before the point.

Input: an interval of non-negative numbers; output: a node of the unsigned texts whose value is in it. All values are finite
and not 0 as a double too, since that is what most programs will read. Knows nothing of steps or signs.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from agentkit.grammars.expr import Builder, Node

LEAST, MOST = -299, 307  # exponents of which every double is a normal one
GREATEST = Fraction(10) ** (MOST + 1)
ONE, TEN = Fraction(1), Fraction(10)
DIGIT = 0x3FF << 0x30  # the bytes 0 to 9
DIGITS = 3  # of an exponent, zeros in front included

Mantissa = Callable[[Fraction, bool, Fraction, bool], Node]


def scientific(b: Builder, lo: Fraction, lo_open: bool, hi: Fraction | None, hi_open: bool, places: int, mantissa: Mantissa) -> Node:
    """Texts of the numbers from `lo` (at least 0) to `hi` (None: no bound).

    places: digits after the point, at most. mantissa: node of the texts without exponent of the numbers between two bounds, each open or not.
    """
    key = ("scientific", lo, lo_open, hi, hi_open)
    return b.named(key, lambda: _scientific(b, lo, lo_open, hi, hi_open, places, mantissa))


def _scientific(b: Builder, lo: Fraction, lo_open: bool, hi: Fraction | None, hi_open: bool, places: int, mantissa: Mantissa) -> Node:
    if hi is None or hi > GREATEST:
        hi, hi_open = GREATEST, False
    if lo < TEN**LEAST:
        lo, lo_open = TEN**LEAST, False
    if lo > hi or (lo == hi and (lo_open or hi_open)):
        return b.EMPTY
    first, last = _exponent(lo), _exponent(hi)
    least, most = lo / TEN**first, hi / TEN**last
    if first == last:
        return b.seq(mantissa(least, lo_open, most, hi_open), any_exponent(b, first, last))
    parts = []
    if most != 1 or not hi_open:
        parts.append(b.seq(mantissa(ONE, False, most, hi_open), any_exponent(b, last, last)))
    if least != 1 or lo_open:
        parts.append(b.seq(mantissa(least, lo_open, TEN, True), any_exponent(b, first, first)))
        first += 1
    if first < last:
        digit = b.byte_class(DIGIT)
        every = b.seq(b.byte_class(DIGIT ^ 1 << 0x30), b.optional(b.seq(b.literal(b"."), b.repeat(digit, 1, places))))
        parts.append(b.seq(every, any_exponent(b, first, last - 1)))
    return b.alt(*parts)


def any_exponent(b: Builder, lo: int, hi: int) -> Node:
    """`e` and the integers from `lo` to `hi`, with or without a plus, zeros in front up to three digits in all."""
    return b.named(("exponent", lo, hi), lambda: _any_exponent(b, lo, hi))


def _any_exponent(b: Builder, lo: int, hi: int) -> Node:
    parts = []
    if hi >= 0:
        parts.append(b.seq(b.optional(b.literal(b"+")), _integers(b, max(lo, 0), hi)))
    if lo < 0:
        parts.append(b.seq(b.literal(b"-"), _integers(b, max(1, -hi), -lo)))
    return b.seq(b.byte_class(b"eE"), b.alt(*parts))


def _exponent(value: Fraction) -> int:
    """e with 10^e <= value < 10^(e+1)."""
    e = len(str(value.numerator)) - len(str(value.denominator))
    return e if TEN**e <= value else e - 1


def _integers(b: Builder, lo: int, hi: int) -> Node:
    return b.alt(*(_padded(b, lo, min(hi, 10**width - 1), width) for width in range(1, DIGITS + 1)))


def _padded(b: Builder, lo: int, hi: int, width: int) -> Node:
    """The integers from `lo` to `hi` in exactly `width` digits."""
    if lo > hi:
        return b.EMPTY
    if width == 0:
        return b.EPSILON
    unit = 10 ** (width - 1)
    (first, low), (last, high) = divmod(lo, unit), divmod(hi, unit)
    if first == last:
        return b.seq(_digits(b, first, first), _padded(b, low, high, width - 1))
    parts = []
    if low > 0:
        parts.append(b.seq(_digits(b, first, first), _padded(b, low, unit - 1, width - 1)))
        first += 1
    if high < unit - 1:
        parts.append(b.seq(_digits(b, last, last), _padded(b, 0, high, width - 1)))
        last -= 1
    if first <= last:
        parts.append(b.seq(_digits(b, first, last), b.repeat(b.byte_class(DIGIT), width - 1, width - 1)))
    return b.alt(*parts)


def _digits(b: Builder, first: int, last: int) -> Node:
    return b.byte_class((1 << 0x31 + last) - (1 << 0x30 + first))
