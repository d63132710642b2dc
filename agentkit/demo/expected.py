"""What the twenty questions of the tool-call set ask for: the tool and its arguments, and how an answer is judged.

Derived by hand from the questions and the rules they were given with (copy from the message, leave out what was not
mentioned, dates as YYYY-MM-DD; today is Monday 2026-11-30). Texts are compared without regard to case, blanks around them
and a final full stop. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["EXPECTED", "Expected", "matches"]


@dataclass(frozen=True)
class OneOf:
    """Any of several values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Words:
    """A text in which all these words stand; none: any text that is not empty."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class InAnyOrder:
    """A list of these values, whatever their order."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Maybe:
    """An argument that may be left out."""

    value: Any


@dataclass(frozen=True)
class Expected:
    """The right call."""

    tool: str
    arguments: Mapping[str, Any]


def one_of(*values: Any) -> OneOf:
    return OneOf(values)


def words(*needed: str) -> Words:
    return Words(needed)


def in_any_order(*values: Any) -> InAnyOrder:
    return InAnyOrder(values)


def matches(expected: Any, actual: Any) -> bool:
    """Is `actual`, parsed JSON, what was expected? Objects must have the expected keys and no others."""
    if isinstance(expected, OneOf):
        return any(matches(value, actual) for value in expected.values)
    if isinstance(expected, Maybe):
        return matches(expected.value, actual)
    if isinstance(expected, Words):
        return isinstance(actual, str) and bool(actual.strip()) and all(word.lower() in actual.lower() for word in expected.words)
    if isinstance(expected, InAnyOrder):
        return isinstance(actual, list) and _same_members(list(expected.values), actual)
    if isinstance(expected, Mapping):
        needed = {key for key, value in expected.items() if not isinstance(value, Maybe)}
        if not isinstance(actual, dict) or not needed <= actual.keys() <= expected.keys():
            return False
        return all(matches(expected[key], value) for key, value in actual.items())
    if isinstance(expected, str) and isinstance(actual, str):
        return _plain(expected) == _plain(actual)
    return type(expected) is type(actual) and bool(expected == actual)


def _same_members(expected: list[Any], actual: list[Any]) -> bool:
    """A pairing of equal members, found by trying (lists here have at most six)."""
    if not expected or not actual:
        return not expected and not actual
    first, *others = expected
    return any(matches(first, value) and _same_members(others, actual[:i] + actual[i + 1 :]) for i, value in enumerate(actual))


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").lower()


def _where(column: str, op: str, *values: str) -> dict[str, Any]:
    return {"column": column, "op": op, "value": OneOf(values)}


EXPECTED: tuple[Expected, ...] = (
    Expected("get_weather", {"location": one_of("Paris", "Paris, France"), "days": 3}),
    Expected(
        "create_event",
        {"title": "Budget review", "start": {"date": "2026-12-04", "time": "14:00"}, "duration_min": 45, "attendees": in_any_order("anna@corp.com")},
    ),
    Expected("send_email", {"to": in_any_order("bob@corp.com"), "subject": words(), "body": words("late"), "priority": "high"}),
    Expected("web_search", {"query": words("AVX2", "int8", "matrix multiplication"), "recency": "month"}),
    Expected("convert_currency", {"amount": 250, "from": "EUR", "to": "CHF"}),
    Expected("add_todo", {"text": one_of("buy oat milk", "oat milk"), "list": "shopping"}),
    Expected("read_file", {"path": "/etc/nginx/nginx.conf", "range": {"start": 10, "end": 40}}),
    Expected(
        "query_orders",
        {
            "columns": in_any_order("order_id", "total"),
            "where": in_any_order(_where("status", "=", "shipped"), _where("country", "=", "Germany", "DE")),
            "order_by": "total",
            "descending": True,
            "limit": 20,
        },
    ),
    Expected("set_reminder", {"text": words("pills"), "when": {"date": "2026-12-01", "time": "08:30"}, "repeat": "daily"}),
    Expected("play_music", {"query": "Kind of Blue", "kind": "album", "shuffle": True}),
    Expected("get_directions", {"origin": "Alexanderplatz", "destination": "Potsdam", "mode": "cycling", "avoid": in_any_order("highways")}),
    Expected("control_device", {"device": words("lamp"), "action": one_of("set", "on"), "room": "bedroom", "settings": {"brightness": 30, "color": "warm"}}),
    Expected("get_weather", {"location": one_of("Tokyo", "Tokyo, Japan"), "days": one_of(5, 6, 7), "unit": "fahrenheit"}),
    Expected(
        "create_event",
        {
            "title": words("lunch"),
            "start": {"date": "2026-12-10", "time": "12:30"},
            "location": "Cafe Einstein",
            "attendees": Maybe(in_any_order("Maria")),
        },
    ),
    Expected("send_email", {"to": in_any_order("team@corp.com"), "subject": words(), "body": words("demo", "Friday")}),
    Expected("web_search", {"query": words("Rust", "borrow checker"), "recency": Maybe(one_of("day", "week", "month"))}),
    Expected("convert_currency", {"amount": 1000, "from": "USD", "to": "JPY"}),
    Expected("add_todo", {"text": "finish the quarterly slides", "list": "work", "due": "2026-12-03", "tags": in_any_order("urgent")}),
    Expected("read_file", {"path": "src/main.py"}),
    Expected(
        "query_orders",
        {
            "columns": one_of(*(in_any_order("customer_id", *more) for more in ((), ("total",), ("status",), ("status", "total")))),
            "where": in_any_order(_where("status", "=", "pending"), _where("total", ">", "500")),
        },
    ),
)
