"""A whole turn of an assistant as one grammar: free text or a structured answer, and calls of tools.

Input: tools (name and JSON Schema of the arguments), what the turn may do, and the form in which a family of models
writes calls. Output: a `Program` and a `Report`. Free text is any UTF-8 without the format's markers; it is
spelled as the automaton that searches for them (Aho and Corasick 1975), so every text has one path and a handful of
states. The names of tools are one trie: the name decides the arguments' schema.
Knows nothing of tokens, prompts or running tools; the spelling is the one that agentkit/protocol.py writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentkit.errors import GrammarError, InvalidGrammar
from agentkit.grammars.expr import Builder, Node, Program
from agentkit.grammars.frontends.chars import SCALARS, CharSet, json_escape, utf8_class
from agentkit.grammars.frontends.json_schema import schema_node
from agentkit.grammars.report import Report

__all__ = ["FORMATS", "TurnFormat", "turn_grammar"]

CHOICES = ("auto", "required", "none")
ANSWER = "(answer)"  # prefix of the output schema's pointers in the report; no tool can have this name


@dataclass(frozen=True)
class TurnFormat:
    """How a family of models writes calls: `trigger head NAME between ARGUMENTS tail`, `separator` between two calls.

    NAME stands as in a JSON string, so `between` begins with the closing quote. The trigger and the other `markers` that the
    format's conversations hold are ASCII, begin with a sign that occurs nowhere else in them, and never occur in free text.
    """

    trigger: bytes
    head: bytes
    between: bytes
    tail: bytes
    separator: bytes
    markers: tuple[bytes, ...] = ()


FORMATS: dict[str, TurnFormat] = {
    "hermes": TurnFormat(
        trigger=b"<tool_call>",
        head=b'\n{"name":"',
        between=b'","arguments":',
        tail=b"}\n</tool_call>",
        separator=b"\n",
        markers=(b"</tool_", b"<tool_r"),  # of <tool_response>, which small models like to imitate
    ),
}


@dataclass(frozen=True)
class _Tool:
    name: str
    parameters: Any


def turn_grammar(
    tools: Sequence[Any], choice: str = "auto", *, parallel: bool | int = False, output_schema: Any = None, format: str = "hermes"
) -> tuple[Program, Report]:
    """The language of one turn.

    Args:
        tools: things with `name` and `parameters`, as attributes or keys; parameters None or {}: a tool without arguments.
            Undeclared arguments are allowed unless the schema closes the object, as JSON Schema has it.
        choice: "auto": non-empty text, or text (possibly none) and then calls; "required": calls at once; "none": text only;
            else the name of a tool: exactly one call of it.
        parallel: False: one call, True: any number, n: at most n.
        output_schema: text is replaced by JSON of this schema (compact), which a turn holds instead of calls.
        format: a key of FORMATS.

    Returns the program and a report in which pointers begin with the tool's name, or with "(answer)".

    Raises InvalidGrammar for a malformed argument, and whatever a tool's schema raises, the tool named in the message.
    """
    form = FORMATS.get(format)
    if form is None:
        raise InvalidGrammar(f"the format {format!r} is not known; the formats are {', '.join(sorted(FORMATS))}")
    known = _checked_tools(tools)
    most = _most_calls(parallel)
    builder, report = Builder(), Report()
    if choice not in CHOICES:
        if choice not in known:
            names = ", ".join(known) or "there are none"
            raise InvalidGrammar(f"choice is {choice!r}; it must be 'auto', 'required', 'none' or the name of a tool: {names}")
        known, most = {choice: known[choice]}, 1
    elif choice == "required" and not known:
        raise InvalidGrammar("choice is 'required', but there are no tools; give at least one tool, or another choice")
    calls = builder.EMPTY
    if known and choice != "none":
        calls = _calls_after_trigger(builder, form, known, most, report)
    trigger_and_calls = builder.seq(builder.literal(form.trigger), calls)
    if choice not in ("auto", "none"):
        return builder.program(trigger_and_calls), report
    if output_schema is not None:
        answer = _named("output_schema", lambda: _schema(builder, output_schema, report, ANSWER))
        return builder.program(builder.alt(trigger_and_calls, answer)), report
    return builder.program(_text_then(builder, form, calls)), report


def _checked_tools(tools: Sequence[Any]) -> dict[str, _Tool]:
    """The tools by name, in their order."""
    known: dict[str, _Tool] = {}
    for index, tool in enumerate(tools):
        get = tool.get if isinstance(tool, Mapping) else lambda key, tool=tool: getattr(tool, key, None)
        name = get("name")
        if not isinstance(name, str) or not name:
            raise InvalidGrammar(f"tools[{index}] has no name: give it a non-empty string (got {name!r})")
        if name in known:
            raise InvalidGrammar(f"two tools are named {name!r}; give one of them another name")
        known[name] = _Tool(name, get("parameters"))
    return known


def _most_calls(parallel: bool | int) -> int | None:
    """How many calls a turn may hold; None: any number."""
    if isinstance(parallel, bool):
        return None if parallel else 1
    number: Any = parallel
    if not isinstance(number, int) or number < 1:
        raise InvalidGrammar(f"parallel is {parallel!r}; it must be False (one call), True (any number) or a number from 1 up")
    return parallel


def _calls_after_trigger(builder: Builder, form: TurnFormat, tools: Mapping[str, _Tool], most: int | None, report: Report) -> Node:
    """One to `most` calls, without the trigger of the first."""
    named = sorted((_escaped(tool.name), _arguments(builder, tool, report)) for tool in tools.values())
    ends = [(name + form.between[:1], builder.seq(builder.literal(form.between[1:]), arguments)) for name, arguments in named]
    call = builder.seq(builder.literal(form.head), _trie(builder, sorted(ends)), builder.literal(form.tail))
    again = builder.seq(builder.literal(form.separator + form.trigger), call)
    return builder.seq(call, builder.repeat(again, 0, None if most is None else most - 1))


def _escaped(name: str) -> bytes:
    try:
        return json_escape(name)
    except ValueError as error:
        raise InvalidGrammar(f"the tool's name {name!r} has no UTF-8 form; give valid Unicode") from error


def _trie(builder: Builder, ends: Sequence[tuple[bytes, Node]]) -> Node:
    """Choice among `text node` by the text, which is no prefix of another; sorted by text. Each byte is decided once."""
    first, last = ends[0][0], ends[-1][0]
    shared = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    if len(ends) == 1:
        return builder.seq(builder.literal(shared), ends[0][1])
    below: dict[int, list[tuple[bytes, Node]]] = {}
    for text, node in ends:
        below.setdefault(text[len(shared)], []).append((text[len(shared) :], node))
    return builder.seq(builder.literal(shared), builder.alt(*(_trie(builder, group) for group in below.values())))


def _arguments(builder: Builder, tool: _Tool, report: Report) -> Node:
    """A tool's arguments: a JSON object that satisfies its schema."""
    if tool.parameters is None or tool.parameters == {}:
        return builder.literal(b"{}")
    return _named(f"tool {tool.name!r}", lambda: _schema(builder, _object_schema(tool.parameters), report, tool.name))


