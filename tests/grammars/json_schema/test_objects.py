"""Objects: declared and undeclared names, required ones, counts, order, dependencies."""

from __future__ import annotations

import pytest

from agentkit.errors import UnsatisfiableSchema
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars.json_schema.oracle import check

INTEGER = {"type": "integer"}


def test_every_mix_of_optional_names_has_the_right_commas() -> None:
    schema = {"type": "object", "properties": dict.fromkeys("abc", INTEGER), "required": ["b"], "additionalProperties": False}
    check(schema, ['{"b":2}', '{"a":1,"b":2}', '{"b":2,"c":3}', '{"a":1,"b":2,"c":3}'], ['{"a":1}', "{}", '{"b":2,}', '{,"b":2}', '{"b":2,"b":2}'])
    check(schema, ['{"c":3,"b":2}', '{"c":1,"a":2,"b":3}'], ['{"c":1,"a":2}'], key_order="any")
    check(schema, ['{"a":1,"b":2}'], ['{"b":2,"a":1}'], key_order="declared")


def test_a_declared_name_never_passes_as_an_undeclared_one() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True}
    good = ["{}", '{"a":1}', '{"b":"x"}', '{"a":1,"b":null}', '{"aa":"x"}', '{"":1}']
    check(schema, good, ['{"a":"x"}', '{"b":1,"a":"x"}', '{"b":1,"b":2}'], key_order="any")


def test_a_required_name_that_is_not_declared_follows_the_rest() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"], "additionalProperties": {"type": "boolean"}}
    check(schema, ['{"a":1,"z":true}'], ['{"a":1}', '{"a":1,"z":"x"}', '{"z":true}'])
    check({"required": ["z"]}, ['{"z":1}', "1", "[]"], ["{}", '{"y":1}'])


def test_a_name_may_be_forbidden() -> None:
    check({"type": "object", "properties": {"a": False, "b": {"enum": []}}}, ["{}", '{"c":1}'], ['{"a":1}', '{"b":1}', '{"c":1,"a":1}'])


def test_odd_names() -> None:
    names = ["first name", "a.b", "naïve", 'q"t', "_id", "$type", "a\\b", "\n", ""]
    schema = {"type": "object", "properties": dict.fromkeys(names, INTEGER), "required": names, "additionalProperties": False}
    text = '{"first name":1,"a.b":1,"naïve":1,"q\\"t":1,"_id":1,"$type":1,"a\\\\b":1,"\\n":1,"":1}'
    check(schema, [text], [text.replace("naïve", "naive"), text.replace('"":1', '"":"1"')])


def test_counts_of_properties() -> None:
    check({"type": "object", "minProperties": 1, "maxProperties": 2}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":1,"b":2,"c":3}'])
    schema = {"type": "object", "properties": {"a": True, "b": True}, "minProperties": 2, "additionalProperties": False}
    check(schema, ['{"a":1,"b":2}'], ['{"a":1}', '{"b":1}'])


def test_white_space_around_members() -> None:
    schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "additionalProperties": False}
    good = ["{}", "{ }", '{"a": 1, "b": 2}', '{\n  "a": 1,\n  "b": 2\n}', '{ "a" : 1 , "b" : 2 }']
    check(schema, good, [' {"a":1}', '{"a":1} ', '{\n\n"a":1}', '{"a":' + " " * 41 + "1}"], whitespace="flexible")


def test_dependencies_in_all_spellings() -> None:
    good, bad = ["{}", '{"b":1}', '{"a":1,"b":2}', "1"], ['{"a":1}']
    check({"dependentRequired": {"a": ["b"]}}, good, bad, key_order="any")
    check({"dependencies": {"a": ["b"]}}, good, bad, key_order="any")
    check({"dependentSchemas": {"a": {"required": ["b"]}}}, good, bad, key_order="any")
    check({"dependencies": {"a": {"properties": {"b": INTEGER}}}}, ['{"b":"x"}', '{"a":1,"b":2}'], ['{"a":1,"b":"x"}'], key_order="any")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {}, "required": ["k"], "additionalProperties": False},
        {"properties": {"k": False}, "required": ["k"]},
        {"minProperties": 2, "maxProperties": 1},
        {"required": ["a", "b"], "maxProperties": 1},
        {"properties": {"a": True}, "additionalProperties": False, "minProperties": 2},
        {"properties": {"a": {"type": "object", "properties": {"b": {"minimum": 2, "maximum": 1, "type": "number"}}, "required": ["b"]}}, "required": ["a"]},
    ],
)
def test_objects_that_cannot_be(schema: dict[str, object]) -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({"type": "object", **schema})


def test_the_message_names_the_deepest_contradiction() -> None:
    inner = {"type": "number", "minimum": 2, "maximum": 1}
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": inner, "minItems": 1}}, "required": ["a"]}
    with pytest.raises(UnsatisfiableSchema, match="minimum: 2, maximum: 1") as caught:
        compile_schema(schema)
    assert caught.value.pointer == "#/properties/a/items"


def test_recursion_ends_or_is_unsatisfiable() -> None:
    node = {"type": "object", "properties": {"v": INTEGER, "next": {"$ref": "#/$defs/node"}}, "required": ["v"], "additionalProperties": False}
    check({"$ref": "#/$defs/node", "$defs": {"node": node}}, ['{"v":1}', '{"v":1,"next":{"v":2,"next":{"v":3}}}'], ['{"v":1,"next":{}}', '{"v":1,"next":1}'])
    endless = {**node, "required": ["v", "next"]}
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({"$ref": "#/$defs/node", "$defs": {"node": endless}})
    check({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}], "$defs": {"node": endless}}, ["null"], ['{"v":1}'])


def test_a_recursive_reference_with_neighbours_ends_too() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree", "required": ["name"]}}, "name": {"type": "string"}}}
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
    check(schema, ["{}", '{"kids":[{"name":"a"},{"kids":[{"name":"b"}],"name":"c"}]}'], ['{"kids":[{}]}'], key_order="any")
