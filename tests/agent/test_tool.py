"""Tools beyond the cases of the bank: odd types, defaults, partly bound callables, docstring styles, results."""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import pytest
from pydantic import BaseModel, Field, RootModel
from typing_extensions import TypedDict, Unpack

from agentkit import RunContext, Tool, ToolDefinitionError, ToolError, tool
from agentkit.tool import as_tool, result_text


class Color(enum.Enum):
    "A color."

    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool
    limit: NotRequired[int]


def test_the_function_stays_what_it_was() -> None:
    def add(a: int, b: int = 1) -> int:
        "Adds."
        return a + b

    made = tool(add)
    assert made(1, b=2) == 3
    assert (made.__name__, made.__doc__, made.__wrapped__, made.__module__) == ("add", "Adds.", add, __name__)
    assert inspect.signature(made) == inspect.signature(add)
    assert as_tool(made) is made
    again = Tool(made, name="plus")
    assert (again.name, again.function) == ("plus", add)


async def test_async_functions() -> None:
    @tool(name="double", description="Doubles.", timeout=1.5, retries=3)
    async def f(a: int) -> int:
        return a * 2

    assert (f.name, f.description, f.timeout, f.retries, f.is_async) == ("double", "Doubles.", 1.5, 3, True)
    assert await f(2) == await f.invoke({"a": 2}) == 4

    class Later:
        async def __call__(self, a: int) -> int:
            return a

    assert Tool(Later()).is_async
    assert Tool(functools.partial(f.function, 1)).is_async
    assert not Tool(Color.RED.name.join, name="join").is_async


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"retries": -1}, {"approval": "False"}, {"approval": len}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match=next(iter(options))):
        tool(name="t", **options)(test_bad_options)


def kinds(
    color: Color,
    point: Point,
    options: Options,
    pair: tuple[int, str],
    either: Optional[int],  # noqa: UP045  # the old spelling is what is tested
    old: Union[int, str] = "x",  # noqa: UP007
    mode: Literal["a", 1, None] = None,
    bounded: Annotated[int, Field(ge=1, le=9, description="one digit")] = 5,
    table: dict[str, list[float]] = {},  # noqa: B006
    money: Decimal = Decimal("1.5"),
) -> str:
    return repr((color, point, options, pair, either, old, mode, bounded, table, money))


def test_types_become_schemas_and_come_back_as_values() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Tool(kinds)
    shape = made.parameters["properties"]
    assert shape["color"] == {"enum": ["red", "blue"], "type": "string", "description": "A color."}
    assert shape["point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
        "additionalProperties": False,
    }
    assert shape["bounded"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 5, "description": "one digit"}
    assert made.parameters["required"] == ["color", "point", "options", "pair", "either"]
    assert "$defs" not in made.parameters
    text = '{"color":"red","point":{"x":1},"options":{"deep":true},"pair":[1,"a"],"either":null,"mode":1,"money":"2.50"}'
    expected = (Color.RED, Point(1), {"deep": True}, (1, "a"), None, "x", 1, 5, {}, Decimal("2.50"))
    assert made.invoke(text) == repr(expected)


class Opaque:
    def __deepcopy__(self, memo: object) -> Opaque:
        raise AssertionError("a default must be passed as it is")


OPAQUE = Opaque()


def test_a_default_that_is_not_json() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool
        def f(x: int = 1, y: Any = OPAQUE, z: Any = print) -> object:
            return (y, z)

    assert f.parameters["properties"]["z"] == {}
    assert f.invoke({}) == (OPAQUE, print)


