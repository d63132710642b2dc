"""A small HTTP server on 127.0.0.1 that plays what real servers send, byte for byte, and notes what it was asked.

It speaks just enough HTTP/1.1: one answer after another, bodies in chunks whose borders a test can choose, connections that
break off. An answer is a Reply, or a function of the request that gives one; they are played in order.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """An answer: pieces of a body, each sent as a chunk of its own.

    cut: the connection breaks off after the pieces.   stall: it stays open and silent instead of ending.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream; charset=utf-8"})
    cut: bool = False
    stall: bool = False


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


Answer = Reply | Callable[[Asked], Reply]


def sse(*chunks: Any, end: str = "data: [DONE]\n\n") -> Reply:
    """A stream of chunks: dicts as JSON, text as it is."""
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return Reply([line.encode() for line in [*lines, end] if line])


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a completion."""
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int | None, name: str | None = None, arguments: Any = None, id: str | None = None) -> dict[str, Any]:
    """A piece of a tool call; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {key: value for key, value in (("index", index), ("id", id), ("type", "function"), ("function", function)) if value is not None}


def calling(*parts: dict[str, Any], finish: str = "tool_calls") -> Reply:
    """A stream with one piece of a call in each chunk."""
    return sse(delta(role="assistant", content=None), *(delta(tool_calls=[part]) for part in parts), delta(finish), USAGE)


def saying(text: str, finish: str = "stop") -> Reply:
    """A stream of text, a few characters in each chunk."""
    return sse(delta(role="assistant", content=""), *(delta(content=text[at : at + 5]) for at in range(0, len(text), 5)), delta(finish), USAGE)


def as_json(value: Any, status: int = 200, **headers: str) -> Reply:
    """An answer in one piece."""
    return Reply([json.dumps(value).encode()], status, {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}})


def listing(owner: str, *models: str) -> Reply:
    """An answer to GET /models."""
    return as_json({"object": "list", "data": [{"id": model, "object": "model", "owned_by": owner} for model in models or ("m",)]})


USAGE: dict[str, Any] = {
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}


class Server:
    """Plays answers.

    Attributes:
        url: address of its API.   asked: requests for completions, in order.   listed: requests for /models.   gone: connections that the
        client closed while an answer stalled.
    """

    def __init__(self, *answers: Answer, models: Answer | None = None) -> None:
        self.answers, self.models = list(answers), models
        self.asked: list[Asked] = []
        self.listed: list[Asked] = []
        self.gone, self.arrived = asyncio.Event(), asyncio.Event()
        self.connections = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while (asked := await self._read(reader, number)) is not None:
                if not await self._answer(asked, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.gone.set()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, number: int) -> Asked | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, path, _ = first.split()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, json.loads(body) if body else None, number)
        (self.listed if path == "/v1/models" else self.asked).append(asked)
        self.arrived.set()
        return asked

    def _next(self, asked: Asked) -> Reply:
        if asked.path == "/v1/models":
            answer = self.models or as_json({"detail": "Not Found"}, 404)
        else:
            assert self.answers, f"no answer is left for request {len(self.asked)}"
            answer = self.answers.pop(0)
        return answer(asked) if callable(answer) else answer

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        reply = self._next(asked)
        head = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(f"HTTP/1.1 {reply.status} X\r\ntransfer-encoding: chunked\r\n{head}\r\n".encode("latin-1"))
        for piece in reply.pieces:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)
        if reply.stall:
            assert await reader.read(1) == b""  # the client has closed the connection
            self.gone.set()
            return False
        if reply.cut:
            writer.transport.abort()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True
