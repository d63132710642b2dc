"""Server-sent events out of bytes, as the WHATWG HTML standard says (9.2.6, "Interpreting an event stream").

Input: pieces of a body, cut anywhere, also inside a character. Output: the data of each event. Lines end with LF, CR or CRLF
and nothing else (U+2028 is text); an event that the stream ends in the middle of is discarded. Knows nothing of JSON.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from agentkit.errors import RemoteProtocolError

__all__ = ["EventReader"]

_LARGEST = 16 << 20  # characters of one event


class EventReader:
    """Feed it the body piece by piece."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []  # pieces of a line that has not ended
        self._held = 0  # characters in the event so far
        self._data: list[str] = []
        self._at_start = True
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[str]:
        """Data of the events that have ended with this piece.

        Raises:
            RemoteProtocolError: an event without end.
        """
        text = self._decoder.decode(piece)
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        for line in self._lines(text):
            if line:
                self._field(line)
            else:
                data, self._data, self._held = self._data, [], 0
                if data:
                    yield "\n".join(data)

    def _lines(self, text: str) -> Iterator[str]:
        if not text:
            return
        if self._after_cr:
            text = text.removeprefix("\n")
        self._held += len(text)
        if self._held > _LARGEST:
            raise RemoteProtocolError(f"the server sends an event of more than {_LARGEST} characters")
        self._after_cr = text.endswith("\r")
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for end in ended:
            line = "".join((*self._line, end))
            self._line = []
            yield line
        if rest:
            self._line.append(rest)

    def _field(self, line: str) -> None:
        """`data` is all that matters here; comments begin with a colon, other fields steer reconnecting."""
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
