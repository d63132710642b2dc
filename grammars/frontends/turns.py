"""A whole turn of an assistant as one grammar: reasoning, then free text or a structured answer, and calls of tools.

Input: tools (name and JSON Schema of the arguments), what the turn may do, and the form in which a family of models
writes calls (turn_formats.py). Output: a `Program` and a `Report`. Free text is any UTF-8 without the format's markers
(free_text.py). The names of tools are one trie: the name decides the arguments' schema.
Knows nothing of tokens, prompts or running tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentkit.errors import GrammarError, InvalidGrammar
from agentkit.grammars.expr import Builder, Node, Program
from agentkit.grammars.frontends.chars import json_escape
from agentkit.grammars.frontends.free_text import spelled, text_until
from agentkit.grammars.frontends.json_schema import schema_node
from agentkit.grammars.frontends.json_schema.beginning import beginning
from agentkit.grammars.frontends.json_schema.emit import Style
from agentkit.grammars.frontends.tool_forms import described
from agentkit.grammars.frontends.turn_formats import FORMATS, TurnFormat
from agentkit.grammars.report import Report

__all__ = ["FORMATS", "Reasoning", "TurnFormat", "turn_grammar"]

Reasoning = Literal["none", "allowed", "begun"]

CHOICES = ("auto", "required", "none")
REASONING = ("none", "allowed", "begun")
ANSWER = "(answer)"  # prefix of the output schema's pointers in the report; no tool can have this name
_BARE_NAME = re.compile(r"[A-Za-z0-9_.\-]+\Z")


@dataclass(frozen=True)
class _Tool:
    name: str
    parameters: Any


def turn_grammar(
    tools: Sequence[Any],
    choice: str = "auto",
    *,
    parallel: bool | int = False,
    output_schema: Any = None,
    format: str = "hermes",
    reasoning: Reasoning = "allowed",
) -> tuple[Program, Report]:
    """The language of one turn.

    Args:
        tools: see `Grammar.from_tools`; parameters None or {}: a tool without arguments.
            Undeclared arguments are allowed unless the schema closes the object, as JSON Schema has it.
        choice: "auto": non-empty text, or text (possibly none) and then calls; "required": calls at once; "none": text only;
            else the name of a tool: exactly one call of it.
        parallel: False: one call, True: any number, n: at most n; formats in which a call ends the turn have one in any case.
        output_schema: text is replaced by JSON of this schema (compact), which a turn holds instead of calls.
        format: a key of FORMATS.
        reasoning: where the format has it: "allowed" before all else, "begun": the prompt has opened it already, or "none".

    Returns the program and a report in which pointers begin with the tool's name, or with "(answer)".

    Raises InvalidGrammar for a malformed argument, and whatever a tool's schema raises, the tool named in the message.
    """
    form = FORMATS.get(format)
    if form is None:
        raise InvalidGrammar(f"the format {format!r} is not known; the formats are {', '.join(sorted(FORMATS))}")
    if reasoning not in REASONING:
        raise InvalidGrammar(f"reasoning is {reasoning!r}; it must be 'none', 'allowed' or 'begun'")
    known = _checked_tools(tools)
    most = 1 if form.single else _most_calls(parallel)
    if choice not in CHOICES:
        if choice not in known:
            names = ", ".join(known) or "there are none"
            raise InvalidGrammar(f"choice is {choice!r}; it must be 'auto', 'required', 'none' or the name of a tool: {names}")
        known, most = {choice: known[choice]}, 1
    elif choice == "required" and not known:
        raise InvalidGrammar("choice is 'required', but there are no tools; give at least one tool, or another choice")
    turn = _Turn(form)
    calls = turn.calls(known, most) if known and choice != "none" else Builder.EMPTY
    must_call = choice not in ("auto", "none")
    answer = None if must_call or output_schema is None else turn.answer(output_schema)
    body = turn.messages(calls, answer, must_call, reasoning) if form.final else turn.thoughtful(turn.body(calls, answer, must_call), reasoning)
    return turn.builder.program(body), turn.report


class _Turn:
    """The parts of a turn in one format, as nodes of one builder."""

    def __init__(self, form: TurnFormat) -> None:
        self.form = form
        self.builder = Builder(beginning(Style(plain_integers=True)))
        self.report = Report()

    def spell(self, text: str) -> Node:
        return spelled(self.builder, text, self.form.specials)

    def text(self, never: Sequence[str], *ends: tuple[str, Node], leading: bool = False, closed: bool = False) -> Node:
        """Text without `never`, and then nothing or an end; `closed`: one of the ends in any case, with or without text before it."""
        return text_until(self.builder, never, ends, specials=self.form.specials, leading=leading, empty=closed, may_end=not closed)

    def body(self, calls: Node, answer: Node | None, must_call: bool) -> Node:
        """Text or an answer, or calls with what begins them."""
        form, builder = self.form, self.builder
        begun = builder.seq(builder.alt(*map(self.spell, form.triggers)), calls)
        if must_call:
            return begun
        if answer is not None:
            return builder.alt(begun, answer)
        return self.text(form.never_text, *((trigger, calls) for trigger in form.triggers), leading=form.leading)

    def thoughtful(self, body: Node, reasoning: Reasoning) -> Node:
        """`body`, with reasoning ahead of it where the format has some."""
        if self.form.reasoning is None or reasoning == "none":
            return body
        opening, closing = self.form.reasoning
        blank = self.builder.repeat(self.builder.literal(b"\n"), 0, 2)
        thought = self.text((), (closing, self.builder.seq(blank, body)), closed=True)
        return thought if reasoning == "begun" else self.builder.alt(self.builder.seq(self.spell(opening), thought), body)

    def messages(self, calls: Node, answer: Node | None, must_call: bool, reasoning: Reasoning) -> Node:
        """A turn of messages: any number that think or announce, then the answer or a call."""
        form, builder = self.form, self.builder
        before = [part for part in (form.reasoning if reasoning != "none" else None, form.preamble) if part]
        ahead = [builder.seq(self.spell(opening), self.text(form.markers, (closing, builder.EPSILON), closed=True)) for opening, closing in before]
        last = builder.seq(builder.alt(*map(self.spell, form.triggers)), calls)
        if not must_call:
            last = builder.alt(last, builder.seq(self.spell(form.final), self.text(form.markers) if answer is None else answer))
        return builder.seq(builder.repeat(builder.alt(*ahead)), last)

    def answer(self, schema: Any) -> Node:
        return _named("output_schema", lambda: self._schema(schema, ANSWER))

    def calls(self, tools: Mapping[str, _Tool], most: int | None) -> Node:
        """One to `most` calls and what ends them, without the trigger."""
        form, builder = self.form, self.builder
        between = self.spell(form.between)
        ends = sorted((self._name(tool.name), builder.seq(between, self._arguments(tool))) for tool in tools.values())
        call = builder.seq(self.spell(form.head), _trie(builder, ends), self.spell(form.tail))
        again = builder.seq(self.spell(form.separator), call)
        return builder.seq(call, builder.repeat(again, 0, None if most is None else most - 1), self.spell(form.end))

    def _name(self, name: str) -> bytes:
        try:
            escaped = json_escape(name)
        except ValueError as error:
            raise InvalidGrammar(f"the tool's name {name!r} has no UTF-8 form; give valid Unicode") from error
        if not self.form.quoted and not _BARE_NAME.match(name):
            raise InvalidGrammar(f"the tool's name {name!r} stands bare in this format; use letters, digits, '_', '.' and '-' only")
        return escaped

    def _arguments(self, tool: _Tool) -> Node:
        """A tool's arguments: a JSON object that satisfies its schema."""
        if tool.parameters is None or tool.parameters == {}:
            return self.builder.literal(b"{}")
        return _named(f"tool {tool.name!r}", lambda: self._schema(_object_schema(tool.parameters), tool.name))

    def _schema(self, schema: Any, prefix: str) -> Node:
        node, of_schema = schema_node(self.builder, schema, plain_integers=True)
        self.report.add(of_schema, prefix)
        return node


