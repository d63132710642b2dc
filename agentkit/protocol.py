"""How conversations and tool calls are written for a family of models.

A `Protocol` turns messages into the roles and texts of a chat template, says which texts a turn may consist of (as a
grammar), and reads a turn back while it streams. One class per family; Hermes is what SmolLM2, Qwen and Hermes models use:

    system     instructions, then the tools, one JSON object a line
    assistant  free text, then  <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>
    user       <tool_response>\\n...\\n</tool_response>   (results, and what was wrong with a call)

Argument text is kept verbatim in both directions. Knows nothing of engines, tokens or running tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from agentkit.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage
from agentkit.model import CallClosed, ParsedCall, TextPiece, ToolSpec, Turn, TurnRequest
from agentkit.schema import JSONSchema

__all__ = ["HermesProtocol", "TurnProtocol", "TurnReader"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^"{}\[\]]+', re.S)
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*', re.S)
_TAIL = re.compile(r"\s*\}\s*</tool_call>\n?", re.S)


class TurnReader(Protocol):
    """Reads one turn as it streams."""

    def feed(self, text: str) -> list[TextPiece | CallClosed]:
        """More text of the turn; gives what has become certain."""
        ...

    def finish(self, finish_reason: str = "stop") -> Turn:
        """The whole turn, once all text has been fed."""
        ...


class TurnProtocol(Protocol):
    """One family's way of writing conversations."""

    format: str
    """Its name for `Grammar.from_tools(format=...)`."""

    def render(self, request: TurnRequest) -> list[dict[str, Any]]:
        """Messages for a chat template: dicts with role and content."""
        ...

    def reader(self, request: TurnRequest) -> TurnReader:
        """A new reader for the turn that answers `request`."""
        ...


