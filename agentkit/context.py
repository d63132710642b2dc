"""What a running tool may know of the run it is part of.

A tool whose first parameter is annotated `RunContext` (or `RunContext[Deps]`) gets one; the model never sees that parameter.
Knows nothing of engines or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from agentkit.messages import Message
from agentkit.usage import RunUsage

__all__ = ["DepsT", "RunContext"]

DepsT = TypeVar("DepsT", default=Any)


@dataclass(frozen=True)
class RunContext(Generic[DepsT]):
    """One tool call's view of its run.

    deps: what was passed to `agent.run(deps=...)`.
    usage: what the run has used so far (a snapshot).
    messages: all messages so far, the assistant turn with this call included.
    prompt: the prompt of the run, None if it went on from a history alone.
    retry: how many times this tool has failed in a row before this call.
    tool_name, tool_call_id: of this call; None in output validators and instructions.
    run_step: number of the model request that made the call, from 1; 0 before the first.
    """

    deps: DepsT
    usage: RunUsage = field(default_factory=RunUsage)
    messages: Sequence[Message] = ()
    prompt: str | None = None
    retry: int = 0
    tool_name: str | None = None
    tool_call_id: str | None = None
    run_step: int = 0
