"""Options of agents and runs, un-awaited runs, run_sync, and what an Agent takes as a model."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import warnings
from typing import Any

import numpy as np
import pytest

from agentkit import Agent, HistoryError, InvalidOption, ToolDefinitionError, UsageLimits, tool
from agentkit.local_model import LocalModel
from agentkit.messages import AssistantMessage, CallPart, ToolMessage
from agentkit.model import ChatModel
from tests.agent.scripted import ScriptedModel, calls


@tool
def add(a: int, b: int = 1) -> int:
    "Adds."
    return a + b


@tool(approval=True)
def pay(amount: int) -> int:
    return amount


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries must be an integer of at least 0, not -1"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, not 0"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls must be an integer"),
        ({"parallel_tool_calls": "False"}, "parallel_tool_calls must be .*, not 'False'; or True or False"),
        ({"retries": "2"}, "retries must be an integer of at least 0, not '2'"),
        ({"max_tokens": 2.5}, "max_tokens must be an integer of at least 1, not 2.5"),
        ({"temperature": -1}, "temperature must be a number >= 0, not -1"),
        ({"temperature": float("nan")}, "temperature must be a number >= 0, not nan"),
        ({"top_p": 0}, r"top_p must be a number in \(0, 1\], not 0"),
        ({"top_k": -1}, "top_k must be an integer"),
        ({"instructions": 5}, "instructions must be text"),
        ({"approve": True}, "approve must be a callable"),
        ({"output_validators": len}, r"output_validators must be a list, such as output_validators=\[len\]"),
        ({"output_validators": [5]}, "output_validators must be"),
        ({"output_type": []}, "output_type is an empty list"),
        ({"output_type": lambda: 1}, "output_type is the function <lambda>; give a type, or pass it among the tools"),
        ({"output_type": {"type": "integer"}}, r"give a type or a model; a JSON Schema goes to engine.generate\(schema=...\)"),
        ({"output_type": UsageLimits()}, "output_type is an instance of UsageLimits; give the class or type itself, not an instance"),
        ({"output_type": [int, 5]}, "output_type is an instance of int; give the class"),
        ({"output_type": type("Odd", (), {})}, "output_type .*Odd.* has no JSON form: [^\n]*$"),
    ],
)
def test_agent_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Agent(ScriptedModel(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tool_choice": "sub"}, "tool_choice is 'sub'.*'auto', 'required', 'none' or the name of a tool: add"),
        ({"tool_choice": {"type": "function"}}, "tool_choice is {'type': 'function'}"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, not 0"),
        ({"max_tokens": "5"}, "max_tokens must be .*, not '5'"),
        ({"temperature": "hot"}, "temperature must be .*, not 'hot'"),
        ({"execute_tools": "False"}, "execute_tools must be True or False, not 'False'"),
        ({"execute_tools": None}, "execute_tools must be True or False, not None"),
        ({"seed": 1 << 64}, "seed must be .*, not 18446744073709551616"),
        ({"deps": "text"}, "deps is str, but the agent's deps_type is int"),
    ],
)
def test_run_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Agent(ScriptedModel(), tools=[add], deps_type=int).run("go", **{"deps": 1, **options})


def test_other_misuse() -> None:
    agent = Agent(ScriptedModel())
    with pytest.raises(InvalidOption, match="neither a prompt nor a message_history"):
        agent.run()
    with pytest.raises(InvalidOption, match="the prompt is list"):
        agent.run(["hi"])
    with pytest.raises(InvalidOption, match="lone surrogate at 1"):
        agent.run("a\ud800")
    with pytest.raises(InvalidOption, match="no tools"):
        agent.run("go", tool_choice="required")
    with pytest.raises(TypeError, match=r"no option 'temprature'\..* The options are deps"):
        agent.run("go", temprature=1)
    with pytest.raises(InvalidOption, match="need approval: pay; pass approve="):
        Agent(ScriptedModel(), tools=[pay]).run("go")
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        Agent(ScriptedModel(), tools=[add, add])
    with pytest.raises(ToolDefinitionError, match="5 cannot be a tool"):
        Agent(ScriptedModel(), tools=[5])
    with pytest.raises(ValueError, match=r"UsageLimits\.request_limit must be an integer of at least 0, not -1"):
        UsageLimits(request_limit=-1)


def test_numbers_of_numpy_are_numbers() -> None:
    agent = Agent(ScriptedModel(), max_tokens=np.int64(7), temperature=np.float32(0.5), retries=np.int8(2))
    found = (agent.sampling.max_tokens, agent.sampling.temperature, agent.retries, UsageLimits(request_limit=np.int64(3)).request_limit)
    assert found == (7, 0.5, 2, 3)
    assert {type(each) for each in found} == {int, float}


async def test_approval_is_not_asked_for_calls_that_are_not_run() -> None:
    result = await Agent(ScriptedModel(calls(("pay", {"amount": 1}))), tools=[pay]).run("go", execute_tools=False)
    assert result.tool_calls[0].arguments.amount == 1


async def test_sampling_of_a_run_overrides_the_agents() -> None:
    model = ScriptedModel("a", "b")
    agent = Agent(model, max_tokens=10, temperature=0.5, top_p=0.9)
    await agent.run("go")
    await agent.run("go", max_tokens=20, temperature=0.0, seed=7)
    got = [(r.sampling.max_tokens, r.sampling.temperature, r.sampling.top_p, r.sampling.seed) for r in model.requests]
    assert got == [(10, 0.5, 0.9, None), (20, 0.0, 0.9, 7)]


def test_a_result_is_no_history() -> None:
    result = Agent(ScriptedModel("a")).run_sync("go")
    with pytest.raises(HistoryError, match=r"a message history is a list of messages, not RunResult; pass its \.all_messages\(\)"):
        Agent(ScriptedModel("b")).run_sync("on", message_history=result)
    with pytest.raises(HistoryError, match="not int; read JSON text with messages_from_json"):
        Agent(ScriptedModel("b")).run_sync("on", message_history=5)


def test_models() -> None:
    assert isinstance(ScriptedModel(), ChatModel)
    local = Agent("smollm2-135m")
    assert isinstance(local.model, LocalModel)
    assert (local.model.name, repr(local)) == ("smollm2-135m", "Agent('smollm2-135m', tools=[])")
    assert Agent(model="smollm2-135m").model.name == "smollm2-135m"
    with pytest.raises(InvalidOption, match=r"does not say where the server is; write Agent\('http://localhost:8000/v1', model='x', server='vllm'\)"):
        Agent("vllm:x")
    with pytest.raises(InvalidOption, match="server= is for a server"):
        Agent("smollm2-135m", server="vllm")
    with pytest.raises(InvalidOption, match="the model is int"):
        Agent(3)


BAD_HISTORIES = [
    ("{", "Invalid JSON"),
    ("{}", "at the whole text: Input should be a valid array"),
    ('[{"role":"robot","content":""}]', "at 0"),
    ('[{"role":"user"}]', "at 0.user.content: Field required"),
    ('[{"role":"user","content":"a","extra":1}]', "0.user.extra"),
    ('[{"role":"tool","tool_call_id":"x","name":"n","content":""}]', "message 0: a result for the call 'x'"),
]


@pytest.mark.parametrize(("text", "message"), BAD_HISTORIES)
def test_bad_histories(text: str, message: str) -> None:
    from agentkit import messages_from_json

    with pytest.raises(HistoryError, match=message):
        messages_from_json(text)


def test_a_bad_history_is_refused_at_once() -> None:
    twice = [AssistantMessage(tool_calls=(CallPart(id="1", name="add", arguments="{}"),))] * 2
    with pytest.raises(HistoryError, match="message 1: the call id '1' was used before"):
        Agent(ScriptedModel()).run("go", message_history=twice)
    with pytest.raises(HistoryError, match="message 0: a result for the call '1'"):
        Agent(ScriptedModel()).run("go", message_history=[ToolMessage(tool_call_id="1", name="add", content="")])
    for no_list in (5, "[]"):
        with pytest.raises(HistoryError, match="is a list of messages"):
            Agent(ScriptedModel()).run("go", message_history=no_list)


async def test_using_a_run_without_await() -> None:
    pending = Agent(ScriptedModel("Hello.")).run("hi")
    for name in ("output", "tool_calls", "usage", "all_messages"):
        with pytest.raises(AttributeError, match=rf"agent\.run\(\) has not been awaited, so it has no '{name}' yet: did you forget await\?"):
            getattr(pending, name)
    assert "did you forget await?" in repr(pending)
    assert (await pending).output == "Hello."


def del_run(pending: object) -> None:
    del pending
    gc.collect()


def test_dropping_a_run_warns() -> None:
    model = ScriptedModel("Hello.")
    with pytest.warns(RuntimeWarning, match=r"agent\.run\(\) was never awaited, so nothing ran: did you forget await\?"):
        del_run(Agent(model).run("hi"))
    assert model.requests == []


async def test_a_run_is_a_coroutine_to_asyncio() -> None:
    agent = Agent(ScriptedModel("a", "b", "c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = await asyncio.gather(agent.run("1"), asyncio.create_task(agent.run("2")))
        third = await asyncio.wait_for(agent.run("3"), 5)
    assert sorted(result.output for result in (first, second, third)) == ["a", "b", "c"]


def test_a_run_may_be_given_to_asyncio_run() -> None:
    assert asyncio.run(Agent(ScriptedModel("a")).run("1")).output == "a"


who: contextvars.ContextVar[str] = contextvars.ContextVar("who")


@tool
def me() -> str:
    return f"{who.get()} in {threading.current_thread().name.rpartition('-')[0]}"


async def test_run_sync_keeps_the_context() -> None:
    who.set("Ann")
    result = Agent(ScriptedModel(calls(("me", {})), "ok"), tools=[me]).run_sync("go")
    assert result.tool_calls[0].result == "Ann in agentkit-tool"


async def test_run_sync_passes_errors_on() -> None:
    with pytest.raises(InvalidOption):
        Agent(ScriptedModel()).run_sync("go", tool_choice="x")
    with pytest.raises(AssertionError, match="no turn for request 1"):
        Agent(ScriptedModel()).run_sync("go")


async def test_a_stream_has_no_result_before_its_end() -> None:
    async with Agent(ScriptedModel("a")).run_stream("go") as stream:
        with pytest.raises(InvalidOption, match="the run is not over"):
            _ = stream.result
        assert (await stream.finish()).output == "a"
