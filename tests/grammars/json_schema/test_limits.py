"""Hostile and huge schemas: a grammar, or a typed error that names the limit; never a crash, and no blow-up of time."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar
from agentkit.grammars import Grammar


def nested(n: int, wrap: str) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(n):
        schema = {wrap: {"a": schema}} if wrap == "properties" else {wrap: [schema] if wrap == "allOf" else schema}
    return schema


def chain(n: int, body: Any) -> Any:
    """d0 is a string; every further definition is `body` of two references to the one before."""
    defs = {"d0": {"type": "string"}}
    for i in range(1, n):
        defs[f"d{i}"] = body({"$ref": f"#/$defs/d{i - 1}"})
    return {"$defs": defs, "$ref": f"#/$defs/d{n - 1}"}


def product(n: int) -> Any:
    return {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(3)]} for i in range(n)]}


HUGE: dict[str, Any] = {
    "deep objects": nested(400, "properties"),
    "chain of allOf": chain(60, lambda r: {"allOf": [r, r]}),
    "chain of properties": chain(400, lambda r: {"properties": {"a": r, "b": r}}),
    "chain of references": chain(3000, lambda r: r),
    "enum of strings": {"enum": [f"value-{i}" for i in range(100_000)]},
    "enum of integers": {"enum": list(range(10_000))},
    "enum of objects": {"enum": [{"a": i} for i in range(3000)]},
    "enum left out": {"type": "string", "not": {"enum": [f"value-{i}" for i in range(100_000)]}},
    "constants": {"oneOf": [{"const": f"v{i}"} for i in range(3000)]},
    "tagged": {"oneOf": [{"type": "object", "properties": {"t": {"const": i}}, "required": ["t"]} for i in range(1000)]},
    "properties": {"properties": {f"p{i}": {"type": "string"} for i in range(10_000)}, "required": [f"p{i}" for i in range(0, 10_000, 2)]},
    "counts": {"minLength": 10**9, "maxLength": 10**12, "maxItems": 2**31, "maxProperties": 2**40},
    "repeats": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "nested stars": {"type": "string", "pattern": "^(a+)+$"},
}

LIMITED: list[tuple[str, Any]] = [
    ("nesting", nested(5000, "properties")),
    ("nesting", nested(100_000, "properties")),
    ("nesting", nested(100_000, "not")),
    ("nesting", nested(5000, "allOf")),
    ("alternatives", product(30)),
    ("key families", {"patternProperties": {c: {"type": "string"} for c in "abcdefgh"}}),
    ("array states", {"contains": {"type": "integer"}, "minContains": 3000, "maxContains": 5000, "minItems": 4000}),
    ("number digits", {"minimum": 10**5000}),
    ("number digits", {"enum": [10**5000]}),
    ("multipleOf remainders", {"type": "integer", "multipleOf": 1_000_003}),
    ("count", {"type": "string", "minLength": 2**40}),
    ("nesting", {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000}),
]


@pytest.mark.parametrize("name", HUGE)
def test_huge_schemas_compile(name: str) -> None:
    Grammar.from_json_schema(HUGE[name])


@pytest.mark.parametrize(("limit", "schema"), [pytest.param(*case, id=f"{i}-{case[0]}") for i, case in enumerate(LIMITED)])
def test_limits_have_names(limit: str, schema: Any) -> None:
    with pytest.raises(GrammarTooComplex) as caught:
        Grammar.from_json_schema(schema)
    assert caught.value.limit == limit


def test_python_objects_that_contain_themselves() -> None:
    """They are no JSON, but a schema built in Python may be one: it means the recursion that it looks like."""
    tree: dict[str, Any] = {"type": "object"}
    tree["properties"] = {"child": tree, "other": {"$ref": "#"}}
    Grammar.from_json_schema(tree)
    endless: dict[str, Any] = {}
    endless["allOf"] = [endless]
    with pytest.raises(InvalidGrammar):
        Grammar.from_json_schema(endless)
