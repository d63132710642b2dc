"""The case about histories: what goes out as JSON comes back the same."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from agentkit import Agent, messages_from_json, messages_to_json, tool
from agentkit.messages import AssistantMessage, CallPart, Message, RetryMessage, SystemMessage, ToolMessage, UserMessage
from tests.agent.cases.behaviour import behaviour
from tests.agent.scripted import ScriptedModel, calls

ODD = 'emoji 😀, separators \u2028\u2029, lone backslash \\, quote ", tab\t, NUL-free control \x01, "</tool_call>"'
ARGUMENTS = '{"b" : 1.0,"a":12345678901234567890, "s":"\\u00e9\\/"}'


@tool
def price(b: float, a: int, s: str) -> dict[str, object]:
    return {"price": Decimal("1.10"), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "empty": "", "none": None, "odd": ODD}


async def conversation() -> list[Message]:
    model = ScriptedModel("\n" + calls(("price", ARGUMENTS)), f"It is {ODD}", constrained=False)
    result = await Agent(model, tools=[price]).run(ODD)
    extra = [
        SystemMessage(content=""),
        AssistantMessage(content=None),
        AssistantMessage(content="", tool_calls=(CallPart(id="c", name="price", arguments=""),)),
        RetryMessage(content="no", tool_call_id="c", name="price"),
        ToolMessage(tool_call_id="c", name="price", content=""),
    ]
    return [*result.all_messages(), *extra, *(UserMessage(content=f"{number} {ODD}") for number in range(500))]


@behaviour("sdk-history-round-trip", "second dump equals the first, byte for byte")
async def test_round_trip() -> None:
    messages = await conversation()
    first = messages_to_json(messages)
    loaded = messages_from_json(first)
    assert messages_to_json(loaded).encode() == first.encode()
    assert messages_to_json(messages_from_json(first.encode())) == first
    assert loaded == messages
    assert len(loaded) > 500


@behaviour("sdk-history-round-trip", "argument text is kept verbatim, not re-serialised")
async def test_arguments_are_verbatim() -> None:
    messages = await conversation()
    call = messages_from_json(messages_to_json(messages))[1].tool_calls[0]
    assert call.arguments == ARGUMENTS
    model = ScriptedModel("ok", constrained=False)
    result = await Agent(model, tools=[price]).run("go on", message_history=messages)
    assert ARGUMENTS in model.prompt()[2]["content"]
    assert result.new_messages()[0] == UserMessage(content="go on")
    tool_result = next(message for message in messages if isinstance(message, ToolMessage))
    assert '"price":"1.10","at":"2026-01-02T03:04:05Z","empty":"","none":null' in tool_result.content
