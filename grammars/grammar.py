"""A compiled grammar: a program of expressions and what is known about it, ready for any vocabulary.

Made by the front ends; hands out matchers. Compiling is thread-safe and cached by content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentkit.errors import GrammarError, InvalidGrammar, UnsatisfiableSchema
from agentkit.grammars.compiled import Compiled, compiled_once
from agentkit.grammars.effort import TIME_LIMIT, limited
from agentkit.grammars.expr import Builder, Node, Program

if TYPE_CHECKING:
    from agentkit.grammars.matcher import Matcher
    from agentkit.grammars.report import Report
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Grammar"]

Whitespace = Literal["compact", "flexible"]
KeyOrder = Literal["declared", "any"]
Formats = Literal["enforce", "annotate"]
Cancel = Callable[[], bool]


class Grammar:
    """A language over bytes and special tokens.

    Made by the `from_...` methods. Every one of them raises InvalidGrammar for malformed input, UnsupportedSchema for
    what cannot be enforced exactly, UnsatisfiableSchema if nothing can match, GrammarTooComplex past a limit.

    Every one of them also takes time_limit, the seconds of processor time after which it gives up with GrammarTooComplex
    (None: never), and cancel, asked now and then: once it returns true (`threading.Event().is_set`, say), CompileCancelled.
    """

    def __init__(self, program: Program, report: Report | None = None) -> None:
        self.program = program
        self._report = report

    @classmethod
    def from_json_schema(
        cls,
        schema: dict[str, Any] | bool,
        *,
        whitespace: Whitespace = "compact",
        key_order: KeyOrder = "declared",
        formats: Formats = "enforce",
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """JSON texts that satisfy a JSON Schema (2020-12; earlier drafts where the schema says so).

        Args:
            whitespace: "compact": none; "flexible": between tokens at most one line break and 40 blanks.
            key_order: "declared": keys in the order of `properties`; "any": every order.
            formats: "enforce": those that are known (docs/formats.md); "annotate": none, as a validator does that is not told to.
        """
        with limited(time_limit, cancel):
            return cls(*_of_schema(schema, whitespace, key_order, formats, plain_integers=False))

    @classmethod
    def from_pydantic(
        cls,
        model: Any,
        *,
        mode: Literal["validation", "serialization"] = "validation",
        by_alias: bool = True,
        closed: bool = False,
        whitespace: Whitespace = "compact",
        key_order: KeyOrder = "declared",
        formats: Formats = "enforce",
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """JSON texts that a Pydantic model, or any type that Pydantic can validate, accepts.

        Args:
            mode: "validation": what the model accepts; "serialization": what it writes.
            by_alias: keys are the fields' aliases where they have one.
            closed: no undeclared keys unless the class allows extras (Pydantic would drop them).
            whitespace, key_order, formats: as for `from_json_schema`.
        """
        from agentkit.grammars.frontends.pydantic import json_schema_of

        with limited(time_limit, cancel):
            schema = json_schema_of(model, mode=mode, by_alias=by_alias, closed=closed)
            return cls(*_of_schema(schema, whitespace, key_order, formats, plain_integers=True))

    @classmethod
    def from_regex(cls, pattern: str, *, flags: int | re.RegexFlag = 0, time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that a regular expression (Python's `re` syntax) matches as a whole."""

        def lower(builder: Builder) -> Node:
            from agentkit.grammars.frontends.regex import regex_node

            return regex_node(builder, pattern, flags=flags)

        with limited(time_limit, cancel):
            return cls(*_of_text(("regex", pattern, int(flags)), lower, f"the pattern {pattern!r}"))

    @classmethod
    def from_lark(cls, text: str, *, start: str = "start", time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that `lark.Lark(text, start=start, parser="earley", lexer="dynamic")` parses.

        Terminals take what Python's `re` would take at that place, so a name does not end in the middle of a word and a
        lazy string ends at its first closing quote. `%declare`, imports of files and constructs whose outcome depends on
        what came before a terminal raise UnsupportedSchema naming them.
        """

        def lower(builder: Builder) -> Node:
            from agentkit.grammars.frontends.lark import compile_lark

            return compile_lark(builder, text, start)

        with limited(time_limit, cancel):
            return cls(*_of_text(("lark", text, start), lower, f"the rule {start!r}"))

    @classmethod
    def from_gbnf(cls, text: str, *, root: str = "root", time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that the rule `root` of a GBNF or EBNF grammar matches, as llama.cpp and xgrammar write them."""

        def lower(builder: Builder) -> Node:
            from agentkit.grammars.frontends.gbnf import compile_gbnf

            return compile_gbnf(builder, text, root)

        with limited(time_limit, cancel):
            return cls(*_of_text(("gbnf", text, root), lower, f"the rule {root!r}"))

    @classmethod
    def from_choices(cls, choices: Iterable[str], *, time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Exactly one of the given texts."""
        texts: list[Any] = list(choices)
        if not texts:
            raise InvalidGrammar("choices is empty; give at least one text")
        wrong = next((c for c in texts if not isinstance(c, str)), None)
        if wrong is not None:
            raise InvalidGrammar(f"choices must be strings, not {type(wrong).__name__} ({wrong!r})")
        with limited(time_limit, cancel):
            builder = Builder()
            return cls(builder.program(builder.trie(c.encode() for c in texts)))

    @classmethod
    def from_tools(
        cls,
        tools: Sequence[Any],
        choice: str = "auto",
        *,
        parallel: bool | int = False,
        output_schema: dict[str, Any] | None = None,
        format: str = "hermes",
        reasoning: Literal["none", "allowed", "begun"] = "allowed",
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """A whole assistant turn: reasoning, then free text or an answer, and calls of the given tools.

        Args:
            tools: things with name and parameters (a JSON Schema for the arguments), as attributes or dict keys.
            choice: "auto" (text or calls), "required" (at least one call), "none" (no calls), or a tool's name.
            parallel: how many calls a turn may hold: False one, True any number, n at most n.
            output_schema: the final answer is JSON of this schema instead of free text.
            format: how calls are written: "hermes", "qwen", "llama3", "gemma3", "mistral", "mistral-v11", "deepseek-v3",
                "deepseek-v3.1" or "harmony" (docs/grammars.md).
            reasoning: where the format has it: "allowed" first, "begun" by the prompt, or "none".
        """
        listed = list(tools)

        def compile() -> Compiled:
            from agentkit.grammars.frontends.turns import turn_grammar

            return turn_grammar(listed, choice, parallel=parallel, output_schema=output_schema, format=format, reasoning=reasoning)

        described = [tuple(_described(tool)) for tool in listed]
        with limited(time_limit, cancel):
            return cls(*compiled_once(("tools", described, choice, parallel, output_schema, format, reasoning), compile))

    def report(self) -> Report:
        """What was enforced, keyword by keyword (empty for grammars without keywords)."""
        from agentkit.grammars.report import Report

        return self._report if self._report is not None else Report()

    def matcher(self, vocabulary: Vocabulary) -> Matcher:
        """A matcher at the beginning of a text.

        Raises:
            UnsatisfiableSchema: nothing matches.
        """
        from agentkit.grammars.matcher import Matcher
        from agentkit.grammars.vocabulary import Vocabulary

        if not isinstance(vocabulary, Vocabulary):
            raise GrammarError(f"matcher() needs an agentkit.grammars.Vocabulary, not {type(vocabulary).__name__}; see Vocabulary.from_tokenizer")
        arena = vocabulary.arena
        root = arena.root(self.program) or arena.root(self.program, every_byte=True)
        if root == 0:
            raise UnsatisfiableSchema("#", "the grammar matches no text")
        return Matcher(self, vocabulary, arena, root)


def _of_schema(schema: dict[str, Any] | bool, whitespace: Whitespace, key_order: KeyOrder, formats: Formats, *, plain_integers: bool) -> Compiled:
    def compile() -> Compiled:
        from agentkit.grammars.frontends.json_schema import compile_schema

        made = compile_schema(schema, whitespace=whitespace, key_order=key_order, plain_integers=plain_integers, formats=formats)
        return made.program, made.report

    return compiled_once(("json_schema", schema, whitespace, key_order, formats, plain_integers), compile)


def _described(tool: Any) -> Iterator[Any]:
    """What a turn's grammar depends on of a tool."""
    for field in ("name", "parameters"):
        yield tool.get(field) if isinstance(tool, Mapping) else getattr(tool, field, None)


def _of_text(source: tuple[Any, ...], lower: Callable[[Builder], Node], what: str) -> Compiled:
    def compile() -> Compiled:
        builder = Builder()
        root = lower(builder)
        if root == Builder.EMPTY:
            raise UnsatisfiableSchema("#", f"{what} matches no text")
        return builder.program(root), None

    return compiled_once(source, compile)
