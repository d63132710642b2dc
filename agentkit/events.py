"""What happens in a run, as `agent.run_stream` and `agent.iter` tell it. Plain data; knows nothing of how it comes about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentkit.messages import AssistantMessage, RetryMessage
from agentkit.usage import RequestUsage

if TYPE_CHECKING:
    from agentkit.result import RunResult, ToolCall

__all__ = ["CallEvent", "Event", "FinalEvent", "ReasoningDelta", "RetryEvent", "Step", "TextDelta", "TokenEvent", "ToolResultEvent", "ToolsEvent", "TurnEvent"]


@dataclass(frozen=True)
class TokenEvent:
    """Tokens have arrived; forced: the grammar left no choice."""

    text: str
    token_ids: tuple[int, ...]
    forced: bool
    kind: Literal["token"] = "token"


@dataclass(frozen=True)
class TextDelta:
    """More text of the answer (outside of calls; JSON text where the output is structured)."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before it answers or calls; not part of the answer."""

    text: str
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class CallEvent:
    """A call has closed and its arguments are valid; it has not run yet."""

    call: ToolCall
    kind: Literal["call"] = "call"


@dataclass(frozen=True)
class ToolResultEvent:
    """A tool has returned: call.result, call.content."""

    call: ToolCall
    kind: Literal["tool_result"] = "tool_result"


@dataclass(frozen=True)
class RetryEvent:
    """A call or an answer was refused; the model is told so and tries again."""

    message: RetryMessage
    kind: Literal["retry"] = "retry"


@dataclass(frozen=True)
class TurnEvent:
    """A turn of the model is complete."""

    message: AssistantMessage
    usage: RequestUsage
    finish_reason: str
    kind: Literal["turn"] = "turn"


@dataclass(frozen=True)
class ToolsEvent:
    """All calls of a turn have been answered."""

    calls: tuple[ToolCall, ...]
    kind: Literal["tools"] = "tools"


@dataclass(frozen=True)
class FinalEvent:
    """The run is over."""

    result: RunResult[Any]
    kind: Literal["final"] = "final"


Step = TurnEvent | ToolsEvent | FinalEvent
Event = TokenEvent | TextDelta | ReasoningDelta | CallEvent | ToolResultEvent | RetryEvent | Step
