"""Reads a turn back as it streams: reasoning, text and calls, by the description of a family's format.

Input: a `TurnFormat` and text, cut anywhere, in which special tokens are spelled out. Output: pieces as soon as they are
certain, and the whole turn. White space around JSON punctuation is read however it is written; argument text is kept verbatim.
Knows nothing of grammars, tokens or validation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Literal

from agentkit.grammars.frontends.turn_formats import TurnFormat
from agentkit.model import CallClosed, ParsedCall, ReasoningPiece, TextPiece, Turn

__all__ = ["FormatReader", "JsonScan", "Piece"]

Piece = TextPiece | ReasoningPiece | CallClosed
Reasoning = Literal["none", "allowed", "begun"]

_LITERAL = re.compile(r"\s+|[{}\[\]:,]|[^\s{}\[\]:,]+")
_STRING = re.compile(r'(?:[^"\\]|\\.)*', re.S)
_IN_STRING, _OUTSIDE = re.compile(r'["\\]'), re.compile(r'["{}\[\]]')


class FormatReader:
    """Text, reasoning and calls of one turn.

    Only a whole, well-formed call is a call. What looks like one in the middle of an argument string is part of the string.

    structured: text is one JSON value, in whose strings a trigger means nothing: calls come first or not at all.
    calls: whether calls may come; if not, everything but reasoning is text.
    reasoning: whether the model may think first ("allowed"), does already ("begun"), or not ("none").
    """

    def __init__(self, form: TurnFormat, *, structured: bool = False, calls: bool = True, reasoning: Reasoning = "none") -> None:
        self._form = form
        self._heads = _heads(form) if calls else {}
        self._structured = structured
        self._first_only = structured or form.leading or bool(form.final)
        self._thinks = form.reasoning is not None and reasoning != "none"
        self._text: list[str] = []
        self._thought: list[str] = []
        self._calls: list[ParsedCall] = []
        self._pending = ""  # what is not certain yet
        self._opened = ""  # what began the call that is being read
        self._closing = ""  # what ends the reasoning or announcement that is being read
        self._scan: JsonScan | None = None  # over the arguments of that call
        self._named = ""
        self._head: list[re.Pattern[str]] = []
        self._after_thought = False  # blank lines between reasoning and text belong to neither
        self._steps: dict[str, Callable[[list[Piece]], bool]] = {
            "start": self._start, "thought": self._aside, "announced": self._aside, "text": self._in_text, "call": self._in_call, "between": self._between,
        }  # fmt: skip
        self._state = "start"
        if self._thinks and reasoning == "begun" and form.reasoning is not None and not form.final:
            self._state, self._closing, self._thinks = "thought", form.reasoning[1], False

    def feed(self, text: str) -> list[Piece]:
        """More text of the turn; gives what has become certain."""
        self._pending += text
        pieces: list[Piece] = []
        while self._steps[self._state](pieces):
            continue
        return pieces

    def finish(self, finish_reason: str = "stop") -> Turn:
        """The whole turn, once all text has been fed."""
        unfinished = ""
        if self._state == "call" or (self._form.final and self._state == "start"):
            unfinished = self._opened + self._pending
        elif self._state == "thought":
            self._say_thought(self._pending, [])
        else:
            self._say(self._pending, [])
        return Turn("".join(self._text), tuple(self._calls), unfinished, finish_reason, "".join(self._thought))

    # states; each is true if there may be more to do

    def _start(self, pieces: list[Piece]) -> bool:
        """At the beginning of the turn or of a message: what comes now?"""
        form = self._form
        openings = {form.reasoning[0]: "thought"} if self._thinks and form.reasoning else {}
        openings |= {form.preamble[0]: "announced"} if form.preamble else {}
        openings |= {form.final: "text"} if form.final else {}
        openings |= dict.fromkeys(self._heads, "call") if self._first_only else {}
        found = self._pending if self._form.leading and not self._structured else self._pending.lstrip()  # text may begin with a blank
        opening = next((o for o in sorted(openings, key=len, reverse=True) if found.startswith(o)), None)
        if opening is None:
            if any(o.startswith(found) for o in openings):
                return False
            self._state = "text"
            return True
        self._pending = found[len(opening) :]
        self._state = openings[opening]
        if self._state == "call":
            self._begin_call(opening, self._heads[opening])
        elif self._state == "thought" and form.reasoning:
            self._closing, self._thinks = form.reasoning[1], bool(form.final)
        elif self._state == "announced" and form.preamble:
            self._closing = form.preamble[1]
        return True

    def _aside(self, pieces: list[Piece]) -> bool:
        """Inside reasoning, or inside text that is said before a call."""
        end = self._pending.find(self._closing)
        certain = end if end >= 0 else len(self._pending) - _overlap(self._pending, [self._closing])
        (self._say_thought if self._state == "thought" else self._say)(self._pending[:certain], pieces)
        self._pending = self._pending[certain:]
        if end < 0:
            return False
        self._pending = self._pending[len(self._closing) :]
        self._after_thought = not self._form.final
        self._state = "start"
        return True

    def _in_text(self, pieces: list[Piece]) -> bool:
        words = () if self._first_only else tuple(self._heads)
        found = min(((at, word) for word in words if (at := self._pending.find(word)) >= 0), default=None)
        certain = found[0] if found else len(self._pending) - _overlap(self._pending, words)
        self._say(self._pending[:certain], pieces)
        self._pending = self._pending[certain:]
        if found is None:
            return False
        self._pending = self._pending[len(found[1]) :]
        self._begin_call(found[1], self._heads[found[1]])
        return True

    def _begin_call(self, opened: str, heads: list[re.Pattern[str]]) -> None:
        self._state, self._opened, self._head, self._scan = "call", opened, heads, None

    def _in_call(self, pieces: list[Piece]) -> bool:
        if self._scan is None:
            head = next((match for pattern in self._head if (match := pattern.match(self._pending))), None)
            if head is None:
                return False
            self._scan, self._named = JsonScan(head.end()), head.group("name")
        end = self._scan.end(self._pending)
        tail = re.compile(_lenient(self._form.tail)).match(self._pending, end) if end >= 0 else None
        name = _name(self._named, self._form.quoted) if tail else None
        if tail is None or name is None:
            return False
        call = ParsedCall(name, self._pending[self._scan.start : end])
        self._calls.append(call)
        pieces.append(CallClosed(call))
        self._pending, self._state = self._pending[tail.end() :], "between"
        return True

    def _between(self, pieces: list[Piece]) -> bool:
        """After a call: another one, what ends them all, or text."""
        form, dense = self._form, _dense(self._pending)
        again = _dense(form.separator) or _dense(form.head)
        if again and dense.startswith(again):
            separator = re.match(_lenient(form.separator), self._pending)
            opened = separator.group() if separator else ""
            self._pending = self._pending[len(opened) :]
            self._begin_call(opened, [_call_head("", form)])
            return True
        end = _dense(form.end)
        if end and dense.startswith(end):
            self._pending = self._pending[self._pending.index(form.end[-1], self._pending.index(form.end[0])) + 1 :]
        elif any(word and word.startswith(dense) for word in (again, end)):
            return False
        self._state = "text"
        return True

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if self._after_thought and not self._text:
            text = text.lstrip("\n")
        if not text or (self._calls and not text.strip()):
            return  # line breaks between calls are part of the form, not of the text
        self._text.append(text)
        pieces.append(TextPiece(text))

    def _say_thought(self, text: str, pieces: list[Piece]) -> None:
        if text:
            self._thought.append(text)
            pieces.append(ReasoningPiece(text))


class JsonScan:
    """Finds where the JSON object or array at `start` of a growing text ends; each character is looked at once."""

    def __init__(self, start: int) -> None:
        self.start = self._at = start
        self._depth = 0
        self._in_string = False
        self._end = -1

    def end(self, text: str) -> int:
        """Index just after the value; -1 while it is not whole, and for what is no object or array."""
        if self._end >= 0 or text[self.start : self.start + 1] not in ("{", "["):
            return self._end
        while found := (_IN_STRING if self._in_string else _OUTSIDE).search(text, self._at):
            sign = found.group()
            if sign == "\\" and found.end() == len(text):
                self._at = found.start()
                return -1
            self._at = found.end() + (sign == "\\")
            if sign == '"':
                self._in_string = not self._in_string
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._end = self._at
                    return self._end
        self._at = len(text)
        return -1


def _heads(form: TurnFormat) -> dict[str, list[re.Pattern[str]]]:
    """What calls may begin with -> patterns of what then stands before the arguments, with the group `name`."""
    heads: dict[str, list[re.Pattern[str]]] = {}
    for trigger in form.triggers:
        word = next((s for s in form.specials if trigger.startswith(s)), trigger)
        if form.final:
            word = trigger
        heads.setdefault(word, []).append(_call_head(trigger[len(word) :], form))
    return heads


def _call_head(before: str, form: TurnFormat) -> re.Pattern[str]:
    name = _STRING.pattern if form.quoted else r"[A-Za-z0-9_.\-]+"
    return re.compile(f"{_lenient(before + form.head)}(?P<name>{name}){_lenient(form.between)}(?=\\S)", re.S)


def _lenient(text: str) -> str:
    """A pattern for `text` with any white space around its punctuation, and where it has some."""

    def pattern(part: str) -> str:
        return r"\s*" if part.isspace() else rf"\s*{re.escape(part)}\s*" if part in "{}[]:," else re.escape(part)

    return "".join(map(pattern, _LITERAL.findall(text)))


def _dense(text: str) -> str:
    return "".join(text.split())


def _name(spelled: str, quoted: bool) -> str | None:
    """The tool's name; None for what is no JSON string."""
    if not quoted:
        return spelled
    try:
        return str(json.loads(f'"{spelled}"', strict=False))
    except ValueError:
        return None


def _overlap(text: str, words: Iterable[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `words`."""
    return max((size for word in words for size in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:size])), default=0)
