"""The keywords about the members of arrays and objects, as shapes.

Input: one schema with array or object keywords. Declared names are checked against patternProperties here, and
patterns that overlap are cut into disjoint families of names. Knows nothing of unions or of other types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentkit.errors import InvalidGrammar, UnsupportedSchema
from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.json_schema.document import Location, escape
from agentkit.grammars.frontends.json_schema.evaluated import SeenItems, SeenKeys
from agentkit.grammars.frontends.json_schema.families import EVERYTHING, NOTHING, Family, cut, family_of, minus, refine
from agentkit.grammars.frontends.json_schema.scalars import ANY_STRING, STRING, Strings, strings_matching
from agentkit.grammars.frontends.json_schema.shapes import Array, Contains, Object, Shape
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type

if TYPE_CHECKING:
    from agentkit.grammars.frontends.json_schema.expand import Expander


def array_shape(x: Expander, at: Location) -> Shape | None:
    """prefixItems, items (a list too), additionalItems, min/maxItems, contains, uniqueItems."""
    schema, pointer = at.schema, at.pointer
    prefix, rest, every = _items(x, at)
    seen = SeenItems(every, len(prefix)) if x.tracking else None
    lo, hi = kw.count(schema, "minItems", pointer) or 0, kw.count(schema, "maxItems", pointer)
    some: tuple[Contains, ...] = ()
    if "contains" in schema and "contains" in x.scope:
        member = x.place(at, kw.subschema(schema["contains"], "contains", pointer), "/contains")
        if seen is not None and x.draft >= kw.DRAFT_2020:
            seen = seen._replace(types=(member,))
        least = kw.count(schema, "minContains", pointer) if "minContains" in x.scope else None
        most = kw.count(schema, "maxContains", pointer) if "maxContains" in x.scope else None
        least = 1 if least is None else least
        if most is not None and least > most:
            return None
        if least > 0 or most is not None:
            some = (Contains(member, least, most),)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        raise kw.malformed(pointer, "uniqueItems", unique, "true or false")
    if hi is not None and lo > hi:
        return None
    return Array(prefix, rest, lo, hi, some, unique, seen)


def _items(x: Expander, at: Location) -> tuple[tuple[Type, ...], Type, bool]:
    """The types of the first items and of the others, and whether a keyword has looked at those."""
    schema, pointer = at.schema, at.pointer
    items = schema.get("items", True)
    first, then = "prefixItems", "items"
    if isinstance(items, list):
        if "prefixItems" in schema and "prefixItems" in x.scope:
            raise InvalidGrammar(f"{pointer}: both prefixItems and a list of items; use prefixItems alone", pointer=f"{pointer}/items")
        first, then = "items", "additionalItems"
    prefix: tuple[Type, ...] = ()
    if first in schema and first in x.scope:
        listed = kw.subschemas(schema[first], first, pointer, empty=True)
        prefix = tuple(x.place(at, s, f"/{first}/{i}") for i, s in enumerate(listed))
    rest, every = TRUE, then in schema and (then in x.scope or first == "items")
    if every:
        rest = x.place(at, kw.subschema(schema[then], then, pointer), f"/{then}")
    return prefix, rest, every


def object_shape(x: Expander, at: Location) -> Shape | None:
    """properties, patternProperties, additionalProperties, propertyNames, required, min/maxProperties."""
    schema, pointer = at.schema, at.pointer
    fields: dict[str, Type] = {}
    for name, sub in kw.named_subschemas(schema.get("properties", {}), "properties", pointer).items():
        fields[name] = TRUE if sub is True else x.place(at, sub, "/properties/" + escape(name))
    additional = TRUE
    if "additionalProperties" in schema:
        additional = x.place(at, kw.subschema(schema["additionalProperties"], "additionalProperties", pointer), "/additionalProperties")
    extras: tuple[Family, ...] = EVERYTHING if additional is TRUE else NOTHING if additional is FALSE else (Family(ANY_STRING, additional),)
    if "patternProperties" in schema:
        extras = _patterns(x, at, fields, additional)
    if "propertyNames" in schema and "propertyNames" in x.scope:
        extras = _names(x, at, fields, extras)
    required = dict.fromkeys(kw.names(schema.get("required", []), "required", pointer))
    for name in required:
        if name not in fields:
            fields[name] = family_of(name, extras)
    lo, hi = kw.count(schema, "minProperties", pointer) or 0, kw.count(schema, "maxProperties", pointer)
    if (hi is not None and max(lo, len(required)) > hi) or any(fields[name] is FALSE for name in required):
        return None
    return Object(fields, frozenset(required), extras, lo, hi, seen=_seen_keys(schema, pointer) if x.tracking else None)


def _seen_keys(schema: dict[str, Any], pointer: str) -> SeenKeys:
    families = tuple(strings_matching(p, pointer) for p in schema.get("patternProperties", {}))
    return SeenKeys("additionalProperties" in schema, frozenset(schema.get("properties", {})), families)


def _patterns(x: Expander, at: Location, fields: dict[str, Type], additional: Type) -> tuple[Family, ...]:
    """Cuts the undeclared names by all patterns; a name under several patterns has to meet all their schemas."""
    patterns: list[tuple[Strings, Type]] = []
    for pattern, sub in kw.named_subschemas(at.schema["patternProperties"], "patternProperties", at.pointer).items():
        path = "/patternProperties/" + escape(pattern)
        patterns.append((strings_matching(pattern, at.pointer + path), x.place(at, sub, path)))
    for name in fields:
        for names, t in patterns:
            if names.contains(name):
                fields[name] = x.types.both(fields[name], t)
    pieces = cut(patterns, at.pointer, x.types.both)
    return refine([(names, additional if t is None else t) for names, t in pieces], fields)


def _names(x: Expander, at: Location, fields: dict[str, Type], extras: tuple[Family, ...]) -> tuple[Family, ...]:
    """propertyNames: keys outside the schema are forbidden."""
    pointer = at.pointer
    t = x.place(at, kw.subschema(at.schema["propertyNames"], "propertyNames", pointer), "/propertyNames")
    if t.busy:
        raise UnsupportedSchema(pointer, "propertyNames", "it refers back to the schema that it is part of")
    allowed = [s for s in x.expand(t) if s.kind == STRING and isinstance(s, Strings)]
    for name in fields:
        if not any(s.contains(name) for s in allowed):
            fields[name] = FALSE
    pieces: list[tuple[Strings, Type]] = []
    left: list[tuple[Strings, Type]] = [(f.names, f.type) for f in extras]
    for s in allowed:
        beyond: list[tuple[Strings, Type]] = []
        for names, kind in left:
            inside = names.intersect(s)
            if inside is not None:
                pieces.append((inside, kind))
            beyond += [(p, kind) for p in minus(names, s, pointer, "propertyNames")]
        left = beyond
    return refine([*pieces, *((names, FALSE) for names, _ in left)], fields)


def describe(schema: dict[str, Any], keywords: set[str]) -> str:
    """The binding keywords of a schema in one line, for messages about contradictions."""
    shown = [f"{k}: {_brief(v)}" for k, v in schema.items() if k in keywords]
    return ", ".join(shown[:6]) + (", ..." if len(shown) > 6 else "")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
