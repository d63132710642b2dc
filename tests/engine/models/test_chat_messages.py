"""Conversations as callers give them: what a template is handed, and errors that name the message."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit.engine.models.chat_messages import chat_messages, encode_chat
from agentkit.engine.models.chat_template import ChatTemplate, ToolSupport
from agentkit.engine.models.tokenizer import Tokenizer
from agentkit.errors import EngineError, HistoryError
from tests.engine.models.synthetic import byte_tokenizer

PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
_TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ARGUMENTS}}{% endfor %}{% endfor %}"
PARSED = _TOOLS + _TURNS.replace("{{ARGUMENTS}}", "{{ c.function.arguments | tojson }}")
TEXT = _TOOLS + _TURNS.replace("{{ARGUMENTS}}", "{{ '' + c.function.arguments }}")
TOOL = {"type": "function", "function": {"name": "get", "description": "Gets.", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "hi"}


def template(source: str = PLAIN) -> ChatTemplate:
    return ChatTemplate(source, Tokenizer(byte_tokenizer()))


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "get", "arguments": arguments, **more}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({}, "it has no role; roles are system,"),
        ({"role": None, "content": "x"}, "role None is not one"),
        ({"role": "usr", "content": "x"}, r"role 'usr' is not one that the model's chat template knows.*Did you mean 'user'\?"),
        ({"role": "user"}, r"it has no content \(its role is 'user'\)"),
        ({"role": "user", "contnet": "x"}, r"it has no content \(its role is 'user', its other keys are \['contnet'\]\)"),
        ({"role": "assistant", "content": None}, r"it has no content \(its role is 'assistant'\)"),
        ({"role": "user", "content": 5}, "its content is of type int"),
        ({"role": "user", "content": b"x"}, "its content is of type bytes"),
        ({"role": "user", "content": {"text": "x"}}, "its content is of type dict"),
        ({"role": "user", "content": ["x", {"type": "image_url", "image_url": {}}]}, "part 1 of its content is of type 'image_url'; only text"),
        ({"role": "user", "content": [5]}, "part 0 of its content is 5; only text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "part 0 of its content is of type 'text'; only text"),
        ({"role": "assistant", "tool_calls": "get()"}, "its tool_calls are of type str; give a list"),
        ({"role": "assistant", "tool_calls": ["get"]}, "it calls 'get'; a call is"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, "it calls {'function': {'arguments': '{}'}}; a call is"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(message: dict[str, Any], said: str) -> None:
    with pytest.raises(HistoryError, match=f"message 1 cannot be read: .*{said}") as caught:
        encode_chat(template(), [USER, message], None, add_generation_prompt=True)
    assert isinstance(caught.value, ValueError)


def test_parts_of_text_are_joined() -> None:
    parts = ["a", {"type": "text", "text": "b"}, {"type": "input_text", "text": "c"}]
    assert chat_messages([{"role": "user", "content": parts}], template())[0]["content"] == "abc"


def test_a_role_that_the_template_names_is_one() -> None:
    message = {"role": "observation", "content": "x"}
    with pytest.raises(HistoryError, match="role 'observation'"):
        chat_messages([message], template())
    assert chat_messages([message], template(PLAIN + "{% if messages[0]['role'] == 'observation' %}!{% endif %}")) == [message]


@pytest.mark.parametrize("arguments", ['{"x": 1}', {"x": 1}], ids=["text", "parsed"])
@pytest.mark.parametrize(("source", "taken"), [(PARSED, {"x": 1}), (TEXT, '{"x": 1}')], ids=["for parsed", "for text"])
def test_arguments_of_calls_are_handed_over_as_the_template_takes_them(source: str, taken: Any, arguments: Any) -> None:
    chat = template(source)
    assert chat.tool_support == ToolSupport("parsed" if isinstance(taken, dict) else "text", "", several=True)
    given = [USER, {"role": "assistant", "content": None, "tool_calls": [call(arguments, strict=True)]}]
    read = chat_messages(given, chat)
    assert read == [USER, {"role": "assistant", "content": "", "tool_calls": [call(taken, strict=True)]}]
    assert given[1]["tool_calls"][0]["function"]["arguments"] == arguments  # the caller's own are left alone
    assert '[assistant]get{"x": 1}' in chat.render(read)


def test_arguments_that_are_no_json_are_shown_as_they_were() -> None:
    read = chat_messages([USER, {"role": "assistant", "tool_calls": [call("{broken")]}], template(PARSED))
    assert read[1]["tool_calls"] == [call("{broken")]


def test_arguments_without_end_are_shown_as_they_were() -> None:
    """A model that repeats itself writes them, and its call was refused."""
    text = "[" * 100_000
    (message,) = chat_messages([{"role": "assistant", "tool_calls": [call(text)]}], template(PARSED))
    assert message["tool_calls"][0]["function"]["arguments"] == text


def test_arguments_that_no_json_can_hold_are_named() -> None:
    with pytest.raises(HistoryError, match="message 1 cannot be read: the arguments of its call of 'get' are no JSON"):
        chat_messages([USER, {"role": "assistant", "tool_calls": [call({"x": {1, 2}})]}], template(TEXT))


@pytest.mark.parametrize("tool", [{"function": "get"}, {"type": "function", "function": None}])
def test_a_tool_that_describes_no_function(tool: dict[str, Any]) -> None:
    for source in (TEXT, "{% for m in messages %}{{ m.content }}{% endfor %}"):
        with pytest.raises(TypeError, match="a tool is the description of a function"):
            encode_chat(template(source), [USER], [tool], True)


def test_tools_and_calls_that_the_template_would_lose_are_refused() -> None:
    turn = {"role": "assistant", "tool_calls": [call("{}")]}
    with pytest.raises(EngineError, match="does not show tools, so the model would not know of 'get'; use an Agent"):
        encode_chat(template(), [USER], [TOOL], add_generation_prompt=True)
    with pytest.raises(EngineError, match="does not show calls, so the model would not know of 'get'"):
        encode_chat(template(), [USER, turn], None, add_generation_prompt=True)
    shown = template(PARSED)
    assert shown.tool_support is not None
    ids = encode_chat(shown, [USER, turn], [TOOL], add_generation_prompt=True)
    assert ids == shown.encode(chat_messages([USER, turn], shown), tools=[TOOL])


def test_a_call_in_the_older_form_is_one() -> None:
    turn = {"role": "assistant", "content": None, "function_call": {"name": "get", "arguments": '{"x": 1}'}}
    read = chat_messages([USER, turn], template(PARSED))
    assert read[1] == {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {"x": 1}}}]}
    with pytest.raises(EngineError, match="does not show calls"):
        encode_chat(template(), [USER, turn], None, add_generation_prompt=True)
