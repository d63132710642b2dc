"""The seam between the agent's loop and whatever serves a model.

A `ChatModel` takes a conversation and the bounds of one turn, and streams what the model does: tokens, text, calls that
have closed, and at the end the whole turn with its usage. Behind it stands the in-process engine (local_model.py), or
whatever else an application puts there. How calls are written in the model's own format is the implementation's business.
Knows nothing of running tools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from agentkit.engine.checks import check_seed, integer, number, plain_numbers
from agentkit.messages import Message
from agentkit.schema import JSONSchema
from agentkit.usage import RequestUsage

__all__ = [
    "AsyncClosing",
    "CallClosed",
    "ChatModel",
    "ModelEvent",
    "ModelToken",
    "ParsedCall",
    "ReasoningPiece",
    "Sampling",
    "TextPiece",
    "ToolSpec",
    "Turn",
    "TurnEnd",
    "TurnRequest",
]


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told of a tool, and held to.

    parameters: JSON Schema of type "object", as the prompt shows it.
    accepted: as a grammar enforces it; None: the same.
    """

    name: str
    description: str
    parameters: JSONSchema
    accepted: JSONSchema | None = None


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. max_tokens bounds the whole turn; a seed makes it repeatable.

    Raises:
        InvalidOption: a value is out of range, or no number.
    """

    max_tokens: int = 1024
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        integer("max_tokens", self.max_tokens, 1)
        number("temperature", self.temperature, 0.0)
        integer("top_k", self.top_k, 0)
        number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        number("min_p", self.min_p, 0.0, 1.0)
        check_seed(self.seed)


@dataclass(frozen=True)
class TurnRequest:
    """One turn of the assistant.

    instructions: the agent's own, ahead of all messages.
    tools: all tools of the agent, always, so that the prompt's prefix stays the same; tool_choice restricts the turn instead.
    tool_choice: "auto", "required", "none", or the name of one tool.
    output_schema: JSON Schema of a structured final answer; None: the answer is free text.      output_accepted: as for tools.
    max_calls: how many calls one turn may make.
    """

    messages: Sequence[Message]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    tool_choice: str = "auto"
    output_schema: JSONSchema | None = None
    output_accepted: JSONSchema | None = None
    max_calls: int = 1
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class ParsedCall:
    """A call as the model wrote it; `arguments` is its JSON text, verbatim ("" if it gave none).

    id: given by a server that numbers its calls; None: the loop gives one.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class Turn:
    """A finished turn.

    text: everything outside of calls, verbatim. unfinished: a call that is not whole ("" if there is none; never under a grammar,
    unless its budget guard was off). finish_reason: "stop", "length", ... as the engine or server says. reasoning: what the model
    thought before, which is no part of the answer and not of later prompts.
    """

    text: str
    calls: tuple[ParsedCall, ...] = ()
    unfinished: str = ""
    finish_reason: str = "stop"
    reasoning: str = ""


@dataclass(frozen=True)
class ModelToken:
    """Tokens as they come (one, or several at once); `text` may be empty in the middle of a character. forced: left no choice by the grammar."""

    text: str
    token_ids: tuple[int, ...] = ()
    forced: bool = False
    kind: Literal["token"] = "token"


@dataclass(frozen=True)
class TextPiece:
    """More of the text outside of calls."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class ReasoningPiece:
    """More of what the model thinks before it answers."""

    text: str
    kind: Literal["reasoning"] = "reasoning"


@dataclass(frozen=True)
class CallClosed:
    """A call is complete, though the turn may go on."""

    call: ParsedCall
    kind: Literal["call"] = "call"


@dataclass(frozen=True)
class TurnEnd:
    """The last event: the whole turn, and what it cost."""

    turn: Turn
    usage: RequestUsage
    kind: Literal["end"] = "end"


ModelEvent = ModelToken | TextPiece | ReasoningPiece | CallClosed | TurnEnd


@runtime_checkable
class ChatModel(Protocol):
    """Serves turns. Leaving the iterator early cancels the request."""

    @property
    def name(self) -> str:
        """For messages and logs."""
        ...

    def stream_turn(self, request: TurnRequest) -> AsyncIterator[ModelEvent]:
        """Streams one turn; the last event is a TurnEnd."""
        ...

    def close(self) -> Any:
        """Frees what the model holds."""
        ...


@runtime_checkable
class AsyncClosing(Protocol):
    """A ChatModel that can also be closed by awaiting."""

    async def aclose(self) -> None:
        """Frees what the model holds, and waits for it."""
        ...
