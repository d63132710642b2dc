"""Requests: retries, limits, errors, cancelling, and what becomes of connections."""

from __future__ import annotations

import asyncio
import email.utils
import gc
import json
import time
from typing import Any

import httpx
import pytest

from agentkit import Agent, tool
from agentkit.errors import (
    AgentKitError,
    ModelRefusal,
    RemoteError,
    RemoteProtocolError,
    RemoteRefused,
    RemoteTimeout,
    RemoteUnavailable,
)
from agentkit.remote import RemoteModel, connection
from agentkit.remote.connection import Bounds
from agentkit.remote.failures import of_response, said
from tests.agent.remote.server import Asked, Reply, Server, as_json, call, calling, delta, listing, saying, sse

KEY = "sk-very-secret-1"
BUSY = as_json({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429, retry_after="0")


def model(server: Server, **options: Any) -> RemoteModel:
    made = RemoteModel(server.url, "m", **{"server": "vllm", "api_key": KEY, **options})
    object.__setattr__(made.bounds, "backoff", 0.0)  # tests wait for nothing
    return made


async def failure(*answers: Any, **options: Any) -> tuple[RemoteError, Server]:
    """The error of a run against these answers."""
    async with Server(*answers).running() as server:
        with pytest.raises(RemoteError) as caught:
            await Agent(model(server, **options)).run("go")
        assert KEY not in "".join(map(str, (caught.value, vars(caught.value))))
        return caught.value, server


def test_the_tree() -> None:
    for kind in (RemoteUnavailable, RemoteTimeout, RemoteRefused, RemoteProtocolError, ModelRefusal):
        assert issubclass(kind, RemoteError)
        assert issubclass(kind, AgentKitError)
    assert issubclass(RemoteTimeout, TimeoutError)


# ------------------------------------------------------------------ errors of a status
REFUSED: dict[str, tuple[int, Any, str]] = {
    "the key": (401, {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": "invalid_api_key"}}, r"provided: \*\*\*. Check the key in api_key=$"),
    "no permission": (403, {"detail": "Not allowed"}, "Not allowed. Check the key"),
    "the model": (404, {"error": {"message": "The model `m` does not exist.", "code": 404}}, "does not exist. Check the address and the model 'm'$"),
    "vLLM's old form": (400, {"object": "error", "message": "bad grammar", "code": 400}, ": bad grammar.$"),
    "text for an error": (400, {"error": "invalid options"}, ": invalid options.$"),
    "a list of details": (422, {"detail": [{"loc": ["body"], "msg": "wrong"}]}, ": .*wrong"),
    "the context": (400, {"error": {"message": "maximum context length is 10", "code": "context_length_exceeded"}}, "Shorten the conversation"),
    "a reasoning model": (400, {"error": {"message": "Unsupported value: 'temperature'"}}, r"pass temperature=1.0"),
    "vLLM without a parser": (400, {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice'}}, "Start vLLM with --enable-auto"),
    "no credit": (429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}, "no credit left"),
}


@pytest.mark.parametrize(("status", "body", "message"), REFUSED.values(), ids=REFUSED)
async def test_what_a_server_refuses_is_not_tried_again(status: int, body: Any, message: str) -> None:
    error, server = await failure(as_json(body, status, x_request_id="req-1"))
    assert isinstance(error, RemoteRefused)
    assert (error.status, error.request_id, len(server.asked)) == (status, "req-1", 1)
    assert error.args[0].startswith(f"{server.url} answered {status} (request req-1)")
    with pytest.raises(RemoteRefused, match=message):
        raise error


def test_bodies_that_are_no_json() -> None:
    assert said("<!DOCTYPE html><html>") == ("it sent a web page", None)
    assert said(" upstream down ") == ("upstream down", None)
    assert said("[" * 100_000)[1] is None


def test_long_words_are_cut_and_no_part_of_the_key_is_left_there() -> None:
    error = of_response(RemoteModel("http://localhost/v1", "m", api_key=KEY).address, 400, {"x-request-id": KEY}, "x" * 595 + KEY * 10)
    assert error.args[0] == f"http://localhost/v1 answered 400 (request ***): {'x' * 595}*****."


async def test_a_web_page_is_no_api() -> None:
    error, _ = await failure(Reply([b"<html>"], headers={"content-type": "text/html"}))
    assert isinstance(error, RemoteProtocolError)
    assert "answered with a web page; is it the address of the API?" in str(error)


async def test_redirects_are_not_followed() -> None:
    async with Server(saying("stolen")).running() as other:
        error, server = await failure(Reply([], 307, {"location": f"{other.url}/chat/completions"}))
        assert isinstance(error, RemoteRefused)
        assert f"a redirect to {other.url}/chat/completions" in str(error)
        assert (len(server.asked), other.connections) == (1, 0)


# ------------------------------------------------------------------ retries
@pytest.mark.parametrize("first", [BUSY, as_json({}, 500), as_json({}, 503), as_json({}, 529), Reply(cut=True), Reply([b": ping\n\n"], cut=True)])
async def test_what_may_pass_is_tried_again(first: Reply) -> None:
    async with Server(first, first, saying("Yes.")).running() as server:
        assert (await Agent(model(server)).run("go")).output == "Yes."
        assert len(server.asked) == 3
        assert server.asked[0].body == server.asked[2].body


async def test_a_connection_that_breaks_before_an_answer_is_tried_again() -> None:
    broken = Reply([b""], headers={"content-type": "text/event-stream"}, cut=True)
    async with Server(broken, sse({"error": {"message": "overloaded", "code": 503}}), saying("Yes.")).running() as server:
        assert (await Agent(model(server, max_retries=3)).run("go")).output == "Yes."


async def test_retries_are_bounded() -> None:
    error, server = await failure(BUSY, BUSY, BUSY, max_retries=2)
    assert isinstance(error, RemoteUnavailable)
    assert (error.status, error.code, error.retry_after, len(server.asked)) == (429, "rate_limit_exceeded", 0.0, 3)
    error, server = await failure(BUSY, max_retries=0)
    assert len(server.asked) == 1


async def test_nothing_is_tried_again_once_a_piece_has_come() -> None:
    error, server = await failure(sse(delta(content="Yes"), {"error": {"message": "out of memory", "type": "server_error"}}))
    assert isinstance(error, RemoteUnavailable)
    assert ("out of memory" in str(error), error.code, len(server.asked)) == (True, "server_error", 1)
    error, server = await failure(Reply([b'data: {"choices":[{"delta":{"content":"Yes"}}]}\n\n'], cut=True))
    assert len(server.asked) == 1


async def test_a_server_that_says_not_to_try_again() -> None:
    error, server = await failure(as_json({}, 500, x_should_retry="false"))
    assert (type(error), len(server.asked)) == (RemoteRefused, 1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry-after": "7"}, 7), ({"retry-after-ms": "250", "retry-after": "1"}, 0.25), ({"retry-after": "soon"}, None), ({"retry-after": "-5"}, 0), ({}, None)],
)
def test_when_to_try_again(headers: dict[str, str], seconds: float | None) -> None:
    address = RemoteModel("http://host/v1", "m").address
    assert of_response(address, 503, headers, "").retry_after == seconds


def test_when_to_try_again_as_a_date() -> None:
    address = RemoteModel("http://host/v1", "m").address
    later = of_response(address, 503, {"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)}, "").retry_after
    assert later is not None
    assert 90 < later <= 100


def test_pauses() -> None:
    bounds = Bounds(max_retries=3, backoff=1.0, longest=5.0)
    unknown, asked, long = (RemoteUnavailable("x", retry_after=seconds) for seconds in (None, 4.0, 6.0))
    for attempt, longest in enumerate((1.0, 2.0, 4.0)):
        pause = bounds.pause(attempt, unknown)
        assert pause is not None
        assert 0.75 * longest <= pause <= longest
    assert [bounds.pause(3, unknown), bounds.pause(0, asked), bounds.pause(0, long), bounds.pause(0, RemoteRefused("x"))] == [None, 4.0, None, None]


async def test_a_server_that_is_not_there() -> None:
    async with Server().running() as server:
        pass
    with pytest.raises(RemoteUnavailable, match=r"no connection to http.*is the server running there"):
        await Agent(model(server, max_retries=1)).run("go")


async def test_an_address_that_cannot_be_asked() -> None:
    with pytest.raises(RemoteRefused, match="no address that can be asked"):
        await Agent(RemoteModel("http://" + "ä" * 70 + "/v1", "m", server="other")).run("go")


# ------------------------------------------------------------------ limits
async def test_silence_has_an_end() -> None:
    error, server = await failure(Reply([b'data: {"choices":[{"delta":{"content":"Yes"}}]}\n\n'], stall=True), read_timeout=0.05)
    assert isinstance(error, RemoteTimeout)
    assert ("sent nothing for too long" in str(error), len(server.asked)) == (True, 1)
    error, server = await failure(Reply(stall=True), read_timeout=0.05)
    assert (type(error), len(server.asked)) == (RemoteTimeout, 1)


async def test_a_turn_has_an_end() -> None:
    error, _ = await failure(Reply([b'data: {"choices":[{"delta":{"content":"Yes"}}]}\n\n'], stall=True), timeout=0.1)
    assert isinstance(error, RemoteTimeout)
    assert "did not complete its answer in 0.1 s" in str(error)


async def test_a_reader_that_takes_its_time_is_not_cut() -> None:
    """The limit is on the server's answers; it must not cancel what a reader does between two events."""
    async with Server(saying("Yes, it is.")).running() as server, Agent(model(server, timeout=0.3)).run_stream("go") as stream:
        events = [event async for event in stream if event.kind != "text" or await asyncio.sleep(0.05) is None]
    assert events[-1].kind == "final"


async def test_an_answer_of_any_size_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LARGEST", 10)
    error, _ = await failure(as_json({"choices": [{"message": {"content": "x" * 100}}]}))
    assert "more than 10 bytes" in str(error)
    async with Server(models=listing("vllm", "a-long-name")).running() as server:
        with pytest.raises(RemoteProtocolError, match="more than 10 bytes"):
            await Agent(server.url).run("go")


async def test_a_stream_without_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONGEST", 1000)
    error, server = await failure(saying("x" * 100_000))
    assert "more than 1000 bytes" in str(error)
    assert len(server.asked) == 1


async def test_an_end_without_a_word_is_an_end() -> None:
    """The next attempt's answer, cut, must not pass as whole because of the end that the first one gave."""
    first = Reply([f"data: {json.dumps(delta('stop'))}\n\n".encode()], cut=True)
    error, server = await failure(first, Reply(saying("half").pieces[:2]))
    assert isinstance(error, RemoteUnavailable)
    assert len(server.asked) == 1


@pytest.mark.parametrize("data", ["{", "[1]", '"x"', "null", "[" * 5000, KEY, '{"choices":5}'])
async def test_what_is_no_json_object_is_refused(data: str) -> None:
    error, _ = await failure(sse(f"data: {data}\n\n"))
    assert isinstance(error, RemoteProtocolError)


# ------------------------------------------------------------------ leaving early
STALLING = Reply([b'data: {"choices":[{"delta":{"content":"Yes"}}]}\n\n'], stall=True)


async def test_leaving_a_stream_closes_the_connection() -> None:
    async with Server(STALLING).running() as server:
        async with Agent(model(server)).run_stream("go") as stream:
            async for event in stream:
                if event.kind == "text":
                    break
        async with asyncio.timeout(5):
            await server.gone.wait()


@pytest.mark.parametrize("reply", [STALLING, Reply(stall=True)], ids=["in the middle", "before anything"])
async def test_cancelling_closes_the_connection(reply: Reply) -> None:
    async with Server(reply).running() as server:
        task = asyncio.create_task(Agent(model(server)).run("go"))
        await server.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.gone.wait()


# ------------------------------------------------------------------ clients
@tool
def now() -> str:
    "The time."
    return "12:00"


async def test_a_connection_is_used_again() -> None:
    async with Server(calling(call(0, "now", "{}", "a")), saying("Noon."), saying("Yes.")).running() as server:
        agent = Agent(model(server), tools=[now])
        await agent.run("When?")
        await agent.run("Sure?")
        assert [asked.connection for asked in server.asked] == [1, 1, 1]


async def test_many_runs_at_once() -> None:
    def same(asked: Asked) -> Reply:
        return saying(asked.body["messages"][-1]["content"])

    async with Server(*[same] * 50).running() as server:
        served = model(server)
        agent = Agent(served)
        results = await asyncio.gather(*(agent.run(f"number {number}") for number in range(50)))
        assert [result.output for result in results] == [f"number {number}" for number in range(50)]
        assert len(served._connection.clients) == 1


async def test_each_loop_has_its_client_and_closes_it() -> None:
    """run_sync makes a loop for each run, here in threads beside a running loop; each ends with its client closed."""
    clients: list[httpx.AsyncClient] = []
    async with Server(*[saying("Yes.")] * 4).running() as server:
        served = model(server)
        make = served._connection.clients._make

        def kept() -> httpx.AsyncClient:
            clients.append(make())
            return clients[-1]

        served._connection.clients._make = kept
        agent = Agent(served)
        for _ in range(2):
            assert (await asyncio.to_thread(agent.run_sync, "go")).output == "Yes."
        assert [client.is_closed for client in clients] == [True, True]
        assert len(served._connection.clients) == 0
        await agent.run("go")
        await agent.run("go")
        assert [client.is_closed for client in clients] == [True, True, False]
        await served.aclose()
        assert clients[2].is_closed


async def test_an_agent_closes_what_it_opened() -> None:
    async with Server(*[saying("Yes.")] * 3, models=listing("vllm")).running() as server:
        async with Agent(server.url, model="m") as agent:
            await agent.run("go")
        with pytest.raises(AgentKitError, match="has been closed"):
            await agent.run("go")
        with Agent(server.url, model="m") as agent:
            await agent.run("go")
        await asyncio.sleep(0)
        with pytest.raises(AgentKitError, match="has been closed"):
            await agent.run("go")
        given = model(server)
        async with Agent(given) as agent:
            pass
        assert (await Agent(given).run("go")).output == "Yes."  # a model that was given is its owner's


async def test_a_model_that_is_dropped_closes_its_client() -> None:
    async with Server(saying("Yes.")).running() as server:
        served = model(server)
        await Agent(served).run("go")
        client = await served._connection.clients.here()
        del served
        gc.collect()
        for _ in range(100):
            if client.is_closed:
                break
            await asyncio.sleep(0.01)
        assert client.is_closed


# ------------------------------------------------------------------ what is sent along
async def test_headers_and_extra_fields() -> None:
    async with Server(saying("Yes."), saying("Yes.")).running() as server:
        await Agent(model(server, headers={"X-Team": "a"}, extra_body={"reasoning_effort": "low", "seed": 3})).run("go", seed=4)
        await Agent(model(server, api_key=None)).run("go")
        first, second = server.asked
        assert (first.headers["authorization"], first.headers["x-team"], first.headers["content-type"]) == (f"Bearer {KEY}", "a", "application/json")
        assert (first.body["reasoning_effort"], first.body["seed"], first.path, first.method) == ("low", 4, "/v1/chat/completions", "POST")
        assert "authorization" not in second.headers


async def test_text_goes_as_utf8() -> None:
    async with Server(saying("Grüße 😀")).running() as server:
        assert (await Agent(model(server)).run("あ😀\u2028")).output == "Grüße 😀"
        assert server.asked[0].body["messages"][0]["content"] == "あ😀\u2028"
    with pytest.raises(AgentKitError, match="the request has no JSON form"):
        await Agent(model(server, extra_body={"x": float("nan")})).run("go")


async def test_proxies_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    seen: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readline()).decode())
        body = json.dumps({"choices": [{"message": {"content": "by proxy"}, "finish_reason": "stop"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    standing = await asyncio.start_server(proxy, "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{standing.sockets[0].getsockname()[1]}")
    result = await Agent(RemoteModel("http://far.invalid/v1", "m", server="other")).run("go")
    standing.close()
    assert (result.output, seen) == ("by proxy", ["POST http://far.invalid/v1/chat/completions HTTP/1.1\r\n"])
