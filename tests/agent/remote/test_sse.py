"""Server-sent events, as the standard says, however a body is cut into pieces."""

from __future__ import annotations

import pytest

from agentkit.errors import RemoteProtocolError
from agentkit.remote import sse
from agentkit.remote.sse import EventReader

STREAMS = {
    "lf": (b'data: {"a":1}\n\ndata: [DONE]\n\n', ['{"a":1}', "[DONE]"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
    "cr": (b"data: a\r\rdata: b\r\r", ["a", "b"]),
    "mixed": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", ["a", "b", "c"]),
    "comments and other fields": (b": ping\n\nevent: x\nid: 7\nretry: 10\ndata: a\n: between\n\n:\n\n", ["a"]),
    "several lines": (b'data: {\ndata:  "a":1\ndata: }\n\n', ['{\n "a":1\n}']),
    "no blank after the colon, and two": (b"data:a\n\ndata:  b\n\n", ["a", " b"]),
    "a field without a colon": (b"data\n\ndata: a\n\n", ["", "a"]),
    "an event without data": (b"event: ping\n\ndata: a\n\n", ["a"]),
    "a byte order mark": (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    "separators that are text": ("data: a\u2028b\u2029c\u0085d\x0b\x0c\x1ce\n\n".encode(), ["a\u2028b\u2029c\u0085d\x0b\x0c\x1ce"]),
    "characters of one to four bytes": ("data: aäあ😀\n\n".encode(), ["aäあ😀"]),
    "cut at the end": (b"data: a\n\ndata: b\n", ["a"]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("body", "expected"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_any_pieces_give_the_same_events(body: bytes, expected: list[str], size: int) -> None:
    reader = EventReader()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert [data for piece in [*pieces, b""] for data in reader.feed(piece)] == expected


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert list(EventReader().feed(b"data: a\xffb\n\n")) == ["a\ufffdb"]


def test_an_event_without_end_is_refused_and_comments_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_LARGEST", 100)
    reader = EventReader()
    for _ in range(50):
        assert list(reader.feed(b": still there\n\n")) == []
    list(reader.feed(b"data: more"))
    with pytest.raises(RemoteProtocolError, match="more than 100 characters"):
        list(reader.feed(b"x" * 100))
