"""JSON Schemas of tools and outputs, as a model should see them and a grammar should enforce them.

Input: a Pydantic model or any type Pydantic understands. Output: a plain dict (JSON Schema 2020-12) in which
- objects with declared fields are closed (`additionalProperties: false`) unless the class asks for extras: Pydantic would
  drop undeclared keys after they were generated, so they are never generated;
- titles that only repeat names are left out: they cost prompt tokens and say nothing;
- references are resolved where that ends and stays small; recursive ones stay as `$ref` into `$defs`.
Knows nothing of functions, grammars or models.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

from agentkit.grammars.frontends.pydantic_schema import ReadableSchema, ValidatedSchema

__all__ = ["JSONSchema", "json_schema_of"]

JSONSchema = dict[str, Any]

_SMALL = 200  # characters: a definition of at most this size is repeated rather than referred to
_ANNOTATIONS = frozenset({"description", "default", "title", "examples", "deprecated", "readOnly", "writeOnly"})
_SCHEMA_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


class _Closed(ReadableSchema):
    """Pydantic's generator with closed objects and without automatic titles."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # declared so by Pydantic

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema), explicit_title=schema["cls"].model_config.get("title") is not None)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))


class _Exact(_Closed, ValidatedSchema):
    """The same, saying what validation checks beyond it: what a grammar enforces is then never refused afterwards."""


def _closed(schema: JsonSchemaValue, explicit_title: bool = False) -> JsonSchemaValue:
    if not explicit_title:
        schema.pop("title", None)
    if schema.get("type") == "object" and "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def json_schema_of(type_: Any, *, mode: JsonSchemaMode = "validation", exact: bool = False) -> JSONSchema:
    """JSON Schema of a type.

    Args:
        type_: a Pydantic model, or anything a `pydantic.TypeAdapter` takes.
        mode: "validation" (what is accepted) or "serialization".
        exact: as grammars should enforce it (formats and patterns that only our grammars know) rather than as models should see it.

    Raises:
        pydantic.errors.PydanticUserError: the type has no JSON Schema (a callable, for instance).
    """
    adapter = type_ if isinstance(type_, TypeAdapter) else TypeAdapter(type_)
    return _resolve(adapter.json_schema(by_alias=True, mode=mode, schema_generator=_Exact if exact else _Closed))


def subschemas(schema: Any) -> Iterator[tuple[Any, Any]]:
    """Each direct subschema as (container, key), so that it can be replaced in place."""
    for key in _SCHEMA_MAPS:
        if isinstance(schema.get(key), dict):
            yield from ((schema[key], name) for name in schema[key])
    for key in _SCHEMA_LISTS:
        if isinstance(schema.get(key), list):
            yield from ((schema[key], index) for index in range(len(schema[key])))
    for key in _SCHEMAS:
        if isinstance(schema.get(key), dict):
            yield schema, key


def _visit(schema: Any, see: Callable[[dict[str, Any]], None]) -> None:
    if isinstance(schema, dict):
        see(schema)
        for container, key in subschemas(schema):
            _visit(container[key], see)


def _references(schema: Any) -> Counter[str]:
    found: Counter[str] = Counter()

    def see(part: dict[str, Any]) -> None:
        if isinstance(part.get("$ref"), str):
            found[part["$ref"]] += 1

    _visit(schema, see)
    return found


def _recursive(definitions: dict[str, Any]) -> set[str]:
    """References that lead back to themselves."""
    edges = {f"#/$defs/{name}": set(_references(body)) for name, body in definitions.items()}
    reach = {name: set(targets) for name, targets in edges.items()}
    changed = True
    while changed:
        changed = False
        for name, targets in reach.items():
            wider = targets.union(*(reach.get(target, set()) for target in targets))
            if wider != targets:
                reach[name], changed = wider, True
    return {name for name, targets in reach.items() if name in targets}


def _resolve(schema: JSONSchema) -> JSONSchema:
    """Puts definitions in the place of references to them, and drops those that are then unused."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    if definitions:
        recursive = _recursive(definitions)
        uses = _references(schema)

        def inlined(reference: str) -> bool:
            body = definitions.get(reference.removeprefix("#/$defs/"))
            return body is not None and reference not in recursive and (uses[reference] == 1 or len(json.dumps(body, default=str)) <= _SMALL)

        schema = _inline(schema, definitions, inlined)
        if "$ref" in schema:  # a recursive root: its own keywords at the top, so that "type" can be read there
            body = copy.deepcopy(definitions[schema["$ref"].removeprefix("#/$defs/")])
            schema = {**body, **{key: value for key, value in schema.items() if key != "$ref"}}
        used = set(_references({key: value for key, value in schema.items() if key != "$defs"}))
        pending = list(used)
        while pending:  # what the kept definitions themselves refer to
            for reference in _references(schema["$defs"].get(pending.pop().removeprefix("#/$defs/"), {})):
                if reference not in used:
                    used.add(reference)
                    pending.append(reference)
        kept = {name: body for name, body in schema.pop("$defs").items() if f"#/$defs/{name}" in used}
        if kept:
            schema["$defs"] = kept
    _visit(schema, _drop_noise)
    return schema


def _drop_noise(part: dict[str, Any]) -> None:
    """`discriminator` is OpenAPI's, and points at definitions that may be gone; the title of an enum is its class's name."""
    part.pop("discriminator", None)
    if "enum" in part or "const" in part:
        part.pop("title", None)


def _inline(schema: Any, definitions: dict[str, Any], inlined: Callable[[str], bool]) -> Any:
    reference = schema.get("$ref")
    if isinstance(reference, str) and inlined(reference) and schema.keys() - {"$ref", "$defs"} <= _ANNOTATIONS:
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**copy.deepcopy(definitions[reference.removeprefix("#/$defs/")]), **beside}
        return _inline(schema, definitions, inlined)
    for container, key in subschemas(schema):
        if isinstance(container[key], dict):
            container[key] = _inline(container[key], definitions, inlined)
    return schema
