"""A model that repeats itself: the same calls with the same results end in an answer, not in the limit of requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from agentkit import Agent, InvalidOption, tool
from agentkit.model import TurnRequest
from tests.agent.scripted import ScriptedModel, calls


@tool
def look(city: str) -> str:
    """Look at a city."""
    return f"{city} is fine"


@pytest.fixture
def numbers() -> Iterator[int]:
    return itertools.count()


def stubborn(request: TurnRequest) -> str:
    return "Fine." if request.tool_choice == "none" else calls(("look", {"city": "Oslo"}))


async def test_a_repeated_turn_is_followed_by_an_answer() -> None:
    model = ScriptedModel(*[stubborn] * 3)
    result = await Agent(model, tools=[look]).run("How is Oslo?")
    assert result.output == "Fine."
    assert [c.arguments_json for c in result.tool_calls] == ['{"city":"Oslo"}'] * 2
    assert [r.tool_choice for r in model.requests] == ["auto", "auto", "none"]
    assert model.requests[-1].tools == model.requests[0].tools  # the prompt's prefix stays the same


async def test_more_repeats_where_they_are_wanted() -> None:
    model = ScriptedModel(*[stubborn] * 5)
    result = await Agent(model, tools=[look], max_repeats=3).run("How is Oslo?")
    assert len(result.tool_calls) == 4


async def test_other_arguments_or_other_results_are_no_repeats(numbers: Iterator[int]) -> None:
    @tool
    def poll() -> int:
        """Something that changes."""
        return next(numbers)

    turns = [calls(("poll", {}))] * 3 + [calls(("look", {"city": c})) for c in ("Oslo", "Rome", "Oslo")]
    model = ScriptedModel(*turns, "Done.")
    result = await Agent(model, tools=[look, poll]).run("Go on.")
    assert len(result.tool_calls) == 6
    assert {r.tool_choice for r in model.requests} == {"auto"}


async def test_no_bound() -> None:
    model = ScriptedModel(*[calls(("look", {"city": "Oslo"}))] * 6, "Done.")
    result = await Agent(model, tools=[look], max_repeats=None).run("Go on.")
    assert len(result.tool_calls) == 6


def test_the_bound_is_checked() -> None:
    with pytest.raises(InvalidOption, match="max_repeats"):
        Agent(ScriptedModel(), max_repeats=0)


@pytest.mark.parametrize("limits", [3, 0, {"request_limit": 3}])
def test_limits_of_another_type_are_refused_before_anything_runs(limits: object) -> None:
    with pytest.raises(InvalidOption, match="UsageLimits"):
        Agent(ScriptedModel()).run_sync("hi", usage_limits=limits)
