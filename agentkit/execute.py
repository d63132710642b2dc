"""Running one validated call: on the loop or in a thread, within its time, and the text of what it returned.

Input: a tool, a ToolCall and a RunContext. Output: the call with its result, or one of three failures the loop handles:
ModelRetry (the tool wants another try), ToolTimeout, ToolError (anything else, with its cause).
Knows nothing of models or messages.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import io
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from agentkit.context import RunContext
from agentkit.errors import ModelRetry, ToolError, ToolTimeout
from agentkit.result import ToolCall
from agentkit.threads import run_in_worker
from agentkit.tool import Tool, result_text

__all__ = ["APPROVE_HELP", "Approve", "approval_refusal", "run_call"]

Approve = Callable[[RunContext[Any], ToolCall], bool | str | Awaitable[bool | str]]
"""Asked before a tool with approval=True runs: True to run it; False, or a reason as text, to refuse."""
APPROVE_HELP = "a callable of (context, call) that gives True, False or a reason"


async def run_call(tool: Tool[..., Any], call: ToolCall, context: RunContext[Any]) -> ToolCall:
    """Runs a call.

    Raises:
        ModelRetry: from the tool.
        ToolTimeout: the tool's time is up; a thread it runs in is abandoned.
        ToolError: the tool raised (see __cause__), or returned what has no JSON form; names the tool.
    """
    started = time.perf_counter()
    if tool.is_async:
        value = await _awaited(tool, lambda: tool.invoke(call.arguments, context), tool.timeout)
    else:
        value = await _run_sync(tool, call, context)
    content = result_text(value, tool.name)
    return dataclasses.replace(call, result=value, content=content, executed=True, duration_s=time.perf_counter() - started)


def _failed(tool: Tool[..., Any], error: BaseException) -> ToolError:
    return ToolError(f"tool {tool.name!r} failed: {type(error).__name__}: {error}")


def _late(tool: Tool[..., Any]) -> ToolTimeout:
    return ToolTimeout(f"tool {tool.name!r} took longer than its limit of {tool.timeout} s")


async def _awaited(tool: Tool[..., Any], begin: Callable[[], Awaitable[Any]], seconds: float | None) -> Any:
    """What `begin()` comes to within so many seconds, on the event loop."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await begin()
    except ModelRetry:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # nobody cancelled this call: the tool waited for something that was cancelled, and the run must not look cancelled itself
        raise ToolError(f"tool {tool.name!r} failed: it waited for a task that was cancelled") from error
    except Exception as error:  # a tool may raise anything; the run gets one type that names the tool
        raise (_late(tool) if isinstance(error, TimeoutError) and limit.expired() else _failed(tool, error)) from error


async def _run_sync(tool: Tool[..., Any], call: ToolCall, context: RunContext[Any]) -> Any:
    outcome: list[BaseException] = []

    def work() -> Any:
        try:
            made = tool.invoke(call.arguments, context)
            return list(made) if isinstance(made, Iterator) and not isinstance(made, io.IOBase) else made  # what is generated is work of the tool
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # kept apart from what the pool itself raises
            outcome.append(error)
            return None

    started = time.perf_counter()
    try:
        value = await run_in_worker(work, tool.timeout)
    except ToolTimeout as error:
        raise _late(tool) from error
    if outcome and isinstance(outcome[0], ModelRetry):
        raise outcome[0]
    if outcome:
        raise _failed(tool, outcome[0]) from outcome[0]
    if not inspect.isawaitable(value):
        return value
    left = None if tool.timeout is None else max(tool.timeout - (time.perf_counter() - started), 0.0)
    return await _awaited(tool, lambda: value, left)  # the tool is a plain wrapper around an async function


async def approval_refusal(tool: Tool[..., Any], call: ToolCall, context: RunContext[Any], approve: Approve | None) -> str | None:
    """None if the call may run, else what the model is told instead.

    Raises:
        ToolError: the tool needs approval and nobody can give it.
    """
    if not tool.approval:
        return None
    if approve is None:
        raise ToolError(f"tool {tool.name!r} needs approval; pass approve=... to the Agent: {APPROVE_HELP}")
    answer = approve(context, call)
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is True:
        return None
    return answer if isinstance(answer, str) else f"The call of {tool.name} was not approved, so it was not run."
