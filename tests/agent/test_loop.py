"""The loop: choices, retries, limits, failures, approvals, structured answers, how runs end."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, Field, field_validator

from agentkit import Agent, ModelRetry, ModelRetryExceeded, RunContext, ToolError, UsageLimitExceeded, UsageLimits, tool
from agentkit.errors import GenerationTruncated
from agentkit.messages import RetryMessage, ToolMessage, UserMessage
from tests.agent.scripted import ScriptedModel, calls


@tool
def add(a: int, b: int = 1) -> int:
    "Adds."
    return a + b


class Book(BaseModel):
    "Books a trip."

    to: str
    days: int = Field(ge=1)


async def test_a_call_its_result_and_an_answer() -> None:
    model = ScriptedModel(calls(("add", {"a": 2})), "Three.")
    result = await Agent(model, tools=[add], instructions="Be good.").run("What is 2 + 1?")
    call = result.tool_calls[0]
    assert (result.output, call.name, call.arguments.a, call.arguments.b, call.result, call.executed) == ("Three.", "add", 2, 1, 3, True)
    assert call.arguments_json == '{"a":2}'
    assert [message.role for message in result.all_messages()] == ["user", "assistant", "tool", "assistant"]
    assert result.all_messages() == result.new_messages()
    assert result.all_messages()[2] == ToolMessage(tool_call_id=call.id, name="add", content="3")
    assert model.prompt(0)[0]["content"].startswith("Be good.\n\n# Tools")


async def test_history_goes_on() -> None:
    agent = Agent(ScriptedModel("One.", "Two."))
    first = await agent.run("1")
    second = await agent.run("2", message_history=first.all_messages())
    assert [message.content for message in second.all_messages()] == ["1", "One.", "2", "Two."]
    assert [message.content for message in second.new_messages()] == ["2", "Two."]
    dumped = [message.model_dump() for message in first.all_messages()]
    agent.model.turns = ["Three."]
    assert (await agent.run("3", message_history=dumped)).all_messages()[:2] == first.all_messages()


async def test_calls_only() -> None:
    model = ScriptedModel(calls(("add", {"a": 2})))
    result = await Agent(model, tools=[add]).run("go", execute_tools=False)
    call = result.tool_calls[0]
    assert (result.output, call.arguments.a, call.result, call.executed, result.usage.tool_calls) == (None, 2, None, False, 0)


async def test_a_model_tool_is_returned_and_never_run() -> None:
    model = ScriptedModel(calls(("add", {"a": 1}), ("Book", {"to": "Rome", "days": 2})))
    result = await Agent(model, tools=[add, Book], parallel_tool_calls=2).run("go")
    assert [call.name for call in result.tool_calls] == ["add", "Book"]
    assert result.tool_calls[1].arguments == Book(to="Rome", days=2)
    assert (result.output, result.tool_calls[0].result, result.tool_calls[1].executed, result.usage.tool_calls) == (None, 2, False, 1)


@pytest.mark.parametrize("choice", ["required", "add"])
async def test_a_forced_choice_ends_with_the_first_call(choice: str) -> None:
    model = ScriptedModel(calls(("add", {"a": 1})), "Two.")
    await Agent(model, tools=[add, Book]).run("go", tool_choice=choice)
    assert [request.tool_choice for request in model.requests] == [choice, "auto"]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["add", "Book"]] * 2


async def test_no_tools_wanted() -> None:
    model = ScriptedModel("No.")
    await Agent(model, tools=[add]).run("go", tool_choice="none")
    assert model.requests[0].tool_choice == "none"


async def test_a_demand_for_a_call_is_repeated() -> None:
    model = ScriptedModel("I would rather not.", calls(("add", {"a": 1})), "Two.", constrained=False)
    result = await Agent(model, tools=[add]).run("go", tool_choice="required")
    assert [request.tool_choice for request in model.requests] == ["required", "required", "auto"]
    assert (result.output, result.all_messages()[2]) == ("Two.", RetryMessage(content="Call one of the tools before you answer."))


def failing(*outcomes: object) -> tuple[list[int], object]:
    seen: list[int] = []
    script: Iterator[object] = iter(outcomes)

    @tool(retries=2)
    def fussy(ctx: RunContext, n: int) -> int:
        seen.append(ctx.retry)
        outcome = next(script)
        if isinstance(outcome, Exception):
            raise outcome
        return n

    return seen, fussy


async def test_retries_are_counted_in_a_row() -> None:
    seen, fussy = failing(ModelRetry("no"), ModelRetry("no"), 1, ModelRetry("no"), ModelRetry("never"), 1)
    model = ScriptedModel(*[calls(("fussy", {"n": n})) for n in range(6)], "Done.")
    result = await Agent(model, tools=[fussy]).run("go")
    assert (seen, [call.result for call in result.tool_calls]) == ([0, 1, 2, 0, 1, 2], [2, 5])
    assert [message.content for message in result.all_messages() if message.role == "retry"] == ["no", "no", "no", "never"]


async def test_a_reason_without_a_utf8_form() -> None:
    _, fussy = failing(ModelRetry("not \ud800"), 1)
    model = ScriptedModel(calls(("fussy", {"n": 1})), calls(("fussy", {"n": 2})), "Done.")
    result = await Agent(model, tools=[fussy]).run("go")
    assert result.all_messages()[2].content == "not ?"
    assert result.all_messages_json()


async def test_retries_run_out() -> None:
    seen, fussy = failing(*[ModelRetry("no good")] * 3)
    with pytest.raises(ModelRetryExceeded, match=r"tool 'fussy' failed 3 times in a row, and 2 retries are allowed.*no good") as raised:
        await Agent(ScriptedModel(*[calls(("fussy", {"n": n})) for n in range(3)]), tools=[fussy]).run("go")
    assert isinstance(raised.value.__cause__, ModelRetry)
    assert seen == [0, 1, 2]


async def test_a_pydantic_validator_goes_back_to_the_model() -> None:
    class Even(BaseModel):
        n: int

        @field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("must be even")
            return n

    model = ScriptedModel(calls(("Even", {"n": 1})), calls(("Even", {"n": 2})))
    result = await Agent(model, tools=[Even]).run("go")
    assert result.tool_calls[0].arguments.n == 2
    assert "n: Value error, must be even" in model.prompt(1)[-1]["content"]


class Boom(RuntimeError):
    pass


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_other_errors_end_the_run_and_name_the_tool(asynchronous: bool) -> None:
    _, sync = failing(Boom("inside"))

    @tool(name="fussy")
    async def on_loop(n: int) -> int:
        raise Boom("inside")

    with pytest.raises(ToolError, match=r"tool 'fussy' failed: Boom: inside") as raised:
        await Agent(ScriptedModel(calls(("fussy", {"n": 1}))), tools=[on_loop if asynchronous else sync]).run("go")
    assert isinstance(raised.value.__cause__, Boom)


async def test_a_tools_own_timeout_error_is_not_its_time_limit() -> None:
    _, fussy = failing(TimeoutError("the socket"))
    with pytest.raises(ToolError, match="TimeoutError: the socket"):
        await Agent(ScriptedModel(calls(("fussy", {"n": 1}))), tools=[fussy]).run("go")


async def test_a_tool_that_waited_for_something_cancelled_has_failed() -> None:
    @tool
    async def wait() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    with pytest.raises(ToolError, match="'wait' failed: it waited for a task that was cancelled"):
        await Agent(ScriptedModel(calls(("wait", {}))), tools=[wait]).run("go")


async def test_an_async_tool_is_stopped_in_time() -> None:
    stopped = asyncio.Event()

    @tool(timeout=0.05)
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    result = await Agent(ScriptedModel(calls(("wait", {})), "Too slow."), tools=[wait]).run("go")
    assert stopped.is_set()
    assert result.output == "Too slow."


async def test_one_failure_stops_the_others() -> None:
    stopped = asyncio.Event()

    @tool
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    @tool
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise Boom

    with pytest.raises(ToolError, match="'fail'"):
        await Agent(ScriptedModel(calls(("wait", {}), ("fail", {}))), tools=[wait, fail], parallel_tool_calls=True).run("go")
    assert stopped.is_set()


@dataclass
class Deps:
    user: str


async def test_context() -> None:
    seen: list[RunContext[Deps]] = []

    @tool
    async def who(x: int, ctx: RunContext[Deps]) -> str:
        seen.append(ctx)
        return ctx.deps.user

    def instructions(ctx: RunContext[Deps]) -> str:
        return f"The user is {ctx.deps.user}, step {ctx.run_step}."

    model = ScriptedModel(calls(("who", {"x": 1})), "Ann.")
    agent = Agent(model, tools=[who], deps_type=Deps, instructions=instructions)
    result = await agent.run("Who?", deps=Deps("Ann"))
    assert list(who.parameters["properties"]) == ["x"]
    assert result.tool_calls[0].result == "Ann"
    context = seen[0]
    assert (context.prompt, context.tool_name, context.tool_call_id, context.run_step, context.retry) == ("Who?", "who", result.tool_calls[0].id, 1, 0)
    assert context.usage.requests == 1
    assert [message.role for message in context.messages] == ["user", "assistant"]
    assert [request.instructions for request in model.requests] == ["The user is Ann, step 1.", "The user is Ann, step 2."]


async def test_request_limit() -> None:
    model = ScriptedModel(*[calls(("add", {"a": n})) for n in range(3)])
    with pytest.raises(UsageLimitExceeded, match="request_limit is 2") as raised:
        await Agent(model, tools=[add]).run("go", usage_limits=UsageLimits(request_limit=2))
    assert (raised.value.limit, len(model.requests)) == ("request_limit", 2)


async def test_tool_calls_limit_runs_none_of_those_that_pass_it() -> None:
    ran = []

    @tool
    def count(n: int) -> None:
        ran.append(n)

    model = ScriptedModel(calls(("count", {"n": 1})), calls(("count", {"n": 2}), ("count", {"n": 3})))
    with pytest.raises(UsageLimitExceeded, match=r"3 tool calls.*tool_calls_limit is 2"):
        await Agent(model, tools=[count], parallel_tool_calls=2).run("go", usage_limits=UsageLimits(tool_calls_limit=2))
    assert ran == [1]


@pytest.mark.parametrize(("limit", "bound"), [("input_tokens_limit", 15), ("output_tokens_limit", 3), ("total_tokens_limit", 12)])
async def test_token_limits(limit: str, bound: int) -> None:
    with pytest.raises(UsageLimitExceeded) as raised:
        await Agent(ScriptedModel(calls(("add", {"a": 1})), "Never."), tools=[add]).run("go", usage_limits=UsageLimits(**{limit: bound}))
    assert raised.value.limit == limit


@pytest.mark.parametrize(("answer", "content"), [(True, "3"), (False, "The call of pay was not approved, so it was not run."), ("Too much.", "Too much.")])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_approval(answer: bool | str, content: str, asynchronous: bool) -> None:
    @tool(approval=True)
    def pay(amount: int) -> int:
        return amount

    asked = []

    def approve(context: RunContext, call: object) -> bool | str:
        asked.append((context.tool_name, call.arguments.amount))
        return answer

    async def approve_later(context: RunContext, call: object) -> bool | str:
        return approve(context, call)

    agent = Agent(ScriptedModel(calls(("pay", {"amount": 3})), "Done."), tools=[pay], approve=approve_later if asynchronous else approve)
    result = await agent.run("go")
    call = result.tool_calls[0]
    assert (call.content, call.executed, asked) == (content, answer is True, [("pay", 3)])
    assert result.usage.tool_calls == (answer is True)


class City(BaseModel):
    name: str
    founded: datetime.date


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (City, '{"name":"Rome","founded":"2026-04-21"}', City(name="Rome", founded=datetime.date(2026, 4, 21))),
        (int, "42", 42),
        (bool, "true", True),
        (list[int], "[1,2]", [1, 2]),
        (int | str, '"7"', "7"),
        ([City, int], "5", 5),
        (str, " Free text. ", "Free text."),
    ],
)
async def test_output_types(output_type: object, text: str, value: object) -> None:
    model = ScriptedModel(text)
    result = await Agent(model, output_type=output_type, tools=[add]).run("go")
    assert result.output == value
    assert type(result.output) is type(value)
    assert (model.requests[0].output_schema is None) == (output_type is str)


async def test_an_invalid_answer_goes_back_to_the_model() -> None:
    model = ScriptedModel('{"name":"Rome"}', '{"name":"Rome","founded":"2026-04-21"}', constrained=False)
    result = await Agent(model, output_type=City).run("go")
    assert result.output.name == "Rome"
    assert model.prompt(1)[-1]["content"] == "The answer is not valid:\nfounded: Field required"
    with pytest.raises(ModelRetryExceeded, match="the answer"):
        await Agent(ScriptedModel("1", "2", constrained=False), output_type=City).run("go")


async def test_output_validators() -> None:
    def even(ctx: RunContext, value: int) -> int:
        if value % 2:
            raise ModelRetry("It must be even.")
        return value * 10

    async def later(ctx: RunContext, value: int) -> str:
        return f"{value}"

    model = ScriptedModel("1", "2")
    result = await Agent(model, output_type=int, output_validators=[even, later]).run("go")
    assert (result.output, model.prompt(1)[-1]["content"]) == ("20", "It must be even.")


async def test_a_turn_cut_inside_a_call_is_an_error() -> None:
    text = calls(("add", {"a": 1}))
    with pytest.raises(GenerationTruncated, match="cut inside a tool call") as raised:
        await Agent(ScriptedModel(text[:-5], constrained=False, finish_reason="length"), tools=[add]).run("go")
    assert raised.value.text == text[:-5]


async def test_a_malformed_call_is_explained_to_the_model() -> None:
    model = ScriptedModel("<tool_call>add(1)</tool_call>", "Fine.", constrained=False)
    result = await Agent(model, tools=[add]).run("go")
    assert (result.output, "not well-formed" in model.prompt(1)[-1]["content"]) == ("Fine.", True)


async def test_an_answer_that_was_cut_is_not_asked_for_again() -> None:
    model = ScriptedModel('{"city": "Os', constrained=False, finish_reason="length")
    with pytest.raises(GenerationTruncated, match="cut by max_tokens") as raised:
        await Agent(model, output_type=dict[str, str]).run("go")
    assert raised.value.text == '{"city": "Os'


async def test_free_text_may_be_cut() -> None:
    result = await Agent(ScriptedModel("A long st", finish_reason="length")).run("go")
    assert (result.output, result.finish_reason) == ("A long st", "length")


async def test_events_and_steps() -> None:
    script = ("Hm.\n" + calls(("add", {"a": 1})), "Two.")
    events = []
    async with Agent(ScriptedModel(*script, constrained=False), tools=[add]).run_stream("go") as stream:
        async for event in stream:
            events.append(event)  # noqa: PERF401  # the protocol is tested as it is written
    kinds = [event.kind for event in events if event.kind not in ("token", "text")]
    assert kinds == ["call", "turn", "tool_result", "tools", "turn", "final"]
    assert "".join(event.text for event in events if event.kind == "token") == "".join(script)
    assert "".join(event.text for event in events if event.kind == "text") == "Hm.\nTwo."
    assert any(event.forced for event in events if event.kind == "token")
    assert events[-1].result is stream.result
    call = next(event.call for event in events if event.kind == "call")
    assert (call.executed, next(event.call.result for event in events if event.kind == "tool_result")) == (False, 2)
    steps = [step.kind async for step in Agent(ScriptedModel(*script, constrained=False), tools=[add]).iter("go")]
    assert steps == ["turn", "tools", "turn", "final"]


async def test_leaving_a_stream_cancels_the_request() -> None:
    model = ScriptedModel("A very long answer. " * 50)
    async with Agent(model).run_stream("go") as stream:
        async for piece in stream.text():
            assert piece
            break
    assert model.cancelled == 1


async def test_cancelling_a_run_cancels_the_request() -> None:
    model = ScriptedModel("A very long answer. " * 50, delay_s=0.01)
    task = asyncio.create_task(Agent(model).run("go"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.cancelled == 1


async def test_a_prompt_is_not_needed_with_a_history() -> None:
    result = await Agent(ScriptedModel("Hello.")).run(message_history=[UserMessage(content="Hi")])
    assert [message.role for message in result.new_messages()] == ["assistant"]
