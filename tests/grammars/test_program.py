"""Programs of builders that begin with common nodes."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit.grammars import expr
from agentkit.grammars.expr import Builder, Extra, Field, Node, Program
from agentkit.grammars.frontends.json_schema.beginning import beginning
from agentkit.grammars.frontends.json_schema.compile import compile_schema, schema_node
from agentkit.grammars.frontends.json_schema.emit import Style
from tests.grammars.reference import Reference, accepts

SCHEMAS: list[Any] = [
    True,
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#"}}, "required": ["a"]},
    {"type": "array", "items": {"enum": ["x", 1, None]}, "maxItems": 3},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
]
TEXTS = [
    b"true",
    b'"a"',
    b"0",
    b"-1",
    b'{"a":1}',
    b'{"a":1,"b":{"a":2}}',
    b'["x",1,null]',
    b"[2]",
    b'{"k":true}',
    b'{"k":1}',
    b'{"x":[1,{"y":"z"}]}',
    b"{}",
    b"[]",
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_beginning_changes_no_language(schema: Any) -> None:
    bare = Builder()
    plain = Reference(bare.program(schema_node(bare, schema)[0]))
    begun = Reference(compile_schema(schema).program)
    for text in TEXTS:
        assert accepts(plain, text) == accepts(begun, text), text


def test_a_program_holds_only_what_it_reaches() -> None:
    common = beginning(Style())
    builder = Builder(common)
    program = builder.program(builder.seq(builder.literal(b"a"), builder.literal(b"b")))
    assert len(program.starts) == 1
    assert len(program.rules) == 0
    assert len(common.nodes) > 50


def test_rules_of_a_beginning_and_of_its_own_are_numbered_apart() -> None:
    first = Builder()
    lists = first.rule()
    body = first.alt(first.literal(b"x"), first.seq(first.literal(b"["), first.call(lists), first.literal(b"]")))
    first.define(lists, body)
    first.literal(b"never asked for")

    builder = Builder(first.beginning())
    own = builder.rule()
    builder.define(own, builder.alt(builder.call(lists), builder.seq(builder.literal(b"("), builder.call(own), builder.literal(b")"))))
    known = Reference(builder.program(builder.call(own)))
    assert len(known.program.rules) == 2
    assert all(accepts(known, text) for text in (b"x", b"[x]", b"([[x]])"))
    assert not any(accepts(known, text) for text in (b"[(x)]", b"()", b"(x"))


def every_operator(builder: Builder) -> list[Node]:
    """A node of each kind, over others."""
    a, digit = builder.literal(b"a"), builder.byte_class(b"0123456789")
    many = builder.repeat(digit, 2, 5)
    fields, extras = [Field(b"k", digit, True), Field(b"a", a)], [Extra(builder.repeat(digit, 1), many)]
    cut = builder.both(many, builder.complement(builder.literal(b"123")))
    inside = builder.members(fields, extras, order=expr.ANY)
    texts = builder.trie([b"one", b"two", b"three"])
    return [a, digit, many, builder.seq(a, many, digit), builder.alt(a, many), builder.both(many, builder.repeat(digit, 3)), cut, texts, inside]


def same(one: Program, other: Program, texts: list[bytes]) -> None:
    left, right = Reference(one), Reference(other)
    assert [accepts(left, t) for t in texts] == [accepts(right, t) for t in texts]


@pytest.mark.parametrize("kind", range(9))
def test_each_operator_is_cut_out_of_a_beginning(kind: int) -> None:
    first, bare = Builder(), Builder()
    nodes = every_operator(first)
    builder = Builder(first.beginning())
    texts = [b"a", b"7", b"12", b"123", b"1234", b"a127", b"a12", b"two", b"tw", b'k":1}', b'a":a,"k":2}', b'k":1,"5":12}', b'k":1,"5":1}']
    same(builder.program(nodes[kind]), bare.program(every_operator(bare)[kind]), texts)
    wrapped = builder.program(builder.alt(nodes[kind], builder.literal(b"own")))
    assert accepts(wrapped, b"own")
    same(wrapped, bare.program(bare.alt(every_operator(bare)[kind], bare.literal(b"own"))), texts)
