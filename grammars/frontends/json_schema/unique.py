"""uniqueItems, where the items written so far can be remembered exactly.

Three ways: at most one item is unique anyway; a handful of constants is an automaton over sets of used ones; strings
are the keys of an object without values, whose names may not repeat either. Anything else is refused. Input: an array
shape and the shapes of its items; knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ARRAY, Array, Booleans, Null, Shape
from agentkit.grammars.frontends.json_schema.types import Type, Types, Value
from agentkit.grammars.frontends.json_schema.witnesses import Steps

MAX_CONSTANTS = 8


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


def distinct(a: Array, items: Sequence[object], types: Types) -> Steps | Distinct | None:
    """Arrays like `a` (no prefix, no conditions) with all items different; `items`: shapes of one item. None: not expressible."""
    if items and all(isinstance(s, Strings) for s in items):
        return Distinct(tuple(s for s in items if isinstance(s, Strings)), a.lo, a.hi)
    constants = _constants(items)
    if constants is None or len(constants) > MAX_CONSTANTS:
        return None
    choices = [_atom(types, shape) for shape in constants]
    moves: list[tuple[tuple[Type, int], ...]] = []
    accepting: list[bool] = []
    for used in range(1 << len(choices)):
        n = used.bit_count()
        more = a.hi is None or n < a.hi
        moves.append(tuple((t, used | 1 << i) for i, t in enumerate(choices) if more and not used >> i & 1))
        accepting.append(n >= a.lo)
    return Steps(moves, accepting)


def _constants(items: Sequence[object]) -> list[Shape] | None:
    """Each possible item as a shape of its own, if they are few scalars."""
    out: dict[object, Shape] = {}
    for s in items:
        if isinstance(s, Null):
            out[None] = s
        elif isinstance(s, Booleans):
            out.update({("b", v): Booleans(frozenset((v,))) for v in s.values})
        elif isinstance(s, Numbers) and s.only is not None:
            out.update({("n", v): Numbers.of(frozenset((v,))) for v in s.only})
        elif isinstance(s, Strings) and s.only is not None:
            out.update({("s", v): Strings.of(frozenset((v,))) for v in s.only})
        else:
            return None
    return list(out.values())


def _atom(types: Types, shape: Shape) -> Type:
    made = types.atom(Value(shape, "#"), (id(shape), -4))
    made.shapes = made.tracked = (shape,)
    return made


__all__ = ["Distinct", "distinct"]
