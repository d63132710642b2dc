"""Prompts that models write training texts and measurements for: tools and questions put together by a seed, or a user's own file.

A prompt is chat messages with the tools that may be called. Questions come in groups that share their tools, so that their
beginning is computed once. Knows nothing of models.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from agentkit.errors import InvalidOption

__all__ = ["Prompt", "made_up", "read_prompts"]

GROUP = 8  # questions for one set of tools
TOOLS_EACH = 3


@dataclass(frozen=True)
class Prompt:
    """messages: of a chat.   tools: name, description, parameters each; with tools a call is asked for, without them any text."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()


def _text(limit: int = 40) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _number(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _texts(most: int) -> dict[str, Any]:
    return {"type": "array", "items": _text(), "maxItems": most}


def _tool(name: str, description: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False}
    return {"name": name, "description": description, "parameters": schema}


_SLOTS: dict[str, tuple[str, ...]] = {
    "city": ("Oslo", "Nairobi", "Lima", "San Francisco", "Kyoto", "Porto", "Montreal", "Cape Town", "Hanoi", "Vienna", "Boston", "Jakarta"),
    "person": ("Anna", "Bob", "Mrs. Okafor", "Prof. Lindqvist", "Carlos", "Mei Tanaka", "Dr. Singh", "the finance team", "Laura Jensen"),
    "thing": ("oat milk", "a blue ceramic vase", "printer paper", "two concert tickets", "running shoes", "a 27 inch monitor", "green tea", "batteries"),
    "topic": ("the quarterly budget", "heat pumps", "the French revolution", "solar panels", "moving to the new office", "antibiotic resistance"),
    "date": ("tomorrow", "on Friday", "on 3 March", "next Monday", "on 2026-11-02", "this weekend", "on New Year's Eve"),
    "time": ("9 am", "14:30", "noon", "quarter past five", "8 in the evening", "10:00"),
    "number": ("3", "12", "250", "1,400", "75", "19", "600", "42"),
    "currency": ("euros", "US dollars", "yen", "pounds", "Swiss francs", "rupees"),
    "language": ("Spanish", "German", "Japanese", "Swahili", "Portuguese", "Polish"),
    "food": ("chicken curry", "lentil soup", "a chocolate cake", "pasta with mushrooms", "vegetarian tacos"),
    "ticker": ("Apple", "Siemens", "Toyota", "Novo Nordisk", "NVIDIA"),
    "file": ("report.pdf", "notes/meeting.txt", "photos/beach.jpg", "data.csv", "src/main.py"),
}

# a tool, and questions that it answers
_CASES: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    (
        _tool("get_weather", "Weather forecast for a place.", city=_text(), days=_number(1, 14), unit=_one_of("celsius", "fahrenheit")),
        ("What will the weather be like in {city} {date}?", "Do I need an umbrella in {city}?", "How cold is it in {city}, in Fahrenheit?"),
    ),
    (
        _tool("create_event", "Put an event into the calendar.", title=_text(60), date=_text(12), time=_text(5), attendees=_texts(4)),
        ("Set up a meeting with {person} about {topic} {date} at {time}.", "Put lunch with {person} and {person} into my calendar, {date} at {time}."),
    ),
    (
        _tool("send_email", "Send an email.", to=_text(), subject=_text(60), body=_text(160), priority=_one_of("low", "normal", "high")),
        ("Write to {person} that {topic} is off the agenda.", "Email {person}: the delivery of {thing} is late, sorry. It is urgent."),
    ),
    (
        _tool("web_search", "Search the web.", query=_text(80), results=_number(1, 20)),
        ("Find me {number} articles about {topic}.", "What is new about {topic}?", "Where can I buy {thing} in {city}?"),
    ),
    (
        _tool("convert_currency", "Convert an amount of money.", amount=_number(0, 1000000), source=_text(3), target=_text(3)),
        ("How much are {number} {currency} in {currency}?", "Convert {number} {currency} to {currency}, please."),
    ),
    (
        _tool("translate", "Translate a text.", text=_text(120), language=_text(20), formal={"type": "boolean"}),
        ("How do I say 'Where is the station?' in {language}?", "Translate into formal {language}: I would like to buy {thing}."),
    ),
    (
        _tool("add_to_list", "Add items to a list.", list=_one_of("shopping", "todo", "packing"), items=_texts(6)),
        ("I need {thing} and {thing} from the shop.", "Remind me to call {person} and to read up on {topic}.", "Pack {thing} for {city}."),
    ),
    (
        _tool("set_timer", "Start a timer.", minutes=_number(1, 600), label=_text(30)),
        ("Wake me in {number} minutes.", "Start a timer of {number} minutes for {food}."),
    ),
    (
        _tool("book_table", "Reserve a table in a restaurant.", city=_text(), cuisine=_text(20), people=_number(1, 20), date=_text(12), time=_text(5)),
        ("Get us a table for {number} in {city} {date} at {time}, Italian if possible.", "Book a sushi place in {city} for {person} and me {date}."),
    ),
    (
        _tool("find_recipe", "Look up recipes.", dish=_text(), servings=_number(1, 30), vegetarian={"type": "boolean"}),
        ("How do I make {food} for {number} people?", "Give me a vegetarian recipe like {food}."),
    ),
    (
        _tool("stock_price", "Price of a share.", company=_text(), period=_one_of("day", "week", "month", "year")),
        ("How did {ticker} do this year?", "What does a share of {ticker} cost today?"),
    ),
    (
        _tool("find_flights", "Search flights.", origin=_text(), destination=_text(), date=_text(12), passengers=_number(1, 9), cabin=_one_of("any", "first")),
        ("Fly {number} of us from {city} to {city} {date}.", "Is there a business class flight from {city} to {city} {date}?"),
    ),
    (
        _tool("read_file", "Read a file.", path=_text(80), lines=_number(1, 500)),
        ("Show me the first {number} lines of {file}.", "What does {file} say about {topic}?"),
    ),
    (
        _tool("run_query", "Query the sales database.", table=_one_of("orders", "customers", "products"), filter=_text(80), limit=_number(1, 100)),
        ("List {number} customers in {city}.", "Which orders of {thing} came in {date}?", "What did {person} order?"),
    ),
    (
        _tool("play_music", "Play music.", query=_text(60), volume=_number(0, 100), shuffle={"type": "boolean"}),
        ("Play something quiet while I read about {topic}.", "Shuffle songs from {city} at volume {number}."),
    ),
    (
        _tool("calculate", "Evaluate an arithmetic expression.", expression=_text(80)),
        ("What is {number} times {number} plus {number}?", "Split {number} {currency} among {number} people."),
    ),
)  # fmt: skip


