"""Dropping alternatives that are plainly part of another one, so that unions of intersections stay small.

Input: shapes; output: fewer shapes with the same union. The test looks at the structure only and errs towards keeping:
what it drops is part of what it keeps. Knows nothing of keywords.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentkit.grammars.frontends.json_schema.families import EVERYTHING
from agentkit.grammars.frontends.json_schema.shapes import FREE, Array, Object, Shape
from agentkit.grammars.frontends.json_schema.types import BOTH, FALSE, TRUE, Type


def thin(shapes: Sequence[Shape]) -> list[Shape]:
    """Without the shapes that are part of another."""
    kept: list[Shape] = []
    for s in dict.fromkeys(shapes):
        if any(within(s, k) for k in kept):
            continue
        kept = [k for k in kept if not within(k, s)]
        kept.append(s)
    return kept


def implies(a: Type, b: Type) -> bool:
    """Whether values of `a` plainly are of `b`."""
    if a is b or b is TRUE or a is FALSE:
        return True
    if a.op != BOTH:
        return False
    return b in a.parts or (b.op == BOTH and set(b.parts) <= set(a.parts))


def within(a: Shape, b: Shape) -> bool:
    """Whether `a` is plainly a part of `b`."""
    if a is b or a.kind != b.kind:
        return a is b
    if b is FREE[b.kind]:
        return True
    if isinstance(a, Object) and isinstance(b, Object):
        return _objects(a, b)
    if isinstance(a, Array) and isinstance(b, Array):
        return _arrays(a, b)
    return a == b


def _bounds(a: Object | Array, b: Object | Array) -> bool:
    return a.lo >= b.lo and (b.hi is None or (a.hi is not None and a.hi <= b.hi)) and a.seen == b.seen and (not b.some or set(b.some) <= set(a.some))


def _objects(a: Object, b: Object) -> bool:
    if not b.required <= a.required or not _bounds(a, b):
        return False
    if b.extras is not EVERYTHING and b.extras != a.extras:
        return False
    for name, t in b.fields.items():  # loops, not any() and all(): this is asked of every pair of alternatives
        mine = a.fields.get(name)
        if mine is not t and t is not TRUE and not implies(a.member(name) if mine is None else mine, t):
            return False
    return all(name in b.fields or implies(t, b.member(name)) for name, t in a.fields.items())


def _arrays(a: Array, b: Array) -> bool:
    if (b.unique and not a.unique) or not _bounds(a, b) or not implies(a.rest, b.rest):
        return False
    return all(implies(a.item(i), b.item(i)) for i in range(max(len(a.prefix), len(b.prefix))))
