"""Sets of JSON values of one type, and the boolean algebra on them.

A schema is a union of shapes; each shape is about one JSON type. Scalars are in scalars.py; here are null, booleans,
arrays and objects, whose members are `Type`s (types.py), so that intersection and complement go down one level at a
time and recursive schemas stay finite. This module knows nothing of keywords, spelling or bytes.

An object's keys are cut into declared names and disjoint families (`extras`) that together cover every string: a
name that may not be used has the type FALSE. `Exists` and `Contains` say that some member has a type; they come from
`contains` and from complements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agentkit.errors import GrammarTooComplex, UnsupportedSchema
from agentkit.grammars.frontends.json_schema.families import EVERYTHING, NOTHING, Family, family_of, refine
from agentkit.grammars.frontends.json_schema.scalars import ANY_NUMBER, ANY_STRING, NUMBER, STRING, Numbers, Strings
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type, Types

if TYPE_CHECKING:
    from agentkit.grammars.frontends.json_schema.evaluated import SeenItems, SeenKeys

_T = TypeVar("_T")

NULL, BOOLEAN, ARRAY, OBJECT = "null", "boolean", "array", "object"
KINDS = (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT)

MAX_SHAPES = 4096


class Null:
    __slots__ = ()
    kind = NULL


@dataclass(frozen=True, slots=True)
class Booleans:
    values: frozenset[bool]
    kind = BOOLEAN


class Contains(NamedTuple):
    """Between `lo` and `hi` of the items from index `start` on are of `type`."""

    type: Type
    lo: int
    hi: int | None
    start: int = 0


class Array:
    """Items `prefix` one by one, `rest` after them; `lo` to `hi` in all.

    some: conditions on the number of certain items; unique: no two are equal; seen: the evaluated ones (evaluated.py).
    """

    __slots__ = ("hi", "lo", "prefix", "rest", "seen", "some", "unique")
    kind = ARRAY

    def __init__(
        self,
        prefix: tuple[Type, ...] = (),
        rest: Type = TRUE,
        lo: int = 0,
        hi: int | None = None,
        some: tuple[Contains, ...] = (),
        unique: bool = False,
        seen: SeenItems | None = None,
    ) -> None:
        self.prefix = prefix
        self.rest = rest
        self.lo = lo
        self.hi = hi
        self.some = some
        self.unique = unique
        self.seen = seen

    def item(self, i: int) -> Type:
        return self.prefix[i] if i < len(self.prefix) else self.rest


class Exists(NamedTuple):
    """Some key in `names` but not in `but` has a value of `type`."""

    names: Strings
    but: frozenset[str]
    type: Type


class Object:
    """Declared `fields`, `extras`: families of the other names, the `required` names (all of them fields), `lo` to `hi` properties in all.

    some: conditions that some property meets; seen: the evaluated properties (evaluated.py).
    """

    __slots__ = ("extras", "fields", "hi", "lo", "required", "seen", "some")
    kind = OBJECT

    def __init__(
        self,
        fields: dict[str, Type],
        required: frozenset[str] = frozenset(),
        extras: tuple[Family, ...] = EVERYTHING,
        lo: int = 0,
        hi: int | None = None,
        some: tuple[Exists, ...] = (),
        seen: SeenKeys | None = None,
    ) -> None:
        self.fields = fields
        self.required = required
        self.extras = extras
        self.lo = lo
        self.hi = hi
        self.some = some
        self.seen = seen

    def member(self, name: str) -> Type:
        """What a value under `name` has to satisfy."""
        found = self.fields.get(name)
        return family_of(name, self.extras) if found is None else found


Shape = Null | Booleans | Numbers | Strings | Array | Object

ANY_NULL = Null()
ANY_BOOLEAN = Booleans(frozenset((False, True)))
ANY_ARRAY = Array()
ANY_OBJECT = Object({})
FREE: dict[str, Shape] = {NULL: ANY_NULL, BOOLEAN: ANY_BOOLEAN, NUMBER: ANY_NUMBER, STRING: ANY_STRING, ARRAY: ANY_ARRAY, OBJECT: ANY_OBJECT}
ANYTHING: tuple[Shape, ...] = tuple(FREE.values())


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
    for a in left:
        for b in right:
            if a.kind == b.kind:
                both = intersect(a, b, types)
                if both is not None:
                    out.append(both)
                    limit_shapes(len(out))
    return out


def limit_shapes(n: int) -> None:
    if n > MAX_SHAPES:
        raise GrammarTooComplex("alternatives", f"combining the branches gives more than {MAX_SHAPES} alternatives; use fewer overlapping allOf/anyOf/oneOf/not")


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
