"""How many values a type has, as far as it matters: at least and at most, counted up to a limit.

Input: types with their final shapes; output: pairs of bounds. They differ where values may belong to several shapes of one kind. A least
fixpoint: after n rounds the values nested up to n levels have been counted. Knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import Array, Booleans, Null, Object
from agentkit.grammars.frontends.json_schema.types import TRUE, Type
from agentkit.grammars.frontends.json_schema.unique import AllDiffer, Distinct
from agentkit.grammars.frontends.strings import spellable

Bounds = tuple[int, int]


class Census:
    """Bounds on the numbers of values, up to `limit`; finals: the shapes of a type, members: the types in a shape."""

    def __init__(self, finals: Callable[[Type], Sequence[Any]], members: Callable[[Any], Iterable[Type]], limit: int) -> None:
        self._finals = finals
        self._members = members
        self.limit = limit
        self._counts: dict[Type, Bounds] = {TRUE: (limit, limit)}

    def of(self, t: Type) -> Bounds:
        """(least, most) number of different values of a type; `limit` stands for that many or more."""
        if t not in self._counts:
            reached: dict[Type, None] = {t: None}
            queue = [t]
            for current in queue:
                for child in (c for s in self._finals(current) for c in self._members(s)):
                    if child not in reached and child not in self._counts:
                        reached[child] = None
                        queue.append(child)
            self._counts |= dict.fromkeys(reached, (0, 0))
            changed = True
            while changed:
                before = [self._counts[r] for r in reached]
                for r in reversed(reached):
                    self._counts[r] = self._union(self._finals(r))
                changed = before != [self._counts[r] for r in reached]
        return self._counts[t]

    def _union(self, shapes: Sequence[Any]) -> Bounds:
        """Shapes of different kinds share no value."""
        least: dict[str, int] = {}
        most = 0
        for s in shapes:
            low, high = self._shape(s)
            least[s.kind] = max(least.get(s.kind, 0), low)
            most += high
        return min(sum(least.values()), self.limit), min(most, self.limit)

    def _shape(self, s: Any) -> Bounds:
        if isinstance(s, Array):
            return self._array(s, 0), self._array(s, 1)
        if isinstance(s, Object):
            return self._object(s)
        if isinstance(s, AllDiffer) and not s.inside.prefix:
            low, high = self.of_known(s.inside.rest)
            return self._arrangements(low, s.inside.lo, s.inside.hi), self._arrangements(high, s.inside.lo, s.inside.hi)
        if isinstance(s, Distinct):
            counts = [self._strings(x) for x in s.sets]
            return self._arrangements(max(counts), s.lo, s.hi), self._arrangements(sum(counts), s.lo, s.hi)
        if isinstance(s, (Null, Booleans, Numbers, Strings)):
            count = min(self._scalars(s), self.limit)
            return count, count
        return 1, self.limit  # item automata, tuples that must differ

    def _scalars(self, s: Null | Booleans | Numbers | Strings) -> int:
        if isinstance(s, Null):
            return 1
        if isinstance(s, Booleans):
            return len(s.values)
        if isinstance(s, Numbers):
            return len(s.only) if s.only is not None else s.facets.count_up_to(self.limit)
        return self._strings(s)

    def _strings(self, s: Strings) -> int:
        return sum(map(spellable, s.only)) if s.only is not None else s.count_up_to(self.limit)

    def of_known(self, t: Type) -> Bounds:
        """As far as this round has come."""
        return self._counts.get(t, (0, 0))

    def _array(self, s: Array, side: int) -> int:
        """One factor per item, one term per length."""
        ways, total, n = 1, 0, 0
        while ways and total < self.limit and (s.hi is None or n <= s.hi):
            each = self.of_known(s.item(n))[side]
            if n >= s.lo:
                total += ways
                if n >= len(s.prefix) and (each == 0 or s.hi is None):
                    return self.limit if each else total
            elif n >= len(s.prefix) and each <= 1:
                n, ways = s.lo - 1, each
            ways = min(ways * each, self.limit)
            n += 1
        return min(total, self.limit)

    def _arrangements(self, values: int, lo: int, hi: int | None) -> int:
        """Of lo to hi out of so many different values."""
        ways, total = 1, 0
        for n in range(min(values, hi if hi is not None else values) + 1):
            total += ways if n >= lo else 0
            ways = min(ways * (values - n), self.limit)
            if total >= self.limit or (ways == self.limit and n + 1 >= lo and n < values and (hi is None or n < hi)):
                return self.limit
        return min(total, self.limit)

    def _object(self, s: Object) -> Bounds:
        found = []
        for side in (0, 1):
            needed, optional = 1, []
            for name, t in s.fields.items():
                count = self.of_known(t)[side] if spellable(name) else 0
                if name in s.required:
                    needed = min(needed * count, self.limit)
                else:
                    optional.append(1 + count)
            for f in s.extras:
                count = self.of_known(f.type)[side]
                optional.append(min((1 + count) ** min(f.names.count_up_to(self.limit), 64) if count else 1, self.limit))
            found.append((needed, optional))
        (needed, optional), (all_needed, all_optional) = found
        most = _product(all_needed, all_optional, self.limit)
        if needed == 0 or s.lo > len(s.required) or any(f.asked for f in s.extras):
            return min(needed, 1, most), most
        if s.hi is None:
            return _product(needed, optional, self.limit), most
        return min(needed * max(optional, default=1) if s.hi > len(s.required) and not s.extras else needed, self.limit), most


def _product(first: int, factors: Iterable[int], limit: int) -> int:
    for factor in factors:
        first = min(first * factor, limit)
    return first
