"""Cases about signatures: *args and **kwargs, wrapped functions, methods and other callables."""

from __future__ import annotations

import functools
from functools import partial

import pytest

from agentkit import Agent, Tool, ToolDefinitionError, tool
from tests.agent.cases.behaviour import behaviour


@tool
def v(x: int, *rest: int, flag: bool = False, **extra: str) -> str:
    "V."
    return repr((x, rest, flag, extra))


@behaviour(
    "sdk-var-args",
    "either refused with a clear message at definition, or: rest is an optional array of integers, extra free string values, flag optional",
)
def test_var_args() -> None:
    assert v.parameters["properties"]["rest"] == {"type": "array", "items": {"type": "integer"}}
    assert v.parameters["additionalProperties"] == {"type": "string"}
    assert v.invoke('{"x":1,"rest":[2,3],"flag":true,"other":"o"}') == "(1, (2, 3), True, {'other': 'o'})"
    assert v.invoke('{"x":1}') == "(1, (), False, {})"
    assert v(1, 2, other="o") == "(1, (2,), False, {'other': 'o'})"


@behaviour("sdk-var-args", "never 'args'/'kwargs' in required")
def test_var_args_are_not_required() -> None:
    assert v.parameters["required"] == ["x"]

    @tool
    def plain(*args, **kwargs):
        return args, kwargs

    assert plain.parameters.get("required", []) == []
    assert plain.invoke({"args": [1, "a"], "b": None}) == ((1, "a"), {"b": None})


def retry(f):
    @functools.wraps(f)
    def inner(*args, **kw):
        return f(*args, **kw)

    return inner


@tool
@retry
def t(a: int, b: str = "x") -> str:
    "T."
    return b


@behaviour("sdk-wraps-introspection", "schema has a and b, not args/kw")
def test_wrapped_function() -> None:
    assert list(t.parameters["properties"]) == ["a", "b"]
    assert t.parameters["required"] == ["a"]
    assert t.invoke({"a": 1, "b": "y"}) == "y"


@behaviour("sdk-wraps-introspection", "description is 'T.'")
def test_wrapped_description() -> None:
    assert t.description == "T."


class Svc:
    def __init__(self, k):
        self.k = k

    def m(self, x: int) -> int:
        "M."
        return x + self.k

    @classmethod
    def c(cls, x: int) -> int:
        "C."
        return x

    @staticmethod
    def s(x: int) -> int:
        "S."
        return x

    def __call__(self, x: int) -> int:
        "Call."
        return x

    @tool
    def decorated(self, x: int) -> int:
        "D."
        return x * self.k

    @tool
    @classmethod
    def class_inside(cls, x: int) -> str:
        return f"{cls.__name__}{x}"

    @classmethod
    @tool
    def class_outside(cls, x: int) -> str:
        return f"{cls.__name__}{x}"

    @tool
    @staticmethod
    def static_inside(x: int) -> int:
        return x

    @staticmethod
    @tool
    def static_outside(x: int) -> int:
        return x


@behaviour(
    "sdk-methods-and-callables",
    "Tool(Svc(2).m), Tool(Svc.c), Tool(Svc.s), Tool(Svc(1)), Tool(partial(Svc(2).m)) all have schema properties ['x'] and run",
)
def test_methods_and_callables() -> None:
    made = [Tool(Svc(2).m), Tool(Svc.c), Tool(Svc.s), Tool(Svc(1)), Tool(partial(Svc(2).m))]
    assert [list(tool_.parameters["properties"]) for tool_ in made] == [["x"]] * 5
    assert [tool_.invoke('{"x":5}') for tool_ in made] == [7, 5, 5, 5, 7]
    assert [tool_.description for tool_ in made] == ["M.", "C.", "S.", "Call.", "M."]
    assert [tool_.name for tool_ in made] == ["m", "c", "s", "Svc", "m"]


@behaviour("sdk-methods-and-callables", "an undecorated-self use (@tool in the class body) is bound on access or refused with a clear message")
def test_tool_in_a_class_body() -> None:
    bound = Svc(3).decorated
    assert list(bound.parameters["properties"]) == ["x"]
    assert (bound.invoke({"x": 2}), Svc(4).decorated(2)) == (6, 8)
    for access in (Svc, Svc(1)):
        assert [access.class_inside(2), access.class_outside(2), access.static_inside(2), access.static_outside(2)] == ["Svc2", "Svc2", 2, 2]
        for name in ("class_inside", "class_outside", "static_inside", "static_outside"):
            assert Agent("smollm2-135m", tools=[getattr(access, name)]).tools[name].invoke({"x": 2}) in ("Svc2", 2)
    with pytest.raises(ToolDefinitionError, match=r"'decorated' is the method Svc\.decorated without its object"):
        Agent("smollm2-135m", tools=[Svc.decorated])
    with pytest.raises(ToolDefinitionError, match=r"'m' is the method Svc\.m without its object"):
        Agent("smollm2-135m", tools=[Svc.m])


def two(x: int, y: int = 2, *, z: str = "z") -> str:
    return f"{x}{y}{z}"


@behaviour("sdk-methods-and-callables", "a partial's fixed arguments leave the schema; a partial needs an explicit or derived name")
def test_partial() -> None:
    by_position = Tool(partial(two, 1))
    assert (by_position.name, list(by_position.parameters["properties"]), by_position.invoke({"y": 5})) == ("two", ["y", "z"], "15z")
    by_name = Tool(partial(two, x=7), name="seven")
    assert (by_name.name, list(by_name.parameters["properties"]), by_name.invoke({})) == ("seven", ["y", "z"], "72z")
    nested = Tool(partial(partial(two, z="q"), 3))
    assert (nested.name, list(nested.parameters["properties"]), nested.invoke({"y": 4})) == ("two", ["y"], "34q")
    with pytest.raises(ToolDefinitionError, match="<lambda>"):
        Tool(partial(lambda x: x))
