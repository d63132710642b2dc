"""The case about results that have no JSON form."""

from __future__ import annotations

import pytest

from agentkit import Agent, ToolError, messages_to_json, tool
from tests.agent.cases.behaviour import behaviour
from tests.agent.scripted import ScriptedModel, calls


@tool
def t():
    "T."
    return dict  # the class itself


@behaviour("sdk-non-serialisable-result", "fails at the tool boundary naming t (or falls back to str by option)")
async def test_fails_where_it_happens() -> None:
    model = ScriptedModel(calls(("t", {})), "never asked")
    with pytest.raises(ToolError, match=r"tool 't' returned type .* cannot be turned into JSON"):
        await Agent(model, tools=[t]).run("go")
    assert len(model.requests) == 1


@behaviour("sdk-non-serialisable-result", "history stays serialisable")
async def test_history_stays_serialisable() -> None:
    seen = []

    async def watch() -> None:
        async with Agent(ScriptedModel(calls(("t", {}))), tools=[t]).run_stream("go") as stream:
            async for event in stream:
                seen.append(event)  # noqa: PERF401  # what comes before the error is wanted

    with pytest.raises(ToolError):
        await watch()
    turns = [event.message for event in seen if event.kind == "turn"]
    assert messages_to_json(turns).startswith('[{"role":"assistant"')
    assert not [event for event in seen if event.kind == "tool_result"]
