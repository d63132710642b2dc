"""GBNF and EBNF texts, as llama.cpp and xgrammar write them, to context-free grammars.

Input: the text; output: a node of a Builder. Knows nothing of tokens or masks.

A rule is `name ::= alternatives` and goes on until the next `name ::=`. Literals "...", classes [a-z] and [^...], `.` (any
character), groups, `|`, `* + ? {m} {m,} {m,n}`, comments from # to the end of the line. Escapes in literals and classes:
\\n \\r \\t \\b \\f \\v \\a \\e \\0 \\xHH \\uHHHH \\UHHHHHHHH and the punctuation that would mean something else. Every one stands
for a character: \\xe9 is U+00E9, two bytes of UTF-8. One parse step reads one character of the text: there is no lexer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.cfg import Cfg, Expr
from agentkit.grammars.frontends.chars import LAST, SCALARS, SURROGATES, CharSet, utf8_class

MAX_NESTING = 250  # groups inside groups
MAX_COUNT = 1_000_000  # of a bounded repeat

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*|[0-9][A-Za-z0-9_-]*")
_HEAD = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)(?:[ \t\r\n]|#[^\n]*(?:\n|$))*::=")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*(?:\n|$))*")
_COUNTS = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d+)?\s*)?\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_MACROS = ("TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\0"} | {c: c for c in "\\\"'[]-^/.$|(){}*+?"}


def compile_gbnf(builder: Builder, text: str, root: str = "root") -> Node:
    """The texts that the rule `root` matches, in UTF-8; EMPTY if there are none.

    Raises InvalidGrammar (with the position, or naming an undefined rule), UnsupportedSchema (naming the construct),
    GrammarTooComplex.
    """
    cfg = Cfg(builder)
    _Parser(text, cfg).rules()
    if root not in cfg.rules:
        known = ", ".join(map(str, list(cfg.rules)[:10])) or "none"
        raise InvalidGrammar(f"the grammar has no rule {root!r} to begin with; it defines: {known}")
    return cfg.compile(root)


@dataclass
class _Group:
    """A group being read: finished alternatives, and the parts of the current one."""

    opened: int
    choices: list[Expr] = field(default_factory=list)
    parts: list[Expr] = field(default_factory=list)


class _Parser:
    """Reads rules into a Cfg. Groups are kept on a stack of its own, so that depth is bounded by MAX_NESTING alone."""

    def __init__(self, text: str, cfg: Cfg) -> None:
        self.text, self.cfg, self.at = text, cfg, 0
        self.called: dict[str, int] = {}

    def error(self, message: str, at: int | None = None) -> InvalidGrammar:
        at = self.at if at is None else at
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return InvalidGrammar(f"{message} (line {line}, column {column})", position=at)

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found
        self.at = found.end()

    def rules(self) -> None:
        self.space()
        while self.at < len(self.text):
            head = _HEAD.match(self.text, self.at)
            if not head:
                raise self.error("a rule must begin here, as `name ::= ...`")
            name = head.group(1)
            if name in self.cfg.rules:
                raise self.error(f"the rule {name!r} is defined twice; join both with |")
            self.at = head.end()
            self.cfg.define(name, self.body())
        for name, at in self.called.items():
            if name not in self.cfg.rules:
                raise self.error(f"the rule {name!r} is used but not defined", at)

    def body(self) -> Expr:
        groups = [_Group(self.at)]
        while True:
            self.space()
            char = self.text[self.at : self.at + 1]
            if not char or _HEAD.match(self.text, self.at):
                break
            if char == "(":
                self.open(groups)
            elif char == ")":
                if len(groups) == 1:
                    raise self.error("this ) closes nothing")
                inner = self.close(groups.pop())
                self.at += 1
                groups[-1].parts.append(inner)
            elif char == "|":
                groups[-1].choices.append(self.cfg.seq(*groups[-1].parts))
                groups[-1].parts = []
                self.at += 1
            elif char in "*+?{":
                self.repeat(groups[-1])
            else:
                groups[-1].parts.append(self.item(char))
        if len(groups) > 1:
            raise self.error("this ( is never closed", groups[-1].opened)
        return self.close(groups[0])

    def open(self, groups: list[_Group]) -> None:
        if len(groups) > MAX_NESTING:
            raise GrammarTooComplex("nesting", f"groups are nested more than {MAX_NESTING} deep at position {self.at}; give inner parts rules of their own")
        if self.text.startswith("(=", self.at):
            raise UnsupportedSchema(f"position {self.at}", "(=...)", "look-ahead assertions are hints for other engines; leave it out")
        groups.append(_Group(self.at))
        self.at += 1

    def close(self, group: _Group) -> Expr:
        return self.cfg.alt(*group.choices, self.cfg.seq(*group.parts))

    def repeat(self, group: _Group) -> None:
        char = self.text[self.at]
        if not group.parts:
            raise self.error(f"nothing stands before this {char}")
        if char != "{":
            lo, hi, end = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char] + (self.at + 1,)
        else:
            found = _COUNTS.match(self.text, self.at)
            if not found:
                raise self.error("counts are written {m}, {m,} or {m,n}")
            lo, end = int(found[1]), found.end()
            hi = lo if not found[2] else int(found[3]) if found[3] else None
            if hi is not None and hi < lo:
                raise self.error(f"the counts {found[0]} are out of order")
            if max(lo, hi or 0) > MAX_COUNT:
                raise GrammarTooComplex("repeats", f"{found[0]} at position {self.at} counts beyond {MAX_COUNT}")
        group.parts[-1] = self.cfg.repeat(group.parts[-1], lo, hi)
        self.at = end

    def item(self, char: str) -> Expr:
        start = self.at
        if char == '"':
            return self.literal()
        if char == "[":
            return self.char_class()
        if char == ".":
            self.at += 1
            return self.cfg.text(utf8_class(self.cfg.builder, SCALARS))
        if char in "<!":
            raise UnsupportedSchema(f"position {start}", char, "tokens cannot be named in GBNF here; write text, or compose with Grammar.from_tools")
        name = _NAME.match(self.text, start)
        if not name:
            raise self.error(f"{char!r} begins no item; literals stand in double quotes")
        if name[0] in _MACROS and self.text.startswith("(", name.end()):
            raise UnsupportedSchema(f"position {start}", name[0], "macros of xgrammar are not GBNF; free text with tags is Grammar.from_tags")
        self.at = name.end()
        self.called.setdefault(name[0], start)
        return self.cfg.call(name[0])

    def literal(self) -> Expr:
        opened, out = self.at, []
        self.at += 1
        while True:
            char = self.text[self.at : self.at + 1]
            if not char or char == "\n":
                raise self.error("this literal is not closed", opened)
            if char == '"':
                self.at += 1
                break
            out.append(self.character())
        try:
            data = "".join(map(chr, out)).encode("utf-16", "surrogatepass").decode("utf-16").encode()
        except UnicodeDecodeError:
            raise self.error("half of a surrogate pair is no character", opened) from None
        node = self.cfg.builder.literal(data)
        return self.cfg.text(node) if data else self.cfg.EPSILON

    def character(self) -> int:
        """One character, perhaps escaped, as a code point."""
        char, start = self.text[self.at], self.at
        self.at += 1
        if char != "\\":
            return ord(char)
        found = _HEX.match(self.text, self.at)
        if found:
            self.at = found.end()
            value = int(found[1] or found[2] or found[3], 16)
            if value > LAST:
                raise self.error(f"{found[0]} is beyond the last character, U+10FFFF", start)
            return value
        letter = self.text[self.at : self.at + 1]
        if letter not in _ESCAPES or not letter:
            raise self.error(f"\\{letter} is no escape; a backslash itself is written \\\\", start)
        self.at += 1
        return ord(_ESCAPES[letter])

    def char_class(self) -> Expr:
        opened = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        pairs: list[tuple[int, int]] = []
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text) or self.text[self.at] == "\n":
                raise self.error("this class is not closed", opened)
            start, first = self.at, self.character()
            last = first
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.character()
            if last < first:
                raise self.error("this range runs backwards", start)
            pairs.append((first, last))
        self.at += 1
        chars = CharSet.from_ranges(pairs)
        if not negated and not chars - SURROGATES:
            raise self.error("this class holds no character", opened)
        return self.cfg.text(utf8_class(self.cfg.builder, (~chars if negated else chars) & SCALARS))
