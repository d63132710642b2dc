"""One question through an agent: its events to a view, and what came of it with the times it took.

Input: an agent, a question, options of a run. Output: a `Record`. An error of agentkit ends the question and is part of its
record; anything else is a bug and passes through. Knows nothing of terminals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

from agentkit.agent import Agent, RunOptions
from agentkit.errors import AgentKitError
from agentkit.events import CallEvent, Event, FinalEvent, TurnEvent
from agentkit.result import ToolCall
from agentkit.usage import RunUsage

__all__ = ["Record", "ask"]


@dataclass(frozen=True)
class Record:
    """What came of one question.

    calls: the validated calls. output: the answer, None if there was none. error: what ended the run early, "" if nothing did.
    call_s: from the question to its first validated call; total_s: to the end; both in seconds.
    """

    question: str
    calls: tuple[ToolCall, ...]
    output: Any
    error: str
    usage: RunUsage
    call_s: float | None
    total_s: float

    def figures(self) -> dict[str, Any]:
        """As JSON: times in seconds, counts of tokens."""
        usage = self.usage
        return {
            "question": self.question,
            "calls": [{"name": call.name, "arguments": call.arguments.model_dump(mode="json"), "result": call.content} for call in self.calls],
            "answer": self.output,
            "error": self.error,
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.output_tokens,
            "forced_tokens": usage.forced_tokens,
            "forwards": usage.forwards,
            "ttft_s": usage.ttft_s,
            "tpot_s": usage.tpot_s,
            "call_s": self.call_s,
            "total_s": self.total_s,
        }


async def ask(agent: Agent[Any, Any], question: str, tell: Callable[[Event], None], **options: Unpack[RunOptions]) -> Record:
    """Runs the agent on a question; `tell` gets every event as it happens."""
    calls: list[ToolCall] = []
    turns: list[TurnEvent] = []
    output: Any = None
    error, call_s = "", None
    start = time.perf_counter()
    try:
        async with agent.run_stream(question, **options) as stream:
            async for event in stream:
                if isinstance(event, CallEvent):
                    call_s = call_s or time.perf_counter() - start
                    calls.append(event.call)
                elif isinstance(event, TurnEvent):
                    turns.append(event)
                elif isinstance(event, FinalEvent):
                    output, calls = event.result.output, list(event.result.tool_calls)
                tell(event)
    except AgentKitError as failure:
        error = f"{type(failure).__name__}: {failure}"
    usage = RunUsage(tuple(turn.usage for turn in turns), sum(call.executed for call in calls))
    return Record(question, tuple(calls), output, error, usage, call_s, time.perf_counter() - start)
