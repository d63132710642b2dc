"""Places in a JSON Schema document and the references between them.

Input: the schema as parsed JSON. A `Location` is one schema in it, with the JSON pointer that messages name and the
resource (`$id`) that its references are relative to, and the resources that evaluation has come through as far as dynamic
references can tell (`scope`, outermost first). This module resolves `$ref`, `$id`, `$anchor` and the dynamic
references as far as one document decides them; it knows nothing of what the other keywords mean, and never fetches.
Spec: JSON Schema 2020-12 core, sections 8 and 9; RFC 6901 (pointers); RFC 3986 (URIs).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin

from agentkit.errors import InvalidGrammar, UnsupportedSchema
from agentkit.grammars.frontends.json_schema.keywords import DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020, KEYED_SUBSCHEMAS, SUBSCHEMAS
from agentkit.grammars.frontends.json_schema.metaschemas import metaschema

_DRAFTS = {"04": DRAFT_4, "06": DRAFT_6, "07": DRAFT_7, "2019-09": DRAFT_2019, "2020-12": DRAFT_2020}


@dataclass(eq=False, slots=True)
class Resource:
    """A schema with an identity of its own: the document, or a part of it that carries `$id`."""

    uri: str
    schema: Any
    pointer: str
    anchors: dict[str, Location] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Location:
    """One schema of the document: its JSON, its pointer from the document's root, its resource, and its dynamic scope."""

    schema: Any
    pointer: str
    resource: Resource
    scope: tuple[Resource, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Equal for locations that mean the same: the schema, and the dynamic scope where that matters (else the resource)."""
        return id(self.schema), id(self.scope or self.resource)


def escape(segment: str) -> str:
    """One segment of a JSON pointer (RFC 6901). Raises InvalidGrammar for a key that JSON does not have."""
    if not isinstance(segment, str):
        raise InvalidGrammar(f"#: {segment!r} is a key of an object in the schema; in JSON keys are strings", pointer="#")
    return segment.replace("~", "~0").replace("/", "~1") if "~" in segment or "/" in segment else segment


class Document:
    """A schema document.

    Raises InvalidGrammar for references that lead nowhere, UnsupportedSchema for those that leave the document.
    """

    def __init__(self, schema: Any) -> None:
        self.draft, self.declared = _draft_of(schema)
        self._id = "id" if self.draft == DRAFT_4 else "$id"
        uri = _identity(schema, self._id)
        self.root = Location(schema, "#", Resource(uri.partition("#")[0] if uri else "", schema, "#"))
        self._resources: dict[str, Resource] | None = None
        self._has_dynamic = False
        self._scopes: dict[tuple[Resource, ...], tuple[Resource, ...]] = {}
        self._by_schema: dict[int, Resource] = {id(schema): self.root.resource}

    def child(self, at: Location, schema: Any, path: str) -> Location:
        """The subschema found at `path` (escaped pointer segments with a leading slash) below `at`."""
        resource = at.resource
        if isinstance(schema, dict) and self._id in schema:
            resource = self._resource(schema, at.pointer + path, resource)
            if resource is not at.resource:
                return Location(schema, at.pointer + path, resource, self._enter(at.scope, at.resource, resource))
        return Location(schema, at.pointer + path, resource, at.scope)

    def _enter(self, scope: tuple[Resource, ...], old: Resource, new: Resource) -> tuple[Resource, ...]:
        """The dynamic scope after going from one resource to another; () as long as no dynamic reference could tell."""
        self._index()
        if not self._has_dynamic:
            return ()
        grown = tuple(dict.fromkeys((*(scope or (old,)), new)))
        return self._scopes.setdefault(grown, grown)

    def resolve(self, ref: Any, at: Location, keyword: str = "$ref") -> Location:
        """Where a reference leads.

        Raises:
            InvalidGrammar: not a string, or nothing is there.
            UnsupportedSchema: it leads out of the document.
        """
        if not isinstance(ref, str):
            raise InvalidGrammar(f"{at.pointer}/{keyword}: a reference is a string, not {ref!r}", pointer=at.pointer)
        target = self._lookup(ref, at, keyword)
        if keyword != "$ref":
            target = self._dynamic(ref, at, keyword, target)
        scope = at.scope if target.resource is at.resource else self._enter(at.scope, at.resource, target.resource)
        return Location(target.schema, target.pointer, target.resource, scope)

    def _lookup(self, ref: str, at: Location, keyword: str) -> Location:
        uri, _, fragment = ref.partition("#")
        resource = at.resource
        if uri:
            absolute = _joined(resource.uri, uri, f"{at.pointer}/{keyword}")
            found = self._index().get(absolute)
            if found is None:
                raise UnsupportedSchema(at.pointer, keyword, f"{ref!r} leads out of the document; embed its target under $defs, for nothing is fetched")
            resource = found
        if not fragment:
            return Location(resource.schema, resource.pointer, resource)
        if fragment[0] == "/":
            return self._walk(resource, fragment, ref, at)
        self._index()
        name = unquote(fragment)
        if name not in resource.anchors:
            raise _dangling(ref, at)
        return resource.anchors[name]

    def _walk(self, resource: Resource, fragment: str, ref: str, at: Location) -> Location:
        here, pointer, value = resource, resource.pointer, resource.schema
        for raw in fragment.split("/")[1:]:
            segment = unquote(raw).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and segment in value:
                value = value[segment]
            elif isinstance(value, list) and segment.isascii() and segment.isdecimal() and int(segment) < len(value) and str(int(segment)) == segment:
                value = value[int(segment)]
            else:
                raise _dangling(ref, at)
            pointer += "/" + escape(segment)
            if isinstance(value, dict) and self._id in value:
                here = self._resource(value, pointer, here)
        if not isinstance(value, (dict, bool)):
            raise InvalidGrammar(f"{at.pointer}/$ref: {ref!r} leads to {type(value).__name__}, which is no schema", pointer=at.pointer)
        return Location(value, pointer, here)

    def _dynamic(self, ref: str, at: Location, keyword: str, target: Location) -> Location:
        """The outermost resource of the dynamic scope that offers the same dynamic anchor, if the plain target is one."""
        self._index()
        name = "" if keyword == "$recursiveRef" else ref.partition("#")[2]
        if name not in target.resource.dynamic:
            return target
        outermost = next((r for r in at.scope or (at.resource,) if name in r.dynamic), target.resource)
        return outermost.anchors[name] if name else Location(outermost.schema, outermost.pointer, outermost)

    def _resource(self, schema: dict[str, Any], pointer: str, parent: Resource) -> Resource:
        known = self._by_schema.get(id(schema))
        if known is not None:
            return known
        uri = _identity(schema, self._id)
        if uri is None or uri.startswith("#") or ("$ref" in schema and self.draft <= DRAFT_7):
            return parent
        made = Resource(_joined(parent.uri, uri, f"{pointer}/{self._id}").partition("#")[0], schema, pointer)
        self._by_schema[id(schema)] = made
        return made

    def _index(self) -> dict[str, Resource]:
        """All resources by URI, with their anchors; one pass over the document, made when first needed."""
        if self._resources is not None:
            return self._resources
        root = self.root.resource
        table = {root.uri: root}
        stack: list[tuple[Any, str, Resource, bool]] = [(root.schema, "#", root, False)]
        seen: set[tuple[int, bool]] = set()  # Python objects may stand at many places of a document, even within themselves
        while stack:
            value, pointer, resource, named = stack.pop()
            if (id(value), named) in seen:
                continue
            seen.add((id(value), named))
            if isinstance(value, list):
                stack.extend((v, f"{pointer}/{i}", resource, False) for i, v in enumerate(value))
            elif isinstance(value, dict):
                if not named:
                    resource = self._resource(value, pointer, resource) if self._id in value else resource
                    table.setdefault(resource.uri, resource)
                    self._note_anchors(value, pointer, resource)
                    self._has_dynamic |= "$dynamicRef" in value or "$recursiveRef" in value
                    self._add_metaschema(value.get("$ref"), Location(value, pointer, resource), table, stack)
                for key, sub in value.items():
                    if isinstance(sub, (dict, list)) and (named or key in SUBSCHEMAS or key in KEYED_SUBSCHEMAS):
                        stack.append((sub, f"{pointer}/{escape(key)}", resource, not named and key in KEYED_SUBSCHEMAS))
        self._resources = table
        return table

    def _add_metaschema(self, ref: Any, at: Location, table: dict[str, Resource], stack: list[tuple[Any, str, Resource, bool]]) -> None:
        """The meta-schema that a reference leads to belongs to the document as if it were embedded."""
        if not isinstance(ref, str) or ref.startswith("#"):
            return
        uri = _joined(at.resource.uri, ref, f"{at.pointer}/$ref").partition("#")[0]
        found = metaschema(uri)
        if found is not None and id(found) not in self._by_schema:
            made = table[uri] = self._by_schema[id(found)] = Resource(uri, found, uri + "#")
            stack.append((found, made.pointer, made, False))

    def _note_anchors(self, schema: dict[str, Any], pointer: str, resource: Resource) -> None:
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                resource.anchors.setdefault(name, Location(schema, pointer, resource))
                if keyword == "$dynamicAnchor":
                    resource.dynamic.add(name)
        if schema is resource.schema and schema.get("$recursiveAnchor") is True:
            resource.dynamic.add("")
        own = schema.get(self._id)
        if self.draft <= DRAFT_7 and isinstance(own, str) and "#" in own and own[-1] != "#":
            resource.anchors.setdefault(own.partition("#")[2], Location(schema, pointer, resource))


def _identity(schema: Any, keyword: str) -> str | None:
    value = schema.get(keyword) if isinstance(schema, dict) else None
    return value if isinstance(value, str) else None


def _joined(base: str, uri: str, pointer: str) -> str:
    """`uri`, found at `pointer`, as seen from `base`."""
    try:
        return urljoin(base, uri)
    except ValueError as error:
        raise InvalidGrammar(f"{pointer}: {uri!r} below {base!r} is no URI: {error}", pointer=pointer) from error


def _dangling(ref: str, at: Location) -> InvalidGrammar:
    return InvalidGrammar(f"{at.pointer}: the reference {ref!r} leads nowhere; add its target to the schema", pointer=at.pointer)


def _draft_of(schema: Any) -> tuple[int, bool]:
    """The draft that `$schema` names, and whether it names one; without one the newest, old spellings understood."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if name is None:
        return DRAFT_2020, False
    if not isinstance(name, str):
        raise InvalidGrammar(f"#/$schema: a URI is a string, not {name!r}", pointer="#/$schema")
    if "json-schema.org/" not in name:
        return DRAFT_2020, False
    for mark, draft in _DRAFTS.items():
        if f"draft-{mark}/" in name or f"draft/{mark}/" in name:
            return draft, True
    if "draft-" in name:
        raise UnsupportedSchema("#", "$schema", f"{name!r} is older than draft-04; its keywords mean something else")
    return DRAFT_2020, False
