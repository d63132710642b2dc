"""Arrays: tuples, lengths, contains, uniqueItems."""

from __future__ import annotations

import pytest

from agentkit.errors import UnsatisfiableSchema
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars.json_schema.oracle import check

INTEGER = {"type": "integer"}


def test_lengths() -> None:
    check({"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}, ["[1]", "[1,2]", "[1,2,3]"], ["[]", "[1,2,3,4]", '["a"]', "[1,]", "[,1]"])
    check({"type": "array", "maxItems": 0}, ["[]"], ["[1]"])


def test_tuples_open_closed_and_optional() -> None:
    pair = [INTEGER, {"type": "string"}]
    check({"type": "array", "prefixItems": pair}, ["[]", "[1]", '[1,"a"]', '[1,"a",null]'], ["[null]", "[1,2]"])
    check({"type": "array", "prefixItems": pair, "items": False, "minItems": 2}, ['[1,"a"]'], ["[1]", '[1,"a",0]', "[]", '["a",1]'])
    check({"type": "array", "items": pair, "additionalItems": {"type": "null"}}, ["[]", '[1,"a",null,null]'], ['[1,"a",2]'])
    check({"type": "array", "prefixItems": [INTEGER, False]}, ["[]", "[1]"], ["[1,2]"])


def test_contains_with_counts() -> None:
    check({"type": "array", "contains": {"const": 1}}, ["[1]", "[2,1]", "[1,1,2]"], ["[]", "[2]"])
    schema = {"type": "array", "items": INTEGER, "contains": {"const": 1}, "minContains": 2, "maxContains": 3, "maxItems": 5}
    check(schema, ["[1,1]", "[2,1,3,1]", "[1,1,1,2,2]"], ["[1]", "[1,1,1,1]", "[1,1,2,2,2,2]", '[1,1,"a"]'])
    check({"type": "array", "contains": INTEGER, "minContains": 0}, ["[]", '["a"]'], ["{}"])


def test_contains_in_the_negative() -> None:
    check({"type": "array", "not": {"contains": {"const": 1}}}, ["[]", "[2,3]"], ["[1]", "[2,1]"])
    check({"type": "array", "not": {"items": INTEGER}}, ['["a"]', '[1,"a",2]'], ["[]", "[1,2]"])


def test_different_strings() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1, "maxItems": 3}
    check(schema, ['["a"]', '["a","b"]', '["","a","aa"]'], ["[]", '["a","a"]', '["a","b","a"]', '["a","b","c","d"]', '["a",]'])
    few = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}
    check(few, ["[]", '["b","a"]', '["a"]'], ['["a","a"]', '["c"]'])
    check(few, ['[ "b",\n "a" ]', "[ ]"], ['["a","b","a"]'], whitespace="flexible")


def test_different_constants() -> None:
    schema = {"type": "array", "items": {"enum": [1, True, "a", None]}, "uniqueItems": True, "minItems": 2}
    check(schema, ["[1,true]", '["a",null,1,true]', "[true,1]"], ["[1]", "[1,1]", "[1,1.0]", '["a","a"]', "[false,1]"])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"items": {"type": "integer", "minimum": 0, "maximum": 5}}, ["[]", "[5,0,3]", "[0,1,2,3,4,5]"], ["[1,1]", "[6]", "[0,1,2,3,4,5,0]"]),
        ({"items": {"type": "integer", "minimum": 1, "maximum": 40}, "maxItems": 2}, ["[7,40]", "[1]"], ["[7,7]", "[1,2,3]"]),
        ({"prefixItems": [{"type": "boolean"}, {"enum": [True, 1, 0]}], "items": False}, ["[true,1]", "[false,true]"], ["[true,true]", "[true,1.0,0]"]),
        ({"prefixItems": [{"type": "boolean"}], "items": {"enum": [True, 2]}, "minItems": 2}, ["[false,2,true]", "[true,2]"], ["[true,true]", "[false]"]),
    ],
)
def test_different_constants_of_ranges_and_tuples(schema: dict[str, object], good: list[str], bad: list[str]) -> None:
    check({"type": "array", "uniqueItems": True, **schema}, good, bad)


@pytest.mark.parametrize(
    "schema",
    [
        {"prefixItems": [INTEGER], "items": False, "minItems": 2},
        {"minItems": 3, "maxItems": 2},
        {"items": {"enum": []}, "minItems": 1},
        {"contains": INTEGER, "items": {"type": "string"}},
        {"items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 3},
        {"contains": INTEGER, "minContains": 3, "maxItems": 2},
    ],
)
def test_arrays_that_cannot_be(schema: dict[str, object]) -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_schema({"type": "array", **schema})


def test_white_space_belongs_between_tokens_only() -> None:
    schema = {"type": "array", "items": INTEGER}
    good = ["[]", "[ ]", "[\n]", "[1, 2]", "[ 1 ,2 ]", "[\n  1,\n  2\n]", "[1,\t2]", "[\r\n1]"]
    check(schema, good, [" []", "[] ", "[\n\n1]", "[1" + " " * 41 + "]", "[\n]\n"], whitespace="flexible")
    check(schema, ["[]", "[1,2]"], ["[ ]", "[1, 2]"], whitespace="compact")
    check(schema, ["[" + " " * 40 + "\n" + " " * 40 + "1]"], ["[" + " " * 40 + "\n" + " " * 41 + "1]"], whitespace="flexible")
