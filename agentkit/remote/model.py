"""A model on a remote server as a ChatModel: asks, reads the stream, counts.

Input: where the server is, which model, and bounds. What kind of server it is is read off its listing of models, unless it is
given. Nothing that comes back is believed: the loop validates calls and answers as it does local ones. Knows nothing of tools.
"""

from __future__ import annotations

import json
import re
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from agentkit.errors import InvalidOption, RemoteUnavailable, did_you_mean
from agentkit.messages import AssistantMessage
from agentkit.model import CallClosed, ModelEvent, ModelToken, TurnEnd, TurnRequest
from agentkit.remote.address import Address, resolve
from agentkit.remote.body import request_body
from agentkit.remote.chunks import ChunkReader
from agentkit.remote.connection import DONE, Bounds, Budget, Connection
from agentkit.remote.failures import of_response
from agentkit.remote.servers import OTHER, SERVERS, Server, recognised
from agentkit.usage import RequestUsage

__all__ = ["RemoteModel"]

_OWN = frozenset({"model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"})
_OWN |= {"tools", "tool_choice", "parallel_tool_calls", "response_format"}
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1
_OWN_HEADERS = frozenset(("authorization", "content-type", "host", "content-length"))


class RemoteModel:
    """A model behind OpenAI's chat completions API. Safe to use from several tasks, threads and event loops.

    Args:
        target: "openai:MODEL", or the address of an API ("http://localhost:8000/v1").
        model: its name on the server; None where the server has only one.
        api_key: None: OPENAI_API_KEY for "openai:MODEL", none for an address.
        server: its kind: one of SERVERS ("openai", "vllm", "sglang", "llamacpp", "llama-cpp-python", "ollama", "lmstudio", "other");
            None: as it says itself when it is first asked.
        connect_timeout, read_timeout, timeout: seconds for a connection, between two pieces of an answer, and for a whole turn.
        max_retries: further attempts where the server is busy or cannot be reached, before anything of an answer has come.
        headers: sent with each request.   extra_body: fields added to each request, such as {"reasoning_effort": "low"}.

    Raises:
        InvalidOption: an option cannot be used.
    """

    def __init__(
        self,
        target: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        server: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 120.0,
        timeout: float = 600.0,
        max_retries: int = 2,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        self.address: Address = resolve(target, model, api_key)
        self.bounds = Bounds(connect_timeout, read_timeout, timeout, max_retries)
        self._extra = _extra(_mapping("extra_body", extra_body, {"reasoning_effort": "low"}))
        self._connection = Connection(self.address, self.bounds, _headers(_mapping("headers", headers, {"x-tenant": "a"})))
        self._server: Server | None = SERVERS["openai"] if self.address.is_openai else None
        if server is not None:
            self._server = _named(server)
        self._model = self.address.model
        self._finalizer = weakref.finalize(self, self._connection.clients.close)

    @property
    def name(self) -> str:
        return self._model or self.address.base

    def __repr__(self) -> str:
        return f"RemoteModel({self.address.base!r}, {self._model!r})"

    async def stream_turn(self, request: TurnRequest) -> AsyncIterator[ModelEvent]:
        """Streams one turn; see ChatModel.

        Raises:
            RemoteError: the server did not give a whole turn.
            InvalidOption: the server lacks an option that was asked for.
        """
        clock, done = _Clock(), False
        budget = Budget(self.address, self.bounds.total)
        server, model = await self._known(budget)
        body = {**self._extra, **request_body(request, server, model)}
        used = [call.id for message in request.messages if isinstance(message, AssistantMessage) for call in message.tool_calls]
        reader = ChunkReader([tool.name for tool in request.tools], used)
        async with aclosing(self._connection.stream(body, budget)) as chunks:
            async for chunk in chunks:
                done = done or chunk is DONE
                for event in reader.feed(chunk):
                    if isinstance(event, ModelToken):
                        clock.tick()
                    yield event
        turn = reader.finish(done=done)
        for call in turn.calls:
            yield CallClosed(call)
        yield TurnEnd(turn, clock.usage(reader.usage))

    def close(self) -> None:
        """Closes the connections."""
        self._connection.clients.close()

    async def aclose(self) -> None:
        """The same, and waits for those of the running event loop."""
        await self._connection.clients.aclose()

    async def _known(self, budget: Budget) -> tuple[Server, str]:
        """Kind of server and name of the model; what is not known is asked for, until the server has said it."""
        if self._server is None or self._model is None:
            models, server = await self._listed(budget)
            self._server = self._server or server
            if self._model is None:
                self._model = self._only(models)
        return self._server or OTHER, self._model

    async def _listed(self, budget: Budget) -> tuple[list[dict[str, Any]], Server | None]:
        """The models that the server lists, and what kind of server it is: OTHER where it has no listing, None where that broke down."""
        try:
            status, headers, text = await self._connection.get("/models", budget)
        except RemoteUnavailable as error:
            if error.status is None or error.status < 500:
                raise
            return [], None
        if status in (401, 403, 429) or 300 <= status < 400:
            raise of_response(self.address, status, headers, text)
        if status >= 500:
            return [], None
        try:
            data = json.loads(text)["data"] if status == 200 else []
        except (ValueError, KeyError, TypeError, RecursionError):
            data = []
        models = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
        return models, recognised(models, headers) if models or headers.get("server") else OTHER

    def _only(self, models: list[dict[str, Any]]) -> str:
        names = [str(each["id"]) for each in models if each.get("id")]
        if len(names) == 1:
            return names[0]
        listed = f"it lists {', '.join(names[:20])}" if names else "it lists none"
        raise InvalidOption(f"which model of {self.address.base}? {listed}; pass model=")


class _Clock:
    """When tokens came."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first: float | None = None

    def tick(self) -> None:
        self._last = time.monotonic()
        self._first = self._last if self._first is None else self._first

    def usage(self, said: Mapping[str, Any]) -> RequestUsage:
        """What the server counted, and the times measured here."""
        output = _count(said.get("completion_tokens"))
        prompt, completion = (each if isinstance(each := said.get(f"{name}_tokens_details"), dict) else {} for name in ("prompt", "completion"))
        first = self._first
        return RequestUsage(
            input_tokens=_count(said.get("prompt_tokens")),
            output_tokens=output,
            cached_tokens=_count(prompt.get("cached_tokens")) or _count(said.get("prompt_cache_hit_tokens")),
            reasoning_tokens=_count(completion.get("reasoning_tokens")) or _count(said.get("reasoning_tokens")),
            ttft_s=None if first is None else first - self._started,
            tpot_s=None if first is None or output < 2 else (self._last - first) / (output - 1),
        )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _named(server: Any) -> Server:
    if not isinstance(server, str) or server not in SERVERS:
        hint = did_you_mean(server, SERVERS) if isinstance(server, str) else ""
        raise InvalidOption(f"server is {server!r}.{hint} The kinds are {', '.join(SERVERS)}; None asks the server")
    return SERVERS[server]


def _mapping(name: str, given: Any, example: Mapping[str, str]) -> Mapping[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidOption(f"{name} must be a dict, such as {example}, or None, not {type(given).__name__}")
    return given or {}


def _extra(extra: Mapping[Any, Any]) -> dict[str, Any]:
    odd = next((name for name in extra if not isinstance(name, str)), None)
    if odd is not None:
        raise InvalidOption(f"extra_body: {odd!r} is no name of a field; names are text")
    own = sorted(_OWN & extra.keys())
    if own:
        raise InvalidOption(f"extra_body has {', '.join(own)}, which the agent itself sends; leave it out")
    return dict(extra)


def _headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
            raise InvalidOption(f"headers: {name!r} is no name of a header: letters, digits and hyphens")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable() or value != value.strip():
            raise InvalidOption(f"headers: the value of {name!r} must be text in ASCII, without line breaks, or blanks at its ends")
        if name.lower() in _OWN_HEADERS:
            raise InvalidOption(f"headers: {name!r} is set by the connection itself" + ("; pass api_key=" if name.lower() == "authorization" else ""))
    return dict(headers)
