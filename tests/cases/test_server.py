"""The bank's server cases: they wait for the server. What a server will rest on, the grammars, is held to them already.

Where a case wants an answer of 400, the grammar must refuse with a typed error and in bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from agentkit import errors, grammars
from agentkit.grammars import Grammar
from agentkit.grammars.settings import settings
from tests.cases.bank import CASES, Statement, of_kind, statement_id, statements
from tests.cases.judge import BYTES, accepts
from tests.cases.manifest import LATER


@pytest.mark.parametrize("statement", statements(of_kind("server", "behaviour")), ids=statement_id)
def test_statement_waits_for_the_server(statement: Statement) -> None:
    assert LATER[statement].feature == "server"


def request_of(case_id: str) -> dict[str, Any]:
    request: dict[str, Any] = CASES[case_id]["input"]["request"]
    return request


def test_a_bad_pattern_is_refused_at_its_place() -> None:
    """Case srv-bad-regex."""
    pattern = request_of("srv-bad-regex")["structured_outputs"]["regex"]
    with pytest.raises(errors.InvalidGrammar) as caught:
        Grammar.from_regex(pattern)
    assert caught.value.position == pattern.index("**") + 1
    assert str(caught.value.position) in str(caught.value)


def test_a_pattern_that_cannot_be_enforced_stops_the_schema() -> None:
    """Case srv-fail-open: no grammar comes out that has lost the pattern."""
    schema = request_of("srv-fail-open")["response_format"]["json_schema"]["schema"]
    with pytest.raises((errors.InvalidGrammar, errors.UnsupportedSchema)) as caught:
        Grammar.from_json_schema(schema)
    assert "#/pattern" in str(caught.value)


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Grammar.from_json_schema(nested(5000, lambda s: {"type": "object", "properties": {"k": s}, "required": ["k"]})), id="properties"),
        pytest.param(lambda: Grammar.from_json_schema(nested(5000, lambda s: {"anyOf": [s, {"type": "null"}]})), id="anyOf"),
        pytest.param(lambda: Grammar.from_regex("(" * 50_000), id="pattern"),
        pytest.param(lambda: Grammar.from_json_schema({"type": "string", "pattern": "(" * 50_000}), id="pattern in a schema"),
    ],
)
def test_deep_nesting_is_refused_by_a_limit(make: Callable[[], Grammar]) -> None:
    """Case srv-deep-json: the schema's and the pattern's part of it."""
    start = time.thread_time()
    with pytest.raises((errors.GrammarTooComplex, errors.InvalidGrammar)) as caught:
        make()
    assert time.thread_time() - start < 3
    assert "recursion" not in str(caught.value).lower()


def test_deep_text_is_stepped_through() -> None:
    """Case srv-deep-json: arguments nested 5000 '[', against a schema that lets them be."""
    matcher = Grammar.from_json_schema({}).matcher(BYTES)
    for _ in range(50):
        matcher.accept_bytes(b"[" * 100)
    assert matcher.mask().any()
    assert not matcher.is_accepting


def many_tools() -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = [tool["function"] for tool in eval(request_of("srv-many-tools")["tools_expr"])]
    return tools


@pytest.mark.usefixtures("warm")
def test_names_that_begin_alike_are_told_apart() -> None:
    """Case srv-many-tools: t2, t20 and t200 among 300 tools; each name leads to a call, no other does."""
    start = time.thread_time()
    grammar = Grammar.from_tools(many_tools(), "required")
    grammar.matcher(BYTES).mask()
    assert time.thread_time() - start < 3 * 5
    call = '<tool_call>\n{{"name":"{}","arguments":{{"a":"x"}}}}\n</tool_call>'
    for name in ("t0", "t2", "t20", "t200", "t299"):
        assert accepts(grammar, call.format(name)), name
    for name in ("t", "t00", "t300", "t2000", "T2"):
        assert not accepts(grammar, call.format(name)), name


def test_duplicate_names_are_refused() -> None:
    """Case srv-many-tools."""
    tools = many_tools()[:3]
    with pytest.raises(errors.InvalidGrammar, match="'t1'"):
        Grammar.from_tools([*tools, tools[1]], "required")


@pytest.mark.parametrize("number", range(4))
def test_a_tool_without_parameters_takes_no_arguments(number: int) -> None:
    """Case srv-no-parameters-tool: no key, null, {} and an object without properties."""
    function = request_of("srv-no-parameters-tool")["each_of"][number]["tools"][0]["function"]
    grammar = Grammar.from_tools([function], "required")
    assert accepts(grammar, f'<tool_call>\n{{"name":"{function["name"]}","arguments":{{}}}}\n</tool_call>')
    refused = ["null", "[]", '""', ""]
    assert not [text for text in refused if accepts(grammar, f'<tool_call>\n{{"name":"{function["name"]}","arguments":{text}}}\n</tool_call>')]


def test_many_small_schemas_do_not_pile_up() -> None:
    """Case srv-grammar-cache-bounded: states of unique schemas stay within the bound that is set, and a hot schema goes on working."""
    expression = request_of("srv-grammar-cache-bounded")["schema_expr"]
    bound, before = 4 << 20, settings.arena_bytes
    grammars.configure(arena_bytes=bound)
    try:
        sizes = []
        hot = Grammar.from_json_schema({"enum": ["hot"]})
        for i in range(1500):
            Grammar.from_json_schema(eval(expression, {"i": i})).matcher(BYTES).mask()
            sizes.append(BYTES.arena.nbytes)
            if i % 100 == 0:
                assert accepts(hot, '"hot"')
    finally:
        grammars.configure(arena_bytes=before)
    assert max(sizes) < 2 * bound  # arrays double when they are full
    assert sizes.index(max(sizes)) < len(sizes) - 1
