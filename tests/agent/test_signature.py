"""Annotations and defaults as peers' users write them: what becomes of a parameter."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, Optional, get_type_hints

import pytest
from pydantic import BaseModel, Field

from agentkit import RunContext, Tool, ToolDefinitionError, tool


class Doc:
    """As in PEP 727: `typing_extensions.Doc`."""

    def __init__(self, documentation: str) -> None:
        self.documentation = documentation


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


class Cat(BaseModel):
    kind: Literal[Kind.CAT]


class Dog(BaseModel):
    kind: Literal[Kind.DOG]


def test_the_context_may_be_annotated_optional_and_keyword_only() -> None:
    @tool
    def f(x: int, *, ctx: Annotated[RunContext[int], "the run"]) -> object:
        return ctx, x

    @tool
    def g(x: int, ctx: Optional[RunContext] = None) -> object:  # noqa: UP045  # this spelling is what is tested
        return ctx, x

    @tool
    def h(x: int, ctx: RunContext[str] | None = None) -> object:
        return ctx, x

    for made in (f, g, h):
        assert made.parameters["properties"] == {"x": {"type": "integer"}}
        assert made.invoke({"x": 1}, "context") == ("context", 1)


def test_text_beside_an_annotation_describes_the_parameter() -> None:
    @tool
    def f(
        a: Annotated[int, "the a"], b: Annotated[str, 7, Doc("the b")] = "", c: Annotated[int, "not this", Field(description="the c")] = 0, d: int = 1
    ) -> None:
        """F.

        Args:
            a: from the docstring
            d: the d
        """

    described = {name: schema.get("description") for name, schema in f.parameters["properties"].items()}
    assert described == {"a": "the a", "b": "the b", "c": "the c", "d": "the d"}


def test_a_default_inside_an_annotation_counts() -> None:
    @tool
    def f(a: Annotated[int, Field(default=3, ge=1)], b: Annotated[list[int], Field(default_factory=list)]) -> object:
        return a, b

    assert "required" not in f.parameters
    assert f.invoke({}) == (3, [])


def test_an_ellipsis_is_a_default_like_any_other() -> None:
    @tool
    def f(a: Any = ...) -> object:
        return a

    assert "required" not in f.parameters
    assert f.invoke({}) is ...


@pytest.mark.parametrize(
    "options",
    [{"name": 5}, {"timeout": "5"}, {"retries": "2"}, {"retries": 1.5}, {"description": 5}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_other_types_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match=next(iter(options))):

        @tool(**options)
        def f(x: int) -> None: ...


@pytest.mark.parametrize(
    "type_",
    [Literal[Kind.CAT], list[Cat], Cat | Dog, Annotated[Cat | Dog, Field(discriminator="kind")], type[int]],
    ids=["literal", "list", "union", "tagged", "class"],
)
def test_a_type_that_no_json_satisfies_is_refused_at_definition(type_: Any) -> None:
    """Pydantic writes a schema for these and then refuses every value, so such a tool could never be called."""

    def f(x: Any) -> None: ...

    f.__annotations__ = {"x": type_}
    with pytest.raises(ToolDefinitionError, match="parameter 'x'"):
        Tool(f)


def test_a_choice_that_no_json_satisfies_is_left_out() -> None:
    @tool
    def f(x: Literal[Kind.CAT] | int) -> object:
        return x

    assert f.parameters["properties"]["x"] == {"type": "integer"}
    assert get_type_hints(f.function)["x"] == Literal[Kind.CAT] | int
