"""Cases about threads and event loops: bounded threads, timeouts, blocking tools, nested runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from agentkit import Agent, ModelRetryExceeded, ToolTimeout, tool
from agentkit.threads import MAX_WORKERS
from tests.agent.cases.behaviour import behaviour
from tests.agent.scripted import ScriptedModel, calls


@behaviour("sdk-thread-growth", "thread count stays under a fixed cap")
async def test_threads_are_bounded() -> None:
    highest = 0

    @tool
    def work(n: int) -> int:
        nonlocal highest
        highest = max(highest, threading.active_count())
        return n

    before = threading.active_count()
    done = 0
    gate = asyncio.Semaphore(8)

    async def one(n: int) -> None:
        nonlocal done
        async with gate:
            result = await Agent(ScriptedModel(calls(("work", {"n": n})), "ok", constrained=False), tools=[work]).run("go")
            done += result.tool_calls[0].result == n

    await asyncio.gather(*(one(n) for n in range(2000)))
    assert done == 2000
    assert highest <= before + MAX_WORKERS


@tool(timeout=0.2, retries=1)
def sleepy() -> str:
    "Sleeps."
    time.sleep(5)
    return "awake"


@behaviour("sdk-tool-timeout-sync", "the model gets a timeout message after about 0.2 s")
async def test_timeout_of_a_blocking_tool() -> None:
    model = ScriptedModel(calls(("sleepy", {})), "Too slow.")
    started = time.perf_counter()
    result = await Agent(model, tools=[sleepy]).run("go")
    assert 0.2 <= time.perf_counter() - started < 2
    assert result.output == "Too slow."
    assert "'sleepy' took longer than its limit of 0.2 s" in model.prompt()[-1]["content"]
    with pytest.raises(ModelRetryExceeded) as raised:
        await Agent(ScriptedModel(calls(("sleepy", {})), calls(("sleepy", {}))), tools=[sleepy]).run("go")
    assert isinstance(raised.value.__cause__, ToolTimeout)


EXIT_SCRIPT = """
import time
from agentkit import Agent, tool
from tests.agent.scripted import ScriptedModel, calls

@tool(timeout=0.2)
def sleepy() -> str:
    time.sleep(60)

agent = Agent(ScriptedModel(calls(("sleepy", {})), "Too slow.", constrained=False), tools=[sleepy])
print(agent.run_sync("go").output)
"""


@behaviour("sdk-tool-timeout-sync", "the worker thread is bounded/abandoned, and process exit is not held up")
def test_exit_is_not_held_up(pytestconfig: pytest.Config) -> None:
    done = subprocess.run([sys.executable, "-c", EXIT_SCRIPT], cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "Too slow."), done.stderr


@tool
def slow() -> str:
    "S."
    time.sleep(0.3)
    return "x"


ATTEMPTS = 3  # on a busy machine other processes add delays; a loop that is blocked is so every time


async def time_of_tools(agent: Agent, during: Callable[[], Awaitable[None]] | None = None) -> float:
    """Seconds from the end of the turn with the calls until all of them are answered; `during` runs beside them."""
    started, beside = 0.0, None
    async with agent.run_stream("go") as stream:
        async for event in stream:
            if event.kind == "turn" and event.message.tool_calls:
                started = time.perf_counter()
                beside = asyncio.create_task(during()) if during is not None else None
            if event.kind == "tools":
                took = time.perf_counter() - started
                if beside is not None:
                    beside.cancel()
    assert all(call.result == "x" for call in stream.result.tool_calls)
    return took


@behaviour("sdk-sync-tool-blocks-loop", "3 parallel calls finish in < 0.6 s")
async def test_blocking_tools_run_side_by_side() -> None:
    took = []
    for _ in range(ATTEMPTS):
        agent = Agent(ScriptedModel(calls(("slow", {}), ("slow", {}), ("slow", {})), "Done."), tools=[slow], parallel_tool_calls=True)
        took.append(await time_of_tools(agent))
    assert 0.3 <= min(took) < 0.6


@behaviour("sdk-sync-tool-blocks-loop", "a heartbeat task on the loop never waits > 50 ms")
async def test_the_loop_keeps_beating() -> None:
    longest = [0.0] * ATTEMPTS
    for attempt in range(ATTEMPTS):

        async def heart(attempt: int = attempt) -> None:
            while True:
                beat = time.perf_counter()
                await asyncio.sleep(0.005)
                longest[attempt] = max(longest[attempt], time.perf_counter() - beat)

        await time_of_tools(Agent(ScriptedModel(calls(("slow", {})), "Done."), tools=[slow]), heart)
    assert 0 < min(longest) < 0.05


def nested_agent() -> Agent:
    @tool
    def answer(q: str) -> str:
        "A blocking tool of the inner agent."
        return q.upper()

    @tool
    def sub(q: str) -> str:
        "Sub."
        inner = Agent(ScriptedModel(calls(("answer", {"q": q})), "inner answer"), tools=[answer])
        return inner.run_sync(q).output

    @tool
    async def sub_async(q: str) -> str:
        "Sub, on the loop itself."
        return Agent(ScriptedModel("inner answer")).run_sync(q).output

    outer = ScriptedModel(calls(*([("sub", {"q": "x"})] * 20), ("sub_async", {"q": "y"})), "outer answer", constrained=False)
    return Agent(outer, tools=[sub, sub_async], parallel_tool_calls=21)


@behaviour("sdk-nested-run-sync", "raises a clear error or works; it never hangs (5 s watchdog)")
@pytest.mark.timeout(20)
def test_run_sync_inside_tools() -> None:
    """More outer calls than there are workers: the inner tools must not wait for them."""
    result = nested_agent().run_sync("go")
    assert result.output == "outer answer"
    assert [call.result for call in result.tool_calls] == ["inner answer"] * 21


@behaviour("sdk-nested-run-sync", "run_sync inside a running event loop (notebook) gives a clear message")
@pytest.mark.timeout(20)
async def test_run_sync_in_a_running_loop() -> None:
    """It simply works there."""
    assert Agent(ScriptedModel("hello")).run_sync("hi").output == "hello"
