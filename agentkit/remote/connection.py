"""Requests to one server: retries before anything has come, time limits, and streams that close with their reader.

Input: an Address and bounds. Output: decoded chunks of a stream, or the JSON of an answer; typed errors otherwise. No redirect
is followed, so a key goes to the server that was named and nowhere else. Proxies are those of httpx's own environment variables.
Knows nothing of what the chunks mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from agentkit.engine.checks import integer, number, plain_numbers
from agentkit.errors import InvalidOption, RemoteError, RemoteProtocolError, RemoteTimeout
from agentkit.remote.address import Address
from agentkit.remote.chunks import CUT
from agentkit.remote.clients import Clients
from agentkit.remote.failures import may_pass, of_exception, of_object, of_response, quoted
from agentkit.remote.sse import EventReader

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["DONE", "Bounds", "Budget", "Connection"]

_CLOSING_S = 0.25
_JSON = {"content-type": "application/json"}
_LARGEST, _LONGEST = 64 << 20, 256 << 20  # bytes of an answer in one piece, and of a stream
DONE: dict[str, Any] = {}
"""What a stream gives last if the server said that it is complete."""


@dataclass(frozen=True)
class Bounds:
    """Time limits in seconds, and retries.

    total: of waiting for the server in one turn, retries and pauses included; what a reader does between two events is not counted.
    read: between two pieces of an answer, and before its first.
    max_retries: further attempts where the server is busy or cannot be reached, none of them once a piece has come.
    backoff: pause before the first retry, doubled each time; longest: more than that is never waited, also if a server asks for it.

    Raises:
        InvalidOption: a bound is out of range.
    """

    connect: float = 10.0
    read: float = 120.0
    total: float = 600.0
    max_retries: int = 2
    backoff: float = 0.5
    longest: float = 60.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name, option in (("connect", "connect_timeout"), ("read", "read_timeout"), ("total", "timeout")):
            number(option, getattr(self, name), 0.0, open_low=True, hint="seconds")
        integer("max_retries", self.max_retries, 0)

    def pause(self, attempt: int, error: RemoteError) -> float | None:
        """Seconds to wait after the failure of an attempt (from 0); None: do not try again."""
        if attempt >= self.max_retries or not may_pass(error):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest else None
        return min(self.backoff * 2.0**attempt, self.longest) * random.uniform(0.75, 1.0)  # not all at the same moment


class Budget:
    """Seconds of waiting that a turn has left. `async with` waits under it, and is never held over a yield, where it would cancel the reader's own work.

    Raises:
        RemoteTimeout: none are left.
    """

    def __init__(self, address: Address, seconds: float) -> None:
        self.left = seconds
        self._message = f"{address.base} did not complete its answer in {seconds:g} s; timeout= waits longer"
        self._since = 0.0

    async def __aenter__(self) -> None:
        self._since = time.monotonic()
        self._timeout = asyncio.timeout(max(0.0, self.left))
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.left -= time.monotonic() - self._since
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            raise RemoteTimeout(self._message) from late


class Connection:
    """A server.

    Args:
        address: where it is.   bounds: of time and retries.   headers: sent with each request, besides the key.
    """

    def __init__(self, address: Address, bounds: Bounds, headers: Mapping[str, str]) -> None:
        self.address, self.bounds = address, bounds
        self._headers = dict(headers)
        self.clients = Clients(self._client)

    async def stream(self, body: Mapping[str, Any], budget: Budget) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks of a turn; DONE after the last one if the server said so. Leaving the iterator closes the connection.

        Raises:
            RemoteError: any kind.
        """
        attempt = 0
        while True:
            begun = came = False
            try:
                async with aclosing(self._attempt(body, budget)) as chunks:
                    async for chunk in chunks:
                        begun, came = begun or _says_something(chunk), True
                        yield chunk
                if came:
                    return
                raise RemoteProtocolError(f"{self.address.base} ended its answer before it had begun", code=CUT)
            except RemoteError as error:
                pause = None if begun else self.bounds.pause(attempt, error)
                if pause is None or pause >= budget.left:
                    raise
            attempt += 1
            async with budget:
                await asyncio.sleep(pause)

    async def get(self, path: str, budget: Budget) -> tuple[int, Mapping[str, str], str]:
        """(status, headers, body) of GET; retried as streams are, but no status is an error here except those that may pass."""
        attempt = 0
        while True:
            try:
                return await self._fetch(path, budget)
            except RemoteError as error:
                pause = self.bounds.pause(attempt, error)
                if pause is None or pause >= budget.left:
                    raise
            attempt += 1
            async with budget:
                await asyncio.sleep(pause)

    # ------------------------------------------------------------------ one attempt
    async def _fetch(self, path: str, budget: Budget) -> tuple[int, Mapping[str, str], str]:
        async with self._answer("GET", path, budget) as response:
            text = await self._whole(response, budget)
        failure = None if response.is_success else of_response(self.address, response.status_code, response.headers, text)
        if failure is not None and may_pass(failure):
            raise failure
        return response.status_code, response.headers, text

    async def _attempt(self, body: Mapping[str, Any], budget: Budget) -> AsyncGenerator[dict[str, Any], None]:
        async with self._answer("POST", "/chat/completions", budget, _encoded(body)) as response:
            kind = response.headers.get("content-type", "").lower()
            if not response.is_success:
                text = await self._whole(response, budget)
                raise of_response(self.address, response.status_code, response.headers, text)
            if "html" in kind:
                raise RemoteProtocolError(f"{self.address.base} answered with a web page; is it the address of the API? Most have it at …/v1")
            streams = "json" not in kind or "stream" in kind
            pieces = self._events(response, budget) if streams else self._whole_completion(response, budget)
            async with aclosing(pieces) as chunks:
                async for chunk in chunks:
                    yield chunk

    @asynccontextmanager
    async def _answer(self, method: str, path: str, budget: Budget, content: bytes | None = None) -> AsyncIterator[httpx.Response]:
        """The head of an answer; its body is yet to be read. content: JSON."""
        import httpx

        client = await self.clients.here()
        try:
            request = client.build_request(method, self.address.base + path, content=content, headers=_JSON if content is not None else None)
            async with budget:
                response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise of_exception(self.address, error) from error
        try:
            yield response
        finally:
            await response.aclose()

    async def _whole_completion(self, response: httpx.Response, budget: Budget) -> AsyncGenerator[dict[str, Any], None]:
        """A server that does not stream gives the completion in one piece."""
        yield self._decoded(await self._whole(response, budget))
        yield DONE

    async def _events(self, response: httpx.Response, budget: Budget) -> AsyncGenerator[dict[str, Any], None]:
        reader = EventReader()
        async with aclosing(self._pieces(response, budget, _LONGEST)) as pieces:
            async for piece in pieces:
                for data in reader.feed(piece):
                    if data.strip() == "[DONE]":
                        yield DONE
                        await _drain(pieces)
                        return
                    yield self._decoded(data)

    def _decoded(self, data: str) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"{self.address.base} sent what is no JSON: {quoted(self.address, data)!r:.200}") from error
        if not isinstance(chunk, dict):
            raise RemoteProtocolError(f"{self.address.base} sent {quoted(self.address, data)!r:.200}, which is no chunk of a completion")
        if chunk.get("error") or (chunk.get("object") == "error" and "choices" not in chunk):
            raise of_object(self.address, chunk.get("error") or chunk)
        return chunk

    async def _whole(self, response: httpx.Response, budget: Budget) -> str:
        body = bytearray()
        async with aclosing(self._pieces(response, budget, _LARGEST)) as pieces:
            async for piece in pieces:
                body += piece
        return body.decode("utf-8", "replace")

    async def _pieces(self, response: httpx.Response, budget: Budget, most: int) -> AsyncGenerator[bytes, None]:
        import httpx

        taken = 0
        # httpx says only that it can be iterated over, and makes it an async generator, which must be closed where it is left early
        async with aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_bytes())) as pieces:
            while True:
                try:
                    async with budget:
                        piece = await anext(pieces, None)
                except httpx.HTTPError as error:
                    raise of_exception(self.address, error) from error
                if piece is None:
                    return
                taken += len(piece)
                if taken > most:
                    raise RemoteProtocolError(f"{self.address.base} sends an answer of more than {most} bytes")
                yield piece

    def _client(self) -> httpx.AsyncClient:
        import httpx

        key = self.address.key
        headers = {"user-agent": "agentkit", **self._headers, **({"authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {})}
        timeout = httpx.Timeout(self.bounds.read, connect=self.bounds.connect, pool=self.bounds.total)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        return httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits, verify=_certificates(), follow_redirects=False)


@cache
def _certificates() -> ssl.SSLContext:
    """Reading them takes a tenth of a second or more: once for all clients."""
    import httpx

    return httpx.create_ssl_context()


async def _drain(pieces: AsyncGenerator[bytes, None]) -> None:
    """Reads what may follow the end, so that the connection can be used again; a server that does not close its answer is not waited for."""
    with contextlib.suppress(TimeoutError, RemoteError):
        async with asyncio.timeout(_CLOSING_S):
            async for _ in pieces:
                continue


def _says_something(chunk: Mapping[str, Any]) -> bool:
    """Whether a reader may have seen something of it: an empty first chunk gives nothing away. What is malformed says enough for the reader to refuse it."""
    choices = chunk.get("choices") or []
    if not isinstance(choices, list):
        return True
    for choice in choices:
        delta = (choice.get("delta") or choice.get("message") or {}) if isinstance(choice, dict) else None
        if not isinstance(delta, dict) or choice.get("finish_reason") or any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:  # a lone surrogate, or a number that JSON has not
        raise InvalidOption(f"the request has no JSON form: {error}; look at the instructions, the tools' schemas and extra_body") from error
