"""What is asked for as a constraint, and the grammar and value that it stands for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from agentkit.engine.constraint import resolve
from agentkit.errors import InvalidGrammar
from tests.cases.judge import accepts

GBNF = 'root ::= "a" digits\ndigits ::= [0-9]+'
LARK = 'start: "a" DIGITS | "root ::= x"\nDIGITS: /[0-9]+/  // name ::= is no rule here'


@pytest.mark.parametrize("text", [GBNF, LARK, "# a comment\n\n" + GBNF, GBNF.replace(" ::=", "\n  ::=")], ids=["gbnf", "lark", "comment", "broken line"])
def test_a_grammar_is_gbnf_where_it_has_a_rule_of_it(text: str) -> None:
    made = resolve(grammar=text)
    assert made is not None
    assert accepts(made.grammar, "a12")
    assert not accepts(made.grammar, "a")


@pytest.mark.parametrize("text", ["root ::= (", "start: (", ""], ids=["gbnf", "lark", "empty"])
def test_a_malformed_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidGrammar):
        resolve(grammar=text)


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"const": 5.0}, {"enum": [5, 6.0]}, int], ids=str)
def test_an_integer_is_read_as_one(schema: Any) -> None:
    made = resolve(schema=schema)
    assert made is not None
    assert accepts(made.grammar, "5")
    assert not accepts(made.grammar, "5.0")
    assert made.parse is not None
    assert type(made.parse("5")) is int
    assert type(json.loads("5.0")) is float  # what a spelling with a fraction would have been


class City(BaseModel):
    name: str


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (City(name="Rome"), "the schema is an instance of City; give the class or type itself, not an instance"),
        (Point(1), "the schema is an instance of Point; give the class or type itself, not an instance"),
        (5, "the schema is an instance of int; give the class or type itself, not an instance"),
        (lambda x: x, "the schema is the function <lambda>; give a type"),
        (len, "the schema is the function len; give a type"),
        ([int, str], "the schema is a list of types; write alternatives as a union, such as int | str"),
    ],
    ids=["model", "dataclass", "number", "lambda", "built-in", "list"],
)
def test_what_is_no_type_is_refused_in_a_line(schema: Any, message: str) -> None:
    with pytest.raises(InvalidGrammar) as raised:
        resolve(schema=schema)
    assert str(raised.value) == message


@pytest.mark.parametrize("schema", [City | None, TypeAdapter(City), list[City]], ids=["union", "adapter", "list"])
def test_what_is_made_of_types_is_one(schema: Any) -> None:
    made = resolve(schema=schema)
    assert made is not None
    assert made.parse is not None
    assert made.parse('[{"name":"Rome"}]' if schema == list[City] else '{"name":"Rome"}') in (City(name="Rome"), [City(name="Rome")])
