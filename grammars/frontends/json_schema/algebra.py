"""The boolean algebra on shapes: intersection, unions of intersections, complement.

Input and output: shapes, and lists of shapes that stand for their union. Members are combined as types, not expanded.
A limit on the number of alternatives bounds time and memory. Knows nothing of keywords, spelling or bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from agentkit.errors import GrammarTooComplex, UnsupportedSchema
from agentkit.grammars.effort import checkpoint
from agentkit.grammars.frontends.json_schema.families import EVERYTHING, NOTHING, Family, family_of, refine
from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ANY_BOOLEAN, ANYTHING, FREE, KINDS, Array, Booleans, Contains, Exists, Null, Object, Shape
from agentkit.grammars.frontends.json_schema.subsume import thin
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type, Types

MAX_SHAPES = 2048
FEW, MANY = 8, 400  # fewer alternatives are not worth thinning out, more would take too long

_T = TypeVar("_T")


def intersect(a: Shape, b: Shape, types: Types) -> Shape | None:
    """Values in both shapes; None where plainly nothing is."""
    if a is b or b is FREE[b.kind]:
        return a
    if a is FREE[a.kind]:
        return b
    if isinstance(a, Array) and isinstance(b, Array):
        return _both_arrays(a, b, types)
    if isinstance(a, Object) and isinstance(b, Object):
        return _both_objects(a, b, types)
    if isinstance(a, Booleans) and isinstance(b, Booleans):
        return Booleans(a.values & b.values) if a.values & b.values else None
    if isinstance(a, (Numbers, Strings)):
        return a.intersect(b)  # type: ignore[arg-type]
    return a


def _both_arrays(a: Array, b: Array, types: Types) -> Array | None:
    n = max(len(a.prefix), len(b.prefix))
    hi = a.hi if b.hi is None else b.hi if a.hi is None else min(a.hi, b.hi)
    lo = max(a.lo, b.lo)
    if hi is not None and lo > hi:
        return None
    prefix = tuple(types.both(a.item(i), b.item(i)) for i in range(n))
    return Array(prefix, types.both(a.rest, b.rest), lo, hi, _union(a.some, b.some), a.unique or b.unique, _seen(a.seen, b.seen))


def _both_objects(a: Object, b: Object, types: Types) -> Object | None:
    hi = a.hi if b.hi is None else b.hi if a.hi is None else min(a.hi, b.hi)
    lo = max(a.lo, b.lo)
    required = a.required | b.required if b.required else a.required
    if hi is not None and max(lo, len(required)) > hi:
        return None
    fields = {name: types.both(t, b.member(name)) for name, t in a.fields.items()}
    for name, t in b.fields.items():
        if name not in fields:
            fields[name] = types.both(a.member(name), t)
    extras = _both_extras(a.extras, b.extras, fields, types)
    for name in required:
        if (fields[name] if name in fields else family_of(name, extras)) is FALSE:
            return None
    return Object(fields, required, extras, lo, hi, _union(a.some, b.some), _seen(a.seen, b.seen))


def _union(a: tuple[_T, ...], b: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(a + b)) if a and b else a or b


def _seen(a: Any, b: Any) -> Any:
    return a | b if a is not None and b is not None else b if a is None else a


def _both_extras(a: tuple[Family, ...], b: tuple[Family, ...], fields: dict[str, Type], types: Types) -> tuple[Family, ...]:
    if b is EVERYTHING or a is NOTHING:
        return a
    if a is EVERYTHING or b is NOTHING:
        return b
    pairs: list[tuple[Strings, Type]] = []
    for x in a:
        for y in b:
            names = x.names if x.names is y.names else x.names.intersect(y.names)
            if names is not None:
                pairs.append((names, types.both(x.type, y.type)))
    return refine(pairs, fields)


def product(left: Sequence[Shape], right: Sequence[Shape], types: Types) -> list[Shape]:
    """Intersection of two unions of shapes."""
    if right is ANYTHING:
        return list(left)
    if left is ANYTHING:
        return list(right)
    out: list[Shape] = []
    most = max(MAX_SHAPES, len(left), len(right))  # a long list alone multiplies nothing
    for a in left:
        for b in right:
            if a.kind == b.kind:
                checkpoint()
                both = intersect(a, b, types)
                if both is not None:
                    out.append(both)
                    limit_shapes(len(out), most)
    return thin(out) if len(left) > 1 and len(right) > 1 and FEW < len(out) <= MANY else out


def limit_shapes(n: int, most: int = MAX_SHAPES) -> None:
    if n > most:
        raise GrammarTooComplex("alternatives", f"combining the branches gives more than {most} alternatives; use fewer overlapping branches")


def complement(shapes: Sequence[Shape], types: Types, pointer: str, keyword: str) -> list[Shape]:
    """All JSON values outside the union. `pointer`, `keyword`: named where a complement cannot be expressed."""
    out: list[Shape] = []
    for kind in KINDS:
        rest: list[Shape] = [FREE[kind]]
        for shape in shapes:
            if shape.kind == kind and rest:
                rest = [] if shape is FREE[kind] else product(rest, _outside(shape, types, pointer, keyword), types)
        out += rest
    return out


def _outside(shape: Shape, types: Types, pointer: str, keyword: str) -> list[Shape]:
    """The values of a shape's own JSON type that are not in it."""
    if isinstance(shape, Null):
        return []
    if isinstance(shape, Booleans):
        rest = ANY_BOOLEAN.values - shape.values
        return [Booleans(rest)] if rest else []
    if isinstance(shape, (Numbers, Strings)):
        return list(shape.outside(pointer, keyword))
    if isinstance(shape, Array):
        return _outside_array(shape, types, pointer, keyword)
    if not all(f.names.facets.exact for f in shape.extras):
        raise UnsupportedSchema(pointer, keyword, "the names that are not of a format of propertyNames are not known exactly")
    return _outside_object(shape, types)


