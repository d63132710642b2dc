"""What becomes of what a tool returns or raises, where Python has more to offer than values and exceptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from agentkit import Agent, ToolError, tool
from agentkit.tool import result_text
from tests.agent.scripted import ScriptedModel, calls


async def outcome(function: Callable[[], Any]) -> Any:
    """The call of a tool made of `function`, after a run."""
    model = ScriptedModel(calls(("t", {})), "done")
    return (await Agent(model, tools=[tool(name="t")(function)]).run("go")).tool_calls[0]


async def test_a_generator_runs_in_the_worker_and_its_items_are_the_result() -> None:
    threads = []

    def items() -> Iterator[int]:
        threads.append(threading.current_thread())
        yield 1
        yield 2

    call = await outcome(items)
    assert (call.result, call.content) == ([1, 2], "[1,2]")
    assert threads != [threading.main_thread()]


async def test_a_generator_that_fails_is_a_tool_that_fails() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("inside")

    with pytest.raises(ToolError, match="tool 't' failed: KeyError: 'inside'"):
        await outcome(items)


async def test_a_cancellation_inside_a_thread_is_a_failure_of_the_tool() -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ToolError, match="tool 't' failed: CancelledError"):
        await outcome(cancelled)


async def test_a_plain_wrapper_whose_coroutine_waited_for_something_cancelled_has_failed() -> None:
    async def wait() -> None:
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    with pytest.raises(ToolError, match="'t' failed: it waited for a task that was cancelled"):
        await outcome(lambda: wait())


@pytest.mark.parametrize(
    ("value", "text"),
    [(range(3), "[0,1,2]"), ({"a": 1}.keys(), '["a"]'), ({"a": 1}.values(), "[1]"), ({"n": np.int64(3), "x": np.float32(0.5)}, '{"n":3,"x":0.5}')],
    ids=["range", "keys", "values", "numpy"],
)
def test_kin_of_lists_and_numbers_have_a_json_form(value: object, text: str) -> None:
    assert result_text(value, "t") == text


@pytest.mark.parametrize("value", [memoryview(b"a"), ..., iter, np.array([1])], ids=["memoryview", "ellipsis", "function", "array"])
def test_other_objects_have_none(value: object) -> None:
    with pytest.raises(ToolError, match="tool 't' returned"):
        result_text(value, "t")
