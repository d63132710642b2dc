"""uniqueItems: how the items written so far are remembered.

Four ways: at most one item is unique anyway; few constants, or few items of them, are an automaton over sets of used ones;
strings are the keys of an object without values, whose names may not repeat either; all other items are compared as values while they
are written (`AllDiffer`). Input: an array shape and the shapes of its items; knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ARRAY, Array, Booleans, Null, Shape
from agentkit.grammars.frontends.json_schema.types import Type, Types, Value
from agentkit.grammars.frontends.json_schema.witnesses import Steps
from agentkit.grammars.frontends.numbers import NumberFacets

MAX_SETS = 1024  # sets of used constants
MAX_ITEMS = 4096  # that are asked for, where they are compared as values
MAX_CONSTANTS = 64  # integers of a range that are taken one by one


class Distinct:
    """Arrays of `lo` to `hi` different strings from `sets`."""

    __slots__ = ("hi", "lo", "sets")
    kind = ARRAY

    def __init__(self, sets: tuple[Strings, ...], lo: int, hi: int | None) -> None:
        self.sets = sets
        self.lo = lo
        self.hi = hi

    def names(self) -> list[str]:
        """The members of the finite sets."""
        return sorted({name for s in self.sets if s.only is not None for name in s.only})


class AllDiffer:
    """The arrays of `inside` in which no two items are equal."""

    __slots__ = ("inside",)
    kind = ARRAY

    def __init__(self, inside: Array) -> None:
        self.inside = inside


def enough(a: Array, count: Callable[[Type], tuple[int, int]], kinds: Callable[[Type], Set[str]]) -> bool | None:
    """Are there as many different items as `a` asks for, whichever come first? None: that is not known.

    count: least and most values of a type, counted up to more than are asked for; kinds: those of its values.
    """
    if a.prefix:
        asked = [kinds(a.item(i)) for i in range(a.lo)]
        return None if any(not one.isdisjoint(other) for i, one in enumerate(asked) for other in asked[:i]) else True
    least, most = count(a.rest)
    return True if least >= a.lo else None if most >= a.lo else False


def distinct(a: Array, shapes_of: Callable[[Type], Sequence[object]], types: Types) -> Steps | Distinct | None:
    """Arrays like `a` (without conditions) with all items different, in the second and third way; shapes_of: the shapes of an item. None: in neither."""
    open_end = a.hi is None or a.hi > len(a.prefix)
    rest = shapes_of(a.rest) if open_end else ()
    if all(t is a.rest for t in a.prefix) and rest and all(isinstance(s, Strings) for s in rest):
        return Distinct(tuple(s for s in rest if isinstance(s, Strings)), a.lo, a.hi)
    places: list[dict[object, Shape]] = []
    for shapes in (*map(shapes_of, a.prefix), *([rest] if open_end else [])):
        constants = _constants(shapes)
        if constants is None:
            return None
        places.append(constants)
    return _sets(a, places, types)


def _sets(a: Array, places: Sequence[dict[object, Shape]], types: Types) -> Steps | None:
    """An automaton whose states are the sets of used constants; the size of the set is the number of items so far."""
    bits: dict[object, int] = {}
    atoms: dict[object, Type] = {}
    for place in places:
        for key, shape in place.items():
            bits.setdefault(key, 1 << len(bits))
            atoms.setdefault(key, _atom(types, shape))
    index = {0: 0}
    moves: list[tuple[tuple[Type, int], ...]] = []
    queue = [0]  # grows in the order of the sets' sizes, so that moves lead onwards
    for used in queue:
        n = used.bit_count()
        more = a.hi is None or n < a.hi
        out = []
        for key in places[min(n, len(places) - 1)] if more and (n < len(places) or len(places) > len(a.prefix)) else ():
            if not used & bits[key]:
                to = used | bits[key]
                if to not in index:
                    index[to] = len(queue)
                    queue.append(to)
                out.append((atoms[key], index[to]))
        moves.append(tuple(out))
        if len(queue) > MAX_SETS:
            return None
    return Steps(moves, [used.bit_count() >= a.lo for used in queue])


def _constants(items: Sequence[object]) -> dict[object, Shape] | None:
    """Each possible item as a shape of its own, if they are few scalars; equal ones have equal keys."""
    out: dict[object, Shape] = {}
    for s in items:
        if isinstance(s, Null):
            out[None] = s
        elif isinstance(s, Booleans):
            out.update({("b", v): Booleans(frozenset((v,))) for v in s.values})
        elif isinstance(s, Numbers) and s.only is not None:
            out.update({("n", v): Numbers.of(frozenset((v,))) for v in s.only})
        elif isinstance(s, Numbers) and (integers := s.few(MAX_CONSTANTS)) is not None:
            out.update({("n", v): replace(s, facets=NumberFacets.point(v)) for v in integers})
        elif isinstance(s, Strings) and s.only is not None:
            out.update({("s", v): Strings.of(frozenset((v,))) for v in s.only})
        else:
            return None
    return out


def _atom(types: Types, shape: Shape) -> Type:
    made = types.atom(Value(shape, "#"), (id(shape), -4))
    made.shapes = made.tracked = (shape,)
    return made


__all__ = ["AllDiffer", "Distinct", "distinct", "enough"]