def test_positional_only_and_keyword_only() -> None:
    @tool
    def f(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    assert f.invoke({"a": 1}) == (1, 2, 3, 4)
    assert f.invoke({"a": 1, "d": 9}) == (1, 2, 3, 9)
    assert f.invoke({"a": 1, "b": 8, "c": 7}) == (1, 8, 7, 4)

    @tool
    def g(a: int, b: int = 2, *rest: int) -> tuple[int, ...]:
        return a, b, *rest

    assert g.invoke({"a": 1, "rest": [5, 6]}) == (1, 2, 5, 6)


def test_unpacked_typed_dict() -> None:
    @tool
    def f(x: int, **options: Unpack[Options]) -> object:
        return x, options

    assert f.parameters["properties"] == {"x": {"type": "integer"}, "deep": {"type": "boolean"}, "limit": {"type": "integer"}}
    assert f.parameters["required"] == ["x", "deep"]
    assert f.invoke({"x": 1, "deep": True}) == (1, {"deep": True})
    assert f.invoke({"x": 1, "deep": True, "limit": 3}) == (1, {"deep": True, "limit": 3})


def test_field_as_a_default() -> None:
    @tool
    def f(x: int = Field(5, ge=1), y: int = Field(default_factory=lambda: 7, description="why")) -> tuple[int, int]:
        """F.

        Args:
            x: from the docstring
            y: from the docstring
        """
        return x, y

    assert f.parameters["properties"]["x"] == {"type": "integer", "minimum": 1, "default": 5, "description": "from the docstring"}
    assert f.parameters["properties"]["y"] == {"type": "integer", "description": "why"}
    assert f.invoke({}) == (5, 7)


def test_context_is_injected_and_hidden() -> None:
    @tool
    def f(ctx: RunContext[int], x: int) -> object:
        return ctx, x

    @tool
    def positional(ctx: RunContext, /, x: int, *rest: int) -> object:
        return ctx, x, rest

    assert list(f.parameters["properties"]) == ["x"]
    assert f.invoke({"x": 1}, "context") == ("context", 1)
    assert positional.invoke({"x": 1, "rest": [2]}, "context") == ("context", 1, (2,))
    with pytest.raises(ToolDefinitionError, match=r"\['a', 'b'\] are all annotated RunContext"):

        @tool
        def twice(a: RunContext, b: RunContext) -> None: ...


def not_json(x: int, callback: Callable[[int], int]) -> None: ...


def no_schema(x: int, thing: Opaque) -> None: ...


async def yields(x: int):
    yield x


def bad_syntax(x: "int |") -> None: ...  # noqa: F722


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (not_json, "tool 'not_json', parameter 'callback'"),
        (no_schema, "tool 'no_schema', parameter 'thing'.*Opaque"),
        (yields, "tool 'yields' is an async generator"),
        (bad_syntax, "tool 'bad_syntax', parameter 'x': the annotation .* cannot be evaluated: SyntaxError"),
        (RootModel[list[int]], "arguments must form an object"),
        (max, "tool 'max': .* has no signature that can be read"),
        (7, "7 cannot be a tool"),
    ],
)
def test_what_cannot_be_a_tool(target: Any, message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        Tool(target, name=None if callable(target) and not isinstance(target, type) else "RootModel")


GOOGLE = "Sum.\n\nMore.\n\nArgs:\n    a: First.\n    b (int, optional): Second\n        line.\n\nReturns:\n    The sum."
NUMPY = "Sum.\n\nMore.\n\nParameters\n----------\na : int\n    First.\nb : int, optional\n    Second\n    line.\n\nReturns\n-------\nint\n    The sum."
SPHINX = "Sum.\n\nMore.\n\n:param a: First.\n:param int b: Second\n    line.\n:returns: The sum."


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_docstring_styles(docstring: str) -> None:
    def f(a: int, b: int = 0) -> int:
        return a + b

    f.__doc__ = docstring
    made = Tool(f)
    assert made.description == "Sum.\n\nMore."
    assert made.parameters["properties"]["a"]["description"] == "First."
    assert made.parameters["properties"]["b"]["description"].split() == ["Second", "line."]


@pytest.mark.parametrize(
    "docstring", ["Args:", "Args:\n  a", ":param", "Parameters\n---", "Args:\n\ta: x\n      b y", "\x00 Args:\n a: \ud800", "Args:\n" + " " * 5000]
)
def test_a_docstring_never_breaks_a_tool(docstring: str) -> None:
    def f(a: int) -> int:
        return a

    f.__doc__ = docstring
    assert Tool(f).invoke({"a": 1}) == 1


def test_a_parser_that_fails_leaves_the_text(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("inside the parser")

    for style in ("google", "numpy", "sphinx"):
        monkeypatch.setattr(f"griffe.parse_{style}", broken)

    @tool
    def f(a: int) -> int:
        """F.

        Args:
            a: First.
        """
        return a

    assert f.description == "F.\n\nArgs:\n    a: First."
    assert "cannot be read as google style" in caplog.text


class Trip(BaseModel):
    """Books a trip.

    Attributes:
        to: Where.
        days: How long.
    """

    to: str
    days: int = Field(3, description="Nights.")
    legs: list[Trip] = []


def test_a_pydantic_model_is_a_tool_without_a_body() -> None:
    made = Tool(Trip)
    assert (made.name, made.description, made.has_body, made.arguments) == ("Trip", "Books a trip.", False, Trip)
    assert made.parameters["type"] == "object"
    assert made.parameters["properties"]["to"] == {"type": "string", "description": "Where."}
    assert made.parameters["properties"]["days"]["description"] == "Nights."
    assert made.parameters["properties"]["legs"]["items"] == {"$ref": "#/$defs/Trip"}
    assert made.validate('{"to":"Rome"}') == Trip(to="Rome")
    with pytest.raises(ToolError, match="has no body"):
        made.invoke({"to": "Rome"})


class Pet(BaseModel):
    kind: Literal["cat"]
    extra: dict[str, int] = {}


class Dog(BaseModel):
    model_config = {"extra": "allow"}
    kind: Literal["dog"]


class Home(BaseModel):
    pet: Annotated[Pet | Dog, Field(discriminator="kind")]
    title: str


def test_objects_are_closed_unless_they_ask_for_more() -> None:
    schema = Tool(Home).parameters
    cat, dog = schema["properties"]["pet"]["oneOf"]
    assert (schema["additionalProperties"], cat["additionalProperties"], dog["additionalProperties"]) == (False, False, True)
    assert cat["properties"]["extra"]["additionalProperties"] == {"type": "integer"}
    assert "discriminator" not in schema["properties"]["pet"]
    assert schema["properties"]["title"] == {"type": "string"}


def test_big_shared_definitions_stay_references() -> None:
    class Big(BaseModel):
        text: Literal[tuple(f"value number {n}" for n in range(50))]  # type: ignore[valid-type]

    class Both(BaseModel):
        a: Big
        b: Big = Field(description="the second")

    schema = Tool(Both).parameters
    assert schema["properties"] == {"a": {"$ref": "#/$defs/Big"}, "b": {"$ref": "#/$defs/Big", "description": "the second"}}
    assert list(schema["$defs"]) == ["Big"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "null"),
        (Trip(to="é"), '{"to":"é","days":3,"legs":[]}'),
        (Point(1), '{"x":1,"y":0}'),
        ({"d": Decimal("1.0"), "s": {1}, "c": Color.RED}, '{"d":"1.0","s":[1],"c":"red"}'),
        (float("nan"), '"NaN"'),
        (10**30, str(10**30)),
    ],
)
def test_result_text(value: object, text: str) -> None:
    assert result_text(value, "t") == text


@dataclass
class Loop:
    inner: list[Any] = field(default_factory=list)


@pytest.mark.parametrize("value", [dict, object(), "\ud800", {"a": "\ud800"}, b"\xff", asyncio.Lock()])
def test_results_without_a_json_form(value: object) -> None:
    with pytest.raises(ToolError, match="tool 't' returned"):
        result_text(value, "t")


def test_a_circular_result() -> None:
    loop = Loop()
    loop.inner.append(loop)
    with pytest.raises(ToolError, match="tool 't' returned Loop"):
        result_text(loop, "t")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "@tool has no option 'retry'. Did you mean 'retries'? The options are name, description, timeout, retries, approval"),
        ({"strict": True}, "@tool has no option 'strict'. The options are"),
    ],
    ids=["like one", "like none"],
)
def test_an_option_that_does_not_exist_is_named_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolDefinitionError) as raised:
        tool(**options)
    assert str(raised.value).startswith(message)


def test_a_name_goes_by_name() -> None:
    with pytest.raises(ToolDefinitionError, match=r"write @tool\(name='add'\)"):
        tool("add")  # type: ignore[call-overload]
