"""Which types hold any value at all, and why a schema holds none.

Input: an `Expander` and a root type. All types that the root reaches are expanded (a loop, no recursion, so depth is
no matter), then a least fixpoint finds those that some finite JSON value satisfies. Knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentkit.errors import GrammarTooComplex, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars.frontends.json_schema.census import Census
from agentkit.grammars.frontends.json_schema.expand import Expander, pointer_of
from agentkit.grammars.frontends.json_schema.members import describe
from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ANYTHING, Array, Object, Shape
from agentkit.grammars.frontends.json_schema.types import ATOM, BOTH, FALSE, TRUE, Type, Value
from agentkit.grammars.frontends.json_schema.unique import MAX_ITEMS, AllDiffer, Distinct, distinct, enough
from agentkit.grammars.frontends.json_schema.witnesses import Steps, settle, steps_of
from agentkit.grammars.frontends.strings import spellable

MAX_NESTING = 512  # arrays and objects within each other in the schema itself

Final = Shape | Steps | Distinct | AllDiffer


class Solver:
    """Types with their final shapes, and the set of those that are not empty."""

    def __init__(self, expander: Expander) -> None:
        self.x = expander
        self.alive: set[Type] = {TRUE}
        self._differ: dict[int, bool] = {}  # of each AllDiffer
        self.below: dict[Type, list[Type]] = {TRUE: [TRUE]}
        """The types of the members of each type that `solve` has met."""

    def finals(self, t: Type) -> tuple[Final, ...]:
        """The shapes of a type, free of conditions on some member and of shapes that are plainly empty."""
        if t.final is None:
            shapes = self.x.expand(t)
            out: list[Final] = []
            for s in shapes:
                out += self._finish(s, t)
            t.final = ANYTHING if len(shapes) >= len(ANYTHING) and set(ANYTHING) <= set(shapes) else tuple(out)
        return t.final

    def _finish(self, s: Shape, t: Type) -> Sequence[Final]:
        if isinstance(s, (Numbers, Strings)):
            return () if s.is_empty() else (s,)
        if isinstance(s, Object) and s.some:
            try:
                return settle(s, self.x.types)
            except UnsupportedSchema as e:
                raise UnsupportedSchema(pointer_of(t), e.keyword, e.reason) from None
        if isinstance(s, Array):
            if s.unique and (s.hi is None or s.hi > 1) and not (s.rest is FALSE and len(s.prefix) <= 1):
                return (self._unique(s, t),)
            if s.some:
                return (steps_of(s, self.x.types),)
        return (s,)

    def _unique(self, s: Array, t: Type) -> Final:
        if s.some:
            raise UnsupportedSchema(pointer_of(t), "uniqueItems", "beside contains it is not known whether there are always enough different items")
        made = distinct(s, self._scalars, self.x.types)
        if made is None and s.lo > MAX_ITEMS:
            raise GrammarTooComplex("unique items", f"{pointer_of(t)}: more than {MAX_ITEMS} different items are asked for")
        return AllDiffer(s) if made is None else made

    def _scalars(self, t: Type) -> list[Shape]:
        return [s for s in self.x.expand(t) if not isinstance(s, (Numbers, Strings)) or not s.is_empty()]

    # ------------------------------------------------------------------ reach
    def solve(self, root: Type) -> None:
        """Expands what `root` reaches and finds the types that are not empty.

        Raises UnsatisfiableSchema if the root is empty, GrammarTooComplex past MAX_NESTING levels.
        """
        depth: dict[Type, int] = {TRUE: 0, root: 0}
        queue = [] if root is TRUE else [root]
        for t in queue:
            self.below[t] = [child for s in self.finals(t) for child in members(s)]
            for child in self.below[t]:
                if child not in depth:
                    depth[child] = depth[t] + 1
                    if depth[child] > MAX_NESTING:
                        raise GrammarTooComplex("nesting", f"{pointer_of(child)[:200]}: the schema is nested more than {MAX_NESTING} levels deep")
                    queue.append(child)
        waiting, before = queue[::-1], -1
        while len(waiting) != before:
            before = len(waiting)
            waiting = [t for t in waiting if not self._comes_alive(t)]
        if root not in self.alive:
            raise self.explain(root)

    def _comes_alive(self, t: Type) -> bool:
        for s in self.finals(t):
            if self.holds(s):
                self.alive.add(t)
                return True
        return False

    def holds(self, s: Final) -> bool:
        """Whether a shape has a value, as far as its members are known to have one."""
        if isinstance(s, Object):
            return self._can_be_had(s)
        if isinstance(s, Array):
            return s.lo == 0 or all(s.item(i) in self.alive for i in range(min(s.lo, len(s.prefix) + 1)))
        if isinstance(s, Steps):
            return self._reaches_end(s)
        if isinstance(s, AllDiffer):
            return self.holds(s.inside) and (s.inside.lo <= 1 or self._never_runs_out(s))
        if isinstance(s, Distinct):
            usable = sum(map(spellable, s.names()))
            return usable + sum(x.count_up_to(s.lo - usable) for x in s.sets if x.only is None and usable < s.lo) >= s.lo
        return True

    def _never_runs_out(self, s: AllDiffer) -> bool:
        """Are there as many different items as are asked for, however the first ones are chosen?"""
        if id(s) not in self._differ:
            census = Census(self.finals, members, s.inside.lo)
            found = enough(s.inside, census.of, lambda t: {x.kind for x in self.finals(t)})
            if found is None:
                where = next(pointer_of(t) for t in self.below if s in self.finals(t))
                raise UnsupportedSchema(where, "uniqueItems", "it is not known whether there are always as many different items as minItems asks for")
            self._differ[id(s)] = found
        return self._differ[id(s)]

    def _can_be_had(self, s: Object) -> bool:
        for name in s.required:
            if s.fields[name] not in self.alive or not spellable(name):
                return False
        asked = [f for f in s.extras if f.asked]
        return self._enough(s) and (not asked or any(f.type in self.alive for f in asked))

    def _missing(self, s: Object) -> list[str]:
        return [name for name in s.required if s.fields[name] not in self.alive or not spellable(name)]

    def _enough(self, s: Object) -> bool:
        """Whether `lo` properties can be had."""
        if len(s.required) >= s.lo:
            return True
        usable = sum(t in self.alive for t in s.fields.values())
        if usable >= s.lo:
            return True
        need = s.lo - usable
        return sum(f.names.count_up_to(need) for f in s.extras if f.type in self.alive) >= need

    def _reaches_end(self, s: Steps) -> bool:
        good = list(s.accepting)
        for i in range(len(good) - 1, -1, -1):
            good[i] = good[i] or any(good[to] and t in self.alive for t, to in s.moves[i] if to != i)
        return good[0]

    # ------------------------------------------------------------------ messages
    def explain(self, root: Type) -> UnsatisfiableSchema:
        """The deepest contradiction that makes the root empty."""
        t, seen = root, {root}
        while True:
            blame = next((c for s in self.finals(t) for c in self._needs(s) if c not in self.alive and c not in seen), None)
            if blame is None or blame is FALSE:
                return UnsatisfiableSchema(pointer_of(t), self._reason(t, blame))
            seen.add(blame)
            t = blame

    def _needs(self, s: Final) -> Iterable[Type]:
        if isinstance(s, Object):
            return [s.fields[n] for n in s.required if s.fields[n] not in self.alive]
        if isinstance(s, AllDiffer):
            return self._needs(s.inside)
        if isinstance(s, Array):
            return [s.item(i) for i in range(min(s.lo, len(s.prefix) + 1))]
        return ()

    def _reason(self, t: Type, blame: Type | None) -> str:
        if t is FALSE:
            return "the schema is false"
        parts = [p for p in (t.parts if t.op == BOTH else (t,)) if p.op == ATOM]
        said = [describe(p.source.schema, set(self.x.scope)) for p in parts if p.source is not None and not isinstance(p.source, Value)]
        for s in self.finals(t):
            if isinstance(s, Object) and (names := self._missing(s)):
                return f"the required property {names[0]!r} can have no value ({' and '.join(said)})"
        return f"no value satisfies {' and '.join(said)}" if any(said) else "its parts contradict each other"


def members(s: Final) -> Iterable[Type]:
    """The types of a shape's members."""
    if isinstance(s, Object):
        return [*s.fields.values(), *(f.type for f in s.extras)]
    if isinstance(s, Array):
        if s.hi is not None and s.hi <= len(s.prefix):
            return s.prefix[: s.hi]
        return (*s.prefix, s.rest)
    if isinstance(s, AllDiffer):
        return members(s.inside)
    if isinstance(s, Steps):
        return [t for moves in s.moves for t, _ in moves]
    return ()
