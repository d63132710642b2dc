"""Chat templates: messages to the prompt a model was trained on, safe against special tokens in their contents.

Job: render a model's own jinja2 template under the conventions of Hugging Face (sandboxed and immutable, trim_blocks and
lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception, strftime_now, the generation tag) and encode the result.

Safety: only special tokens written by the template itself (or in our own parts of a Spelled text) become special ids. Before
rendering, every special token that stands in a message, a tool or a template variable is broken up by a marker character that occurs
nowhere else; the rendered text is cut at the special tokens that remain, the marker is removed from the pieces, and the pieces are
encoded as plain text. Knows nothing of agents or tool protocols.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from agentkit.errors import EngineError

if TYPE_CHECKING:
    import jinja2

    from agentkit.engine.models.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Spelled", "ToolSupport"]

Messages = Sequence[Mapping[str, Any]]


class Spelled(str):
    """The content of a message that is written in a model's own form.

    parts: (text, own) in order; special tokens in an own part are meant as such, those in others stay text.
    """

    parts: tuple[tuple[str, bool], ...]

    def __new__(cls, parts: Sequence[tuple[str, bool]]) -> Spelled:
        self = super().__new__(cls, "".join(text for text, _ in parts))
        self.parts = tuple(parts)
        return self


@dataclass(frozen=True)
class ToolSupport:
    """What a chat template that knows tools takes.

    arguments: of a call, "parsed" or as their "text".   blank: the content of a message with calls and no text.
    several: whether one message may hold several calls.
    """

    arguments: Literal["parsed", "text"] = "parsed"
    blank: Literal[""] | None = ""
    several: bool = True


class ChatTemplate:
    """A model's chat template with its tokenizer.

    source: the jinja2 text. tool_source: another one that the model uses where tools are given, or None.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, *, tool_source: str | None = None) -> None:
        self.source = source
        self.tool_source = tool_source
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model folder (chat_template.jinja, chat_template.json or tokenizer_config.json); None where there is none."""
        from agentkit.engine.models.loader import read_json

        file = folder / "chat_template.jinja"
        if file.is_file():
            tool_file = folder / "additional_chat_templates" / "tool_use.jinja"
            return cls(file.read_text(encoding="utf-8"), tokenizer, tool_source=tool_file.read_text(encoding="utf-8") if tool_file.is_file() else None)
        found = read_json(folder / "chat_template.json").get("chat_template") or read_json(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(found, list):
            named = {entry["name"]: entry["template"] for entry in found}
            found = named.get("default")
            return None if found is None else cls(found, tokenizer, tool_source=named.get("tool_use"))
        return None if found is None else cls(found, tokenizer)

    def render(self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt as text.

        messages: dicts with role and content, as the template expects them. tools: JSON-schema function descriptions.
        variables: further template variables, such as enable_thinking. Raises EngineError where the template refuses the messages.
        """
        return self._render(messages, tools, add_generation_prompt, variables)

    def encode(
        self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """The prompt as token ids; arguments as for `render`. Text in the arguments never becomes a special token."""
        marker = _unused_character((messages, tools, variables, self.source, self.tool_source))
        breaker = _Breaker(list(self._tokenizer.special_tokens), marker)
        text = self._render(breaker.broken(messages), breaker.broken(tools), add_generation_prompt, breaker.broken(variables))
        pieces = self._tokenizer.split_special(text)
        return self._tokenizer.encode_pieces([piece if isinstance(piece, int) else piece.replace(marker, "") for piece in pieces])

    @cached_property
    def tool_support(self) -> ToolSupport | None:
        """How tools, calls and results are to be handed to the template; None where any of them would be lost.

        Found out by rendering a conversation: what the template makes of it is the only sure sign.
        """
        for several, arguments, blank in itertools.product((True, False), ("parsed", "text"), ("", None)):
            support = ToolSupport(arguments, blank, several)  # type: ignore[arg-type]  # product widens the literals
            if self._shows(support):
                return support
        return None

    def _shows(self, support: ToolSupport) -> bool:
        """Does the template show all of a conversation that is written as `support` says?"""
        count = 2 if support.several else 1
        values = [f"value{number}" for number in range(count)]
        given: list[Any] = [{"key": value} if support.arguments == "parsed" else f'{{"key": "{value}"}}' for value in values]
        ids = [f"{number:09d}" for number in range(count)]
        calls = [{"id": i, "type": "function", "function": {"name": "probe_tool", "arguments": arguments}} for i, arguments in zip(ids, given, strict=True)]
        messages: list[dict[str, Any]] = [{"role": "system", "content": "probe_system"}, {"role": "user", "content": "probe_question"}]
        messages.append({"role": "assistant", "content": support.blank, "tool_calls": calls})
        messages += [{"role": "tool", "name": "probe_tool", "tool_call_id": i, "content": f"probe_result{i}"} for i in ids]
        parameters = {"type": "object", "properties": {"key": {"type": "string", "description": "probe_parameter"}}, "required": ["key"]}
        tools = [{"type": "function", "function": {"name": "probe_tool", "description": "probe_description", "parameters": parameters}}]
        try:
            text = self._render(messages, tools, True, {})
        except EngineError:
            return False
        wanted = ["probe_description", "probe_parameter", *(f'"key": "{value}"' for value in values), *(f"probe_result{i}" for i in ids)]
        return all(part in text for part in wanted)

    def _render(self, messages: Any, tools: Any, add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        import jinja2

        template = self._tool_template if tools and self._tool_template is not None else self._template
        try:
            return template.render(
                {**self._tokenizer.named_tokens, **variables, "messages": messages, "tools": tools or None, "add_generation_prompt": add_generation_prompt}
            )
        except _TemplateRefusal as error:
            raise EngineError(f"the model's chat template refuses these messages: {error.message}") from error
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise EngineError(f"the model's chat template failed on these messages: {type(error).__name__}: {error}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        return _compile(self.source)

    @cached_property
    def _tool_template(self) -> jinja2.Template | None:
        return None if self.tool_source is None else _compile(self.tool_source)


class _Breaker:
    """Puts a marker into every special token inside strings, and where a string's end could join with what comes next to make one."""

    def __init__(self, special: Sequence[str], marker: str) -> None:
        self._special = sorted(special, key=len, reverse=True)
        self._marker = marker
        self._heads = {token[:size] for token in special for size in range(1, len(token))}
        self._longest = max(map(len, special), default=0)

    def broken(self, value: Any) -> Any:
        """A deep copy of messages or tools with all strings broken, keys included."""
        if isinstance(value, Spelled):
            return "".join(text if own else self._text(text) for text, own in value.parts)
        if isinstance(value, str):
            return self._text(str(value))
        if isinstance(value, Mapping):
            return {self.broken(key): self.broken(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.broken(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        for token in self._special:
            if token in text:
                text = text.replace(token, token[:1] + self._marker + token[1:])
        if any(text.endswith(head) for head in self._heads_at(text)):
            text += self._marker
        return text

    def _heads_at(self, text: str) -> Iterator[str]:
        for size in range(1, min(self._longest, len(text) + 1)):
            if text[-size:] in self._heads:
                yield text[-size:]


class _TemplateRefusal(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _refuse(message: str) -> NoReturn:
    raise _TemplateRefusal(message)


def _unused_character(values: Any) -> str:
    """A private-use character that no string in `values` contains."""
    used = {character for text in _strings(values) for character in text if character >= "\ue000"}
    for code in (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE)):
        if chr(code) not in used:
            return chr(code)
    raise EngineError("the messages use every private-use character of Unicode; none is left to mark special tokens with")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _compile(source: str) -> jinja2.Template:
    import jinja2
    import jinja2.nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """{% generation %} ... {% endgeneration %} marks the assistant's words for training; here it only shows them."""

        tags = frozenset(("generation",))  # type: ignore[assignment]

        def parse(self, parser: Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise EngineError(f"the model's chat template has an error in line {error.lineno}: {error.message}") from error
