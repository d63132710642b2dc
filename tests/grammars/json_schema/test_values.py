"""Types, constants, numbers and strings, and keywords that meet a type they say nothing about."""

from __future__ import annotations

import pytest

from agentkit.errors import InvalidGrammar, UnsatisfiableSchema
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars.json_schema.oracle import check


def test_the_empty_schema_is_any_json_value() -> None:
    good = ["null", "0", "-1.5", '"x"', "[]", "{}", '{"a":[1,{"b":null}]}', "[[[]]]", "true"]
    for schema in ({}, True, {"title": "anything"}, {"type": ["null", "boolean", "number", "string", "array", "object"]}):
        check(schema, good, ["tru", "{a:1}", "'x'", "[1,]", '{"a":1,}', "", "01", '{"a":1,"a":2}'])


def test_an_integer_may_have_a_zero_fraction() -> None:
    check({"type": "integer"}, ["1", "0", "-3", "1.0", "9007199254740993"], ["1.5", '"1"', "true", "null"])


def test_an_integer_of_draft_4_has_none() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}
    check(schema, ["1", "0", "-30"], ["1.0", "1.5", "01"])
    check({**schema, "maximum": 10}, ["1", "10", "-300"], ["1.0", "11"])
    check({**schema, "enum": [1, 2.5]}, ["1"], ["1.0", "2.5"])
    check({**schema, "type": ["integer", "number"]}, ["1", "1.0", "2.5"], ["null"])


def test_type_lists_and_keywords_of_other_types() -> None:
    check({"type": ["integer", "null"], "minimum": 3}, ["null", "3", "40"], ["2", '"3"', "[]"])
    check({"type": "array", "items": {"type": "integer"}, "minLength": 1}, ["[]", "[1]"], ['""', "[null]"])
    check({"minimum": 3}, ["3", '"a"', "[1]", "null"], ["2", "2.9"])
    check({"minLength": 2, "maxItems": 1}, ["1", '"ab"', "[1]", "{}"], ['"a"', "[1,2]"])


def test_both_spellings_of_exclusive_bounds() -> None:
    for schema in ({"exclusiveMinimum": 1, "type": "number"}, {"minimum": 1, "exclusiveMinimum": True, "type": "number"}):
        check(schema, ["1.001", "2"], ["1", "1.0", "0"])
    check({"type": "number", "maximum": 1, "exclusiveMaximum": False}, ["1", "0.5"], ["1.5"])


def test_bounds_beyond_64_bits_are_exact() -> None:
    schema = {"type": "integer", "minimum": 0, "maximum": 18446744073709551615}
    check(schema, ["0", "9223372036854775808", "18446744073709551615"], ["18446744073709551616", "-1", "99999999999999999999"])


def test_constants_compare_as_json_values() -> None:
    check({"enum": [1, True, "a", None]}, ["1", "1.0", "1.00", "true", '"a"', "null"], ["false", "0", '"b"', "1.5"])
    check({"const": 0}, ["0", "0.0"], ["false", "null", '""'])
    check({"enum": [1.5, -0.25, 1e-7, 1e21]}, ["1.5", "-0.25", "1e-07", "0.0000001", "1e+21", "1000000000000000000000"], ["1.25", "1"])
    nested = {"const": {"b": [1, {"a": None}], "a": "x"}}
    check(nested, ['{"b":[1,{"a":null}],"a":"x"}'], ['{"a":"x"}', '{"b":[1,{"a":0}],"a":"x"}', '{"a":"x","b":[1,{"a":null}]}'])
    check({"const": {"b": 1, "a": 2}}, ['{"b":1,"a":2}', '{"a":2,"b":1}'], ['{"b":1}'], key_order="any")
    check({"const": []}, ["[]"], ["[null]", "{}"])


def test_members_with_quotes_and_controls_come_out_escaped() -> None:
    schema = {"enum": ['say "hi"', "C:\\tmp", "a/b", "line\nbreak", "", "tab\there", "é"]}
    check(schema, ['"say \\"hi\\""', '"C:\\\\tmp"', '"a/b"', '"line\\nbreak"', '""', '"é"'], ['"say hi"', '"line\nbreak"', '"C:\\tmp"'])


def test_enum_is_filtered_by_its_neighbours() -> None:
    check({"enum": [1, 2, "a", 10], "maximum": 5}, ["1", "2", '"a"'], ["10"])
    check({"enum": [1, "a"], "type": "string"}, ['"a"'], ["1"])
    check({"enum": ["a", "b", "c"], "not": {"enum": ["b"]}}, ['"a"', '"c"'], ['"b"'])


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "#"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "#"),
        ({"enum": [1, 2], "type": "string"}, "#"),
        ({"enum": []}, "#"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#"),
        (False, "#"),
        ({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9}}, "required": ["a"]}, "#/properties/a"),
    ],
)
def test_contradictions_are_found_and_placed(schema: object, pointer: str) -> None:
    with pytest.raises(UnsatisfiableSchema) as caught:
        compile_schema(schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "int"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"minimum": "3"}, "#/minimum"),
        ({"maximum": float("nan")}, "#/maximum"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"minLength": -1}, "#/minLength"),
        ({"maxItems": 1.5}, "#/maxItems"),
        ({"type": "object", "minLength": "x"}, "#/minLength"),
        ({"enum": "abc"}, "#/enum"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a": 3}}, "#/properties/a"),
        ({"required": True}, "#/required"),
        ({"anyOf": []}, "#/anyOf"),
        ({"allOf": [3]}, "#/allOf/0"),
        ({"items": {"not": 1}}, "#/items/not"),
        ({"uniqueItems": "yes"}, "#/uniqueItems"),
        ({"additionalProperties": "no"}, "#/additionalProperties"),
        ([], "#"),
        ("{}", "#"),
    ],
)
def test_malformed_keywords_are_placed(schema: object, pointer: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compile_schema(schema)
    assert caught.value.pointer == pointer