def made_up(seed: int = 0) -> Iterator[Prompt]:
    """Prompts without end, the same ones for the same seed."""
    rng = random.Random(seed)
    for _ in count():
        cases = rng.sample(_CASES, TOOLS_EACH)
        tools = tuple(tool for tool, _ in cases)
        for _ in range(GROUP):
            question = rng.choice(rng.choice(cases)[1])
            while "{" in question:
                slot = question[question.index("{") : question.index("}") + 1]
                question = question.replace(slot, rng.choice(_SLOTS[slot[1:-1]]), 1)
            yield Prompt(({"role": "user", "content": question},), tools)


def read_prompts(path: Path) -> list[Prompt]:
    """A file of JSON lines, each a question (a string) or an object with "messages" and, if a tool is to be called, "tools".

    Raises:
        InvalidOption: the file cannot be read, or a line is neither.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InvalidOption(f"prompts: {path} cannot be read: {error.strerror}") from error
    prompts = [_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidOption(f"prompts: {path} holds none")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidOption(f"prompts: {where} is no JSON: {error}") from error
    if isinstance(value, str):
        return Prompt(({"role": "user", "content": value},))
    try:
        messages = tuple({"role": str(m["role"]), "content": str(m["content"])} for m in value["messages"])
        tools = tuple({"name": t["name"], "description": t.get("description", ""), "parameters": t["parameters"]} for t in value.get("tools", ()))
    except (KeyError, TypeError) as error:
        raise InvalidOption(f'prompts: {where} is neither a question nor an object with "messages" (role, content) and "tools"') from error
    return Prompt(messages, tools)
