"""A stream's block: entered once, and every other use says how to write it."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentkit import Agent
from agentkit.streams import StreamBlock
from tests.agent.scripted import ScriptedModel

HOW = "Write: async with agent.run_stream(...) as stream: async for event in stream: ... (for the result alone: await agent.run(...))"


async def awaited(stream: Any) -> None:
    await stream


async def without_async_with(stream: Any) -> None:
    async for _ in stream:
        pass


async def with_plain_for(stream: Any) -> None:
    for _ in stream:
        pass


async def with_plain_with(stream: Any) -> None:
    with stream:
        pass


@pytest.mark.parametrize("misuse", [awaited, without_async_with, with_plain_for, with_plain_with])
async def test_run_stream_used_wrongly_says_how_to_use_it(misuse: Callable[[Any], Awaitable[None]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one message is enough
        with pytest.raises(TypeError, match=re.escape(HOW)):
            await misuse(Agent(ScriptedModel("a")).run_stream("go"))
        gc.collect()


def test_the_streams_own_names_are_not_there_before_it_is_entered() -> None:
    block: Any = Agent(ScriptedModel("a")).run_stream("go")
    with pytest.raises(AttributeError, match=re.escape(HOW)):
        _ = block.text
    with pytest.warns(RuntimeWarning, match="never entered, so nothing ran"):
        del block


def test_wrong_options_are_found_by_the_call_itself() -> None:
    with pytest.raises(TypeError, match=r"no option 'tool_choise'\. Did you mean 'tool_choice'"):
        Agent(ScriptedModel("a")).run_stream("go", tool_choise="none")  # type: ignore[call-arg]


async def test_a_block_is_entered_once_and_left_like_the_one_inside() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def inside() -> AsyncIterator[str]:
        told.append("in")
        try:
            yield "stream"
        except KeyError:
            told.append("error seen")
        told.append("out")

    block = StreamBlock(inside, "agent.run_stream()")
    async with block as stream:
        assert stream == "stream"
        raise KeyError
    assert told == ["in", "error seen", "out"]
    with pytest.raises(RuntimeError, match="entered before; call it again"):
        async with block:
            pass
