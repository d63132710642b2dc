"""A compiled grammar: a program of expressions and what is known about it, ready for any vocabulary.

Made by the front ends; hands out matchers. Compiling is thread-safe and cached by content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentkit.errors import GrammarError, InvalidGrammar, UnsatisfiableSchema
from agentkit.grammars.effort import TIME_LIMIT, limited
from agentkit.grammars.expr import Builder, Program

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
        from agentkit.grammars.frontends.json_schema import compile_schema

        with limited(time_limit, cancel):
            compiled = compile_schema(schema, whitespace=whitespace, key_order=key_order, formats=formats)
        return cls(compiled.program, compiled.report)

    @classmethod
    def from_pydantic(
        cls,
        model: Any,
        *,
        mode: Literal["validation", "serialization"] = "validation",
        by_alias: bool = True,
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
        **options: Any,
    ) -> Grammar:
        """JSON texts that a Pydantic model, or any type that Pydantic can validate, accepts.

        Options: those of `from_json_schema`, and closed=True: no undeclared keys unless the class allows extras.
        """
        from agentkit.grammars.frontends.pydantic import from_pydantic

        with limited(time_limit, cancel):
            compiled = from_pydantic(model, mode=mode, by_alias=by_alias, **options)
        return cls(compiled.program, compiled.report)

    @classmethod
    def from_regex(cls, pattern: str, *, flags: int | re.RegexFlag = 0, time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that a regular expression (Python's `re` syntax) matches as a whole."""
        from agentkit.grammars.frontends.regex import regex_node

        with limited(time_limit, cancel):
            builder = Builder()
            return cls._checked(builder, regex_node(builder, pattern, flags=flags), f"the pattern {pattern!r}")

    @classmethod
    def from_lark(cls, text: str, *, start: str = "start", time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that `lark.Lark(text, start=start, parser="earley", lexer="dynamic")` parses.

        Terminals take what Python's `re` would take at that place, so a name does not end in the middle of a word and a
        lazy string ends at its first closing quote. `%declare`, imports of files and constructs whose outcome depends on
        what came before a terminal raise UnsupportedSchema naming them.
        """
        from agentkit.grammars.frontends.lark import compile_lark

        with limited(time_limit, cancel):
            builder = Builder()
            return cls._checked(builder, compile_lark(builder, text, start), f"the rule {start!r}")

    @classmethod
    def from_gbnf(cls, text: str, *, root: str = "root", time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that the rule `root` of a GBNF or EBNF grammar matches, as llama.cpp and xgrammar write them."""
        from agentkit.grammars.frontends.gbnf import compile_gbnf

        with limited(time_limit, cancel):
            builder = Builder()
            return cls._checked(builder, compile_gbnf(builder, text, root), f"the rule {root!r}")

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
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """A whole assistant turn: free text or an answer, and calls of the given tools.

        Args:
            tools: things with name and parameters (a JSON Schema for the arguments), as attributes or dict keys.
            choice: "auto" (text or calls), "required" (at least one call), "none" (no calls), or a tool's name.
            parallel: how many calls a turn may hold: False one, True any number, n at most n.
            output_schema: the final answer is JSON of this schema instead of free text.
            format: how calls are written; "hermes" is `<tool_call>` JSON as in Qwen and Hermes models.
        """
        from agentkit.grammars.frontends.turns import turn_grammar

        with limited(time_limit, cancel):
            program, report = turn_grammar(tools, choice, parallel=parallel, output_schema=output_schema, format=format)
        return cls(program, report)

    @classmethod
    def _checked(cls, builder: Builder, root: int, what: str) -> Grammar:
        if root == Builder.EMPTY:
            raise UnsatisfiableSchema("#", f"{what} matches no text")
        return cls(builder.program(root))

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
