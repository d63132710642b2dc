"""Tools in the forms that people have them in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from agentkit import Tool
from agentkit.errors import InvalidGrammar
from agentkit.grammars import Grammar
from agentkit.protocol import call_text
from tests.cases.judge import accepts

SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": False}


@dataclass
class OfMCP:
    name: str = "flag"
    inputSchema: dict[str, Any] = field(default_factory=lambda: SCHEMA)  # their name


class flag(BaseModel):  # the tool's name
    on: bool


def function(flags: dict[int, bool]) -> None: ...


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "flag", "parameters": SCHEMA},
        {"type": "function", "function": {"name": "flag", "parameters": SCHEMA, "strict": True}},
        {"name": "flag", "inputSchema": SCHEMA},
        {"name": "flag", "input_schema": SCHEMA, "parameters": None},
        {"name": "flag", "args_schema": flag},
        {"function": {"name": "flag"}, "parameters": SCHEMA},
        {"name": "flag", "parameters": SCHEMA, "inputSchema": dict(SCHEMA)},
        OfMCP(),
        flag,
        Tool(flag),
    ],
    ids=["ours", "openai", "mcp", "anthropic", "langchain", "schema outside", "twice the same", "mcp object", "model", "tool"],
)
def test_the_schema_binds_in_every_form(tool: Any) -> None:
    grammar = Grammar.from_tools([tool], "required")
    assert accepts(grammar, call_text("flag", '{"on":true}'))
    for wrong in ("{}", '{"on":1}', '{"on":true,"off":1}'):
        assert not accepts(grammar, call_text("flag", wrong))


def test_what_validation_accepts_of_a_tool_is_enforced_not_what_the_model_is_shown() -> None:
    grammar = Grammar.from_tools([Tool(function)], "required")
    assert accepts(grammar, call_text("function", '{"flags":{"7":true}}'))
    assert not accepts(grammar, call_text("function", '{"flags":{"x":true}}'))  # no integer


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (None, "NoneType"),
        ("f", "str"),
        ({"name": "f"}, "dict"),
        ([function], "agentkit.tool"),
        ([{"function": {}}], "no name"),
        ([{"name": "f", "parameters": {}, "inputSchema": SCHEMA}], "two schemas"),
    ],
)
def test_what_is_no_list_of_tools_is_refused(tools: Any, message: str) -> None:
    make: Callable[..., Grammar] = Grammar.from_tools
    with pytest.raises(InvalidGrammar, match=message):
        make(tools)
