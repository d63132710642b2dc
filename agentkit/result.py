"""What a run gives back. Plain data; knows nothing of how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from agentkit.messages import Message, messages_to_json
from agentkit.usage import RunUsage

__all__ = ["RunResult", "ToolCall"]

OutputT = TypeVar("OutputT")


@dataclass(frozen=True)
class ToolCall:
    """One validated call.

    arguments: instance of the tool's argument model. arguments_json: the text the model wrote, verbatim.
    result: what the tool returned (None until it has run, and for tools without a body). content: the text the model was shown of it.
    executed: whether the tool has run. duration_s: how long, in seconds.
    """

    id: str
    name: str
    arguments: BaseModel
    arguments_json: str
    result: Any = None
    content: str | None = None
    executed: bool = False
    duration_s: float = 0.0


@dataclass(frozen=True)
class RunResult(Generic[OutputT]):
    """The outcome of a run.

    output: the validated answer; None when the run ended with calls instead (execute_tools=False, or a tool without a body).
    tool_calls: every valid call of the run, in order.
    usage: summed over all requests. finish_reason: of the last turn; "length" means that free text was cut at max_tokens.
    """

    output: OutputT
    tool_calls: tuple[ToolCall, ...]
    usage: RunUsage
    finish_reason: str = "stop"
    _messages: tuple[Message, ...] = field(repr=False, default=())
    _history: int = field(repr=False, default=0)

    def all_messages(self) -> list[Message]:
        """The history given and everything since."""
        return list(self._messages)

    def new_messages(self) -> list[Message]:
        """What this run added, its prompt included."""
        return list(self._messages[self._history :])

    def all_messages_json(self, *, indent: int | None = None) -> str:
        """`messages_to_json(all_messages())`."""
        return messages_to_json(self._messages, indent=indent)

    def calls_of(self, name: str) -> Sequence[ToolCall]:
        """The calls of one tool."""
        return [call for call in self.tool_calls if call.name == name]
