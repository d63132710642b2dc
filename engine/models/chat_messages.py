"""What a caller gives as a conversation -> messages that a chat template can read, or an error that names the message.

Takes the form of OpenAI's chat API and of transformers' templates. A template sees texts only: lists of text parts are joined, and the
arguments of calls are brought into the form the template wants. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agentkit.errors import EngineError, HistoryError, did_you_mean

if TYPE_CHECKING:
    from agentkit.engine.models.chat_template import ChatTemplate

__all__ = ["as_dicts", "chat_messages", "encode_chat"]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text")
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")  # of an assistant's message


def as_dicts(name: str, given: Any) -> list[dict[str, Any]]:
    """A sequence of mappings as a list of dicts. Raises TypeError for anything else."""
    items: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping) else [None]
    if not all(isinstance(item, Mapping) for item in items):
        example = {"role": "user", "content": "..."}
        raise TypeError(f"{name} must be a list of dicts, not {given!r}; a message is such as {example}, and a text alone is for generate()")
    return [dict(item) for item in items]


def chat_messages(given: Any, template: ChatTemplate) -> list[dict[str, Any]]:
    """The messages as `template` reads them; whatever else they hold is left as it is.

    Raises TypeError for what are no messages, ValueError for none at all, HistoryError for a message that cannot be read.
    """
    messages = as_dicts("messages", given)
    if not messages:
        raise ValueError("messages is empty; give at least one message, such as {'role': 'user', 'content': '...'}")
    for index, message in enumerate(messages):
        message["role"] = _role(index, message, template)
        if message.get("function_call") and not message.get("tool_calls") and "function_call" not in template.source:
            message["tool_calls"] = [{"function": message.pop("function_call")}]  # OpenAI's older form of a call
        if message.get("tool_calls") is not None:
            message["tool_calls"] = [_call(index, call, template) for call in _calls(index, message)]
        message["content"] = _content(index, message, template)
    return messages


def encode_chat(template: ChatTemplate, messages: Any, tools: Any, add_generation_prompt: bool) -> list[int]:
    """Messages as `chat_messages` reads them and tools (or None) -> token ids. Raises EngineError as well, where the template fails or shows no tools."""
    read, given = chat_messages(messages, template), None if tools is None else as_dicts("tools", tools)
    for tool in given or ():
        if not isinstance(tool.get("function", tool), Mapping):
            example = {"type": "function", "function": {"name": "...", "parameters": {}}}
            raise TypeError(f"a tool is the description of a function, such as {example}, not {reprlib.repr(tool)}")
    calls = [call for message in read for call in message.get("tool_calls") or ()]
    if (given or calls) and template.tool_support is None:
        _check_shown(template.render(read, tools=given, add_generation_prompt=add_generation_prompt), given or (), calls)
    return template.encode(read, tools=given, add_generation_prompt=add_generation_prompt)


def _check_shown(text: str, tools: Iterable[Mapping[str, Any]], calls: Iterable[Mapping[str, Any]]) -> None:
    """Raises EngineError if a rendered conversation shows one of its tools or calls not even by name."""
    for kind, functions in (("tools", tools), ("calls", calls)):
        names = [function.get("function", function).get("name") for function in functions]
        lost = [name for name in names if isinstance(name, str) and name not in text and json.dumps(name)[1:-1] not in text]
        if lost:
            raise EngineError(
                f"the model's chat template does not show {kind}, so the model would not know of {', '.join(map(repr, lost))}; "
                "use an Agent, which writes tools and calls into the messages where a template does not, or write them there yourself"
            )


def _role(index: int, message: Mapping[str, Any], template: ChatTemplate) -> str:
    role = message.get("role")
    if isinstance(role, str) and (role in ROLES or any(f"{quote}{role}{quote}" in template.source for quote in "'\"")):
        return role
    said = f"role {role!r} is not one that the model's chat template knows" if "role" in message else "it has no role"
    close = did_you_mean(role, ROLES) if isinstance(role, str) else ""
    raise _refused(index, f"{said}; roles are {', '.join(ROLES)}.{close}")


def _content(index: int, message: Mapping[str, Any], template: ChatTemplate) -> str | None:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "".join(_part(index, place, part) for place, part in enumerate(content))
    if content is not None:
        raise _refused(index, f"its content is of type {type(content).__name__}; give a text, and data as JSON text")
    if message["role"] == "assistant" and any(message.get(key) for key in _INSTEAD_OF_CONTENT):
        support = template.tool_support
        return "" if support is None else support.blank
    others = [key for key in message if key not in ("role", "content")]
    raise _refused(index, f"it has no content (its role is {message['role']!r}{f', its other keys are {others}' if others else ''})")


def _part(index: int, place: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind in _TEXT_PARTS and isinstance(text, str):
        return text
    raise _refused(index, f"part {place} of its content is {f'of type {kind!r}' if isinstance(kind, str) else reprlib.repr(part)}; only text parts can be read")


def _calls(index: int, message: Mapping[str, Any]) -> list[Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list | tuple):
        raise _refused(index, f"its tool_calls are of type {type(calls).__name__}; give a list")
    return list(calls)


def _call(index: int, call: Any, template: ChatTemplate) -> dict[str, Any]:
    """A call with its arguments as the template wants them: as a value, or as its JSON text."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _refused(index, f"it calls {reprlib.repr(call)}; a call is {{'id': ..., 'function': {{'name': ..., 'arguments': ...}}}}")
    arguments = function.get("arguments", {})
    parsed = template.tool_support is None or template.tool_support.arguments == "parsed"
    if parsed and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif not parsed and not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refused(index, f"the arguments of its call of {function['name']!r} are no JSON: {error}") from error
    rest = {} if function is call else {key: value for key, value in call.items() if key != "function"}
    return {"type": "function", **rest, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):  # a call that was refused at the time: shown as it was
        return arguments


def _refused(index: int, why: str) -> HistoryError:
    return HistoryError(f"message {index} cannot be read: {why}")
