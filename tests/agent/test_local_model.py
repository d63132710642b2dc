"""The in-process engine behind the ChatModel protocol, with a stand-in for the engine: what is passed on, closed and counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

import agentkit.engine
from agentkit import Agent, tool
from agentkit.engine.request import Event, FinishEvent, Generation, TokenEvent, Usage
from agentkit.errors import EngineError, InvalidOption
from agentkit.local_model import LocalModel
from agentkit.messages import UserMessage
from agentkit.model import CallClosed, ModelToken, Sampling, TextPiece, ToolSpec, TurnEnd, TurnRequest
from tests.agent.scripted import calls

USAGE = Usage(100, 20, cached_tokens=60, forced_tokens=5, drafted_tokens=4, accepted_tokens=3, forwards=16, ttft_s=0.25, tpot_s=0.03, total_s=1.0)


class FakeEngine:
    """Streams texts, one character a token, as the engine does."""

    model_name = "fake"
    chat_template = None
    tokenizer = SimpleNamespace(special_tokens={})

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.chats: list[list[dict[str, Any]]] = []
        self.options: list[dict[str, Any]] = []
        self.encoding_threads: list[str] = []
        self.closed_streams = self.closed = 0
        self.pinned: list[tuple[Any, Any]] = []
        self.released = 0
        self.adapters: dict[str, Any] = {}
        self.pinned_with: list[str | None] = []

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        self.chats.append(messages)
        self.encoding_threads.append(threading.current_thread().name)
        return [1, 2, 3]

    def pin(self, messages: list[dict[str, Any]], tools: Any, *, adapter: str | None, wait: bool) -> Any:
        assert not wait
        if "too long" in str(messages):
            raise EngineError("too long to be pinned")
        self.pinned.append((messages, tools))
        self.pinned_with.append(adapter)
        return SimpleNamespace(release=lambda: setattr(self, "released", self.released + 1), refused="refused" in str(messages))

    async def astream(self, prompt: list[int], **options: Any) -> AsyncIterator[Event]:
        assert prompt == [1, 2, 3]
        self.options.append(options)
        text = self.texts.pop(0)
        try:
            for character in text:
                await asyncio.sleep(0)
                yield TokenEvent((ord(character),), character, character in "<>")
            yield FinishEvent(Generation(text, None, tuple(map(ord, text)), "stop", USAGE))
        finally:
            self.closed_streams += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[TurnRequest]:
    """The requests whose grammar has been compiled."""
    requests: list[TurnRequest] = []

    def compile_(self: LocalModel, tools: list[dict[str, Any]], request: TurnRequest, format: str, reasoning: str) -> Any:
        requests.append(request)
        return f"grammar {len(requests)}"

    monkeypatch.setattr(LocalModel, "_compile", compile_)
    return requests


SPEC = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False})


async def test_events_of_a_turn(compiled: list[TurnRequest]) -> None:
    text = "Hm. " + calls(("add", {"a": 1}))
    engine = FakeEngine(text)
    model = LocalModel(engine)
    sampling = Sampling(max_tokens=77, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=5)
    events = [event async for event in model.stream_turn(TurnRequest([UserMessage(content="Q")], "Be good.", [SPEC], sampling=sampling))]
    assert "".join(event.text for event in events if isinstance(event, ModelToken)) == text
    assert [event.text for event in events if isinstance(event, ModelToken) and event.forced] == ["<", ">", "<", ">"]
    assert "".join(event.text for event in events if isinstance(event, TextPiece)) == "Hm. "
    assert [event.call.arguments for event in events if isinstance(event, CallClosed)] == ['{"a":1}']
    end = events[-1]
    assert isinstance(end, TurnEnd)
    assert (end.turn.finish_reason, end.usage.input_tokens, end.usage.cached_tokens, end.usage.forwards, end.usage.ttft_s) == ("stop", 100, 60, 16, 0.25)
    assert engine.options == [
        {"grammar": "grammar 1", "adapter": None, "max_tokens": 77, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 5}
    ]
    assert [message["role"] for message in engine.chats[0]] == ["system", "user"]
    assert threading.main_thread().name not in engine.encoding_threads


async def test_grammars_are_compiled_once_for_the_same_turn(compiled: list[TurnRequest]) -> None:
    model = LocalModel(FakeEngine(*["x"] * 6))
    asked = [
        TurnRequest([], tools=[SPEC]),
        TurnRequest([UserMessage(content="another conversation")], tools=[SPEC]),
        TurnRequest([], tools=[SPEC], tool_choice="required"),
        TurnRequest([], tools=[SPEC], max_calls=2),
        TurnRequest([], tools=[SPEC], output_schema={"type": "integer"}),
        TurnRequest([]),
    ]
    for request in asked:
        assert [event async for event in model.stream_turn(request)]
    assert [request.tool_choice for request in compiled] == ["auto", "required", "auto", "auto"]


async def test_instructions_and_tools_are_pinned_once(compiled: list[TurnRequest]) -> None:
    engine = FakeEngine(*["x"] * 9)
    model = LocalModel(engine)
    for instructions in ("One.", "One.", "too long", "Two.", "Three.", "Four.", "Five.", "Five."):
        request = TurnRequest([UserMessage(content="Q")], instructions, [SPEC])
        assert [event async for event in model.stream_turn(request)]
    assert [len(messages) for messages, _ in engine.pinned] == [1] * 5
    assert engine.released == 1
    assert [event async for event in model.stream_turn(TurnRequest([UserMessage(content="Q")]))]  # nothing to pin
    model.close()
    assert engine.released == 5
    assert len(engine.pinned) == 5


async def test_a_pin_that_was_refused_is_asked_for_again(compiled: list[TurnRequest]) -> None:
    """It may be known only after the prefix was computed; by the next turn there may be room."""
    engine = FakeEngine(*["x"] * 4)
    model = LocalModel(engine)
    for instructions in ("refused", "refused", "Kept.", "Kept."):
        request = TurnRequest([UserMessage(content="Q")], instructions, [SPEC])
        assert [event async for event in model.stream_turn(request)]
    assert len(engine.pinned) == 3


async def test_an_agents_adapter_is_in_every_request_and_pin(compiled: list[TurnRequest]) -> None:
    """What is pinned was computed with it, so one that is loaded anew is pinned anew."""
    engine = FakeEngine(*["x"] * 3)
    engine.adapters["tuned"] = SimpleNamespace(load_number=1)
    agent = Agent(engine, instructions="Be good.", adapter="tuned")
    for number in (1, 1, 2):
        engine.adapters["tuned"].load_number = number
        await agent.run("Q")
    assert [options["adapter"] for options in engine.options] == ["tuned"] * 3
    assert engine.pinned_with == ["tuned"] * 2
    with pytest.raises(InvalidOption, match="adapter must be the name"):
        Agent(engine, adapter=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="adapter='tuned' is for local models"):
        Agent(agent.model, adapter="tuned")


async def test_leaving_early_closes_the_engines_stream(compiled: list[TurnRequest]) -> None:
    engine = FakeEngine("a long answer" * 100)
    async with Agent(engine).run_stream("go") as stream:
        async for _ in stream.text():
            break
    assert engine.closed_streams == 1


async def test_an_agent_on_an_engine(compiled: list[TurnRequest]) -> None:
    @tool
    def add(a: int) -> int:
        return a + 1

    engine = FakeEngine(calls(("add", {"a": 1})), "Two.")
    agent = Agent(engine, tools=[add])
    result = await agent.run("What?")
    assert (result.output, result.tool_calls[0].result) == ("Two.", 2)
    assert (result.usage.requests, result.usage.input_tokens, result.usage.ttft_s, result.usage.forwards) == (2, 200, 0.25, 32)
    assert engine.chats[1][-1] == {"role": "user", "content": "<tool_response>\n2\n</tool_response>"}
    assert len(compiled) == 1
    agent.model.close()
    assert engine.closed == 1


async def test_an_engine_by_name_is_made_once_and_shared(monkeypatch: pytest.MonkeyPatch, compiled: list[TurnRequest]) -> None:
    made: list[str] = []

    def make(name: str) -> FakeEngine:
        made.append(name)
        return FakeEngine(*["hello"] * 4)

    monkeypatch.setitem(vars(agentkit.engine), "Engine", make)  # by item: asking for the attribute would import torch
    monkeypatch.setattr("agentkit.local_model._engines", {})
    one, other = Agent("some-model"), Agent("some-model")
    assert made == []
    results = await asyncio.gather(one.run("1"), other.run("2"), one.run("3"))
    assert [result.output for result in results] == ["hello"] * 3
    one.model.close()
    assert made == ["some-model"]
    assert (await other.run("4")).output == "hello"
