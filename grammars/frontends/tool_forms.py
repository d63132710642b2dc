"""The forms in which tools are given: our own, Pydantic models, and those that OpenAI, MCP, Anthropic and other libraries have.

Input: anything; output: its name and the JSON Schema of its arguments. Knows nothing of what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentkit.errors import InvalidGrammar

__all__ = ["described"]

_SCHEMAS = ("parameters", "inputSchema", "input_schema", "args_schema", "parameters_json_schema", "params_json_schema")
"""As OpenAI, MCP, Anthropic, LangChain, pydantic-ai and OpenAI's agents name it."""


def described(tool: Any) -> tuple[Any, Any]:
    """A tool's name and the JSON Schema of its arguments (None: there is none), in whichever of the usual forms it comes.

    Raises InvalidGrammar for two schemas that differ: dropping one of them would let through what it forbids.
    """
    if _is_model(tool):
        return tool.__name__, _schema(tool)
    if (accepted := getattr(tool, "accepted", None)) is not None:
        return getattr(tool, "name", None), accepted
    inner = tool.get("function") if isinstance(tool, Mapping) else None
    places = [_members(inner), _members(tool)] if isinstance(inner, Mapping) else [_members(tool)]
    name = next((found for member in places if (found := member("name")) is not None), None)
    schemas = [(key, _schema(found)) for member in places for key in _SCHEMAS if (found := member(key)) is not None]
    for key, schema in schemas[1:]:
        if schema != schemas[0][1]:
            raise InvalidGrammar(f"tool {name!r} has two schemas for its arguments that differ, {schemas[0][0]!r} and {key!r}: give one")
    return name, schemas[0][1] if schemas else None


def _members(place: Any) -> Callable[[str], Any]:
    """What `place` has under a name, None where it has nothing."""
    return place.get if isinstance(place, Mapping) else lambda key: getattr(place, key, None)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "model_json_schema")


def _schema(value: Any) -> Any:
    """A JSON Schema as it is, or that of a Pydantic model."""
    if not _is_model(value):
        return value
    from agentkit.grammars.frontends.pydantic import json_schema_of

    return json_schema_of(value, closed=True)
