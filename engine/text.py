"""Text of an output while its tokens arrive: whole characters only, stop strings found wherever tokens split them.

Input: one token id after the other, and a detokenizer that turns them into text without breaking characters. What could
still become a stop string is held back, so that no delta ever shows a part of one. The deltas add up to `text`,
however the output ends. This module knows nothing of models or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    `stopped` is the stop string that ended the output, or None; nothing may be pushed after that.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self._shown: list[str] = []
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that can be shown now."""
        return self._take(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """The output is over: what had been held back, unless a stop string ended it."""
        if self.stopped is not None:
            return ""
        delta = self._take(self._detokenizer.finish())
        if self.stopped is None:
            delta += self._show(self._held)
            self._held = ""
        return delta

    def _take(self, piece: str) -> str:
        self._held += piece
        match = self._first_match() if piece else None
        if match is not None:
            start, self.stopped = match
            end = start + len(self.stopped)
            shown, self._held = self._held[: end if self._include_stop else start], ""
            return self._show(shown)
        free = len(self._held) - self._open_suffix()
        shown, self._held = self._held[:free], self._held[free:]
        return self._show(shown)

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text

    def _first_match(self) -> tuple[int, str] | None:
        found = [(at + len(s), at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        return (min(found)[1], min(found)[2]) if found else None

    def _open_suffix(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-n:]) for s in self._stop):
                return n
        return 0
