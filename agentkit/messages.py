"""Messages of a conversation, and their JSON form.

Kinds: system, user, assistant (text and tool calls), tool (what a tool returned) and retry (why something was refused).
The argument text of a call is kept exactly as the model wrote it, never parsed and written again, so `1.0`,
`12345678901234567890` and key order survive; dump, load and dump again gives the same bytes.
Knows nothing of chat templates or of any model's format (see protocol.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from agentkit.errors import HistoryError

__all__ = [
    "AssistantMessage",
    "CallPart",
    "Message",
    "RetryMessage",
    "SystemMessage",
    "ToolMessage",
    "UserMessage",
    "check_history",
    "messages_from_json",
    "messages_to_json",
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # built at first use: declaring a tool needs no messages


class SystemMessage(_Part):
    """Instructions that belong to the conversation (an agent's own instructions are not part of its messages)."""

    role: Literal["system"] = "system"
    content: str


class UserMessage(_Part):
    """What the user said."""

    role: Literal["user"] = "user"
    content: str


class CallPart(_Part):
    """One tool call as the model wrote it.

    id: unique in the conversation. arguments: the JSON text, verbatim.
    """

    id: str
    name: str
    arguments: str


class AssistantMessage(_Part):
    """One turn of the model: text before the calls (verbatim; None if there was none) and the calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    tool_calls: tuple[CallPart, ...] = ()


class ToolMessage(_Part):
    """What a tool returned, as the text the model is shown: a string as it is, anything else as JSON."""

    role: Literal["tool"] = "tool"
    tool_call_id: str
    name: str
    content: str


class RetryMessage(_Part):
    """Why a call (tool_call_id and name given) or an answer (both None) was refused; the model may try again."""

    role: Literal["retry"] = "retry"
    content: str
    tool_call_id: str | None = None
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage | RetryMessage, Field(discriminator="role")]

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message], config=ConfigDict(defer_build=True))


def messages_to_json(messages: Sequence[Message], *, indent: int | None = None) -> str:
    """The messages as a JSON array (UTF-8 text, compact unless `indent` is given).

    Raises:
        HistoryError: a text holds a lone surrogate, which has no UTF-8 form.
    """
    try:
        return _MESSAGES.dump_json(list(messages), indent=indent).decode()
    except PydanticSerializationError as error:
        raise HistoryError(f"the messages cannot be written as JSON: {error}; replace the text that is not valid Unicode") from error


def messages_from_json(data: str | bytes) -> list[Message]:
    """Reads what `messages_to_json` wrote.

    Raises:
        HistoryError: not JSON, not a list of messages, or a result that belongs to no call; says where.
    """
    try:
        messages = _MESSAGES.validate_json(data)
    except ValidationError as error:
        raise _history_error(error) from error
    return check_history(messages)


def check_history(messages: Any) -> list[Message]:
    """Messages (or their dicts) as a list that is sound: ids of calls are unique, and each result follows its call.

    Raises:
        HistoryError: names the message by its index.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        advice = "pass its .all_messages()" if hasattr(messages, "all_messages") else "read JSON text with messages_from_json"
        raise HistoryError(f"a message history is a list of messages, not {type(messages).__name__}; {advice}")
    try:
        checked = _MESSAGES.validate_python(list(messages))
    except ValidationError as error:
        raise _history_error(error) from error
    open_calls: dict[str, str] = {}
    for index, message in enumerate(checked):
        if isinstance(message, AssistantMessage):
            for call in message.tool_calls:
                if call.id in open_calls:
                    raise HistoryError(f"message {index}: the call id {call.id!r} was used before; ids must be unique in a conversation")
                open_calls[call.id] = call.name
        elif isinstance(message, ToolMessage | RetryMessage) and message.tool_call_id is not None and message.tool_call_id not in open_calls:
            raise HistoryError(
                f"message {index}: a result for the call {message.tool_call_id!r} ({message.name}), but no assistant message before it made that call; "
                "keep the assistant message when you shorten a history"
            )
    return checked


def _history_error(error: ValidationError) -> HistoryError:
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    where = ".".join(str(step) for step in first["loc"]) or "the whole text"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return HistoryError(f"this is not a message history: at {where}: {first['msg']}{more}; expected a list like the one messages_to_json writes", problems)
