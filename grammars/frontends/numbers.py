"""JSON number languages with exact arithmetic: intervals, multiples, and what is not a multiple.

Input: `NumberFacets`, a set of rational numbers; output: a node of the texts `-?int(.digits)?` whose value is in the set.
Nothing is rounded: bounds and steps are Fractions. Knows nothing of schemas.

A text is read digit by digit as an automaton whose state says whether the digits so far equal those of the lower or upper
bound, and the remainder of what was read by the step. Because digits are capped, the automaton is a finite tree; equal
subtrees are one node. Every node can be completed: branches that cannot reach a member are never built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache

from agentkit.errors import GrammarTooComplex, InvalidGrammar
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.exponents import any_exponent, scientific
from agentkit.grammars.settings import settings

INTEGER_DIGITS = 20  # digits before the point, unless a bound needs more
FRACTION_DIGITS = 20  # digits after the point, unless a bound or step needs more
LOOSE_EXPONENT = 279  # up to here, 20 digits on either side of the point may stand before an exponent: doubles end at 1e308
MAX_BOUND_DIGITS = 1000
MAX_REMAINDERS = 8_000  # (remainder, digits left) pairs of a multipleOf automaton
LONGEST_GAP = 10_000  # more consecutive multiples than any set of steps left out can cover

ONE = Fraction(1)
Number = int | float | str | Decimal | Fraction


def exact(value: Number) -> Fraction:
    """The number that a JSON text or a parsed schema means: floats by their shortest spelling, so 0.01 is 1/100.

    Raises InvalidGrammar for infinities and NaN (parse schemas with parse_float=Decimal to keep 1e400).
    """
    if isinstance(value, Fraction):
        return value
    try:
        parsed = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        if parsed.is_finite() and abs(parsed.adjusted()) > MAX_BOUND_DIGITS:
            raise GrammarTooComplex("number digits", f"the number {value} has more than {MAX_BOUND_DIGITS} digits")
        return Fraction(parsed)
    except (ValueError, OverflowError, ArithmeticError) as error:
        raise InvalidGrammar(f"{value!r} is not a finite number; write bounds and steps as JSON numbers") from error


@dataclass(frozen=True)
class NumberFacets:
    """A set of numbers: an interval, the multiples of a step in it, less the multiples of other steps.

    lo, hi: bounds, None where there is none; lo_open, hi_open: the bound itself is outside.
    multiple_of: step (positive), or None. Integers are the multiples of 1.
    not_multiple_of: steps (positive) whose multiples are left out.
    """

    lo: Fraction | None = None
    hi: Fraction | None = None
    lo_open: bool = False
    hi_open: bool = False
    multiple_of: Fraction | None = None
    not_multiple_of: frozenset[Fraction] = frozenset()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__dataclass_fields__))

    @staticmethod
    @lru_cache(maxsize=1024, typed=True)  # the same few bounds stand in many places, and what is found out about them is kept with them
    def make(
        *,
        integer: bool = False,
        minimum: Number | None = None,
        maximum: Number | None = None,
        exclusive_minimum: Number | None = None,
        exclusive_maximum: Number | None = None,
        multiple_of: Number | None = None,
    ) -> NumberFacets:
        """Facets of JSON Schema keywords. Raises InvalidGrammar for a step that is not positive."""
        facets = NumberFacets(multiple_of=ONE if integer else None)
        if multiple_of is not None:
            step = exact(multiple_of)
            if step <= 0:
                raise InvalidGrammar(f"multipleOf must be greater than 0, not {multiple_of}")
            facets = facets.intersect(NumberFacets(multiple_of=step))
        if minimum is not None:
            facets = facets.intersect(NumberFacets(lo=exact(minimum)))
        if maximum is not None:
            facets = facets.intersect(NumberFacets(hi=exact(maximum)))
        if exclusive_minimum is not None:
            facets = facets.intersect(NumberFacets(lo=exact(exclusive_minimum), lo_open=True))
        if exclusive_maximum is not None:
            facets = facets.intersect(NumberFacets(hi=exact(exclusive_maximum), hi_open=True))
        return facets

    @staticmethod
    def point(value: Number) -> NumberFacets:
        """One number."""
        return NumberFacets(lo=exact(value), hi=exact(value))

    @property
    def integer(self) -> bool:
        """Only integers are in the set."""
        return self.multiple_of is not None and self.multiple_of.denominator == 1

    @property
    def unconstrained(self) -> bool:
        return self == NumberFacets()

    def intersect(self, other: NumberFacets) -> NumberFacets:
        lo, lo_open = max(((x.lo, x.lo_open) for x in (self, other) if x.lo is not None), default=(None, False))
        uppers = [(x.hi, not x.hi_open) for x in (self, other) if x.hi is not None]
        hi, hi_closed = min(uppers) if uppers else (None, True)
        steps = [x.multiple_of for x in (self, other) if x.multiple_of is not None]
        step = _lcm(*steps) if len(steps) == 2 else (steps[0] if steps else None)
        return NumberFacets(lo, hi, lo_open, not hi_closed, step, self.not_multiple_of | other.not_multiple_of)

    def complement(self) -> tuple[NumberFacets, ...]:
        """Facets whose union is every other number."""
        out = []
        if self.lo is not None:
            out.append(NumberFacets(hi=self.lo, hi_open=not self.lo_open))
        if self.hi is not None:
            out.append(NumberFacets(lo=self.hi, lo_open=not self.hi_open))
        inside = replace(self, multiple_of=None, not_multiple_of=frozenset())
        if self.multiple_of is not None:
            out.append(replace(inside, not_multiple_of=frozenset([self.multiple_of])))
        out += [replace(inside, multiple_of=step) for step in sorted(self.not_multiple_of)]
        return tuple(out)

    def contains(self, value: Number) -> bool:
        v = exact(value)
        low = self.lo is None or v > self.lo or (v == self.lo and not self.lo_open)
        high = self.hi is None or v < self.hi or (v == self.hi and not self.hi_open)
        stepped = self.multiple_of is None or v % self.multiple_of == 0
        return low and high and stepped and all(v % step for step in self.not_multiple_of)

    def is_empty(self) -> bool:
        """No number is in the set. Exact."""
        return self._is_empty

    @cached_property
    def _is_empty(self) -> bool:
        if (self.lo is None or self.hi is None) and not self.not_multiple_of:
            return False
        facets = self._on_grid()
        if facets is None:
            return True
        lo, hi, step = facets.lo, facets.hi, facets.multiple_of
        if lo is not None and hi is not None and lo == hi:
            return not facets.contains(lo)
        if step is None:
            return False  # an interval with inner points: the multiples left out do not fill it
        if any(step % other == 0 for other in self.not_multiple_of):
            return True
        if lo is None or hi is None:
            return False  # 1 * step + k * (all others) is left, for every k
        count = math.floor((hi - lo) / step) + 1  # the few steps left out cannot cover a long run of multiples
        return not any(facets.contains(lo + k * step) for k in range(min(count, LONGEST_GAP)))

    def count_up_to(self, limit: int) -> int:
        """How many numbers are in the set, but at most `limit`."""
        facets = None if self.is_empty() else self._on_grid()
        if facets is None:
            return 0
        lo, hi, step = facets.lo, facets.hi, facets.multiple_of
        if lo is None or hi is None or (step is None and lo != hi):
            return limit
        count = 0
        for k in range(math.floor((hi - lo) / step) + 1 if step else 1):
            count += facets.contains(lo + k * (step or 0))
            if count >= limit:
                break
        return count

    def _on_grid(self) -> NumberFacets | None:
        """The same set with bounds moved onto multiples of the step (then closed); None if nothing is left."""
        lo, hi, step = self.lo, self.hi, self.multiple_of
        facets = self
        if step is not None:
            if lo is not None:
                k = math.ceil(lo / step)
                lo = (k + (self.lo_open and k * step == lo)) * step
            if hi is not None:
                k = math.floor(hi / step)
                hi = (k - (self.hi_open and k * step == hi)) * step
            facets = replace(self, lo=lo, hi=hi, lo_open=False, hi_open=False)
        if lo is not None and hi is not None and (lo > hi or (lo == hi and (facets.lo_open or facets.hi_open))):
            return None
        return facets


settings.on_clear(NumberFacets.make.cache_clear)


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator, b.numerator), math.gcd(a.denominator, b.denominator))


def number_node(builder: Builder, facets: NumberFacets, *, whole: bool = False) -> Node:
    """All texts of the numbers in the set; EMPTY exactly when the set is. whole: only texts without a fraction.

    Spelling: `-?int(.digits)?`, digits capped (see the constants above), `-0` where 0 is allowed, zeros after the last
    digit that counts. Sets without a step also have exponents: see exponents.py, and where at most 0 is a bound any number
    of digits before the point.
    Raises GrammarTooComplex when a step needs too many remainders or a bound too many digits.
    """
    return builder.named(("number", facets, whole), lambda: _number_node(builder, facets, whole))


def _number_node(b: Builder, facets: NumberFacets, whole: bool) -> Node:
    grid = None if facets.is_empty() else facets._on_grid()
    if grid is None:
        return b.EMPTY
    halves = [(b.EPSILON, grid), (b.literal(b"-"), _mirrored(grid))]
    node = b.alt(*(b.seq(sign, _Magnitudes(b, half, whole).node) for sign, half in halves))
    if whole or grid.multiple_of is not None or grid.not_multiple_of:
        return node
    parts = [node, *(b.seq(sign, _scientific(b, half)) for sign, half in halves)]
    if (grid.lo in (None, 0) and grid.hi in (None, 0) and grid.lo is not grid.hi) or grid == NumberFacets():
        parts.append(b.seq(node, any_exponent(b, -LOOSE_EXPONENT, LOOSE_EXPONENT)))
    return b.alt(*parts)


def _scientific(b: Builder, f: NumberFacets) -> Node:
    """Unsigned texts with an exponent of the non-negative members."""
    lo_open = f.lo_open and f.lo is not None and f.lo >= 0

    def mantissa(lo: Fraction, lo_open: bool, hi: Fraction, hi_open: bool) -> Node:
        return _Magnitudes(b, NumberFacets(lo, hi, lo_open, hi_open), False).node

    return scientific(b, max(f.lo or Fraction(0), Fraction(0)), lo_open, f.hi, f.hi_open, FRACTION_DIGITS, mantissa)


def _mirrored(f: NumberFacets) -> NumberFacets:
    return replace(f, lo=None if f.hi is None else -f.hi, hi=None if f.lo is None else -f.lo, lo_open=f.hi_open, hi_open=f.lo_open)


def _decimal_places(value: Fraction) -> int:
    """Digits after the point. Raises InvalidGrammar for a value without a finite decimal spelling."""
    places, rest = 0, value.denominator
    while rest % 10 == 0:
        rest, places = rest // 10, places + 1
    for prime in (2, 5):
        while rest % prime == 0:
            rest, places = rest // prime, places + 1
    if rest != 1:
        raise InvalidGrammar(f"{value} has no finite decimal spelling, so no JSON number equals it")
    return places


class _Magnitudes:
    """The unsigned texts of the non-negative members of `facets` (bounds already on the grid of the step).

    A state is (digits left before the point, equal to the lower bound so far, equal to the upper bound so far, remainder).
    """

    def __init__(self, builder: Builder, facets: NumberFacets, whole: bool) -> None:
        self.b = b = builder
        self.whole = whole
        zero_open = facets.lo_open and facets.lo == 0
        lo = max(facets.lo or Fraction(0), Fraction(0))
        self.hi = facets.hi
        self.lo_open = (facets.lo_open and facets.lo == lo) or zero_open
        self.hi_open = facets.hi_open
        self.any_digit = b.byte_class(b"0123456789")
        self.memo: dict[tuple[int, bool, bool, int, bool], Node] = {}
        if self.hi is not None and (self.hi < lo or (self.hi == lo and (self.lo_open or self.hi_open))):
            self.node = b.EMPTY
            return
        self._set_steps(facets)
        self.lo_whole, self.lo_places = self._digits(lo)
        self.hi_whole, self.hi_places = self._digits(self.hi) if self.hi is not None else ("", "")
        self.places = max(FRACTION_DIGITS, self.grid, len(self.lo_places) + 1, len(self.hi_places) + 1)
        room = INTEGER_DIGITS if len(self.lo_whole) < INTEGER_DIGITS else len(self.lo_whole) + 1
        longest = len(self.hi_whole) if self.hi is not None else room
        self._check_size(longest)
        self.node = self._all_lengths(longest)

    def _digits(self, value: Fraction) -> tuple[str, str]:
        places = _decimal_places(value)
        whole, rest = divmod(value.numerator * 10**places // value.denominator, 10**places)
        return str(whole), (str(rest).zfill(places) if places else "")

    def _set_steps(self, facets: NumberFacets) -> None:
        steps = [*facets.not_multiple_of, *([facets.multiple_of] if facets.multiple_of is not None else [])]
        self.grid = max((_decimal_places(s) for s in steps), default=0)  # digits after the point that the steps look at
        scaled = {s: int(s * 10**self.grid) for s in steps}
        self.step = scaled[facets.multiple_of] if facets.multiple_of is not None else None
        self.excluded = [scaled[s] for s in facets.not_multiple_of]
        self.modulus = math.lcm(*scaled.values()) if scaled else 1
        self.free = not steps or (facets.multiple_of == ONE and not self.excluded)  # the digits before the point do not matter to the steps

    def _check_size(self, longest: int) -> None:
        if longest > MAX_BOUND_DIGITS:
            raise GrammarTooComplex("number digits", f"a bound has more than {MAX_BOUND_DIGITS} digits")
        self.power = [10**k for k in range(longest + self.grid + 1)]
        self.remainders = [self.modulus // math.gcd(self.modulus, p) for p in self.power]  # that matter with k digits left
        size = sum(min(n, p) for n, p in zip(self.remainders, self.power, strict=True))
        if not self.free and size > MAX_REMAINDERS:
            raise GrammarTooComplex("multipleOf remainders", f"multipleOf needs {size} remainders, more than {MAX_REMAINDERS}")

    def _all_lengths(self, longest: int) -> Node:
        shortest = len(self.lo_whole)
        parts = []
        loose = [n for n in range(shortest, longest + 1) if n > shortest and n != len(self.hi_whole)]
        if self.free and loose:
            lead = self.b.byte_class(b"123456789")
            parts.append(self.b.seq(lead, self.b.repeat(self.any_digit, loose[0] - 1, loose[-1] - 1), self._fraction(0, False, False, 0, False)))
            tight = sorted({shortest, longest} - set(loose))
        else:
            tight = list(range(shortest, longest + 1))
        parts += [self._whole(n, n == shortest, n == len(self.hi_whole), 0, True) for n in tight]
        return self.b.alt(*parts)

    def _released(self, equal_lo: bool, left: int, places: int) -> bool:
        """Still bound from below? Not once the lower bound has only zeros left and itself belongs."""
        if not equal_lo or self.lo_open:
            return equal_lo
        rest = (self.lo_whole[len(self.lo_whole) - left :] if left else "") + self.lo_places[places:]
        return rest.strip("0") != ""

    def _hopeless(self, remainder: int, left: int) -> bool:
        """No digits that may follow lead to a multiple of the step."""
        return self.step is not None and self.power[left] < self.step and (-remainder * self.power[left]) % self.step >= self.power[left]

    def _whole(self, left: int, equal_lo: bool, equal_hi: bool, remainder: int, first: bool) -> Node:
        """`left` digits of the whole part to come, then the fraction."""
        equal_lo = self._released(equal_lo, left, 0)
        if left == 0:
            return self._fraction(0, equal_lo, equal_hi, remainder, False)
        scale = left + self.grid
        if self._hopeless(remainder, scale):
            return self.b.EMPTY
        key = (left, equal_lo, equal_hi, remainder % self.remainders[scale], first and left > 1)
        if key not in self.memo:
            self.memo[key] = self._whole_digits(left, equal_lo, equal_hi, remainder, first and left > 1)
        return self.memo[key]

    def _whole_digits(self, left: int, equal_lo: bool, equal_hi: bool, remainder: int, first: bool) -> Node:
        b = self.b
        low = int(self.lo_whole[-left]) if equal_lo else 0
        high = int(self.hi_whole[-left]) if equal_hi else 9
        low = max(low, 1) if first else low
        if self.free and not equal_lo and not equal_hi:
            lead = b.byte_class(b"0123456789"[low:])
            return b.seq(lead, b.repeat(self.any_digit, left - 1, left - 1), self._fraction(0, False, False, 0, False))
        after: dict[Node, list[int]] = {}
        for d in range(low, high + 1):
            node = self._whole(left - 1, equal_lo and d == low, equal_hi and d == high, (remainder * 10 + d) % self.modulus, False)
            after.setdefault(node, []).append(0x30 + d)
        return b.alt(*(b.seq(b.byte_class(digits), node) for node, digits in after.items()))

    def _may_stop(self, done: int, equal_lo: bool, equal_hi: bool, remainder: int, off_grid: bool) -> bool:
        if equal_lo or (equal_hi and self.hi_open and not self.hi_places[done:].strip("0")):
            return False
        scaled = remainder * 10 ** max(self.grid - done, 0)
        return off_grid or ((self.step is None or scaled % self.step == 0) and all(scaled % x for x in self.excluded))

    def _fraction(self, done: int, equal_lo: bool, equal_hi: bool, remainder: int, off_grid: bool) -> Node:
        """What may follow `done` digits after the point (0: the point itself is still to come).

        off_grid: a digit beyond those that the steps look at is not zero, so the value is a multiple of none.
        """
        b = self.b
        stop = self._may_stop(done, equal_lo, equal_hi, remainder, off_grid)
        if self.whole:
            return b.EPSILON if stop else b.EMPTY
        fixed = (equal_hi and not self.hi_places[done:].strip("0")) or (self.step is not None and done >= self.grid)
        loose = not equal_lo and not equal_hi and ((self.free and self.step is None) or off_grid)
        if fixed or loose:
            if not stop:
                return b.EMPTY
            digit = self.any_digit if loose else b.literal(b"0")
            if done:
                return b.repeat(digit, 0, self.places - done)
            return b.optional(b.seq(b.literal(b"."), b.repeat(digit, 1, self.places)))
        more = self._fraction_digits(done, equal_lo, equal_hi, remainder, off_grid)
        more = more if done else b.seq(b.literal(b"."), more)
        return b.alt(b.EPSILON, more) if stop else more

    def _fraction_digits(self, done: int, equal_lo: bool, equal_hi: bool, remainder: int, off_grid: bool) -> Node:
        b = self.b
        if done >= self.places or (done < self.grid and self._hopeless(remainder, self.grid - done)):
            return b.EMPTY
        low = int(self.lo_places[done : done + 1] or 0) if equal_lo else 0
        high = int(self.hi_places[done : done + 1] or 0) if equal_hi else 9
        key = (-1 - done, equal_lo, equal_hi, remainder, off_grid)
        if key not in self.memo:
            after: dict[Node, list[int]] = {}
            for d in range(low, high + 1):
                lower = self._released(equal_lo and d == low, 0, done + 1)
                rest = (remainder * 10 + d) % self.modulus if done < self.grid else remainder
                node = self._fraction(done + 1, lower, equal_hi and d == high, rest, off_grid or (done >= self.grid and d > 0))
                after.setdefault(node, []).append(0x30 + d)
            self.memo[key] = b.alt(*(b.seq(b.byte_class(digits), node) for node, digits in after.items()))
        return self.memo[key]
