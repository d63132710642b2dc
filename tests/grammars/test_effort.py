"""Compiling ends in time, can be called off, and never shows Python's own recursion limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from agentkit.errors import CompileCancelled, GrammarTooComplex
from agentkit.grammars import Grammar, clear_caches
from agentkit.grammars.effort import checkpoint, limited

SCHEMA = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{{{i}}}b"} for i in range(100)}}

FRONT_ENDS: list[Callable[..., Grammar]] = [
    lambda **o: Grammar.from_json_schema(SCHEMA, **o),
    lambda **o: Grammar.from_pydantic(dict[str, int], **o),
    lambda **o: Grammar.from_regex(r"\w+x", **o),
    lambda **o: Grammar.from_lark("start: /a+/", **o),
    lambda **o: Grammar.from_gbnf('root ::= "a"+', **o),
    lambda **o: Grammar.from_choices(["a", "b"], **o),
    lambda **o: Grammar.from_tools([{"name": "f", "parameters": SCHEMA}], "required", **o),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """What is in memory already takes no time and asks nobody."""
    clear_caches()


@pytest.mark.parametrize("make", FRONT_ENDS)
def test_every_front_end_can_be_cancelled_and_timed_out(make: Callable[..., Grammar]) -> None:
    cancelled = threading.Event()
    make(cancel=cancelled.is_set, time_limit=None)
    cancelled.set()
    with pytest.raises(CompileCancelled):
        make(cancel=cancelled.is_set)
    with pytest.raises(GrammarTooComplex) as caught:
        make(time_limit=1e-9)
    assert caught.value.limit == "time_limit"


def test_cancelling_takes_effect_in_the_middle() -> None:
    asked: list[None] = []

    def cancel() -> bool:
        asked.append(None)
        return len(asked) > 5

    with pytest.raises(CompileCancelled):
        Grammar.from_json_schema({"allOf": [SCHEMA]}, cancel=cancel)  # another schema: compiled ones are remembered
    assert len(asked) == 6


def test_a_limit_is_a_positive_number() -> None:
    with pytest.raises(ValueError, match="time_limit"):
        Grammar.from_choices(["a"], time_limit=0)


def test_a_recursion_error_is_a_limit_on_nesting() -> None:
    def deep(n: int) -> Any:
        return deep(n + 1)

    with pytest.raises(GrammarTooComplex) as caught, limited():
        deep(0)
    assert caught.value.limit == "nesting"


def test_limits_end_with_their_block() -> None:
    with limited(1e9, lambda: False):
        checkpoint()
    for _ in range(1000):
        checkpoint()  # nothing limits it
