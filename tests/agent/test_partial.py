"""Partial forms: nesting, unions, aliases, values that are not valid yet."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from agentkit import Partial


class Leaf(BaseModel):
    mode: Literal["alpha", "beta"]
    size: Annotated[int, Field(ge=10)]


class Left(BaseModel):
    kind: Literal["left"]
    right: Right | None = None


class Right(BaseModel):
    kind: Literal["right"]
    left: Left | None = None


class Top(BaseModel):
    name: str = Field(alias="the name", min_length=3)
    leaves: dict[str, Leaf]
    pairs: tuple[Leaf, ...] = ()
    either: Left | Right | int = 0


VALUE = {
    "the name": "abcd",
    "leaves": {"one": {"mode": "beta", "size": 12}},
    "pairs": [{"mode": "alpha", "size": 10}],
    "either": {"kind": "right", "left": {"kind": "left"}},
}


def test_every_prefix_parses_and_the_whole_is_the_value() -> None:
    form, text = Partial(Top), json.dumps(VALUE)
    for end in range(len(text) + 1):
        form.from_prefix(text[:end])
    whole, full = form.from_prefix(text), Top.model_validate(VALUE)
    assert (whole.name, whole.leaves["one"].mode, whole.pairs[0].size) == ("abcd", "beta", 10)
    assert (whole.either.kind, whole.either.left.kind) == (full.either.kind, full.either.left.kind)


def test_what_does_not_fit_yet_is_none() -> None:
    form = Partial(Leaf)
    assert form.from_prefix('{"mode":"al').mode is None
    assert form.from_prefix('{"mode":"alpha').mode == "alpha"
    assert form.from_prefix('{"mode":"alpha","size":1').model_dump() == {"mode": "alpha", "size": 1}
    assert form.from_prefix('{"size":"x').size is None
    assert form.from_prefix("").model_dump() == {"mode": None, "size": None}


def test_the_form_is_built_once() -> None:
    assert Partial(Top) is Partial(Top)
    assert issubclass(Partial(Top), BaseModel)


def test_what_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="expected"):
        Partial(Leaf).from_prefix("nonsense")
    with pytest.raises(ValidationError):
        Partial(Leaf).from_prefix("[1")


@pytest.mark.parametrize("given", [int, "Leaf", None, list[int]], ids=str)
def test_only_models_have_a_partial_form(given: Any) -> None:
    with pytest.raises(TypeError, match="takes a Pydantic model"):
        Partial(given)