def _outside_array(a: Array, types: Types, pointer: str, keyword: str) -> list[Shape]:
    if a.unique:
        raise UnsupportedSchema(pointer, keyword, "the complement of uniqueItems is not available")
    out: list[Shape] = []
    if a.lo > 0:
        out.append(Array(hi=a.lo - 1))
    if a.hi is not None:
        out.append(Array(lo=a.hi + 1))
    for i, t in enumerate(a.prefix):
        if t is not TRUE:
            out.append(Array((TRUE,) * i + (types.negate(t),), lo=i + 1))
    if a.rest is not TRUE:
        out.append(Array(some=(Contains(types.negate(a.rest), 1, None, len(a.prefix)),)))
    for c in a.some:
        if c.lo > 0:
            out.append(Array(some=(Contains(c.type, 0, c.lo - 1, c.start),)))
        if c.hi is not None:
            out.append(Array(some=(Contains(c.type, c.hi + 1, None, c.start),)))
    return out


def _outside_object(o: Object, types: Types) -> list[Shape]:
    out: list[Shape] = [Object({name: types.negate(o.fields[name])}) for name in o.fields if name in o.required]  # absent, or of another kind
    if o.lo > 0:
        out.append(Object({}, hi=o.lo - 1))
    if o.hi is not None:
        out.append(Object({}, lo=o.hi + 1))
    for name, t in o.fields.items():
        if t is not TRUE and name not in o.required:
            out.append(Object({name: types.negate(t)}, frozenset((name,))))
    declared = frozenset(o.fields)
    out += [Object({}, some=(Exists(f.names, declared, types.negate(f.type)),)) for f in o.extras if f.type is not TRUE]
    for e in o.some:
        fields = dict.fromkeys(sorted(e.but), TRUE)
        inside = (e.names, types.negate(e.type))
        outside = [(names, TRUE) for names in e.names.outside("#", "not")]
        out.append(Object(fields, extras=refine([inside, *outside], fields)))
    return out
