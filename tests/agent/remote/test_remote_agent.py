"""Whole runs of agents against servers of each kind: tools, answers, events, what must not be believed."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from agentkit import Agent, ModelRetry, ModelRetryExceeded, UsageLimits, tool
from agentkit.errors import GenerationTruncated, InvalidOption, ModelRefusal, RemoteProtocolError, RemoteRefused, RemoteUnavailable
from agentkit.messages import messages_from_json, messages_to_json
from agentkit.model import ChatModel
from agentkit.remote import RemoteModel
from tests.agent.remote.server import USAGE, Answer, Reply, Server, as_json, call, calling, delta, listing, saying, sse


@tool
def get_weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    "Weather now."
    return f"18 degrees {unit} in {city}"


@tool
def get_time(city: str) -> str:
    "Time now."
    return f"12:00 in {city}"


class City(BaseModel):
    name: str
    population: int = Field(ge=0)


class Book(BaseModel):
    "Books a trip."

    to: str


OSLO = call(0, "get_weather", '{"city":"Oslo"}', "call_1")
CALL = calling(OSLO)

# what each server sends for one call
STREAMS: dict[str, tuple[str, Reply]] = {
    "openai": ("openai", calling(call(0, "get_weather", "", "call_1"), call(0, arguments='{"ci'), call(0, arguments='ty":"Oslo"}'))),
    "vllm": (
        "vllm",
        sse(
            delta(role="assistant", content="", reasoning_content=None),
            delta(tool_calls=[call(0, "get_weather", None, "chatcmpl-tool-1")], content=None),
            delta(tool_calls=[call(0, arguments='{"city": ')]),
            delta(tool_calls=[call(0, arguments='"Oslo"}')]),
            {**delta("tool_calls", content=""), "usage": None},
            USAGE,
        ),
    ),
    "vllm, a demanded tool": ("vllm", calling(call(0, "get_weather", "", "c"), call(0, arguments='{"city":"Oslo"}'), finish="stop")),
    "sglang": (
        "sglang",
        sse(
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "tool_calls": None}, "finish_reason": None, "matched_stop": None}]},
            delta(tool_calls=[{"id": "call_x", "index": 0, "type": "function", "function": {"name": "get_weather", "arguments": ""}}]),
            delta(tool_calls=[{"id": None, "index": 0, "type": "function", "function": {"name": None, "arguments": '{"city": "Oslo"}'}}]),
            delta("tool_calls", tool_calls=None),
            {"choices": [], "usage": {**USAGE["usage"], "completion_tokens_details": None, "reasoning_tokens": 2}},
        ),
    ),
    "llamacpp": (
        "llamacpp",
        sse(
            delta(role="assistant", content=None),
            delta(tool_calls=[call(0, "get_weather", "{", "WkH2cYx0")]),
            delta(tool_calls=[call(0, arguments='"city":"Oslo"')]),
            delta(tool_calls=[call(0, arguments="}")]),
            delta("tool_calls"),
            {**USAGE, "timings": {"prompt_n": 4, "predicted_n": 5}},
        ),
    ),
    "llamacpp, names repeated": ("llamacpp", calling(call(0, "get_weather", '{"city":', "a"), call(0, "get_weather", '"Oslo"}', "a"))),
    "ollama": ("ollama", calling(call(0, "get_weather", {"city": "Oslo"}, "call_a"), finish="stop")),
    "lmstudio": ("lmstudio", calling(call(0, "get_weather", "", "1"), call(0, "", '{"city"'), call(0, "", ':"Oslo"}'))),
    "llama-cpp-python": (
        "llama-cpp-python",
        as_json(
            {
                "choices": [
                    {
                        "message": {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}],
                            "function_call": {"name": "get_weather:", "arguments": '{"city":"Oslo"}'},
                        },
                        "finish_reason": "tool_calls",
                    }
                ],
                "usage": USAGE["usage"],
            }
        ),
    ),
    "carriage returns and comments": (
        "other",
        Reply([b": ok\r\n\r\n", *(piece.replace(b"\n", b"\r\n") for piece in CALL.pieces)]),
    ),
    "bytes one at a time": ("other", Reply([bytes([byte]) for piece in CALL.pieces for byte in piece])),
    "no word of the end": ("other", Reply(CALL.pieces[:-1])),
}


@pytest.mark.parametrize(("kind", "reply"), STREAMS.values(), ids=STREAMS)
async def test_a_call_and_an_answer(kind: str, reply: Reply) -> None:
    async with Server(reply, saying("It is 18 °C.")).running() as server:
        agent = Agent(server.url, model="m", server=kind, tools=[get_weather, get_time], instructions="Be brief.")
        result = await agent.run("How is the weather in Oslo?")
    (made,) = result.tool_calls
    assert (made.name, made.arguments.city, made.arguments.unit, made.result) == ("get_weather", "Oslo", "C", "18 degrees C in Oslo")
    assert (result.output, result.finish_reason) == ("It is 18 °C.", "stop")
    usage = result.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (2, 40, 10, 32, 4)
    assert usage.ttft_s is not None
    assert usage.ttft_s > 0
    second = server.asked[1].body["messages"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"]
    assert second[2]["tool_calls"][0]["id"] == second[3]["tool_call_id"] == made.id
    assert second[3]["content"] == "18 degrees C in Oslo"
    assert messages_from_json(messages_to_json(result.all_messages())) == result.all_messages()


async def test_events() -> None:
    thinking = [delta(reasoning_content="Oslo, "), delta(reasoning_content="so.")]
    first = sse(*thinking, delta(content="Let me "), delta(content="look."), delta(tool_calls=[OSLO]), delta("tool_calls"), USAGE)
    async with (
        Server(first, saying("It is nice.")).running() as server,
        Agent(server.url, model="m", server="vllm", tools=[get_weather]).run_stream("go") as stream,
    ):
        events = [event async for event in stream]
    kinds = [event.kind for event in events if event.kind != "token"]
    assert kinds == ["reasoning"] * 2 + ["text"] * 2 + ["call", "turn", "tool_result", "tools"] + ["text"] * 3 + ["turn", "final"]
    assert "".join(event.text for event in events if event.kind == "token") == 'Oslo, so.Let me look.{"city":"Oslo"}It is nice.'
    assert [message.content for message in stream.result.all_messages()] == ["go", "Let me look.", "18 degrees C in Oslo", "It is nice."]


async def test_parallel_calls_run_together() -> None:
    running = 0
    both = asyncio.Event()

    @tool
    async def slow(n: int) -> int:
        nonlocal running
        running += 1
        if running == 2:
            both.set()
        await both.wait()
        return n

    first = calling(call(0, "slow", "", "a"), call(1, "slow", "", "b"), call(0, arguments='{"n":1}'), call(1, arguments='{"n":2}'))
    async with Server(first, saying("Done.")).running() as server:
        result = await Agent(server.url, model="m", server="openai", tools=[slow], parallel_tool_calls=True).run("go")
        assert [made.result for made in result.tool_calls] == [1, 2]
        assert server.asked[0].body["parallel_tool_calls"] is True


# ------------------------------------------------------------------ nothing is believed
async def test_arguments_are_validated_and_the_model_is_told() -> None:
    bad = [call(0, "get_weather", '{"city":"Oslo","unit":"K"}', "a")], [call(0, "get_weather", '{"city":', "b")], [call(0, "fly", "{}", "c")]
    async with Server(*(calling(*parts) for parts in bad), CALL, saying("Nice.")).running() as server:
        result = await Agent(server.url, model="m", server="sglang", tools=[get_weather], retries=3).run("go")
    assert (result.output, [made.arguments.city for made in result.tool_calls]) == ("Nice.", ["Oslo"])
    told = [asked.body["messages"][-1] for asked in server.asked[1:4]]
    assert [message["role"] for message in told] == ["tool"] * 3
    assert "unit: Input should be 'C' or 'F'" in told[0]["content"]
    assert "not valid" in told[1]["content"]
    assert told[2]["content"] == "There is no tool named 'fly'. The tools are: get_weather."
    assert server.asked[2].body["messages"][-2]["tool_calls"][0]["function"]["arguments"] == '{"invalid":"{\\"city\\":"}'


async def test_retries_have_an_end() -> None:
    async with Server(*[calling(call(0, "get_weather", "{}", None))] * 2).running() as server:
        with pytest.raises(ModelRetryExceeded, match="city: Field required"):
            await Agent(server.url, model="m", server="vllm", tools=[get_weather]).run("go")


async def test_a_demanded_call_is_insisted_on() -> None:
    async with Server(saying("No."), CALL, saying("Nice.")).running() as server:
        result = await Agent(server.url, model="m", server="ollama", tools=[get_weather]).run("go", tool_choice="required")
    assert (result.output, len(result.tool_calls)) == ("Nice.", 1)
    assert [asked.body["tool_choice"] for asked in server.asked] == ["required", "required", "auto"]
    assert server.asked[1].body["messages"][-1]["content"] == "Call one of the tools before you answer."


async def test_a_demanded_tool_is_the_one_that_runs() -> None:
    right = calling(call(0, "get_time", '{"city":"Oslo"}', "b"))
    async with Server(CALL, right, saying("Noon.")).running() as server:
        result = await Agent(server.url, model="m", server="other", tools=[get_weather, get_time]).run("go", tool_choice="get_time")
    assert [made.name for made in result.tool_calls] == ["get_time"]
    assert server.asked[1].body["messages"][-1]["content"] == "Call get_time first."


async def test_calls_where_there_are_to_be_none_do_not_run() -> None:
    ran = []

    @tool
    def drop(name: str) -> None:
        ran.append(name)

    async with Server(calling(call(0, "drop", '{"name":"all"}', "a")), saying("No.")).running() as server:
        result = await Agent(server.url, model="m", server="vllm", tools=[drop]).run("go", tool_choice="none")
    assert (result.output, result.tool_calls, ran) == ("No.", (), [])
    assert server.asked[1].body["messages"][-1]["content"] == "No tool can be called in this turn. Answer."


async def test_made_up_names_do_not_each_begin_a_count_of_their_own() -> None:
    answers = [calling(call(0, f"drop_{number}", "{}", "a")) for number in range(3)]
    async with Server(*answers).running() as server:
        with pytest.raises(ModelRetryExceeded, match="2 times in a row"):
            await Agent(server.url, model="m", server="vllm", tools=[get_time]).run("go", tool_choice="none")
    assert len(server.asked) == 2


async def test_more_calls_than_allowed_do_not_run() -> None:
    """Ollama and others do not know parallel_tool_calls. It is no failure of the model: it is told, and may call again."""
    two = [call(0, "get_weather", '{"city":"Oslo"}', "a"), call(1, "get_time", '{"city":"Oslo"}', "b")]
    again = [call(0, "get_time", '{"city":"Rome"}', "c"), call(1, "get_time", '{"city":"Oslo"}', "d")]
    async with Server(calling(*two), calling(*again), saying("Done.")).running() as server:
        result = await Agent(server.url, model="m", server="ollama", tools=[get_weather, get_time], retries=0).run("go")
    assert [(made.name, made.arguments.city) for made in result.tool_calls] == [("get_weather", "Oslo"), ("get_time", "Rome")]
    assert "Not run: no more than 1 in one turn." in server.asked[1].body["messages"][-1]["content"]


async def test_the_same_id_in_each_turn() -> None:
    """Some servers count calls from 0 in every answer; a conversation needs ids that differ."""
    turns = [calling(call(0, "get_time", f'{{"city":"{city}"}}', "call_0")) for city in ("Oslo", "Rome")]
    async with Server(*turns, saying("Noon.")).running() as server:
        result = await Agent(server.url, model="m", server="vllm", tools=[get_time]).run("go")
    assert len({made.id for made in result.tool_calls}) == 2
    assert messages_from_json(messages_to_json(result.all_messages())) == result.all_messages()


async def test_a_model_tool_ends_the_run_and_the_conversation_goes_on() -> None:
    async with Server(calling(call(0, "Book", '{"to":"Rome"}', "a")), saying("Sure.")).running() as server:
        agent = Agent(server.url, model="m", server="openai", tools=[Book])
        first = await agent.run("go")
        assert (first.output, first.tool_calls[0].arguments) == (None, Book(to="Rome"))
        await agent.run("thanks", message_history=first.all_messages())
    assert [message["role"] for message in server.asked[1].body["messages"]] == ["user", "assistant", "tool", "user"]


# ------------------------------------------------------------------ answers
@pytest.mark.parametrize("kind", ["openai", "vllm", "llamacpp", "llama-cpp-python", "ollama", "other"])
async def test_structured_answers(kind: str) -> None:
    async with Server(saying('{"name":"Paris","population":-1}'), saying('{"name":"Paris","population":2100000}')).running() as server:
        result = await Agent(server.url, model="m", server=kind, output_type=City).run("Capital of France?")
    assert result.output == City(name="Paris", population=2100000)
    assert "population" in server.asked[1].body["messages"][-1]["content"]
    assert all("response_format" in asked.body for asked in server.asked)


async def test_a_structured_answer_beside_tools() -> None:
    """Tools stay open until the model answers in another form than was wanted; then the server holds it to the schema."""
    answers = CALL, saying("Nice and warm."), saying('{"name":"Oslo","population":700000}')
    async with Server(*answers).running() as server:
        result = await Agent(server.url, model="m", server="vllm", tools=[get_weather], output_type=City).run("Tell me of Oslo.")
    assert result.output == City(name="Oslo", population=700000)
    assert [("response_format" in asked.body, asked.body["tool_choice"]) for asked in server.asked] == [(False, "auto"), (False, "auto"), (True, "none")]


async def test_validators_see_remote_answers() -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("must be even")
            return n

    def large(_: Any, value: Even) -> Even:
        if value.n < 10:
            raise ModelRetry("larger than 10, please")
        return value

    async with Server(saying('{"n":3}'), saying('{"n":4}'), saying('{"n":12}')).running() as server:
        agent = Agent(server.url, model="m", server="openai", output_type=Even, output_validators=[large], retries=2)
        assert (await agent.run("go")).output.n == 12
    assert [asked.body["messages"][-1]["content"] for asked in server.asked[2:]] == ["larger than 10, please"]


async def test_refusals_end_the_run() -> None:
    async with Server(sse(delta(refusal="I can't help with that."), delta("stop"))).running() as server:
        with pytest.raises(ModelRefusal, match="I can't help with that"):
            await Agent(server.url, model="m", server="openai", output_type=City).run("go")


async def test_a_cut_call_is_no_call() -> None:
    async with Server(calling(call(0, "get_weather", '{"city":"Os', "a"), finish="length")).running() as server:
        with pytest.raises(GenerationTruncated, match="cut inside a tool call"):
            await Agent(server.url, model="m", server="vllm", tools=[get_weather]).run("go")
    whole = [piece for piece in CALL.pieces if b'finish_reason": "tool_calls' not in piece]
    async with Server(Reply(whole[:2])).running() as server:
        with pytest.raises(RemoteProtocolError, match="ended before the turn was complete"):
            await Agent(server.url, model="m", server="vllm", tools=[get_weather]).run("go")


async def test_a_text_that_the_limit_cut() -> None:
    async with Server(saying("It is", finish="length")).running() as server:
        result = await Agent(server.url, model="m", server="vllm").run("go", max_tokens=2)
    assert (result.output, result.finish_reason, server.asked[0].body["max_tokens"]) == ("It is", "length", 2)


# ------------------------------------------------------------------ usage
async def test_usage_limits_hold() -> None:
    from agentkit import UsageLimitExceeded

    async with Server(CALL, CALL).running() as server:
        with pytest.raises(UsageLimitExceeded, match="input_tokens_limit"):
            await Agent(server.url, model="m", server="vllm", tools=[get_weather]).run("go", usage_limits=UsageLimits(input_tokens_limit=30))
    assert len(server.asked) == 2


@pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": None, "completion_tokens": -1, "prompt_tokens_details": []}}])
async def test_a_server_that_counts_nothing(usage: dict[str, Any]) -> None:
    async with Server(sse(delta(content="Yes."), {**delta("stop"), **usage})).running() as server:
        result = await Agent(server.url, model="m", server="other").run("go")
    assert (result.usage.input_tokens, result.usage.output_tokens, result.usage.tpot_s) == (0, 0, None)


# ------------------------------------------------------------------ which server, which model
async def run(*answers: Answer, models: Answer | None = None, **options: Any) -> tuple[str, Server, Agent[Any, str]]:
    async with Server(*answers, models=models).running() as server:
        agent: Agent[Any, str] = Agent(server.url, **options)
        for _ in range(2):
            output = (await agent.run("go")).output
        return output, server, agent


async def test_a_server_is_asked_once_what_it_is() -> None:
    _, server, _ = await run(saying("Yes."), saying("Yes."), models=listing("vllm", "m", "n"), model="m", api_key="k")
    assert [asked.headers["authorization"] for asked in server.listed] == ["Bearer k"]
    assert [(asked.body["model"], "top_k" in asked.body) for asked in server.asked] == [("m", True)] * 2
    _, server, _ = await run(saying("Yes."), saying("Yes."), model="m", server="vllm")
    assert server.listed == []


@pytest.mark.parametrize(
    "models", [None, as_json({}, 404), as_json({"data": "?"}), Reply([b"[" * 100_000]), Reply([b"no"]), as_json([1]), listing("somebody", "m")]
)
async def test_a_server_that_does_not_say_what_it_is(models: Reply | None) -> None:
    output, server, _ = await run(saying("Yes."), saying("Yes."), models=models, model="m")
    assert (output, "top_k" in server.asked[0].body, len(server.listed)) == ("Yes.", False, 1)


async def test_a_listing_that_breaks_is_asked_for_again() -> None:
    """The kind of a server that was busy for a moment is not settled by that."""
    broken = as_json({}, 501, x_should_retry="false")
    listings = [broken, listing("vllm", "m")]
    async with Server(saying("Yes."), saying("Yes."), models=lambda _: listings.pop(0)).running() as server:
        agent = Agent(RemoteModel(server.url, "m", max_retries=0))
        for _ in range(2):
            await agent.run("go")
    assert ["top_k" in asked.body for asked in server.asked] == [False, True]


async def test_the_only_model_need_not_be_named() -> None:
    _, server, agent = await run(saying("Yes."), saying("Yes."), models=listing("llamacpp", "/models/tiny.gguf"))
    assert [asked.body["model"] for asked in server.asked] == ["/models/tiny.gguf"] * 2
    assert agent.model.name == "/models/tiny.gguf"
    with pytest.raises(InvalidOption, match=r"which model of http.*\? it lists a, b; pass model="):
        await run(models=listing("vllm", "a", "b"))
    with pytest.raises(InvalidOption, match="it lists none"):
        await run(server="vllm")


async def test_a_key_that_is_refused_is_told_at_once() -> None:
    with pytest.raises(RemoteUnavailable, match="slow down"):
        await run(models=as_json({"error": "slow down"}, 429, retry_after="1000"), model="m")
    with pytest.raises(RemoteRefused, match="none was sent"):
        await run(models=as_json({"error": "Unauthorized"}, 401), model="m")


async def test_openai_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server(saying("Yes."), models=listing("vllm", "gpt-x")).running() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
        agent = Agent("openai:gpt-x")
        assert isinstance(agent.model, ChatModel)
        assert (await agent.run("go")).output == "Yes."
        assert (server.asked[0].headers["authorization"], server.asked[0].body["model"]) == ("Bearer sk-env", "gpt-x")


# ------------------------------------------------------------------ without await
async def test_run_sync_inside_a_running_loop_and_inside_tools() -> None:
    async with Server(calling(call(0, "ask", '{"question":"Why?"}', "a")), saying("Because."), saying("I see.")).running() as server:
        inner = Agent(RemoteModel(server.url, "m", server="vllm"))

        @tool
        def ask(question: str) -> str:
            return inner.run_sync(question).output

        result = await asyncio.to_thread(Agent(server.url, model="m", server="vllm", tools=[ask]).run_sync, "go")
    assert (result.output, result.tool_calls[0].result) == ("I see.", "Because.")
    assert [asked.body["messages"][-1]["content"] for asked in server.asked] == ["go", "Why?", "Because."]
