"""A turn out of the chunks of a stream (or out of one whole completion), whatever liberties the server takes.

Input: decoded chunks. Output: events as they become certain, and at the end the turn. What servers are known to do and what is
made of it here:
- calls interleaved by `index`; without index, or all with index 0: told apart by id, name, and whether the one before is whole;
- ids repeated, missing, new in every piece, or used in an earlier turn: an id that is not unique is dropped, and the loop gives one;
- names in pieces, repeated in each piece, or growing: the tools that were offered decide;
- arguments as an object instead of text; `function_call`; `reasoning` and `reasoning_content`; content in parts;
- `finish_reason` "stop" after calls, "function_call", or null before [DONE].
Nothing is validated here beyond the form: that is the loop's work. Knows nothing of connections or SSE.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from agentkit.errors import ModelRefusal, RemoteProtocolError
from agentkit.model import ModelEvent, ModelToken, ParsedCall, ReasoningPiece, TextPiece, Turn
from agentkit.protocol import compact

__all__ = ["CUT", "ChunkReader"]

CUT = "cut"  # code of the error where a stream ended too early

_STOPS = {"stop": "stop", "tool_calls": "stop", "function_call": "stop", "eos": "stop", "eos_token": "stop", "length": "length", "max_tokens": "length"}
_MOST_CALLS = 1024  # in one turn: a stream of new ones without end is no answer
_BROKEN = ("error", "abort", "aborted", "cancelled")


@dataclass
class _Call:
    id: str | None = None
    name: str = ""
    arguments: str = ""
    index: int | None = None

    @property
    def whole(self) -> bool:
        """Its arguments are one JSON value already."""
        if not self.arguments.rstrip().endswith("}"):
            return False
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


def _well_formed(text: str) -> tuple[str, str]:
    """(text whose surrogates are paired to characters, or replaced; a half at its end that may still be paired)."""
    if not text or text.isascii():
        return text, ""
    half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
    return text.removesuffix(half).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


def _whole(text: str) -> str:
    return _well_formed(text)[0]


class ChunkReader:
    """Reads one turn.

    Args:
        tools: names that were offered.
        used_ids: ids of calls earlier in the conversation.
    """

    def __init__(self, tools: Collection[str] = (), used_ids: Collection[str] = ()) -> None:
        self._tools, self._used = frozenset(tools), frozenset(used_ids)
        self._calls: list[_Call] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._half = ""  # the first half of a character outside the basic plane, where a server cuts it in two
        self._refusal = ""
        self._finish: str | None = None
        self._begun = self._numbered = False
        self.usage: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(self._text)

    def feed(self, chunk: Mapping[str, Any]) -> list[ModelEvent]:
        """One more chunk.

        Raises:
            RemoteProtocolError: it is not of the form of a chunk.
        """
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        choices = chunk.get("choices")
        if choices is None or choices == []:
            return []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise self._malformed("choices", choices)
        events: list[ModelEvent] = []
        for choice in choices:
            if choice.get("index") not in (0, None):
                raise self._malformed("the index of a choice", choice.get("index"))
            delta = choice.get("delta") or choice.get("message") or {}
            if not isinstance(delta, dict):
                raise self._malformed("delta", delta)
            self._begun = True
            events += self._delta(delta, whole=not choice.get("delta"))
            if choice.get("finish_reason"):
                self._finish = str(choice["finish_reason"])
        return events

    def finish(self, *, done: bool) -> Turn:
        """The turn, once the stream is over. done: the server said so.

        Raises:
            RemoteProtocolError: the stream was cut.
            ModelRefusal: the model or a filter refused.
        """
        if self._finish is None and not (done and self._begun):
            message = "the server's stream ended before the turn was complete: the connection was cut, or the server broke down"
            raise RemoteProtocolError(message, code=CUT, text=self.text)
        if self._refusal or self._finish == "content_filter":
            refusal = _whole(self._refusal)
            what = f"the model refused: {refusal}" if self._refusal else "a content filter of the server cut the answer"
            raise ModelRefusal(what, code=self._finish, text=refusal or self.text)
        if self._finish in _BROKEN:
            raise RemoteProtocolError(f"the server gave the turn up (finish reason {self._finish!r})", code=self._finish, text=self.text)
        reason = _STOPS.get(self._finish or "stop", self._finish or "stop")
        calls, unfinished = self._calls, ""
        if reason == "length" and calls and not calls[-1].whole:
            unfinished = f"{calls[-1].name}({calls[-1].arguments}"
            calls = calls[:-1]
        return Turn(self.text, self._parsed(calls), unfinished, reason, "".join(self._reasoning))

    def _parsed(self, calls: list[_Call]) -> tuple[ParsedCall, ...]:
        seen = set(self._used)
        parsed = []
        for call in calls:
            parsed.append(ParsedCall(_whole(call.name), _whole(call.arguments), call.id if call.id and call.id not in seen else None))
            seen.add(call.id or "")
        return tuple(parsed)

    # ------------------------------------------------------------------ text
    def _delta(self, delta: Mapping[str, Any], *, whole: bool) -> list[ModelEvent]:
        """whole: a message that is complete, so that each of its calls is another one."""
        events: list[ModelEvent] = []
        text, thought = self._content(delta.get("content"))
        thought = self._string("reasoning", delta.get("reasoning_content") or delta.get("reasoning")) or thought
        thought = _whole(thought)
        if thought:
            self._reasoning.append(thought)
            events += [ModelToken(thought), ReasoningPiece(thought)]
        text, self._half = _well_formed(self._half + text)
        if text:
            self._text.append(text)
            events += [ModelToken(text), TextPiece(text)]
        self._refusal += self._string("refusal", delta.get("refusal"))
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise self._malformed("tool_calls", calls)
        self._numbered = self._numbered or bool(calls)
        for place, part in enumerate(calls):
            events += self._call_part({**part, "index": place} if whole and isinstance(part, dict) else part)
        if delta.get("function_call") and not self._numbered:  # some give each call in both forms
            events += self._call_part({"index": 0, "function": delta["function_call"]})
        return events

    def _content(self, content: Any) -> tuple[str, str]:
        """(text, reasoning) of content, which may come in parts."""
        if not isinstance(content, list):
            return self._string("content", content), ""
        text = thought = ""
        for part in content:
            if not isinstance(part, dict):
                raise self._malformed("a part of content", part)
            if part.get("type") == "thinking":
                inner = part.get("thinking")
                thought += self._content(inner)[0]
            else:
                text += self._string("a part of content", part.get("text"))
        return text, thought

    def _string(self, name: str, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        raise self._malformed(name, value)

    # ------------------------------------------------------------------ calls
    def _call_part(self, part: Any) -> list[ModelEvent]:
        function = part.get("function") if isinstance(part, dict) else None
        if not isinstance(function, dict):
            raise self._malformed("a tool call", part)
        name, id_ = self._string("a tool's name", function.get("name")), part.get("id")
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = compact(arguments)
        arguments = self._string("arguments", arguments)
        index = part.get("index")
        call = self._place(index if isinstance(index, int) else None, str(id_) if id_ not in (None, "") else None, name, arguments)
        call.name = self._joined(call.name, name)
        call.arguments += arguments
        return [ModelToken(arguments)] if arguments else []

    def _place(self, index: int | None, id_: str | None, name: str, arguments: str) -> _Call:
        """The call that a piece belongs to: a new one where it cannot be a known one's."""
        if index is not None:
            same = next((call for call in reversed(self._calls) if call.index == index), None)
        elif id_ is not None:
            same = next((call for call in self._calls if call.id == id_), None)
        else:
            same = self._calls[-1] if self._calls else None
        if same is None or self._is_another(same, index, id_, name, arguments):
            if not name and index is None and id_ is None:
                raise self._malformed("a piece of a tool call that belongs to none", arguments)
            if len(self._calls) == _MOST_CALLS:
                raise RemoteProtocolError(f"the server sent more than {_MOST_CALLS} tool calls in one turn", text=self.text)
            same = _Call(id_, index=index)
            self._calls.append(same)
        elif same.id is None:
            same.id = id_
        return same

    def _is_another(self, same: _Call, index: int | None, id_: str | None, name: str, arguments: str) -> bool:
        """Whether a piece that seems to belong to a call begins another one: a piece with a name, after a call that is whole."""
        if not name:
            return False
        if index is None and id_ is None and self._joined(same.name, name) not in (same.name, *self._tools):
            return True
        both = id_ is not None and same.id is not None
        return same.whole and (id_ != same.id if both else bool(arguments.strip()))

    def _joined(self, known: str, piece: str) -> str:
        """A name with one more piece of it, which may be the rest, the whole again, or longer than before."""
        if not known or not piece:
            return known or piece
        if known + piece in self._tools:
            return known + piece
        if piece == known:
            return known
        if piece.startswith(known) and piece in self._tools:
            return piece
        return known + piece

    def _malformed(self, name: str, value: Any) -> RemoteProtocolError:
        return RemoteProtocolError(f"the server sent {name} as {value!r:.200}, which is not what the API says", text=self.text)
