"""What is sent to which kind of server."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentkit import tool
from agentkit.errors import InvalidOption
from agentkit.messages import AssistantMessage, CallPart, Message, RetryMessage, SystemMessage, ToolMessage, UserMessage
from agentkit.model import Sampling, ToolSpec, TurnRequest
from agentkit.output import OutputSpec
from agentkit.remote.body import request_body
from agentkit.remote.servers import OTHER, SERVERS, recognised, strict_allowed


@tool
def get_weather(city: str, unit: Literal["C", "F"] = "C") -> str:
    "Weather now."
    return ""


@tool
def get_time(city: str) -> str:
    return ""


class City(BaseModel):
    name: str
    population: int = Field(ge=0)


SPECS = tuple(ToolSpec(each.name, each.description, each.parameters, each.accepted) for each in (get_weather, get_time))
HELLO = (UserMessage(content="Hello"),)
ALL = list(SERVERS)


def body(server: str = "vllm", messages: Any = HELLO, **options: Any) -> dict[str, Any]:
    return request_body(TurnRequest(messages, **options), SERVERS[server], "m")


def test_the_least() -> None:
    assert body("openai") == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 1024,
        "temperature": 0.0,
    }


# ------------------------------------------------------------------ messages
def test_messages() -> None:
    history: list[Message] = [
        SystemMessage(content="Be good."),
        UserMessage(content="1"),
        UserMessage(content="2"),
        AssistantMessage(content=None, tool_calls=(CallPart(id="a", name="f", arguments='{ "x": 1.0 }'), CallPart(id="b", name="f", arguments=""))),
        ToolMessage(tool_call_id="b", name="f", content="B"),
        RetryMessage(content="no", tool_call_id="a", name="f"),
        AssistantMessage(content="bad"),
        RetryMessage(content="Again."),
    ]
    assert body(messages=history, instructions="Be brief. ")["messages"] == [
        {"role": "system", "content": "Be brief.\n\nBe good."},
        {"role": "user", "content": "1\n2"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{ "x": 1.0 }'}},
                {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "no"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "assistant", "content": "bad"},
        {"role": "user", "content": "Again."},
    ]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [('{"x":', '{"invalid":"{\\"x\\":"}'), ("[1]", '{"invalid":"[1]"}'), ('{"x":12345678901234567890}', '{"x":12345678901234567890}'), (" ", "{}")],
)
def test_arguments_of_earlier_calls_are_objects(arguments: str, sent: str) -> None:
    """SGLang and others refuse the whole conversation otherwise."""
    made = body(messages=[*HELLO, AssistantMessage(tool_calls=(CallPart(id="a", name="f", arguments=arguments),))])["messages"]
    assert made[1]["tool_calls"][0]["function"]["arguments"] == sent


def test_a_call_that_the_application_kept_is_answered() -> None:
    """A history whose run ended with a call; the API wants a result for each."""
    history = [*HELLO, AssistantMessage(tool_calls=(CallPart(id="a", name="f", arguments="{}"),)), UserMessage(content="And now?")]
    assert [message["role"] for message in body(messages=history)["messages"]] == ["user", "assistant", "tool", "user"]


def test_a_turn_that_only_calls_has_no_text() -> None:
    """llama-cpp-python wants a field "content"; null it refuses, and its templates fail without."""
    history = [*HELLO, AssistantMessage(tool_calls=(CallPart(id="a", name="f", arguments="{}"),))]
    assert "content" not in body("vllm", history)["messages"][1]
    assert body("llama-cpp-python", history)["messages"][1]["content"] == ""


# ------------------------------------------------------------------ tools
@pytest.mark.parametrize("server", ALL)
def test_tools(server: str) -> None:
    made = body(server, tools=SPECS)
    assert [each["function"]["name"] for each in made["tools"]] == ["get_weather", "get_time"]
    assert made["tools"][0]["function"]["parameters"] == get_weather.parameters
    assert made["tools"][1]["function"]["description"] == ""
    assert (made["tool_choice"], made["parallel_tool_calls"]) == ("auto", False)
    assert body(server, tools=SPECS, max_calls=3)["parallel_tool_calls"] is True
    assert body(server, tools=SPECS, tool_choice="required")["tool_choice"] == ("auto" if server == "llama-cpp-python" else "required")
    assert made["stream"] is (server != "llama-cpp-python")
    assert ("stream_options" in made) is made["stream"]
    assert body(server, tools=SPECS, tool_choice="none")["stream"] is True
    assert body(server).keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})


@pytest.mark.parametrize("server", ALL)
def test_a_named_tool(server: str) -> None:
    made = body(server, tools=SPECS, tool_choice="get_time")
    if server in ("llamacpp", "ollama", "lmstudio"):  # they take words only
        assert (made["tool_choice"], [each["function"]["name"] for each in made["tools"]]) == ("required", ["get_time"])
    else:
        assert (made["tool_choice"], len(made["tools"])) == ({"type": "function", "function": {"name": "get_time"}}, 2)


def test_a_lone_tool_is_named_where_a_call_cannot_be_required() -> None:
    made = body("llama-cpp-python", tools=SPECS[:1], tool_choice="required")
    assert made["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("server", ALL)
def test_no_tools_wanted(server: str) -> None:
    made = body(server, tools=SPECS, tool_choice="none")
    if server in ("ollama", "other"):
        assert "tools" not in made
    else:
        assert (made["tool_choice"], len(made["tools"]), "parallel_tool_calls" in made) == ("none", 2, False)


def test_strict() -> None:
    strict = {server: [each["function"].get("strict", False) for each in body(server, tools=SPECS)["tools"]] for server in ALL}
    assert strict == {**{name: [False, False] for name in ALL}, "openai": [False, True], "vllm": [True, True], "sglang": [True, True]}


class Inner(BaseModel):
    x: int


class Optional(BaseModel):
    x: int = 1


class Tree(BaseModel):
    children: list[Tree]


class Many(BaseModel):
    inner: Inner
    when: date
    pattern: Annotated[str, Field(pattern="^a")]
    numbers: Annotated[list[int], Field(max_length=3)]
    either: int | None


class Bounded(BaseModel):
    text: Annotated[str, Field(max_length=3)]


class Free(BaseModel):
    any: Any


class Counts(BaseModel):
    counts: dict[str, int]


class Distinct(BaseModel):
    numbers: set[int]


@pytest.mark.parametrize(
    ("type_", "openai", "grammar"),
    [
        (Inner, True, True),
        (Many, True, True),
        (Tree, True, True),
        (Optional, False, True),
        (Bounded, False, True),
        (Free, False, True),
        (Counts, False, True),
        (Distinct, False, False),
        (list[Inner], False, True),
        (Inner | Bounded, False, True),
    ],
)
def test_what_can_be_strict(type_: Any, openai: bool, grammar: bool) -> None:
    schema = OutputSpec(type_).schema
    assert schema is not None
    assert [strict_allowed(SERVERS[name], schema) for name in ("openai", "vllm", "other")] == [openai, grammar, False]


# ------------------------------------------------------------------ answers
def answer(type_: Any) -> dict[str, Any]:
    return {"output_schema": OutputSpec(type_).schema}


@pytest.mark.parametrize("server", ALL)
@pytest.mark.parametrize("tools", [{}, {"tools": SPECS, "tool_choice": "none"}])
def test_an_answer_has_its_schema_enforced(server: str, tools: dict[str, Any]) -> None:
    made = body(server, **tools, **answer(City))
    schema = OutputSpec(City).schema
    if server == "llama-cpp-python":
        assert made["response_format"] == {"type": "json_object", "schema": schema}
    else:
        assert made["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    told = "matches this JSON schema" in str(made["messages"][0])
    assert told == (server != "openai")


@pytest.mark.parametrize("server", ALL)
def test_tools_stay_open_beside_a_schema(server: str) -> None:
    """vLLM, SGLang and llama.cpp would otherwise write JSON and never call a tool."""
    made = body(server, tools=SPECS, **answer(City))
    assert made["tool_choice"] == "auto"
    assert ("response_format" in made) == (server == "openai")
    demanded = body(server, tools=SPECS, tool_choice="required", **answer(City))
    assert "response_format" not in demanded


REFUSED = (*HELLO, AssistantMessage(content="It is Paris."), RetryMessage(content="The answer is not valid"))
VALID = (*HELLO, AssistantMessage(content='{"name":"Paris","population":1}'), RetryMessage(content="Look it up."))


@pytest.mark.parametrize("server", [each for each in ALL if each != "openai"])
def test_an_answer_that_did_not_match_is_asked_for_again_without_tools(server: str) -> None:
    made = body(server, REFUSED, tools=SPECS, **answer(City))
    assert "response_format" in made
    assert made.get("tool_choice", "none") == "none"
    assert "response_format" in body(server, [*REFUSED[:-2], AssistantMessage(content="[" * 100_000), REFUSED[-1]], tools=SPECS, **answer(City))
    looked_up = body(server, VALID, tools=SPECS, **answer(City))
    assert ("response_format" in looked_up, looked_up["tool_choice"]) == (False, "auto")
    demanded = body(server, REFUSED, tools=SPECS, tool_choice="required", **answer(City))
    assert ("response_format" in demanded, demanded["tool_choice"]) == (False, body(server, tools=SPECS, tool_choice="required")["tool_choice"])


def test_openai_takes_objects_only() -> None:
    made = body("openai", **answer(list[int]))
    assert "response_format" not in made
    assert "matches this JSON schema" in made["messages"][0]["content"]
    assert body("openai", **answer(Optional))["response_format"]["json_schema"]["strict"] is False
    assert body("vllm", **answer(list[int]))["response_format"]["json_schema"]["schema"]["type"] == "array"


# ------------------------------------------------------------------ sampling
def sampled(server: str, **options: Any) -> dict[str, Any]:
    made = body(server, sampling=Sampling(max_tokens=9, **options))
    return {name: made[name] for name in ("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed") if name in made}


def test_sampling() -> None:
    assert sampled("openai") == {"max_completion_tokens": 9, "temperature": 0.0}
    assert sampled("openai", temperature=1.0) == {"max_completion_tokens": 9}
    assert sampled("vllm") == {"max_tokens": 9, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    assert sampled("sglang", temperature=0.5, seed=7) == {"max_tokens": 9, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": 7}
    assert sampled("llamacpp", top_k=5, min_p=0.1)["top_k"] == 5
    assert sampled("other", top_p=0.5) == {"max_tokens": 9, "temperature": 0.0, "top_p": 0.5}
    assert sampled("vllm", seed=(1 << 64) - 1)["seed"] == -1


@pytest.mark.parametrize(("server", "options"), [("openai", {"top_k": 3}), ("other", {"min_p": 0.1}), ("ollama", {"top_k": 3})])
def test_sampling_that_a_server_does_not_know_is_refused(server: str, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with pytest.raises(InvalidOption, match=rf"{name} is .*, but a server of the kind '{server}' has no {name}.*'vllm'"):
        sampled(server, **options)


# ------------------------------------------------------------------ kinds
@pytest.mark.parametrize(
    ("owners", "headers", "kind"),
    [
        (["vllm"], {}, "vllm"),
        (["vllm", "vllm"], {}, "vllm"),
        (["sglang"], {}, "sglang"),
        (["llamacpp"], {}, "llamacpp"),
        (["anyone"], {"server": "llama.cpp"}, "llamacpp"),
        (["me"], {"server": "uvicorn"}, "llama-cpp-python"),
        (["library"], {}, "ollama"),
        (["organization_owner"], {}, "lmstudio"),
        (["vllm", "sglang"], {}, "other"),
        (["somebody"], {}, "other"),
        ([], {}, "other"),
    ],
)
def test_kinds_are_recognised(owners: list[str], headers: dict[str, str], kind: str) -> None:
    assert recognised([{"id": "m", "owned_by": owner} for owner in owners], headers).name == kind


def test_every_kind_has_its_own_name() -> None:
    assert all(server.name == name for name, server in SERVERS.items())
    assert SERVERS["other"] is OTHER
    assert replace(OTHER, name="x") not in SERVERS.values()
