"""Terminals of lexers as programs of ordered threads: what Python's `re` would take first, and why.

Input: a pattern in Python's syntax, read with `re`'s own parser; output: instructions. Knows nothing of grammars.

A backtracking matcher tries its ways in an order; the first that reaches the end wins. The program keeps that order
(Thompson 1968; Pike's ordered threads), so that lazy repeats and the order of alternatives count as they do in `re`.
"""

from __future__ import annotations

import importlib
import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars.frontends import unicode_sets as us
from agentkit.grammars.frontends.chars import EVERY, SURROGATES, CharSet

CHAR, SPLIT, JUMP, BESIDE, NOT_AHEAD, MATCH = range(6)
MAX_PROGRAM = 20_000

_sre: Any = importlib.import_module("re._parser")
_DOTTED_I = CharSet.of("iI\u0130\u0131")  # equal in Python's re, not in Unicode's simple folding


@dataclass(frozen=True)
class Beside:
    """A condition on the neighbouring characters: the one before is in `before` (a text's start: `at_start`) and so on.

    word: instead, whether both sides differ in being word characters (\\b), or do not (\\B).
    """

    before: CharSet | None = None
    at_start: bool = False
    after: CharSet | None = None
    at_end: bool = False
    word: bool | None = None


@dataclass
class Program:
    """code: (CHAR, set, next) | (SPLIT, first, second) | (JUMP, next) | (BESIDE, condition, next) | (NOT_AHEAD, body, next) | (MATCH,)."""

    code: list[tuple[Any, ...]] = field(default_factory=list)

    def compile(self, name: str, pattern: str) -> int:
        """Adds a pattern; returns where it begins.

        Raises InvalidGrammar, UnsupportedSchema (naming the construct), GrammarTooComplex.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about a possible change of meaning in later versions of `re`
                re.compile(pattern)
                tree = _sre.parse(pattern)
        except re.error as error:
            raise InvalidGrammar(f"terminal {name}: {error}", position=error.pos) from error
        return _Compiler(self, name, tree.state.flags).sequence(tree, self.emit(MATCH), tree.state.flags)

    def emit(self, *instruction: Any) -> int:
        if len(self.code) >= MAX_PROGRAM:
            raise GrammarTooComplex("terminals", f"the grammar's terminals need more than {MAX_PROGRAM} steps; use smaller repeats or fewer terminals")
        self.code.append(instruction)
        return len(self.code) - 1


class _Compiler:
    """Emits a tree of `re._parser` backwards: each part is given where to go on."""

    def __init__(self, program: Program, name: str, flags: int) -> None:
        self.program, self.name, self.inside_look = program, name, False

    def refuse(self, construct: str, why: str) -> UnsupportedSchema:
        return UnsupportedSchema(f"terminal {self.name}", construct, why)

    def sequence(self, items: Any, then: int, flags: int) -> int:
        for op, value in reversed(list(items)):
            then = self.part(str(op), value, then, flags)
        return then

    def part(self, op: str, value: Any, then: int, flags: int) -> int:
        emit = self.program.emit
        if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return emit(CHAR, char_set(op, value, flags) - SURROGATES, then)
        if op == "BRANCH":
            starts = [self.sequence(branch, then, flags) for branch in value[1]]
            at = starts.pop()
            while starts:
                at = emit(SPLIT, starts.pop(), at)
            return at
        if op == "SUBPATTERN":
            _, added, dropped, body = value
            return self.sequence(body, then, (flags | added) & ~dropped)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repeat(*value, greedy=op == "MAX_REPEAT", then=then, flags=flags)
        if op == "AT":
            return emit(BESIDE, self.anchor(str(value), flags), then)
        if op in ("ASSERT", "ASSERT_NOT"):
            return self.look(op == "ASSERT_NOT", value[0] > 0, value[1], then, flags)
        names = {"GROUPREF": "back-reference", "GROUPREF_EXISTS": "conditional group", "ATOMIC_GROUP": "(?>...)", "POSSESSIVE_REPEAT": "possessive repeat"}
        raise self.refuse(names.get(op, op), "it depends on how the text before was matched")

    def repeat(self, lo: int, hi: Any, body: Any, *, greedy: bool, then: int, flags: int) -> int:
        emit, code = self.program.emit, self.program.code
        if hi is _sre.MAXREPEAT:
            at = emit(SPLIT, then, then)
            inner = self.sequence(body, at, flags)
            code[at] = (SPLIT, inner, then) if greedy else (SPLIT, then, inner)
        else:
            at = then
            for _ in range(int(hi) - lo):
                inner = self.sequence(body, at, flags)
                at = emit(SPLIT, inner, then) if greedy else emit(SPLIT, then, inner)
        for _ in range(lo):
            at = self.sequence(body, at, flags)
        return at

    def anchor(self, name: str, flags: int) -> Beside:
        if name == "AT_BOUNDARY" or name == "AT_NON_BOUNDARY":
            if flags & re.ASCII:
                raise self.refuse("\\b with the flag a", "write the look-ahead (?![A-Za-z0-9_]) instead")
            return Beside(word=name == "AT_BOUNDARY")
        if name == "AT_BEGINNING" and flags & re.MULTILINE:
            return Beside(before=us.NEWLINE, at_start=True)
        if name == "AT_END" and flags & re.MULTILINE:
            return Beside(after=us.NEWLINE, at_end=True)
        if name == "AT_END_STRING":
            return Beside(after=CharSet(), at_end=True)
        if name == "AT_END":
            raise self.refuse("$", "it looks beyond a line break; use the flag m, or leave it out")
        return Beside(before=CharSet(), at_start=True)

    def look(self, negative: bool, ahead: bool, body: Any, then: int, flags: int) -> int:
        single = self.single(body, flags)
        if single is not None:
            chars = ~single if negative else single
            condition = Beside(after=chars, at_end=negative) if ahead else Beside(before=chars, at_start=negative)
            return self.program.emit(BESIDE, condition, then)
        construct = ("(?" if ahead else "(?<") + ("!...)" if negative else "=...)")
        if not ahead or not negative or self.inside_look:
            raise self.refuse(construct, "only look-around of one character and (?!...) are supported in terminals")
        self.inside_look = True
        start = self.sequence(body, self.program.emit(MATCH), flags)
        self.inside_look = False
        return self.program.emit(NOT_AHEAD, start, then)

    def single(self, body: Any, flags: int) -> CharSet | None:
        """The set, if a look-around is about one character."""
        items = list(body)
        if len(items) == 1 and str(items[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return char_set(str(items[0][0]), items[0][1], flags)
        if len(items) == 1 and str(items[0][0]) == "SUBPATTERN":
            _, added, dropped, inner = items[0][1]
            return self.single(inner, (flags | added) & ~dropped)
        return None


def char_set(op: str, value: Any, flags: int) -> CharSet:
    """The characters that one item of `re._parser` matches."""
    if op == "ANY":
        return EVERY if flags & re.DOTALL else EVERY - us.NEWLINE
    if op == "LITERAL":
        return _folded(CharSet.of(int(value)), flags)
    if op == "NOT_LITERAL":
        return ~_folded(CharSet.of(int(value)), flags)
    chars, negated = CharSet(), False
    for kind, item in value:
        name = str(kind)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            chars = chars | _folded(CharSet.of(int(item)), flags)
        elif name == "RANGE":
            chars = chars | _folded(CharSet.of((int(item[0]), int(item[1]))), flags)
        else:
            chars = chars | _category(str(item), flags)
    return ~chars if negated else chars


def _folded(chars: CharSet, flags: int) -> CharSet:
    if not flags & re.IGNORECASE:
        return chars
    if flags & re.ASCII:
        upper = CharSet.from_ranges((lo - 32, hi - 32) for lo, hi in (chars & CharSet.of((97, 122))).ranges)
        return chars | upper | CharSet.from_ranges((lo + 32, hi + 32) for lo, hi in (chars & CharSet.of((65, 90))).ranges)
    folded = us.ignore_case(chars)
    return folded | _DOTTED_I if folded & _DOTTED_I else folded


def _category(name: str, flags: int) -> CharSet:
    letter = {"DIGIT": "d", "WORD": "w", "SPACE": "s"}[name.rsplit("_", 1)[1]]
    ascii_only = {"d": us.ASCII_DIGITS, "w": us.ASCII_WORD, "s": us.ASCII_SPACE}
    chars = ascii_only[letter] if flags & re.ASCII else us.python_class(letter)
    return ~chars if "_NOT_" in name else chars
