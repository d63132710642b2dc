"""Cases about names: parameters that clash with Pydantic's own, and what a tool may be called."""

from __future__ import annotations

import warnings

import pytest

from agentkit import Tool, ToolDefinitionError, tool
from tests.agent.cases.behaviour import behaviour

NAMES = ["json", "model_dump", "validate", "schema", "_id", "copy", "self_"]


def shadowing() -> Tool:
    @tool
    def t(json: str, model_dump: int, validate: bool, schema: dict, _id: str = "", copy: int = 1, self_: int = 0) -> str:
        "T."
        return f"{json}{model_dump}{validate}{schema}{_id}{copy}{self_}"

    return t


@behaviour("sdk-params-shadow-basemodel", "schema uses these very names")
def test_names_are_kept() -> None:
    made = shadowing()
    assert list(made.parameters["properties"]) == NAMES
    assert made.parameters["required"] == NAMES[:4]


@behaviour("sdk-params-shadow-basemodel", "no warnings; call {'json':'a','model_dump':1,'validate':true,'schema':{}} works")
def test_no_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = shadowing()
        assert made.invoke({"json": "a", "model_dump": 1, "validate": True, "schema": {}}) == "a1True{}10"
        arguments = made.validate('{"json":"a","model_dump":1,"validate":true,"schema":{"b":2},"_id":"i","copy":3,"self_":4}')
        assert made.invoke(arguments) == "a1True{'b': 2}i34"
        assert [arguments[name] for name in NAMES] == ["a", 1, True, {"b": 2}, "i", 3, 4]
        assert arguments.model_dump() == {"json": "a", "model_dump": 1, "validate": True, "schema": {"b": 2}, "_id": "i", "copy": 3, "self_": 4}
        with pytest.raises(KeyError):
            arguments["nothing"]


ALLOWED = ["ok-name_1", "1st", "class"]
REFUSED = ["my tool!", "выборка", "a" * 65, "", "ok\n", "a.b"]


@behaviour("sdk-tool-name-rules", "only ok-name_1, 1st and class pass ^[a-zA-Z0-9_-]{1,64}$; the rest raise at definition, naming the tool")
def test_tool_names() -> None:
    def f() -> None:
        "F."

    assert [Tool(f, name=name).name for name in ALLOWED] == ALLOWED
    assert Tool(f, name="a" * 64).name == "a" * 64
    for name in REFUSED:
        with pytest.raises(ToolDefinitionError) as raised:
            tool(name=name)(f)
        assert repr(name) in str(raised.value)
