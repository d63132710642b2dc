"""Cases about annotations that cannot simply be evaluated: names only for type checkers, classes local to a function."""

from __future__ import annotations

import textwrap

import pytest

from agentkit import ToolDefinitionError, tool
from tests.agent.cases.behaviour import behaviour

TYPE_CHECKING_ONLY = """
    from __future__ import annotations
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from decimal import Decimal
    @tool
    def f(x: Decimal, y: int) -> str:
        'F.'
        return ''
    reached = True
"""


def run_module(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {"tool": tool, "__name__": "case"}
    exec(compile(textwrap.dedent(source), "case.py", "exec", dont_inherit=True), namespace)
    return namespace


@behaviour("sdk-type-checking-import", "a typed definition error that names function f, parameter x and the missing name")
def test_names_what_is_missing() -> None:
    with pytest.raises(ToolDefinitionError) as raised:
        run_module(TYPE_CHECKING_ONLY)
    for part in ("'f'", "'x'", "'Decimal'", "TYPE_CHECKING"):
        assert part in str(raised.value)
    assert "'y'" not in str(raised.value)


@behaviour("sdk-type-checking-import", "raised when the tool is defined, not at the first call")
def test_raised_at_definition() -> None:
    namespace: dict[str, object] = {"tool": tool, "__name__": "case"}
    with pytest.raises(ToolDefinitionError):
        exec(compile(textwrap.dedent(TYPE_CHECKING_ONLY), "case.py", "exec", dont_inherit=True), namespace)
    assert "reached" not in namespace
    assert "f" not in namespace


LOCAL_CLASS = """
    def make():
        from pydantic import BaseModel
        class P(BaseModel):
            x: int
        @tool
        def g(p: 'P', more: "list[P]" = ()) -> int:
            'G.'
            return p.x + sum(q.x for q in more)
        return g
"""


@behaviour("sdk-local-class-annotation", "works by looking in the enclosing frame, or gives the same clear error as above")
def test_local_class() -> None:
    made = run_module(LOCAL_CLASS)["make"]()
    assert made.parameters["properties"]["p"]["properties"] == {"x": {"type": "integer"}}
    assert made.parameters["required"] == ["p"]
    assert made.invoke('{"p":{"x":3},"more":[{"x":4}]}') == 7


def test_local_class_of_another_call_is_not_taken() -> None:
    """Only frames of the module that defines the tool are searched."""

    class Decimal:
        pass

    with pytest.raises(ToolDefinitionError, match="'Decimal'"):
        run_module(TYPE_CHECKING_ONLY)
    assert Decimal


def test_local_class_that_does_not_exist() -> None:
    with pytest.raises(ToolDefinitionError, match=r"tool 'g', parameter 'p': .*'Q'"):
        run_module(LOCAL_CLASS.replace("'P'", "'Q'"))["make"]()
