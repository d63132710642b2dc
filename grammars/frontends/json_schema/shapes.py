"""Sets of JSON values of one type.

A schema is a union of shapes; each shape is about one JSON type. Scalars are in scalars.py; here are null, booleans,
arrays and objects, whose members are `Type`s (types.py), so that the algebra on shapes (algebra.py) goes down one level
at a time and recursive schemas stay finite. This module knows nothing of keywords, spelling or bytes.

An object's keys are cut into declared names and disjoint families (`extras`) that together cover every string: a
name that may not be used has the type FALSE. `Exists` and `Contains` say that some member has a type; they come from
`contains` and from complements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agentkit.grammars.frontends.json_schema.families import EVERYTHING, Family, family_of
from agentkit.grammars.frontends.json_schema.scalars import ANY_NUMBER, ANY_STRING, NUMBER, STRING, Numbers, Strings
from agentkit.grammars.frontends.json_schema.types import TRUE, Type

if TYPE_CHECKING:
    from agentkit.grammars.frontends.json_schema.evaluated import SeenItems, SeenKeys

NULL, BOOLEAN, ARRAY, OBJECT = "null", "boolean", "array", "object"
KINDS = (NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT)


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
