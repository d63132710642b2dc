"""unevaluatedProperties and unevaluatedItems: what the other keywords of a schema have looked at.

Shapes carry a record of evaluated members (`seen`) while the expander is tracking. A value may meet several branches
of anyOf and has then been evaluated by all of them, so tracking expands every combination of branches; combinations
with fewer branches only ask for more, so their union is exact. Spec: JSON Schema 2020-12 core, sections 11 and 7.7.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.json_schema.algebra import intersect
from agentkit.grammars.frontends.json_schema.families import cut, refine
from agentkit.grammars.frontends.json_schema.shapes import Array, Object, Shape
from agentkit.grammars.frontends.json_schema.types import TRUE, Type

if TYPE_CHECKING:
    from agentkit.grammars.frontends.json_schema.document import Location
    from agentkit.grammars.frontends.json_schema.expand import Expander
    from agentkit.grammars.frontends.json_schema.scalars import Strings


class SeenKeys(NamedTuple):
    """Evaluated keys: `every` one, or `names` and those in `families`."""

    every: bool
    names: frozenset[str] = frozenset()
    families: tuple[Strings, ...] = ()

    def __or__(self, other: SeenKeys) -> SeenKeys:
        return SeenKeys(self.every or other.every, self.names | other.names, (*self.families, *other.families))


class SeenItems(NamedTuple):
    """Evaluated items: `every` one, or the first `first` and those that meet one of `types` (contains)."""

    every: bool
    first: int = 0
    types: tuple[Type, ...] = ()

    def __or__(self, other: SeenItems) -> SeenItems:
        return SeenItems(self.every or other.every, max(self.first, other.first), (*self.types, *other.types))


def enforce_unevaluated(x: Expander, at: Location, shapes: list[Shape]) -> list[Shape]:
    """`shapes` of all other keywords (made while tracking), with what is left over meeting the unevaluated* schemas."""
    out: list[Shape | None] = list(shapes)
    for keyword, kind in (("unevaluatedProperties", Object), ("unevaluatedItems", Array)):
        if keyword in at.schema and keyword in x.scope:
            t = x.place(at, kw.subschema(at.schema[keyword], keyword, at.pointer), "/" + keyword)
            out = [_close(x, s, t, at) if isinstance(s, kind) else s for s in out]
    return [s for s in out if s is not None]


def _close(x: Expander, s: Shape, t: Type, at: Location) -> Shape | None:
    if isinstance(s, Object):
        keys = s.seen or SeenKeys(False)
        closed = s if keys.every or t is TRUE else intersect(s, _keys(keys, t, at), x.types)
        return _with_seen(closed, SeenKeys(True))
    assert isinstance(s, Array)
    items = s.seen or SeenItems(False)
    limit = Array((TRUE,) * items.first, x.types.either(t, *items.types))
    closed = s if items.every or t is TRUE else intersect(s, limit, x.types)
    return _with_seen(closed, SeenItems(True))


def _keys(seen: SeenKeys, t: Type, at: Location) -> Object:
    """Objects whose keys outside `seen` have values of type `t`."""
    fields = dict.fromkeys(sorted(seen.names), TRUE)
    pieces = cut([(names, TRUE) for names in seen.families], at.pointer, lambda a, b: TRUE)
    return Object(fields, extras=refine([(names, t if kind is None else kind) for names, kind in pieces], fields))


def _with_seen(s: Shape | None, seen: SeenKeys | SeenItems) -> Shape | None:
    if isinstance(s, Object):
        return Object(s.fields, s.required, s.extras, s.lo, s.hi, s.some, seen if isinstance(seen, SeenKeys) else None)
    if isinstance(s, Array):
        return Array(s.prefix, s.rest, s.lo, s.hi, s.some, s.unique, seen if isinstance(seen, SeenItems) else None)
    return s
