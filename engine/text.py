"""Text of an output while its tokens arrive: whole characters only, stop strings found wherever tokens split them.

Input: one token id after the other, and a detokenizer that turns them into text without breaking characters. What could
still become a stop string is held back, so that no delta ever shows a part of one. The deltas add up to `text`,
however the output ends. Between two given texts, such as `<think>` and `</think>`, stop strings mean nothing.
This module knows nothing of models or grammars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Turns tokens into text, keeping back bytes of an unfinished character."""

    def push(self, token: int, /) -> str: ...

    def finish(self) -> str:
        """What is left at the end; an unfinished character comes out as U+FFFD."""
        ...


class OutputText:
    """The output's text so far.

    stop: texts that end it; the match that ends first counts, of those the longest.   include_stop: keep the match.
    outside: two texts between which stop strings do not count; what is begun and never ended goes on to the end.
    inside: the output begins between them.   marks: token id -> which of the two it is, for tokens that have no text.
    `stopped` is the stop string that ended the output, or None; nothing may be pushed after that.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        outside: tuple[str, str] | None = None,
        *,
        inside: bool = False,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._outside = outside
        self._inside = inside
        self._marks = marks or {}
        self._held = ""
        self._shown: list[str] = []
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that can be shown now."""
        mark = self._marks.get(token_id)
        if self._outside is None or mark is None or mark != self._outside[self._inside]:
            return self._take(self._detokenizer.push(token_id))
        delta = self._take(self._detokenizer.finish())
        if self.stopped is not None:
            return delta
        self._inside = not self._inside
        delta += self._release(len(self._held))
        return delta + self._take(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The output is over: what had been held back, unless a stop string ended it."""
        if self.stopped is not None:
            return ""
        return self._take(self._detokenizer.finish()) + self._release(len(self._held))  # nothing is held once a stop string has come

    def _take(self, piece: str) -> str:
        self._held += piece
        delta = ""
        while piece:
            turn = self._turn()
            match = None if self._inside else self._first_match()
            if match is not None and not 0 <= turn < match[0] + len(match[1]):
                start, self.stopped = match
                delta += self._release(start + len(self.stopped) if self._include_stop else start)
                self._held = ""
                return delta
            if turn < 0:
                break
            self._inside = not self._inside
            delta += self._release(turn)
        return delta + self._release(len(self._held) - self._open_suffix())

    def _turn(self) -> int:
        """Where the text that begins or ends the part without stop strings is over in the held text; -1: nowhere."""
        if self._outside is None:
            return -1
        word = self._outside[self._inside]
        at = self._held.find(word)
        return at if at < 0 else at + len(word)

    def _release(self, size: int) -> str:
        shown, self._held = self._held[:size], self._held[size:]
        return self._show(shown)

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text

    def _first_match(self) -> tuple[int, str] | None:
        found = [(at + len(s), at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        return (min(found)[1], min(found)[2]) if found else None

    def _open_suffix(self) -> int:
        """Length of the longest end of the held text that begins something looked for."""
        markers = () if self._outside is None else (self._outside[self._inside],)
        words = markers if self._inside else (*markers, *self._stop)
        longest = max((len(s) for s in words), default=1) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-n:]) for s in words):
                return n
        return 0
