"""A compiled grammar: a program of expressions and what is known about it, ready for any vocabulary.

Made by the front ends; hands out matchers. Compiling is thread-safe and cached by content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentkit.errors import GrammarError, InvalidGrammar, UnsatisfiableSchema
from agentkit.grammars.compiled import Compiled, compiled_once
from agentkit.grammars.compose import check_regular, include, inhabited
from agentkit.grammars.effort import TIME_LIMIT, limited
from agentkit.grammars.expr import Builder, Node, Program

if TYPE_CHECKING:
    from agentkit.grammars.matcher import Matcher
    from agentkit.grammars.report import Report
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Grammar"]

Whitespace = Literal["compact", "flexible"]
KeyOrder = Literal["declared", "any"]
Dialect = Literal["python", "ecma"]
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
        plain_integers: bool = False,
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """JSON texts that satisfy a JSON Schema (2020-12; earlier drafts where the schema says so).

        Args:
            whitespace: "compact": none; "flexible": between tokens at most one line break and 40 blanks.
            key_order: "declared": keys in the order of `properties`; "any": every order.
            formats: "enforce": those that are known (docs/formats.md); "annotate": none, as a validator does that is not told to.
            plain_integers: an integer is written `5`, never `5.0`, which is one for JSON Schema and a float for json.loads.
        """
        with limited(time_limit, cancel):
            return cls(*_of_schema(schema, whitespace, key_order, formats, plain_integers=plain_integers))

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
    def from_regex(
        cls,
        pattern: str,
        *,
        flags: int | re.RegexFlag = 0,
        dialect: Dialect = "python",
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """Texts that a regular expression matches as a whole.

        Args:
            flags: those of Python's `re`.
            dialect: "python": the syntax of `re`; "ecma": ECMA-262 with the flag u, as in JSON Schema, with \\p{...}.
        """

        def lower(builder: Builder) -> Node:
            from agentkit.grammars.frontends.regex import regex_node

            return regex_node(builder, pattern, flags=flags, dialect=dialect)

        _check_string("the pattern", pattern)
        with limited(time_limit, cancel):
            return cls(*_of_text(("regex", pattern, int(flags), dialect), lower, f"the pattern {pattern!r}"))

    @classmethod
    def from_lark(
        cls,
        text: str,
        *,
        start: str = "start",
        terminals: Mapping[str, Grammar] | None = None,
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """Texts that `lark.Lark(text, start=start, parser="earley", lexer="dynamic")` parses.

        Terminals take what Python's `re` would take at that place, so a name does not end in the middle of a word and a
        lazy string ends at its first closing quote. Imports of files and constructs whose outcome depends on what came
        before a terminal raise UnsupportedSchema naming them.

        `%json {...}` in place of a terminal stands for the compact JSON texts of that schema.

        Args:
            terminals: grammars for terminals that the text announces with `%declare`; others that are declared raise
                UnsupportedSchema.
        """
        from agentkit.grammars.frontends.lark_embedded import cut_out_json

        _check_string("the grammar", text)
        with limited(time_limit, cancel):
            text, schemas = cut_out_json(text)
            given = {name: _checked(part) for name, part in (terminals or {}).items()}
            given |= {name: cls(*_of_schema(schema, "compact", "declared", "enforce", plain_integers=False)) for name, schema in schemas.items()}
            programs = {name: part.program for name, part in given.items()}

            def lower(builder: Builder) -> Node:
                from agentkit.grammars.frontends.lark import compile_lark

                return compile_lark(builder, text, start, programs)

            source = ("lark", text, start, [(name, program.digest) for name, program in programs.items()])
            return cls(_of_text(source, lower, f"the rule {start!r}")[0], _reports(given))

    @classmethod
    def from_gbnf(cls, text: str, *, root: str = "root", time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Texts that the rule `root` of a GBNF or EBNF grammar matches, as llama.cpp and xgrammar write them."""

        def lower(builder: Builder) -> Node:
            from agentkit.grammars.frontends.gbnf import compile_gbnf

            return compile_gbnf(builder, text, root)

        _check_string("the grammar", text)
        with limited(time_limit, cancel):
            return cls(*_of_text(("gbnf", text, root), lower, f"the rule {root!r}"))

    @classmethod
    def from_choices(cls, choices: Iterable[str], *, time_limit: float | None = TIME_LIMIT, cancel: Cancel | None = None) -> Grammar:
        """Exactly one of the given texts."""
        if isinstance(choices, str):
            raise InvalidGrammar(f"choices is one text, {choices!r}; give a list of texts")
        texts = list(choices)
        if not texts:
            raise InvalidGrammar("choices is empty; give at least one text")
        with limited(time_limit, cancel):
            builder = Builder()
            return cls(builder.program(builder.trie(map(_encoded, texts))))

    @classmethod
    def from_tags(
        cls,
        tags: Iterable[tuple[str, Grammar, str]],
        *,
        triggers: Iterable[str] | None = None,
        at_least_one: bool = False,
        stop_after_first: bool = False,
        time_limit: float | None = TIME_LIMIT,
        cancel: Cancel | None = None,
    ) -> Grammar:
        """Free text in which, once a trigger is written, a tag must follow; then free text again.

        Args:
            tags: (begin, content, end), as in ("<fn=add>", Grammar.from_json_schema(...), "</fn>").
            triggers: texts that do not occur in free text, each the beginning of one tag or more; default: each tag's begin.
            at_least_one: a text without any tag does not match.
            stop_after_first: the text ends with its first tag.
        """
        from agentkit.grammars.frontends.tags import Tag, tagged_text

        listed = list(tags)
        begins = list(dict.fromkeys(begin for begin, _, _ in listed) if triggers is None else triggers)
        for text in (*(text for begin, _, end in listed for text in (begin, end)), *begins):
            _check_string("begin, end and triggers", text)
        with limited(time_limit, cancel):
            builder = Builder()
            known = [Tag(begin, include(builder, _checked(content).program), end) for begin, content, end in listed]
            root = tagged_text(builder, known, begins, at_least_one=at_least_one, stop_after_first=stop_after_first)
            return cls(builder.program(root), _reports({begin: content for begin, content, _ in listed}))

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
            tools: tools of agentkit, Pydantic models, or anything with name and parameters (a JSON Schema for the arguments; also
                under the names that MCP, Anthropic, LangChain, pydantic-ai and OpenAI's agents give it: inputSchema, input_schema,
                args_schema, ...) as attributes or dict keys, within "function" too, as in requests to OpenAI.
            choice: "auto" (text or calls), "required" (at least one call), "none" (no calls), or a tool's name.
            parallel: how many calls a turn may hold: False one, True any number, n at most n.
            output_schema: the final answer is JSON of this schema instead of free text.
            format: how calls are written: "hermes", "qwen", "llama3", "gemma3", "mistral", "mistral-v11", "deepseek-v3",
                "deepseek-v3.1" or "harmony" (docs/grammars.md).
            reasoning: where the format has it: "allowed" first, "begun" by the prompt, or "none".
        """
        listed = _listed(tools)

        def compile() -> Compiled:
            from agentkit.grammars.frontends.turns import turn_grammar

            return turn_grammar(listed, choice, parallel=parallel, output_schema=output_schema, format=format, reasoning=reasoning)

        from agentkit.grammars.frontends.tool_forms import described

        with limited(time_limit, cancel):
            return cls(*compiled_once(("tools", [described(tool) for tool in listed], choice, parallel, output_schema, format, reasoning), compile))

    def __add__(self, other: Grammar) -> Grammar:
        """A text of this grammar, then one of the other."""
        return self._with(other, lambda builder, mine, theirs: builder.seq(mine, theirs))

    def __or__(self, other: Grammar) -> Grammar:
        """A text of either grammar."""
        return self._with(other, lambda builder, mine, theirs: builder.alt(mine, theirs))

    def __and__(self, other: Grammar) -> Grammar:
        """Texts of both grammars, which must be regular: no rules that recurse, no JSON objects (UnsupportedSchema otherwise).

        Raises UnsatisfiableSchema if there are none.
        """
        for grammar in (self, other):
            check_regular(_checked(grammar).program, "&")
        return self._with(other, lambda builder, mine, theirs: builder.both(mine, theirs))

    def __invert__(self) -> Grammar:
        """All texts (valid UTF-8) that are not of this grammar, which must be regular, as for `&`."""
        from agentkit.grammars.frontends.chars import UTF8

        check_regular(self.program, "~")
        builder = Builder()
        return Grammar(inhabited(builder, builder.both(UTF8.anything(builder), builder.complement(include(builder, self.program))), "the complement"))

    def repeat(self, least: int = 0, most: int | None = None, *, separator: str = "") -> Grammar:
        """`least` to `most` texts of this grammar (None: no upper bound), with `separator` between two."""
        if least < 0 or (most is not None and most < least):
            raise InvalidGrammar(f"repeat({least}, {most}): the bounds are out of order")
        builder = Builder()
        item, between = include(builder, self.program), builder.literal(_encoded(separator))
        more = builder.repeat(builder.seq(between, item), max(least - 1, 0), None if most is None else max(most - 1, 0))
        texts = builder.EPSILON if most == 0 else builder.seq(item, more)
        return Grammar(builder.program(builder.optional(texts) if least == 0 else texts), self._report)

    def optional(self) -> Grammar:
        """A text of this grammar, or the empty text."""
        return self.repeat(0, 1)

    def _with(self, other: Grammar, join: Callable[[Builder, Node, Node], Node]) -> Grammar:
        builder = Builder()
        root = join(builder, include(builder, self.program), include(builder, _checked(other).program))
        return Grammar(inhabited(builder, root, "the combined grammar"), _reports({"(left)": self, "(right)": other}))

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


def _listed(tools: Any) -> list[Any]:
    if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
        raise InvalidGrammar(f"tools must be a list of tools, not {type(tools).__name__}")
    return list(tools)


def _of_text(source: tuple[Any, ...], lower: Callable[[Builder], Node], what: str) -> Compiled:
    def compile() -> Compiled:
        builder = Builder()
        root = lower(builder)
        return inhabited(builder, root, what), None

    return compiled_once(source, compile)


def _reports(parts: Mapping[str, Grammar]) -> Report:
    """The reports of the parts as one; pointers begin with the part's name."""
    from agentkit.grammars.report import Report

    report = Report()
    for name, part in parts.items():
        report.add(part.report(), name)
    return report


def _checked(value: Any) -> Grammar:
    if not isinstance(value, Grammar):
        raise InvalidGrammar(f"a Grammar is needed here, not {type(value).__name__} ({value!r}); for fixed texts see Grammar.from_choices")
    return value


def _check_string(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidGrammar(f"{what} must be text, not {type(value).__name__} ({value!r})")


def _encoded(text: Any) -> bytes:
    _check_string("choices and separators", text)
    try:
        return bytes(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidGrammar(f"{text!r} has no UTF-8 form; give valid Unicode", position=error.start) from error
