"""How conversations and tool calls are written for a family of models, and which family a model belongs to.

A `TurnProtocol` turns messages into what a chat template takes, names the format of a turn for the grammar, and reads a turn
back while it streams. `FormatProtocol` does so for every entry of FORMATS: through the model's own chat template where that
knows tools and calls (native), else by writing them out as text, the way SmolLM2 and Hermes models have seen it:

    system     instructions, then the tools, one JSON object a line
    assistant  free text, then the calls in the family's format
    user       <tool_response>\\n...\\n</tool_response>   (results, and what was wrong with a call)

Argument text is kept verbatim wherever it is text. Knows nothing of engines, tokens or running tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from agentkit.engine.models.chat_template import Spelled, ToolSupport
from agentkit.errors import InvalidOption
from agentkit.grammars.frontends.turn_formats import FORMATS, TurnFormat
from agentkit.messages import AssistantMessage, Message, SystemMessage, UserMessage
from agentkit.model import ToolSpec, Turn, TurnRequest
from agentkit.schema import JSONSchema
from agentkit.turn_reader import FormatReader, Piece, Reasoning

__all__ = ["FAMILIES", "FormatProtocol", "TurnProtocol", "TurnReader", "call_text", "calls_text", "compact", "family_of", "shown_schema"]


class TurnReader(Protocol):
    """Reads one turn as it streams."""

    def feed(self, text: str) -> list[Piece]:
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

    def tools(self, request: TurnRequest) -> list[dict[str, Any]] | None:
        """Tools for a chat template that describes them itself; None where `render` does."""
        ...

    def reader(self, request: TurnRequest, reasoning: Reasoning = "none") -> TurnReader:
        """A new reader for the turn that answers `request`. reasoning: as in Grammar.from_tools."""
        ...


class FormatProtocol:
    """A family's protocol.

    format: a key of FORMATS.   native: what the model's chat template wants; None: it knows no tools, so they are written as text.

    Raises:
        InvalidOption: no such format.
    """

    def __init__(self, format: str = "hermes", native: ToolSupport | None = None) -> None:
        if format not in FORMATS:
            raise InvalidOption(f"the protocol {format!r} is not known; the protocols are {', '.join(sorted(FORMATS))}")
        self.format = format
        self.form = FORMATS[format]
        self.native = native

    def render(self, request: TurnRequest) -> list[dict[str, Any]]:
        """Chat messages; neighbours with the role user are joined, since templates expect turns to alternate."""
        messages = list(request.messages)
        system = [request.instructions.strip()]
        while messages and isinstance(messages[0], SystemMessage):
            system.append(messages[0].content)
            del messages[0]
        system += [self._tools_text(request.tools) if self.native is None else "", output_text(request.output_schema)]
        rendered: list[dict[str, Any]] = []
        if any(system):
            rendered.append({"role": "system", "content": "\n\n".join(part for part in system if part)})
        ids: dict[str, str] = {}
        for message in messages:
            for part in self._messages(message, ids):
                if rendered and rendered[-1]["role"] == part["role"] == "user":
                    part = {"role": "user", "content": f"{rendered.pop()['content']}\n{part['content']}"}
                rendered.append(part)
        return _one_call_each(rendered, self.native.blank) if self.native and not self.native.several else rendered

    def tools(self, request: TurnRequest) -> list[dict[str, Any]] | None:
        if self.native is None or not request.tools:
            return None
        return [{"type": "function", "function": described(tool, always=True)} for tool in request.tools]

    def reader(self, request: TurnRequest, reasoning: Reasoning = "none") -> FormatReader:
        calls = bool(request.tools) and request.tool_choice != "none"
        return FormatReader(self.form, structured=request.output_schema is not None, calls=calls, reasoning=reasoning)

    def _messages(self, message: Message, ids: dict[str, str]) -> list[dict[str, Any]]:
        if isinstance(message, SystemMessage):
            return [{"role": "system", "content": message.content}]
        if isinstance(message, AssistantMessage):
            return [self._native_turn(message, ids) if self.native else self._written_turn(message)]
        if isinstance(message, UserMessage) or message.tool_call_id is None:
            return [{"role": "user", "content": message.content}]
        if self.native:
            return [{"role": "tool", "name": message.name, "tool_call_id": ids.get(message.tool_call_id, ""), "content": message.content}]
        return [{"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}]

    def _written_turn(self, message: AssistantMessage) -> dict[str, Any]:
        calls = _spelled(self.form, [(call.name, call.arguments) for call in message.tool_calls])
        return {"role": "assistant", "content": Spelled([(message.content or "", False), *calls])}

    def _native_turn(self, message: AssistantMessage, ids: dict[str, str]) -> dict[str, Any]:
        """A turn as the template takes it. Ids are numbers of nine digits, which every family accepts, the same in every rendering."""
        assert self.native is not None
        if not message.tool_calls:
            return {"role": "assistant", "content": message.content or ""}
        calls = []
        for call in message.tool_calls:
            ids[call.id] = f"{len(ids) + 1:09d}"
            calls.append({"id": ids[call.id], "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        return {"role": "assistant", "content": message.content or self.native.blank, "tool_calls": calls}

    def _tools_text(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        lines = "\n".join(compact(described(tool)) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\n{_how_to_call(self.form)}"
        )


def _how_to_call(form: TurnFormat) -> str:
    example = calls_text(form, [("<function-name>", "<args-json-object>")], quote=False)
    if form is FORMATS["hermes"] or form is FORMATS["qwen"]:
        return f"For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n{example}"
    return f"To call a function, write it exactly in this form, and nothing after it:\n{example}"


def calls_text(form: TurnFormat, calls: Sequence[tuple[str, str]], *, quote: bool = True) -> str:
    """Calls (name, JSON text of the arguments) as an assistant turn spells them, "" for none. quote: spell names as JSON where they are."""
    return "".join(text for text, _ in _spelled(form, calls, quote))


def _spelled(form: TurnFormat, calls: Sequence[tuple[str, str]], quote: bool = True) -> list[tuple[str, bool]]:
    """The same in parts: (text, whether it is the form's own)."""
    parts: list[tuple[str, bool]] = []
    for index, (name, arguments) in enumerate(calls):
        before = form.triggers[0] if index == 0 else form.separator
        parts += [(before + form.head, True), (compact(name)[1:-1] if quote and form.quoted else name, False), (form.between, True)]
        parts += [(arguments, False), (form.tail, True)]
    return [*parts, (form.end, True)] if calls else []


def call_text(name: str, arguments: str, format: str = "hermes") -> str:
    """One call as an assistant turn spells it."""
    return calls_text(FORMATS[format], [(name, arguments)])


def _one_call_each(messages: list[dict[str, Any]], blank: str | None) -> list[dict[str, Any]]:
    """Messages with several calls as several messages, each followed by its own result."""
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    single: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls", ())
        if message["role"] == "tool":
            continue
        for index, call in enumerate(calls):
            single.append({**message, "content": message["content"] if index == 0 else blank, "tool_calls": [call]})
            single += [results[call["id"]]] if call["id"] in results else []
        single += [] if calls else [message]
    return single


def output_text(schema: JSONSchema | None) -> str:
    """What the prompt says of a structured answer."""
    return "" if schema is None else f"Give the final answer as one JSON value that matches this JSON schema:\n{compact(shown_schema(schema))}"


def described(tool: ToolSpec, *, always: bool = False) -> dict[str, Any]:
    """A tool as the prompt shows it. always: with a description even where it is empty."""
    description = {"description": tool.description} if tool.description or always else {}
    return {"name": tool.name, **description, "parameters": shown_schema(tool.parameters)}


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


_Sign = Callable[[str, Container[str]], bool]

# Family -> does the model belong to it, by its chat template and the names of its special tokens? The first that says yes.
FAMILIES: dict[str, _Sign] = {
    "harmony": lambda template, tokens: "<|channel|>" in template or ("<|channel|>" in tokens and "<|constrain|>" in tokens),
    "mistral-v11": lambda template, tokens: "[TOOL_CALLS]" in template and "[ARGS]" in template,
    "mistral": lambda template, tokens: "[TOOL_CALLS]" in template,
    "deepseek-v3": lambda template, tokens: "<｜tool▁calls▁begin｜>" in template and "```json" in template,
    "deepseek-v3.1": lambda template, tokens: "<｜tool▁calls▁begin｜>" in template,
    "qwen": lambda template, tokens: "<tool_call>" in template and '"arguments"' in template,
    "llama3": lambda template, tokens: "<|start_header_id|>" in template,
    "gemma3": lambda template, tokens: "<start_of_turn>" in template and "<start_function_call>" not in template,
}


def family_of(template: str, special_tokens: Container[str] = ()) -> str | None:
    """The format of a model, by its chat template and special tokens; None for one of no known family."""
    return next((family for family, sign in FAMILIES.items() if sign(template, special_tokens)), None)