class HermesProtocol:
    """The `<tool_call>` JSON protocol of SmolLM2, Qwen and Hermes models, for chat templates that know nothing of tools."""

    format = "hermes"

    def render(self, request: TurnRequest) -> list[dict[str, Any]]:
        """Chat messages; neighbours of the same role are joined, since templates expect turns to alternate."""
        messages = list(request.messages)
        system = [request.instructions.strip()]
        while messages and isinstance(messages[0], SystemMessage):
            system.append(messages[0].content)
            del messages[0]
        system += [self._tools_text(request.tools), self._output_text(request.output_schema)]
        rendered: list[tuple[str, str]] = []
        if any(system):
            rendered.append(("system", "\n\n".join(part for part in system if part)))
        for message in messages:
            role, content = self._message(message)
            if rendered and rendered[-1][0] == role and role == "user":
                content = f"{rendered.pop()[1]}\n{content}"
            rendered.append((role, content))
        return [{"role": role, "content": content} for role, content in rendered]

    def reader(self, request: TurnRequest) -> HermesReader:
        return HermesReader(structured=request.output_schema is not None, calls=bool(request.tools) and request.tool_choice != "none")

    def _message(self, message: Message) -> tuple[str, str]:
        if isinstance(message, SystemMessage):
            return "system", message.content
        if isinstance(message, UserMessage):
            return "user", message.content
        if isinstance(message, AssistantMessage):
            calls = "\n".join(call_text(call.name, call.arguments) for call in message.tool_calls)
            return "assistant", (message.content or "") + calls
        if isinstance(message, ToolMessage) or message.tool_call_id is not None:
            return "user", f"<tool_response>\n{message.content}\n</tool_response>"
        return "user", message.content

    def _tools_text(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        lines = "\n".join(tool_line(tool) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
            '<tool_call>\n{"name":<function-name>,"arguments":<args-json-object>}\n</tool_call>'
        )

    def _output_text(self, schema: JSONSchema | None) -> str:
        return "" if schema is None else f"Give the final answer as one JSON value that matches this JSON schema:\n{compact(shown_schema(schema))}"


class HermesReader:
    """Text and calls of one turn, as they stream.

    Only a whole, well-formed `<tool_call>` is a call. A trigger in the middle of an argument string is part of the string.

    structured: text is one JSON value, in whose strings a trigger means nothing: calls come first or not at all.
    calls: whether calls may come; if not, everything is text.
    """

    def __init__(self, *, structured: bool = False, calls: bool = True) -> None:
        self._structured, self._only_text = structured, not calls
        self._pending = ""  # text that is not certain yet: perhaps a trigger, or the inside of a call
        self._text: list[str] = []
        self._calls: list[ParsedCall] = []
        self._in_call = False

    def feed(self, text: str) -> list[TextPiece | CallClosed]:
        self._pending += text
        events: list[TextPiece | CallClosed] = []
        while self._step(events):
            continue
        return events

    def _step(self, events: list[TextPiece | CallClosed]) -> bool:
        if self._in_call:
            if CLOSE not in self._pending:
                return False
            parsed = parse_call(self._pending)
            if parsed is None:
                return False
            call, end = parsed
            self._pending, self._in_call = self._pending[end:], False
            self._calls.append(call)
            events.append(CallClosed(call))
            return True
        if self._structured and not self._only_text:
            self._only_text = not OPEN.startswith(self._pending.lstrip()[: len(OPEN)])
        if self._only_text:
            self._say(self._pending, events)
            self._pending = ""
            return False
        start = self._pending.find(OPEN)
        certain = start if start >= 0 else len(self._pending) - _overlap(self._pending, OPEN)
        if certain:
            self._say(self._pending[:certain], events)
        self._pending = self._pending[certain:]
        if start >= 0:
            self._pending, self._in_call = self._pending[len(OPEN) :], True
        return start >= 0

    def _say(self, text: str, events: list[TextPiece | CallClosed]) -> None:
        if not text or (self._calls and not text.strip()):
            return  # line breaks between calls are part of the form, not of the text
        self._text.append(text)
        events.append(TextPiece(text))

    def finish(self, finish_reason: str = "stop") -> Turn:
        if not self._in_call:
            self._say(self._pending, [])
        return Turn("".join(self._text), tuple(self._calls), OPEN + self._pending if self._in_call else "", finish_reason)


def parse_call(text: str) -> tuple[ParsedCall, int] | None:
    """A call from just after `<tool_call>`: (call, index just after `</tool_call>`), or None if it is not whole."""
    head = _HEAD.match(text)
    if head is None:
        return None
    end = json_end(text, head.end())
    tail = _TAIL.match(text, end) if end is not None else None
    if tail is None:
        return None
    return ParsedCall(json.loads(head.group(1)), text[head.end() : end]), tail.end()


def json_end(text: str, start: int) -> int | None:
    """Index just after the JSON object or array at `start`, found by its brackets; None if it is not whole."""
    depth = 0
    for part in _TOKEN.finditer(text, start):
        if part.start() == start and part.group() not in ("{", "["):
            return None
        if part.group() in ("{", "["):
            depth += 1
        elif part.group() in ("}", "]"):
            depth -= 1
            if depth == 0:
                return part.end()
    return None


def _overlap(text: str, trigger: str) -> int:
    """How many characters at the end of `text` may be the beginning of `trigger`."""
    return next((size for size in range(min(len(trigger) - 1, len(text)), 0, -1) if text.endswith(trigger[:size])), 0)


def call_text(name: str, arguments: str) -> str:
    """A call as an assistant turn spells it."""
    return f'{OPEN}\n{{"name":{compact(name)},"arguments":{arguments}}}\n{CLOSE}'


def tool_line(tool: ToolSpec) -> str:
    """A tool as one line of JSON for the prompt."""
    described = {"description": tool.description} if tool.description else {}
    return compact({"name": tool.name, **described, "parameters": shown_schema(tool.parameters)})


def compact(value: Any) -> str:
    """JSON without blanks, non-ASCII characters as themselves."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_UNSHOWN = frozenset({"additionalProperties", "maxLength", "minLength", "maxItems", "minItems"})


def shown_schema(schema: Any) -> Any:
    """A schema as the prompt shows it. Closed objects and size bounds, which the grammar enforces anyway, cost tokens and say little."""
    if isinstance(schema, list):
        return [shown_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    shown: dict[str, Any] = {}
    for key, value in sorted(schema.items(), key=lambda item: item[0] != "type"):  # type first, as models have seen schemas
        if key in _UNSHOWN and (key != "additionalProperties" or value is False):
            continue
        if key in ("properties", "$defs", "patternProperties"):
            shown[key] = {name: shown_schema(part) for name, part in value.items()}
        else:
            shown[key] = value if key in ("const", "enum", "default", "examples") else shown_schema(value)
    return shown
