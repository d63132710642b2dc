"""allOf, anyOf, oneOf, not, if/then/else, unevaluated*: booleans act on values."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentkit.errors import GrammarTooComplex, GrammarViolation, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.cases.judge import BYTES
from tests.grammars.cfg.walks import random_text
from tests.grammars.json_schema.oracle import check, dump
from tests.grammars.reference import Reference, accepts

INTEGER = {"type": "integer"}


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": required} if required is not None else {})}


def test_all_branches_of_all_of_bind() -> None:
    schema = {"allOf": [obj(["a"], a=INTEGER), obj(["b"], b={"type": "string"})]}
    check(schema, ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}', '{"a":"1","b":"x"}', '{"a":1,"b":2}'])
    check({"$ref": "#/$defs/n", "maximum": 10, "$defs": {"n": {"type": "integer", "minimum": 1}}}, ["1", "10"], ["0", "11", '"5"'])
    check({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"}, ["6", "0", "-12"], ["2", "3"])
    closed = {**obj(a=INTEGER), "additionalProperties": False}
    check({"allOf": [closed, obj(["a"], b=INTEGER)]}, ['{"a":1}'], ['{"a":1,"b":2}', "{}"])


def test_any_of_is_union_and_keeps_its_neighbours() -> None:
    check({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}], "maximum": 5}, ['"a"', "3", "5"], ["2", "6", "null"])
    check({"anyOf": [obj(["a"]), obj(["b"])]}, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ["{}", '{"c":1}'])
    check({"anyOf": [False, {"type": "null"}]}, ["null"], ["1"])


def test_what_is_no_address_of_mail_in_anybodys_reading() -> None:
    mail = {"type": "string", "format": "email"}
    check({"type": "string", "not": mail}, ['"ab"', '""', '"a.de"'], ['"a@b.de"'])
    check({"type": "string", "not": {"not": mail}}, ['"a@b.de"'], ['"ab"'])
    check({"oneOf": [mail, {"type": "string", "minLength": 8}]}, ['"a@b.de"', '"abcdefgh"'], ['"abcdefgh@b.de"', '"ab"'])
    with pytest.raises(UnsupportedSchema, match="'date'"):
        compile_schema({"not": {"type": "string", "format": "date"}})


def test_one_of_means_exactly_one() -> None:
    ranges = [{"type": "integer", "minimum": 0, "maximum": 10}, {"type": "integer", "minimum": 5, "maximum": 20}]
    check({"oneOf": ranges}, ["0", "4", "11", "20"], ["5", "10", "21", "-1"])
    check({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1,"c":2}'], ["{}", '{"a":1,"b":1}'])
    check({"oneOf": [INTEGER, {"type": "number"}]}, ["1.5"], ["1", "1.0"])


def test_one_of_with_a_discriminator() -> None:
    kinds = [{**obj(["kind", name], kind={"const": name}, **{name: INTEGER}), "additionalProperties": False} for name in ("circle", "square", "line")]
    check({"oneOf": kinds}, ['{"kind":"circle","circle":1}', '{"kind":"line","line":2}'], ['{"kind":"circle","line":1}', '{"kind":"blob"}', '{"circle":1}'])


def test_one_of_closed_objects_that_overlap() -> None:
    a = {**obj(x=INTEGER, y=INTEGER), "additionalProperties": False}
    b = {**obj(x=INTEGER, z=INTEGER), "additionalProperties": False}
    check({"oneOf": [a, b]}, ['{"y":1}', '{"x":1,"y":1}', '{"z":1}'], ["{}", '{"x":1}', '{"y":1,"z":1}', '{"w":1}'], key_order="any")


def test_one_of_that_can_never_hold() -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({**obj(["r", "w", "h"], r=INTEGER, w=INTEGER, h=INTEGER), "oneOf": [{"required": ["r"]}, {"required": ["w", "h"]}]})
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({"oneOf": [True, {}]})


def test_not() -> None:
    check({"not": {"type": "integer"}}, ['"a"', "1.5", "null", "[]"], ["1", "1.0", "-3"])
    check({"not": {"not": INTEGER}}, ["1"], ["1.5", "null"])
    check({"type": "object", "not": {"required": ["a"]}}, ["{}", '{"b":1}'], ['{"a":1}'])
    check({"not": obj(["a"], a=INTEGER)}, ["{}", "1", '{"a":"x"}', '{"b":1}'], ['{"a":1}', '{"a":2,"b":1}'], key_order="any")
    check({"type": "array", "not": {"minItems": 2}}, ["[]", "[1]"], ["[1,2]"])
    check({"type": "object", "not": {"minProperties": 2}}, ["{}", '{"a":1}'], ['{"a":1,"b":1}'])
    check({"not": {"enum": [1, None, [1], {"a": 1}]}, "type": ["number", "null", "array"]}, ["2", "1.5", "[]", "[2]", "[1,1]"], ["1", "1.0", "null", "[1]"])


def test_not_of_a_closed_object() -> None:
    closed = {**obj(["a"], a=INTEGER), "additionalProperties": False}
    check({"type": "object", "not": closed}, ["{}", '{"a":"x"}', '{"a":1,"b":2}', '{"b":1}'], ['{"a":1}'], key_order="any")


SOME_UNDECLARED: list[dict[str, Any]] = [
    {"type": "object", "not": {"additionalProperties": {"type": "string"}}},
    {"type": "object", "properties": {"a": INTEGER}, "not": {"additionalProperties": {"type": "string"}, "properties": {"b": True}}},
    {"type": "object", "maxProperties": 2, "required": ["a"], "not": {"properties": {"a": {}}, "additionalProperties": {"type": "string"}}},
    {"type": "object", "not": {"patternProperties": {"^x": {"type": "string"}}}},
    {"type": "object", "additionalProperties": {"type": ["string", "integer"]}, "minProperties": 1, "not": {"additionalProperties": {"type": "string"}}},
    {"type": "object", "properties": dict.fromkeys("abcdefgh", INTEGER), "not": {"properties": dict.fromkeys("abcdefgh", True), "additionalProperties": False}},
    {
        "type": "object",
        "allOf": [{"not": {"additionalProperties": {"type": "string"}}}, {"not": {"additionalProperties": {"type": "string"}, "properties": {"a": {}}}}],
    },
]


@pytest.mark.parametrize("schema", SOME_UNDECLARED)
def test_some_undeclared_property_of_a_kind(schema: dict[str, Any]) -> None:
    """What the slow reference, the compiled masks and jsonschema say of the same objects."""
    compiled = compile_schema(schema, key_order="any")
    known, rng = Reference(compiled.program), random.Random(1)
    start = Grammar(compiled.program).matcher(BYTES)
    for _ in range(60):
        value = {rng.choice(["a", "b", "x", "xa", "h"]): rng.choice([1, "s", True]) for _ in range(rng.randint(0, 3))}
        valid = jsonschema.Draft202012Validator(schema).is_valid(value)
        text = dump(value).encode()
        assert accepts(known, text) == valid, value
        matcher = start.fork()
        try:
            matcher.accept_bytes(text)
        except GrammarViolation:
            assert not valid, value
        else:
            assert matcher.is_accepting == valid, value


@pytest.mark.parametrize("schema", SOME_UNDECLARED)
def test_some_undeclared_property_is_written_in_time(schema: dict[str, Any]) -> None:
    grammar = Grammar.from_json_schema(schema)
    for seed in range(3):
        value = json.loads(random_text(grammar, BYTES, np.random.default_rng(seed), 24))
        jsonschema.Draft202012Validator(schema).validate(value)


def test_a_complement_that_cannot_be_expressed_is_refused_by_name() -> None:
    several = [{"patternProperties": {"a": {"type": "integer"}}}, {"patternProperties": {"b": {"type": "string"}}}]
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema({"properties": {"p": {"allOf": [{"not": s} for s in several]}}})
    assert caught.value.keyword == "not"
    assert caught.value.pointer.startswith("#/properties/p")


def test_if_then_else() -> None:
    when = {"if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}, "else": {"properties": {"n": False}}}
    schema = {**obj(["k"], k={"enum": ["a", "b"]}, n=INTEGER), **when}
    check(schema, ['{"k":"a","n":1}', '{"k":"b"}'], ['{"k":"a"}', '{"k":"b","n":1}', "{}"])
    check({"if": {"type": "integer"}, "then": {"minimum": 3}}, ["3", '"a"', "1.5"], ["2"])
    check({"if": {"type": "integer"}}, ["3", "null"], [])
    check({"then": False}, ["1"], [])


def test_unevaluated_properties_see_through_branches() -> None:
    base = {"$ref": "#/$defs/base", "properties": {"b": INTEGER}, "unevaluatedProperties": False, "$defs": {"base": obj(["a"], a=INTEGER)}}
    check(base, ['{"a":1}', '{"a":1,"b":2}'], ['{"a":1,"c":2}', "{}"], key_order="any")
    either = {"type": "object", "anyOf": [obj(["a"], a=INTEGER), obj(["b"], b=INTEGER)], "unevaluatedProperties": False}
    check(either, ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ['{"a":1,"b":"x"}', '{"a":1,"c":1}'], key_order="any")
    check({"properties": {"a": True}, "unevaluatedProperties": INTEGER}, ['{"a":"x","b":1}', "null"], ['{"b":"x"}'], key_order="any")
    cousin = {"allOf": [{"properties": {"a": True}}, {"unevaluatedProperties": False}]}
    check(cousin, ["{}"], ['{"a":1}'])


def test_unevaluated_items() -> None:
    schema = {"prefixItems": [INTEGER], "allOf": [{"prefixItems": [True, INTEGER]}], "unevaluatedItems": False}
    check(schema, ["[]", "[1]", "[1,2]"], ["[1,2,3]", '[1,"a"]'])
    check({"contains": {"const": 1}, "unevaluatedItems": {"type": "string"}}, ["[1]", '["a",1,1]'], ["[1,2]", '["a"]'])
    old = {"$schema": "https://json-schema.org/draft/2019-09/schema", "contains": {"const": 1}, "unevaluatedItems": {"type": "string"}}
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({**old, "type": "array"})


def test_combinations_that_explode_end_in_a_typed_error() -> None:
    def one_of_two(i: int) -> dict[str, Any]:
        return {"anyOf": [{"properties": {f"p{i}": {"minimum": 1}}, "required": [f"q{i}"]}, {"properties": {f"r{i}": {"minimum": 2}}, "required": [f"s{i}"]}]}

    assert compile_schema({"type": "object", "allOf": [one_of_two(i) for i in range(4)]})
    branches = [one_of_two(i) for i in range(20)]
    with pytest.raises(GrammarTooComplex) as caught:
        compile_schema({"type": "object", "allOf": branches})
    assert caught.value.limit == "alternatives"


def test_nesting_is_bounded_by_a_typed_error() -> None:
    deep: dict[str, Any] = INTEGER
    for _ in range(5000):
        deep = {"type": "object", "properties": {"k": deep}, "required": ["k"], "additionalProperties": False}
    with pytest.raises(GrammarTooComplex):
        compile_schema(deep)
    inside: dict[str, Any] = INTEGER
    for _ in range(5000):
        inside = {"allOf": [inside]}
    with pytest.raises(GrammarTooComplex):
        compile_schema(inside)
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(GrammarTooComplex):
        compile_schema({"const": value})


def test_sixty_levels_compile_to_a_program_of_proportional_size() -> None:
    def nested(levels: int) -> int:
        deep: dict[str, Any] = INTEGER
        for _ in range(levels):
            deep = {"type": "object", "properties": {"k": deep}, "required": ["k"], "additionalProperties": False}
        return len(compile_schema(deep).program.code)

    assert nested(60) - nested(50) == nested(50) - nested(40)


def test_many_conditions_on_one_property_stay_as_few_as_its_values() -> None:
    """A tagged union written as conditions: twenty of them combine in 2**20 ways, of which twenty can hold."""
    tags = [f"t{i}" for i in range(20)]
    branches = [{"if": {"properties": {"tag": {"const": t}}}, "then": {"properties": {t: INTEGER}, "required": [t]}} for t in tags]
    schema = {"type": "object", "properties": {"tag": {"enum": tags}}, "required": ["tag"], "allOf": branches}
    check(
        schema,
        ['{"tag":"t0","t0":1}', '{"tag":"t19","t19":1,"t3":"x"}'],
        ['{"tag":"t0"}', '{"tag":"t0","t1":1}', '{"tag":"t19","t19":"x"}', '{"tag":"t20","t20":1}', '{"t0":1}'],
    )


def test_many_dependencies_on_one_property_stay_few() -> None:
    names = [f"n{i}" for i in range(24)]
    for keyword, then in (
        ("dependencies", {"properties": {"kind": {"const": "a"}}}),
        ("dependentSchemas", {"required": ["kind"]}),
        ("dependentRequired", ["kind"]),
    ):
        schema = {**obj(None, kind={"enum": ["a", "b"]}), keyword: dict.fromkeys(names, then)}
        bad = ['{"kind":"b","n3":1}'] if keyword == "dependencies" else ['{"n3":1}', '{"n0":1,"n1":2}']
        check(schema, ["{}", '{"kind":"b"}', '{"kind":"a","n0":1,"n23":2}'], ['{"kind":"c"}', *bad])
        evaluated = {**schema, "unevaluatedProperties": False}
        if keyword == "dependentSchemas":  # `required` evaluates nothing
            check({**evaluated, keyword: {"n0": {"properties": {"n0": True}, "required": ["kind"]}}}, ['{"kind":"a","n0":1}'], ['{"n0":1}', '{"n1":1}'])
