"""Regular expression text to syntax tree, in two dialects.

    ecma     ECMA-262 with the u flag, as JSON Schema's `pattern` asks; escaped punctuation is taken as itself
    python   the standard library's `re` for str patterns

Input: the pattern; output: a tree of regex_ast. Whatever cannot be a regular language is refused by name (UnsupportedSchema),
what is no pattern at all is InvalidGrammar with its offset. Groups nest at most MAX_NESTING deep; the parser keeps its own stack.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars.frontends import unicode_sets as us
from agentkit.grammars.frontends.chars import EVERY, LAST, CharSet, Range
from agentkit.grammars.frontends.regex_ast import TEXT_END, TEXT_START, Beside, Chars, Look, Seq, Tree, alt, repeat, seq

Dialect = Literal["ecma", "python"]
MAX_NESTING = 128
MAX_COUNT = 2**31 - 2

_CONTROL = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_PYTHON_DOTTED_I = CharSet.of("iI\u0130\u0131")  # equal in Python's re, not in Unicode's simple folding
PYTHON_END = alt(TEXT_END, Look(seq(Chars(us.NEWLINE), TEXT_END), ahead=True, negative=False, position=0))
"""Python's `$`: the end, or just before a newline that ends the text."""


@dataclass
class _Frame:
    """An open group: finished branches, parts of the current one, and what to make of it when it closes."""

    position: int
    flags: frozenset[str]
    close: Callable[[Tree], Tree]
    branches: list[Tree] = field(default_factory=list)
    parts: list[Tree] = field(default_factory=list)
    repeatable: bool = False  # may the last part take a quantifier?


def parse(pattern: str, dialect: Dialect = "ecma", *, flags: str = "", pointer: str | None = None) -> Tree:
    """The syntax tree of a pattern.

    flags: letters of i, m, s, x, a as after `(?`. pointer: where in a schema the pattern stands, for messages.
    Raises InvalidGrammar (malformed), UnsupportedSchema (not regular), GrammarTooComplex (nesting).
    """
    return _Parser(pattern, dialect, frozenset(flags), pointer).parse()


