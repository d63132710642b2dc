"""Cases about the schema of a tool: docstrings, literals and unions, missing descriptions, aliases."""

from __future__ import annotations

import logging
import warnings
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from agentkit import Agent, Tool, tool
from tests.agent.cases.behaviour import behaviour
from tests.agent.scripted import ScriptedModel, calls


def rate() -> Tool:
    @tool
    def r(score: int, ok: bool = True) -> str:
        """Rate.

        Args:
            score: points (choices: [1, 2, 3])
            ok: a flag: yes/no
            ghost: not a parameter
        """
        return ""

    return r


@behaviour("sdk-docstring-choices", "no exception")
def test_docstring_makes_a_tool() -> None:
    assert rate().description == "Rate."


@behaviour("sdk-docstring-choices", "score has description 'points (choices: [1, 2, 3])' or an integer enum")
def test_docstring_choices_stay_text() -> None:
    assert rate().parameters["properties"]["score"] == {"type": "integer", "description": "points (choices: [1, 2, 3])"}


@behaviour("sdk-docstring-choices", "ghost is ignored (warn)")
def test_docstring_ghost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="agentkit"):
        made = rate()
    assert "ghost" not in str(made.parameters)
    assert [record for record in caplog.records if "'ghost'" in record.getMessage() and "'r'" in record.getMessage()]


@behaviour("sdk-docstring-choices", "the colon inside a description is kept")
def test_docstring_colon() -> None:
    assert rate().parameters["properties"]["ok"]["description"] == "a flag: yes/no"


@tool
def f(kind: Literal["a", "b"], n: int | str) -> str | bool:
    "F."
    return True


@behaviour("sdk-literal-union-return", "kind is an enum; n is anyOf integer/string in that order")
def test_literal_and_union() -> None:
    assert f.parameters["properties"]["kind"]["enum"] == ["a", "b"]
    assert f.parameters["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert [f.validate({"kind": "a", "n": n}).n for n in (1, "1")] == [1, "1"]


@behaviour("sdk-literal-union-return", "the bool result is sent on as JSON true")
async def test_bool_result() -> None:
    model = ScriptedModel(calls(("f", {"kind": "a", "n": 1})), "Done.")
    result = await Agent(model, tools=[f]).run("go")
    assert result.tool_calls[0].result is True
    assert result.tool_calls[0].content == "true"
    assert model.prompt()[-1]["content"] == "<tool_response>\ntrue\n</tool_response>"


@behaviour("sdk-missing-description", "works with an empty description (maybe a warning)")
async def test_no_description() -> None:
    @tool
    def t(x: int) -> int:
        return x

    assert t.description == ""
    model = ScriptedModel(calls(("t", {"x": 3})), "Three.")
    result = await Agent(model, tools=[t]).run("go")
    assert (result.output, result.tool_calls[0].result) == ("Three.", 3)
    assert '{"name":"t","parameters":' in model.prompt()[0]["content"]


@behaviour("sdk-type-alias-ref", "resolves to an array of strings and keeps the description")
def test_alias() -> None:
    Names = TypeAliasType("Names", list[str])

    class A(BaseModel):
        names: Names = Field(description="the names")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = Tool(A).parameters
    assert schema["properties"]["names"] == {"type": "array", "items": {"type": "string"}, "description": "the names"}
    assert "$defs" not in schema
