"""Turns out of chunks, with every liberty that servers are known to take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentkit.errors import ModelRefusal, RemoteProtocolError
from agentkit.model import ReasoningPiece, TextPiece, Turn
from agentkit.remote.chunks import ChunkReader
from tests.agent.remote.server import call, delta

TOOLS = ("get_weather", "get_time", "get", "now")
OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'


def read(*chunks: dict[str, Any], done: bool = True, used: tuple[str, ...] = ()) -> Turn:
    reader = ChunkReader(TOOLS, used)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish(done=done)


def called(*parts: dict[str, Any] | list[dict[str, Any]], finish: str | None = "tool_calls", used: tuple[str, ...] = ()) -> list[tuple[str, str, str | None]]:
    chunks = [delta(tool_calls=part if isinstance(part, list) else [part]) for part in parts]
    return [(made.name, made.arguments, made.id) for made in read(*chunks, delta(finish), used=used).calls]


CALLS: dict[str, tuple[list[Any], list[tuple[str, str, str | None]]]] = {
    "OpenAI: name first, then pieces of arguments": (
        [call(0, "get_weather", "", "a"), call(0, arguments='{"city"'), call(0, arguments=':"Oslo"}')],
        [("get_weather", OSLO, "a")],
    ),
    "interleaved by index": (
        [call(0, "get_weather", "", "a"), call(1, "get_time", "", "b"), call(1, arguments='{"city":'), call(0, arguments=OSLO), call(1, arguments='"Rome"}')],
        [("get_weather", OSLO, "a"), ("get_time", ROME, "b")],
    ),
    "several pieces in one chunk": (
        [[call(0, "get_weather", OSLO, "a"), call(1, "get_time", ROME, "b")]],
        [("get_weather", OSLO, "a"), ("get_time", ROME, "b")],
    ),
    "Ollama: index 0 for all": (
        [call(0, "get_weather", OSLO, "a"), call(0, "get_weather", ROME, "b")],
        [("get_weather", OSLO, "a"), ("get_weather", ROME, "b")],
    ),
    "index 0 for all, no ids": (
        [call(0, "get_weather", OSLO), call(0, "get_weather", ROME)],
        [("get_weather", OSLO, None), ("get_weather", ROME, None)],
    ),
    "no index, ids": (
        [call(None, "get_weather", OSLO, "a"), call(None, "get_time", '{"city":', "b"), call(None, arguments='"Rome"}', id="b")],
        [("get_weather", OSLO, "a"), ("get_time", ROME, "b")],
    ),
    "no index, no ids": (
        [call(None, "get_weather", '{"city":'), call(None, arguments='"Oslo"}'), call(None, "get_time", ROME), call(None, "get_time", OSLO)],
        [("get_weather", OSLO, None), ("get_time", ROME, None), ("get_time", OSLO, None)],
    ),
    "the id comes late": ([call(0, "get_weather", '{"city":'), call(0, arguments='"Oslo"}', id="a")], [("get_weather", OSLO, "a")]),
    "the id in every piece": (
        [call(0, "get_weather", '{"city":', "a"), call(0, arguments='"Oslo"}', id="a"), call(0, "get_weather", "", "a")],
        [("get_weather", OSLO, "a")],
    ),
    "a new id in every piece": ([call(0, "get_weather", '{"city":', "a"), call(0, "get_weather", '"Oslo"}', "b")], [("get_weather", OSLO, "a")]),
    "empty ids": ([call(0, "get_weather", OSLO, ""), call(1, "get_time", ROME, "")], [("get_weather", OSLO, None), ("get_time", ROME, None)]),
    "one id twice": ([call(0, "get_weather", OSLO, "a"), call(1, "get_time", ROME, "a")], [("get_weather", OSLO, "a"), ("get_time", ROME, None)]),
    "the name in every piece": (
        [call(0, "get_weather", "", "a"), call(0, "get_weather", '{"city":'), call(0, "get_weather", '"Oslo"}'), call(0, "get_weather", "\n")],
        [("get_weather", OSLO + "\n", "a")],
    ),
    "the name in two": ([call(0, "get", "", "a"), call(0, "_weather"), call(0, arguments=OSLO)], [("get_weather", OSLO, "a")]),
    "the name in pieces that are no tools": (
        [call(0, "get_w", "", "a"), call(0, "eath"), call(0, "er"), call(0, arguments=OSLO)],
        [("get_weather", OSLO, "a")],
    ),
    "the name growing": ([call(0, "get", "", "a"), call(0, "get_weather"), call(0, arguments=OSLO)], [("get_weather", OSLO, "a")]),
    "arguments as an object": ([call(0, "get_weather", {"city": "Zürich"}, "a")], [("get_weather", '{"city":"Zürich"}', "a")]),
    "no arguments at all": ([call(0, "now", None, "a")], [("now", "", "a")]),
    "arguments that are no JSON are passed on": ([call(0, "get_weather", "{city: Oslo}", "a")], [("get_weather", "{city: Oslo}", "a")]),
    "a tool that was not offered is passed on": ([call(0, "rm", "{}", "a")], [("rm", "{}", "a")]),
    "half characters in two pieces": (
        [call(0, "get_weather", '{"city":"\ud83d', "a"), call(0, arguments='\ude00"}')],
        [("get_weather", '{"city":"😀"}', "a")],
    ),
}


@pytest.mark.parametrize(("parts", "expected"), CALLS.values(), ids=CALLS)
def test_calls(parts: list[Any], expected: list[tuple[str, str, str | None]]) -> None:
    assert called(*parts) == expected


def test_ids_of_earlier_turns_are_not_used_again() -> None:
    assert called(call(0, "now", "{}", "call_0"), used=("call_0",)) == [("now", "{}", None)]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "stop"), ("tool_calls", "stop"), ("function_call", "stop"), (None, "stop"), ("length", "length"), ("max_tokens", "length"), ("odd", "odd")],
)
def test_reasons_to_end(finish: str | None, reason: str) -> None:
    turn = read(delta(content="x"), delta(tool_calls=[call(0, "now", "{}", "a")]), delta(finish))
    assert (turn.finish_reason, turn.text, len(turn.calls), turn.unfinished) == (reason, "x", 1, "")


def test_the_old_form_of_a_call() -> None:
    turn = read(delta(function_call={"name": "now", "arguments": "{"}), delta(function_call={"arguments": "}"}), delta("function_call"))
    assert [(made.name, made.arguments) for made in turn.calls] == [("now", "{}")]


def test_a_call_in_both_forms_is_one() -> None:
    """llama-cpp-python; the name in the old form has a colon at its end."""
    both = [delta(tool_calls=[call(0, "now", piece, "a")], function_call={"name": "now:", "arguments": piece}) for piece in ("{", "}")]
    assert [(made.name, made.arguments) for made in read(*both, delta("tool_calls")).calls] == [("now", "{}")]
    message = {"tool_calls": [{"id": "a", "function": {"name": "now", "arguments": "{}"}}], "function_call": {"name": "now:", "arguments": "{}"}}
    assert [(made.name, made.arguments) for made in read({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).calls] == [("now", "{}")]


def test_a_whole_message_instead_of_deltas() -> None:
    calls = [{"id": "", "function": {"name": "now", "arguments": ""}}, {"id": "", "function": {"name": "now", "arguments": ""}}]
    turn = read({"choices": [{"message": {"role": "assistant", "content": "x", "tool_calls": calls}, "finish_reason": "stop"}]})
    assert (turn.text, [(made.name, made.arguments) for made in turn.calls]) == ("x", [("now", ""), ("now", "")])


def test_a_call_that_the_limit_cut_is_unfinished() -> None:
    turn = read(delta(tool_calls=[call(0, "now", "{}", "a")]), delta(tool_calls=[call(1, "get_weather", '{"city":"Os', "b")]), delta("length"))
    assert ([made.name for made in turn.calls], turn.unfinished) == (["now"], 'get_weather({"city":"Os')


@pytest.mark.parametrize("fields", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning": "hm", "reasoning_content": "hm"}])
def test_reasoning(fields: dict[str, str]) -> None:
    reader = ChunkReader()
    events = reader.feed(delta(**fields)) + reader.feed(delta(content="yes")) + reader.feed(delta("stop"))
    assert [event for event in events if not hasattr(event, "token_ids")] == [ReasoningPiece("hm"), TextPiece("yes")]
    turn = reader.finish(done=False)
    assert (turn.reasoning, turn.text) == ("hm", "yes")


def test_content_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    turn = read(delta(content=parts), delta("stop"))
    assert (turn.reasoning, turn.text) == ("hm", "yes")


def test_a_character_in_two_chunks() -> None:
    reader = ChunkReader()
    assert [event.text for event in reader.feed(delta(content="a\ud83d"))] == ["a", "a"]
    assert [event.text for event in reader.feed(delta(content="\ude00b"))] == ["😀b", "😀b"]
    reader.feed(delta("stop", content="\ude00"))
    assert reader.finish(done=True).text == "a😀b\ufffd"


def test_usage_is_the_last_that_came() -> None:
    reader = ChunkReader()
    for tokens in (1, 2):
        reader.feed({**delta(content="x"), "usage": {"completion_tokens": tokens}})
    reader.feed({**delta("stop"), "usage": None})
    assert reader.usage == {"completion_tokens": 2}


@pytest.mark.parametrize("chunks", [[], [{"choices": []}], [delta(content="x")], [delta(tool_calls=[call(0, "now", "{}")])]], ids=json.dumps)
def test_a_cut_stream_is_no_turn(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(RemoteProtocolError, match="ended before the turn was complete") as caught:
        read(*chunks, done=False)
    assert caught.value.text == ("x" if chunks == [delta(content="x")] else "")


def test_done_without_anything_before_it_is_no_turn() -> None:
    with pytest.raises(RemoteProtocolError, match="before the turn was complete"):
        read({"choices": []}, done=True)


def test_refusals() -> None:
    with pytest.raises(ModelRefusal, match="the model refused: I can't") as caught:
        read(delta(refusal="I "), delta(refusal="can't"), delta("stop"))
    assert caught.value.text == "I can't"
    with pytest.raises(ModelRefusal, match="no \ufffd!"):
        read(delta(refusal="no \ud800!"), delta("stop"))
    with pytest.raises(ModelRefusal, match="the model refused"):
        read(delta(refusal="\ud800"), delta("stop"))
    with pytest.raises(ModelRefusal, match="a content filter") as caught:
        read(delta(content="so"), delta("content_filter"))
    assert (caught.value.text, caught.value.code) == ("so", "content_filter")
    with pytest.raises(RemoteProtocolError, match="gave the turn up"):
        read(delta(content="so"), delta("abort"))


MALFORMED = [
    {"choices": {}},
    {"choices": ["x"]},
    {"choices": [{"index": 1, "delta": {"content": "x"}}]},
    {"choices": [{"delta": ["x"]}]},
    delta(content=3),
    delta(content=["x"]),
    delta(tool_calls={"0": {}}),
    delta(tool_calls=["x"]),
    delta(tool_calls=[{"index": 0}]),
    delta(tool_calls=[{"function": {"arguments": "}"}}]),
    delta(tool_calls=[call(0, arguments=3)]),
    delta(reasoning=["x"]),
]


@pytest.mark.parametrize("chunk", MALFORMED, ids=json.dumps)
def test_what_is_no_chunk_is_refused(chunk: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="not what the API says"):
        read(chunk)


def test_calls_without_end_are_no_turn() -> None:
    many = [delta(tool_calls=[call(number, "now", "{}")]) for number in range(1025)]
    assert len(read(*many[:1024], delta("tool_calls")).calls) == 1024
    with pytest.raises(RemoteProtocolError, match="more than 1024 tool calls"):
        read(*many)