class _Parser:
    def __init__(self, pattern: str, dialect: Dialect, flags: frozenset[str], pointer: str | None) -> None:
        self.text, self.python, self.pointer = pattern, dialect == "python", pointer
        self.at = 0
        self.names: set[str] = set()
        self.frames = [_Frame(0, flags, lambda tree: tree)]

    # -- messages -----------------------------------------------------------------------------------------------

    def bad(self, what: str, position: int) -> NoReturn:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        place = f"{self.pointer}: " if self.pointer else ""
        raise InvalidGrammar(f"{place}regular expression {shown!r}, offset {position}: {what}", position=position, pointer=self.pointer)

    def refuse(self, construct: str, position: int, why: str) -> NoReturn:
        if self.pointer is None:
            raise UnsupportedSchema(f"offset {position}", construct, why)
        raise UnsupportedSchema(self.pointer, "pattern", f"{construct} at offset {position}: {why}")

    # -- scanning -----------------------------------------------------------------------------------------------

    @property
    def top(self) -> _Frame:
        return self.frames[-1]

    def peek(self, size: int = 1) -> str:
        return self.text[self.at : self.at + size]

    def take(self, expected: str) -> bool:
        if not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def take_match(self, pattern: str) -> re.Match[str] | None:
        m = re.compile(pattern).match(self.text, self.at)
        if m:
            self.at = m.end()
        return m

    def until(self, end: str, opened: int) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.bad(f"missing {end!r}", opened)
        found, self.at = self.text[self.at : stop], stop + len(end)
        return found

    # -- structure ----------------------------------------------------------------------------------------------

    def parse(self) -> Tree:
        self.leading_flags()
        while self.at < len(self.text):
            start, c = self.at, self.text[self.at]
            self.at += 1
            if c == "(":
                self.open_group(start)
            elif c == ")":
                self.close_group(start)
            elif c == "|":
                self.end_branch()
            elif c in "*+?" or (c == "{" and self.is_count(start)):
                self.quantify(start, c)
            elif "x" in self.top.flags and c in " \t\n\r\f\v#":
                if c == "#":
                    self.take_match(r"[^\n]*")
            else:
                self.atom(start, c)
        if len(self.frames) > 1:
            self.bad("this group is never closed", self.top.position)
        self.end_branch()
        return alt(*self.top.branches)

    def leading_flags(self) -> None:
        while m := self.take_match(r"\(\?([a-zA-Z]+)\)"):
            self.top.flags |= self.check_flags(m[1], m.start())

    def check_flags(self, letters: str, position: int) -> frozenset[str]:
        for letter in letters:
            if letter not in "imsxaugLU":
                self.bad(f"unknown flag {letter!r}", position)
            if letter in "LUg" or (letter == "a" and not self.python):
                self.refuse(f"flag {letter}", position, "it has no meaning here; leave it out")
        return frozenset(letters) - {"u"}

    def end_branch(self) -> None:
        frame = self.top
        frame.branches.append(seq(*frame.parts))
        frame.parts, frame.repeatable = [], False

    def put(self, tree: Tree, repeatable: bool = True) -> None:
        self.top.parts.append(tree)
        self.top.repeatable = repeatable

    def open_group(self, start: int) -> None:
        if len(self.frames) > MAX_NESTING:
            raise GrammarTooComplex("nesting", f"a regular expression nests groups more than {MAX_NESTING} deep")
        flags = self.top.flags
        close: Callable[[Tree], Tree] = _same
        if self.take("?"):
            kind = self.take_match(r":|=|!|<=|<!|P?<(?=[^=!])|P=|>|#|\(|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
            if kind is None:
                self.bad("unknown kind of group", start)
            if kind[0] in ("=", "!", "<=", "<!"):
                close = _look(kind[0], start)
            elif kind[0] in ("P=", ">", "(", "#"):
                if self.odd_group(kind[0], start):
                    return
            elif kind[0].endswith("<"):
                self.group_name(start)
            elif kind[0] != ":":
                if kind[3] == ")":
                    self.bad("flags for the whole pattern stand at its beginning", start)
                flags = (flags | self.check_flags(kind[1], start)) - self.check_flags(kind[2] or "", start)
        self.frames.append(_Frame(start, flags, close))

    def odd_group(self, kind: str, start: int) -> bool:
        """A comment is skipped (True); other kinds are refused by name."""
        if kind == "P=":
            self.refuse("back-reference", start, "what it matches depends on earlier text; spell the alternatives out")
        if kind == ">":
            self.refuse("atomic group", start, "it depends on the order of attempts; use (?:...)")
        if kind == "(":
            self.refuse("conditional group", start, "what it matches depends on earlier groups; spell the alternatives out")
        if not self.python:
            self.bad("unknown kind of group", start)
        self.until(")", start)
        return True

    def group_name(self, start: int) -> None:
        name = self.until(">", start)
        if not name.replace("$", "_").isidentifier():
            self.bad(f"{name!r} is no group name", start)
        if name in self.names:
            self.bad(f"the group name {name!r} is used twice", start)
        self.names.add(name)

    def close_group(self, start: int) -> None:
        if len(self.frames) == 1:
            self.bad("this ) closes nothing", start)
        self.end_branch()
        frame = self.frames.pop()
        self.put(frame.close(alt(*frame.branches)))

    # -- quantifiers --------------------------------------------------------------------------------------------

    _COUNT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")

    def is_count(self, start: int) -> bool:
        m = self._COUNT.match(self.text, start)
        if m is None or m[0] == "{}":
            return False
        if not m[1] and not self.python:
            self.bad("write {0,n}: ECMA-262 has no {,n}", start)
        return True

    def quantify(self, start: int, c: str) -> None:
        if not self.top.repeatable:
            self.bad("nothing to repeat", start)
        lo, hi = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(c, (0, None))
        if c == "{":
            m = self._COUNT.match(self.text, start)
            assert m is not None
            self.at = m.end()
            lo = int(m[1] or 0)
            hi = lo if m[2] is None else (int(m[3]) if m[3] else None)
            if hi is not None and hi < lo:
                self.bad("the bounds of this repeat are out of order", start)
            if max(lo, hi or 0) > MAX_COUNT:
                raise GrammarTooComplex("repeat", f"offset {start}: repeats go up to {MAX_COUNT}")
        if self.peek() == "+" and self.python:
            self.refuse("possessive quantifier", start, "it depends on the order of attempts; leave out the second +")
        self.take("?")  # lazy: the same language
        body = self.top.parts.pop()
        if isinstance(body, Look):
            self.put(body if lo else Seq(), False)
        else:
            self.put(repeat(body, lo, hi), False)

    # -- atoms --------------------------------------------------------------------------------------------------

    def chars(self, chars: CharSet) -> Chars:
        return Chars(self.cased(chars))

    def cased(self, chars: CharSet) -> CharSet:
        if "i" not in self.top.flags:
            return chars
        if "a" in self.top.flags:
            return chars | (us.ignore_case(chars & CharSet.of((0, 0x7F))) & CharSet.of((0, 0x7F)))
        folded = us.ignore_case(chars)
        return folded | _PYTHON_DOTTED_I if self.python and folded & _PYTHON_DOTTED_I else folded

    def atom(self, start: int, c: str) -> None:
        multiline = "m" in self.top.flags
        ends = us.NEWLINE if self.python else us.LINE_ENDS
        if c == "^":
            self.put(Beside(before=ends) if multiline else TEXT_START, False)
        elif c == "$":
            self.put(Beside(after=ends) if multiline else PYTHON_END if self.python else TEXT_END, False)
        elif c == ".":
            self.put(Chars(EVERY if "s" in self.top.flags else ~ends))
        elif c == "[":
            self.put(Chars(self.char_class(start)))
        elif c == "\\":
            self.escape(start)
        else:
            self.put(self.chars(CharSet.of(c)))

    def escape(self, start: int) -> None:
        c = self.peek()
        if c in ("b", "B") and c:
            self.at += 1
            self.put(self.boundary(c == "B"), False)
        elif self.python and c and c in "AZz":
            self.at += 1
            self.put(TEXT_START if c == "A" else TEXT_END, False)
        elif self.is_reference(c):
            self.refuse("back-reference", start, "what it matches depends on earlier text; spell the alternatives out")
        else:
            chars, single = self.escaped(start)
            self.put(self.chars(chars) if single else Chars(chars))

    def is_reference(self, c: str) -> bool:
        if not self.python and self.peek(2) == "k<":
            return True
        return c.isdecimal() and c != "0" and not (self.python and re.match(r"[1-3][0-7][0-7]", self.peek(3)) is not None)

    def boundary(self, inverted: bool) -> Tree:
        word = self.class_escape("w")
        other = ~word
        if inverted:
            return alt(Beside(word, False, word, False), Beside(other, True, other, True))
        return alt(Beside(word, False, other, True), Beside(other, True, word, False))

    def class_escape(self, letter: str) -> CharSet:
        if not self.python:
            return self.cased(us.ecma_class(letter))
        if "a" in self.top.flags:
            return {"d": us.ASCII_DIGITS, "w": us.ASCII_WORD, "s": us.ASCII_SPACE}[letter]
        return us.python_class(letter)

    def escaped(self, start: int) -> tuple[CharSet, bool]:
        """What follows a backslash, in or out of a class: the characters, and whether it is one character as written."""
        if self.at >= len(self.text):
            self.bad("the pattern ends in a backslash", start)
        c = self.text[self.at]
        self.at += 1
        if c in "dwsDWS":
            chars = self.class_escape(c.lower())
            return (chars if c.islower() else ~chars), False
        if c in "pP":
            return self.property(start, c == "P"), False
        return CharSet.of(self.character(start, c)), True

    def character(self, start: int, c: str) -> int:
        if c in _CONTROL:
            return ord(_CONTROL[c])
        if c in ("x", "u") or (c in "UN" and self.python):
            return self.coded(start, c)
        if c == "c" and not self.python:
            m = self.take_match("[a-zA-Z]")
            return ord(m[0]) % 32 if m else self.bad("\\c needs a letter", start)
        if c == "a" and self.python:
            return 7
        if c.isdecimal() and c.isascii():
            self.at -= 1
            m = self.take_match(r"0[0-7]{0,2}|[1-3][0-7][0-7]" if self.python else r"0(?!\d)")
            return int(m[0], 8) if m else self.bad("octal escapes and back-references cannot stand here", start)
        if c.isalpha() and c.isascii():
            self.bad(f"unknown escape \\{c}" + ("; use ^ and $" if c in "AZz" else ""), start)
        return ord(c)

    def coded(self, start: int, c: str) -> int:
        if c == "N":
            m = self.take_match(r"\{([^}]+)\}")
            try:
                return ord(unicodedata.lookup(m[1] if m else ""))
            except (KeyError, TypeError):
                self.bad("\\N needs the name of a character in braces", start)
        if c == "u" and not self.python and (m := self.take_match(r"\{([0-9a-fA-F]+)\}")):
            return int(m[1], 16) if int(m[1], 16) <= LAST else self.bad("beyond U+10FFFF", start)
        size = {"x": 2, "u": 4, "U": 8}[c]
        m = self.take_match(f"[0-9a-fA-F]{{{size}}}")
        if m is None:
            self.bad(f"\\{c} needs {size} hexadecimal digits", start)
        code = int(m[0], 16)
        if code > LAST:
            self.bad("beyond U+10FFFF", start)
        if 0xD800 <= code < 0xDC00 and not self.python and (low := self.take_match(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")):
            return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return code

    def property(self, start: int, inverted: bool) -> CharSet:
        if self.python:
            self.bad("Python's re has no \\p; use the ecma dialect", start)
        m = self.take_match(r"\{([^{}]*)\}")
        if m is None:
            self.bad("\\p needs the name of a property in braces", start)
        try:
            chars = self.cased(us.unicode_property(m[1]))
        except KeyError:
            self.bad(f"there is no Unicode property {m[1]!r}", start)
        except ValueError:
            self.refuse(f"\\p{{{m[1]}}}", start, "this property is not known here; use Script=")
        return ~chars if inverted else chars

    def char_class(self, start: int) -> CharSet:
        inverted = self.take("^")
        ranges: list[Range] = []
        if self.python and self.take("]"):
            self.at -= 1
            ranges += self.class_item(start).ranges  # a ] that comes first is an ordinary character
        while not self.take("]"):
            if self.at >= len(self.text):
                self.bad("this class is never closed", start)
            ranges += self.class_item(start).ranges
        chars = self.cased(CharSet.from_ranges(ranges))
        return ~chars if inverted else chars

    def class_item(self, start: int) -> CharSet:
        """A character, a range or a class escape inside [...]."""
        place = self.at
        low, single = self.class_member()
        if self.peek() != "-" or self.peek(2) in ("-]", "-"):
            return low
        self.at += 1
        if self.at >= len(self.text):
            self.bad("this class is never closed", start)
        high, high_single = self.class_member()
        if not (single and high_single):
            if self.python:
                self.bad("a class such as \\w cannot bound a range", place)
            return low | CharSet.of("-") | high
        first, last = low.ranges[0][0], high.ranges[0][0]
        if first > last:
            self.bad("this range is out of order", place)
        return CharSet.of((first, last))

    def class_member(self) -> tuple[CharSet, bool]:
        place, c = self.at, self.text[self.at]
        self.at += 1
        if c != "\\":
            return CharSet.of(c), True
        if self.peek() == "b":
            self.at += 1
            return CharSet.of(8), True
        return self.escaped(place)


def _same(tree: Tree) -> Tree:
    return tree


def _look(kind: str, position: int) -> Callable[[Tree], Tree]:
    def close(body: Tree) -> Tree:
        return Look(body, ahead="<" not in kind, negative="!" in kind, position=position)

    return close
