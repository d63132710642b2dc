"""The Hermes protocol: what is rendered, and what is read back however the stream is cut."""

from __future__ import annotations

import json

import pytest

from agentkit.grammars.frontends.turn_formats import FORMATS
from agentkit.messages import AssistantMessage, CallPart, RetryMessage, SystemMessage, ToolMessage, UserMessage
from agentkit.model import CallClosed, ParsedCall, TextPiece, ToolSpec, Turn, TurnRequest
from agentkit.protocol import FormatProtocol, call_text, shown_schema
from agentkit.turn_reader import FormatReader, JsonScan

TOOL = ToolSpec("get", "Gets é.", {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False})


def read(text: str, size: int, **options: bool) -> tuple[Turn, list[TextPiece | CallClosed]]:
    reader = FormatReader(FORMATS["hermes"], **options)
    events = [event for start in range(0, len(text), size) for event in reader.feed(text[start : start + size])]
    return reader.finish(), events


TRICKY = '{"x" : "</tool_call>\\n<tool_call>","y":[{"z":"}\\"]{"}],"n":1.0,"big":12345678901234567890}'


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_reads_text_and_calls(size: int) -> None:
    text = "Let me <look> at <tool_cal that.\n" + call_text("get", TRICKY) + "\n" + call_text("é", "{}")
    turn, events = read(text, size)
    assert turn == Turn("Let me <look> at <tool_cal that.\n", (ParsedCall("get", TRICKY), ParsedCall("é", "{}")))
    assert "".join(event.text for event in events if isinstance(event, TextPiece)) == turn.text
    assert [event.call for event in events if isinstance(event, CallClosed)] == list(turn.calls)
    assert json.loads(turn.calls[0].arguments)["x"] == "</tool_call>\n<tool_call>"


def test_text_comes_as_soon_as_it_is_certain() -> None:
    reader = FormatReader(FORMATS["hermes"])
    assert reader.feed("a <tool_") == [TextPiece("a ")]
    assert reader.feed("calls>") == [TextPiece("<tool_calls>")]
    assert reader.feed("<") == []
    assert reader.finish().text == "a <tool_calls><"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        '<tool_call>\n{"name":"get","arguments":{"x":1}}',
        '<tool_call>\n{"name":"get","arguments":{"x":1}\n</tool_call>',
        '<tool_call>\n{"name":"get"}\n</tool_call>',
        '<tool_call>\n{"name":"get","arguments":1}\n</tool_call>',
        "<tool_call>\nget(1)\n</tool_call>",
    ],
)
def test_what_is_not_whole_is_not_a_call(text: str) -> None:
    turn, events = read("Hi. " + text, 3)
    assert (turn.text, turn.calls, turn.unfinished) == ("Hi. ", (), text)
    assert not [event for event in events if isinstance(event, CallClosed)]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_trigger_inside_structured_output_is_data(size: int) -> None:
    text = '{"a":"<tool_call>\\n{}"}'
    assert read(text, size, structured=True)[0] == Turn(text)
    assert read("\n" + call_text("get", "{}"), size, structured=True)[0].calls == (ParsedCall("get", "{}"),)
    assert read(call_text("get", "{}"), size, calls=False)[0] == Turn(call_text("get", "{}"))


@pytest.mark.parametrize(
    ("text", "end"),
    [("{}", 2), ('{"a":"}"} x', 9), ("[[1],{}]]", 8), ("{", None), ('{"a', None), ("1", None), ("", None), ('"}"', None), ('{"a\\\\"}', 7), ('{"\\', None)],
)
def test_the_end_of_json(text: str, end: int | None) -> None:
    assert JsonScan(0).end(text) == (-1 if end is None else end)
    scan = JsonScan(2)
    ends = [scan.end("ab" + text[:size]) for size in range(len(text) + 1)]
    assert [found for found in ends if found >= 0][:1] == ([] if end is None else [end + 2])


def test_json_end_of_deep_nesting() -> None:
    assert JsonScan(0).end("[" * 100_000 + "]" * 100_000) == 200_000


def test_rendering() -> None:
    messages = [
        SystemMessage(content="From the history."),
        UserMessage(content="Q1"),
        AssistantMessage(content="Text.\n", tool_calls=(CallPart(id="1", name="get", arguments='{"x": 1.0}'), CallPart(id="2", name="get", arguments="{}"))),
        ToolMessage(tool_call_id="1", name="get", content="one"),
        RetryMessage(tool_call_id="2", name="get", content="x: Field required"),
        AssistantMessage(content="A1"),
        RetryMessage(content="Not an answer."),
    ]
    rendered = FormatProtocol().render(TurnRequest(messages, "Be brief.", [TOOL], output_schema={"type": "integer"}))
    assert [message["role"] for message in rendered] == ["system", "user", "assistant", "user", "assistant", "user"]
    system = rendered[0]["content"]
    assert system.startswith("Be brief.\n\nFrom the history.\n\n# Tools")
    assert '{"name":"get","description":"Gets é.","parameters":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}}\n</tools>' in system
    assert system.endswith('{"type":"integer"}')
    assert rendered[2]["content"] == (
        'Text.\n<tool_call>\n{"name":"get","arguments":{"x": 1.0}}\n</tool_call>\n<tool_call>\n{"name":"get","arguments":{}}\n</tool_call>'
    )
    assert rendered[3]["content"] == "<tool_response>\none\n</tool_response>\n<tool_response>\nx: Field required\n</tool_response>"
    assert rendered[5]["content"] == "Not an answer."


def test_no_system_message_without_need() -> None:
    assert FormatProtocol().render(TurnRequest([UserMessage(content="Q")])) == [{"role": "user", "content": "Q"}]


def test_rendering_a_turn_gives_what_was_read() -> None:
    """So that the next request's prompt begins with the tokens that are in the cache."""
    text = "Look:\n" + call_text("get", TRICKY) + "\n" + call_text("get", "{}")
    turn, _ = read(text, 4)
    message = AssistantMessage(content=turn.text, tool_calls=tuple(CallPart(id=str(i), name=c.name, arguments=c.arguments) for i, c in enumerate(turn.calls)))
    assert FormatProtocol().render(TurnRequest([message]))[0]["content"] == text


def test_shown_schema_leaves_out_what_the_grammar_enforces() -> None:
    schema = {
        "additionalProperties": False,
        "properties": {
            "maxLength": {"maxLength": 3, "type": "string", "default": {"maxLength": 1}},
            "open": {"additionalProperties": {"type": "integer", "minimum": 1}, "type": "object"},
            "choice": {"anyOf": [{"maxItems": 2, "type": "array"}, {"const": {"minLength": 1}}]},
        },
        "type": "object",
    }
    shown = shown_schema(schema)
    assert next(iter(shown)) == "type"
    assert shown == {
        "type": "object",
        "properties": {
            "maxLength": {"type": "string", "default": {"maxLength": 1}},
            "open": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
            "choice": {"anyOf": [{"type": "array"}, {"const": {"minLength": 1}}]},
        },
    }
