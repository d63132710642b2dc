"""Cases about arguments: the shapes they arrive in, and tools that were never offered."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agentkit import Agent, ModelRetryExceeded, Tool, tool
from agentkit.tool import validation_message
from tests.agent.cases.behaviour import behaviour
from tests.agent.scripted import ScriptedModel, calls


@tool
def now() -> str:
    return "12:00"


@tool
def get(x: int) -> int:
    return x


@behaviour("sdk-arguments-shapes", "for now(): None, '', '{}' and {} all call it")
@pytest.mark.parametrize("arguments", [None, "", "{}", {}, " ", b"{}"], ids=repr)
def test_no_arguments(arguments: Any) -> None:
    assert now.invoke(arguments) == "12:00"


@behaviour("sdk-arguments-shapes", "for get: the string and the dict are both fine; None/''/{} give a validation message that names x")
def test_one_argument() -> None:
    assert get.invoke('{"x":1}') == get.invoke({"x": 1}) == 1
    for arguments in (None, "", {}, "{}"):
        with pytest.raises(ValidationError) as raised:
            get.invoke(arguments)
        assert validation_message(raised.value) == "x: Field required"


async def test_empty_arguments_go_back_to_the_model() -> None:
    model = ScriptedModel(calls(("get", "{}")), calls(("get", '{"x":4}')), "Four.", constrained=False)
    result = await Agent(model, tools=[get]).run("go")
    assert "The arguments of get are not valid:\nx: Field required" in model.prompt(1)[-1]["content"]
    assert [call.result for call in result.tool_calls] == [4]


ran: list[str] = []


@tool
def get_weather(city: str = "") -> str:
    ran.append(city)
    return "sunny"


UNKNOWN = [("python", "{}"), ("Get_Weather", "{}"), ("get_weather ", "{}")]


@behaviour("sdk-unknown-tool", "a message listing the offered names goes back to the model; no near-match is run by itself")
async def test_unknown_tools() -> None:
    ran.clear()
    model = ScriptedModel(calls(*UNKNOWN), "Sorry.", constrained=False)
    result = await Agent(model, tools=[get_weather, now], parallel_tool_calls=True).run("go")
    assert (result.output, result.tool_calls, ran) == ("Sorry.", (), [])
    refusals = [message for message in result.all_messages() if message.role == "retry"]
    assert [message.content for message in refusals] == [f"There is no tool named {name!r}. The tools are: get_weather, now." for name, _ in UNKNOWN]
    assert [message.tool_call_id for message in refusals] == [call.id for call in result.all_messages()[1].tool_calls]


@behaviour("sdk-unknown-tool", "after the retry limit a typed error")
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_unknown_tools_for_ever(retries: int) -> None:
    ran.clear()
    names = ("python", "Get_Weather", "get_weather ")[: retries + 1]
    model = ScriptedModel(*(calls((name, "{}")) for name in names), constrained=False)
    with pytest.raises(ModelRetryExceeded, match=f"{retries + 1} times in a row, and {retries} retries"):
        await Agent(model, tools=[Tool(get_weather, retries=5)], retries=retries).run("go")
    assert (len(model.requests), ran) == (retries + 1, [])