def _checked_tools(tools: Sequence[Any]) -> dict[str, _Tool]:
    """The tools by name, in their order."""
    known: dict[str, _Tool] = {}
    for index, tool in enumerate(tools):
        name, parameters = described(tool)
        if not isinstance(name, str) or not name:
            hint = "make a tool of a function with agentkit.tool" if callable(tool) else f"give it a non-empty string (got {name!r})"
            raise InvalidGrammar(f"tools[{index}] has no name: {hint}")
        if name in known:
            raise InvalidGrammar(f"two tools are named {name!r}; give one of them another name")
        known[name] = _Tool(name, parameters)
    return known


def _most_calls(parallel: bool | int) -> int | None:
    """How many calls a turn may hold; None: any number."""
    if isinstance(parallel, bool):
        return None if parallel else 1
    number: Any = parallel
    if not isinstance(number, int) or number < 1:
        raise InvalidGrammar(f"parallel is {parallel!r}; it must be False (one call), True (any number) or a number from 1 up")
    return parallel


def _trie(builder: Builder, ends: Sequence[tuple[bytes, Node]]) -> Node:
    """Choice among `name node` by the name; sorted by name. Each byte is decided once; what follows a name begins with a byte that no name has."""
    if not ends[0][0]:
        return builder.alt(ends[0][1], *([_trie(builder, ends[1:])] if ends[1:] else []))
    first, last = ends[0][0], ends[-1][0]
    shared = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    rest = [(name[len(shared) :], node) for name, node in ends]
    if shared:
        return builder.seq(builder.literal(shared), _trie(builder, rest))
    below: dict[int, list[tuple[bytes, Node]]] = {}
    for name, node in rest:
        below.setdefault(name[0], []).append((name, node))
    return builder.alt(*(_trie(builder, group) for group in below.values()))


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


def _named(what: str, make: Callable[[], Node]) -> Node:
    """`make()`, whose errors say what they are about; their class and attributes stay as they are."""
    try:
        return make()
    except GrammarError as error:
        error.args = (f"{what}: {error.args[0]}", *error.args[1:])
        raise
