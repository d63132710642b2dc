"""Tools and questions of the demonstration.

Small stand-ins for real services: they compute or look up in the tables below, and touch neither network nor disk. Texts
have length limits, so that the grammar ends them where a small model would not. Every conversation begins with one example
of each tool: a model of 135 million parameters follows examples far better than instructions.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from agentkit.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage
from agentkit.tool import Tool, result_text, tool

__all__ = ["INSTRUCTIONS", "QUESTIONS", "TOOLS", "examples"]

Currency = Literal["USD", "EUR", "GBP", "JPY", "CHF"]
Name = Annotated[str, Field(min_length=1, max_length=40)]

INSTRUCTIONS = "You are a helpful assistant. Call the tool that fits the question, then answer in one short sentence from its result."

QUESTIONS = (
    "What is the weather in Oslo?",
    "Convert 250 EUR to CHF.",
    "Add buy oat milk to my shopping list.",
    "Create an event called Budget review on 2026-12-04 at 14:00 with Anna and Bob.",
)

_WEATHER = {"oslo": ("snow", -3), "paris": ("rain", 9), "tokyo": ("clear", 14), "cairo": ("sunny", 27)}
_EUROS = {"USD": 0.86, "EUR": 1.0, "GBP": 1.14, "JPY": 0.0055, "CHF": 1.07}  # value of one unit; fixed, so that runs can be compared


class Start(BaseModel):
    """When an event begins."""

    date: date
    time: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="HH:MM")]


@tool
def get_weather(city: Name, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, Any]:
    """Get the weather in a city."""
    sky, celsius = _WEATHER.get(city.strip().lower(), ("cloudy", 12))
    return {"city": city, "sky": sky, "temperature": celsius if unit == "celsius" else round(celsius * 9 / 5 + 32), "unit": unit}


@tool
def convert_currency(amount: Annotated[int, Field(ge=0, le=1_000_000)], from_currency: Currency, to_currency: Currency) -> dict[str, Any]:
    """Convert money from one currency to another."""
    value = round(amount * _EUROS[from_currency] / _EUROS[to_currency], 2)
    return {"amount": amount, "currency": from_currency, "result": value, "result_currency": to_currency}


@tool
def create_event(title: Name, start: Start, attendees: Annotated[list[Name], Field(max_length=4)]) -> dict[str, Any]:
    """Put an event into the calendar.

    Args:
        attendees: Names of the people who take part.
    """
    return {"status": "created", "title": title, "start": f"{start.date} {start.time}", "invitations": len(attendees)}


@tool
def add_todo(text: Annotated[str, Field(min_length=1, max_length=80)], list: Literal["home", "work", "shopping"] = "home") -> dict[str, Any]:
    """Add a task to a todo list."""
    return {"status": "added", "text": text, "list": list}


TOOLS: tuple[Tool[..., Any], ...] = (get_weather, convert_currency, create_event, add_todo)

_EXAMPLES: tuple[tuple[str, Tool[..., Any], str, str], ...] = (
    (
        "Meet Maria and Tom at 09:30 on 2026-11-05 to plan the launch.",
        create_event,
        '{"title":"Plan the launch","start":{"date":"2026-11-05","time":"09:30"},"attendees":["Maria","Tom"]}',
        "Plan the launch is in your calendar for 2026-11-05 at 09:30.",
    ),
    ("What is 40 pounds in yen?", convert_currency, '{"amount":40,"from_currency":"GBP","to_currency":"JPY"}', "40 GBP are 8290.91 JPY."),
    ("Put water the plants on my list for home.", add_todo, '{"text":"water the plants","list":"home"}', '"water the plants" is on your home list.'),
    ("Is it warm in Cairo?", get_weather, '{"city":"Cairo"}', "It is sunny in Cairo, 27 degrees celsius."),
)


def examples() -> list[Message]:
    """The conversation so far: for each tool a question, its call, what the tool gives, and an answer."""
    messages: list[Message] = []
    for question, called, arguments, answer in _EXAMPLES:
        call = CallPart(id=f"example_{called.name}", name=called.name, arguments=arguments)
        result = result_text(called.invoke(arguments), called.name)
        messages += [UserMessage(content=question), AssistantMessage(tool_calls=(call,))]
        messages += [ToolMessage(tool_call_id=call.id, name=call.name, content=result), AssistantMessage(content=answer)]
    return messages
