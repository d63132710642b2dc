"""The forms in which tools are given: our own, Pydantic models, and the dicts that OpenAI, MCP and Anthropic have.

Input: anything; output: its name and the JSON Schema of its arguments. Knows nothing of what becomes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["described"]

_SCHEMAS = ("parameters", "inputSchema", "input_schema")  # as OpenAI, MCP and Anthropic name it


def described(tool: Any) -> tuple[Any, Any]:
    """A tool's name and the JSON Schema of its arguments (None: there is none), in whichever of the usual forms it comes."""
    if isinstance(tool, type) and hasattr(tool, "model_json_schema"):
        from agentkit.grammars.frontends.pydantic import json_schema_of

        return tool.__name__, json_schema_of(tool, closed=True)
    if isinstance(tool, Mapping):
        inner = tool.get("function")
        get = (inner if isinstance(inner, Mapping) else tool).get
        return get("name"), next((found for key in _SCHEMAS if (found := get(key)) is not None), None)
    return getattr(tool, "name", None), next((found for key in ("accepted", *_SCHEMAS) if (found := getattr(tool, key, None)) is not None), None)