def _object_schema(schema: Any) -> Any:
    """The schema, narrowed to objects."""
    if not isinstance(schema, dict):
        raise InvalidGrammar(f"#: parameters must be a JSON Schema as a dict, not {type(schema).__name__} ({schema!r})", pointer="#")
    kind = schema.get("type")
    if kind == "object":
        return schema
    if kind is not None and not (isinstance(kind, list) and "object" in kind):
        raise InvalidGrammar(f"#/type: the arguments of a tool are an object, but parameters has the type {kind!r}", pointer="#/type")
    return {**schema, "type": "object"}


def _schema(builder: Builder, schema: Any, report: Report, prefix: str) -> Node:
    node, of_schema = schema_node(builder, schema, plain_integers=True)
    report.add(of_schema, prefix)
    return node


def _named(what: str, make: Callable[[], Node]) -> Node:
    """`make()`, whose errors say what they are about; their class and attributes stay as they are."""
    try:
        return make()
    except GrammarError as error:
        error.args = (f"{what}: {error.args[0]}", *error.args[1:])
        raise


def _text_then(builder: Builder, form: TurnFormat, calls: Node) -> Node:
    """Non-empty text without the format's markers; or any such text, the trigger and `calls` (EMPTY: there are none).

    One rule per beginning of a marker: what may follow where that is the longest one at the end of the text.
    """
    words = (form.trigger, *form.markers)
    beginnings = sorted({word[:k] for word in words for k in range(len(word))}, key=lambda b: (len(b), b))
    rules = {beginning: builder.rule() for beginning in beginnings}
    state = {beginning: builder.call(rule) for beginning, rule in rules.items()}
    state |= {word: calls if word == form.trigger else builder.EMPTY for word in words}
    stay, away = CharSet(), builder.EMPTY
    for beginning, rule in rules.items():
        moves = {byte: _longest(beginning + bytes([byte]), state) for byte in sorted(set(b"".join(words)))}
        onward = [builder.seq(builder.literal(bytes([byte])), state[to]) for byte, to in moves.items() if to]
        idle = SCALARS - CharSet.of(*(byte for byte, to in moves.items() if to))
        if not beginning:  # a run of characters, which masks treat as one
            stay, away = idle, builder.alt(*onward)
            builder.define(rule, builder.seq(builder.repeat(utf8_class(builder, idle)), builder.optional(away)))
        else:
            builder.define(rule, builder.optional(builder.alt(builder.seq(utf8_class(builder, idle), state[b""]), *onward)))
    return builder.alt(builder.seq(builder.repeat(utf8_class(builder, stay), 1), builder.optional(away)), away)


def _longest(text: bytes, beginnings: Iterable[bytes]) -> bytes:
    """The longest of `beginnings` that ends `text`."""
    return max((b for b in beginnings if text.endswith(b)), key=len)
