"""The twenty questions over twelve tools of the tool-call set: its tools as Pydantic models, its file, and the score.

Input: a `prompts.json` with `tools` (name, description, parameters) and `messages`. The models have no bodies: their calls are
validated and returned, not run. Each call is judged three times: valid under the file's own schema (by jsonschema, not by what
generated it), the right tool, the right arguments. Knows nothing of engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from agentkit.demo.expected import EXPECTED, matches
from agentkit.demo.run import Record
from agentkit.tool import Tool

__all__ = ["INSTRUCTIONS", "QuestionSet", "Verdict", "find_prompts", "judge", "load"]

INSTRUCTIONS = (
    "Answer every user message with exactly one function call. Today is Monday 2026-11-30 and the time zone of the user is Europe/Berlin. "
    "Write dates as YYYY-MM-DD and times as HH:MM in 24 hour form. Leave out optional arguments that the user did not mention. "
    "Copy names, addresses, paths and numbers from the message exactly as the user wrote them. Never invent an address or a path."
)

_FILE = Path("shared", "toolcall", "prompts.json")


@dataclass(frozen=True)
class QuestionSet:
    """Tools and questions of a file. schemas: name of a tool -> the schema of its arguments, as the file has it."""

    tools: tuple[Tool[..., Any], ...]
    schemas: Mapping[str, Mapping[str, Any]]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What a record is worth. valid: there is one call and its arguments satisfy the file's schema."""

    valid: bool
    tool: bool
    arguments: bool


def find_prompts() -> Path | None:
    """`shared/toolcall/prompts.json` beside the project or beside the working folder; None if it is not there."""
    beside = (Path(__file__).resolve().parents[3], Path.cwd().parent)
    return next((folder / _FILE for folder in beside if (folder / _FILE).is_file()), None)


def load(path: Path) -> QuestionSet:
    """Reads a question set.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a question set, or a schema uses what this reader does not know; says what.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schemas = {tool["name"]: tool["parameters"] for tool in data["tools"]}
        tools: tuple[Tool[..., Any], ...] = tuple(Tool(model_of(tool["name"], tool["parameters"], tool["description"])) for tool in data["tools"])
        return QuestionSet(tools, schemas, tuple(data["messages"]))
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a question set: {type(error).__name__}: {error}; it needs tools (name, description, parameters) and messages"
        ) from error


def model_of(name: str, schema: Mapping[str, Any], description: str = "") -> type[BaseModel]:
    """A closed object schema as a Pydantic model whose own schema says the same.

    Raises:
        ValueError: a keyword or type that is not among those of the set.
    """
    required = schema.get("required", ())
    if schema.get("additionalProperties") is not False:
        raise ValueError(f"{name}: additionalProperties must be false")
    fields: dict[str, Any] = {}
    for key, part in schema["properties"].items():
        kind = _type_of(f"{name}.{key}", part)
        fields[key] = (kind, ...) if key in required else (kind, Field(default=None, json_schema_extra=_without_default))
    return cast("type[BaseModel]", create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=description, **fields))


def _without_default(schema: dict[str, Any]) -> None:
    """None stands for "left out"; the schema must not offer null."""
    del schema["default"]


_KNOWN = {
    "string": {"type", "maxLength", "enum"},
    "integer": {"type", "minimum", "maximum"},
    "boolean": {"type"},
    "array": {"type", "items", "maxItems"},
    "object": {"type", "properties", "required", "additionalProperties"},
}


def _type_of(where: str, schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if kind not in _KNOWN:
        raise ValueError(f"{where}: the type {kind!r} is not among those of the set: {', '.join(_KNOWN)}")
    unknown = sorted(schema.keys() - _KNOWN[kind])
    if unknown:
        raise ValueError(f"{where}: the keyword {unknown[0]!r} is not among those of the set for the type {kind!r}: {', '.join(sorted(_KNOWN[kind]))}")
    if "enum" in schema:
        return cast(Any, Literal)[tuple(schema["enum"])]
    if kind == "string":
        return Annotated[str, Field(max_length=schema.get("maxLength"))]
    if kind == "integer":
        return Annotated[int, Field(ge=schema.get("minimum"), le=schema.get("maximum"))]
    if kind == "array":
        return Annotated[cast(Any, list)[_type_of(f"{where}[]", schema["items"])], Field(max_length=schema.get("maxItems"))]
    return bool if kind == "boolean" else model_of(where.replace(".", "_"), schema)


def judge(record: Record, number: int, schemas: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Judges the call of question `number` (from 0)."""
    from jsonschema import Draft202012Validator

    if len(record.calls) != 1 or record.error:
        return Verdict(False, False, False)
    call, expected = record.calls[0], EXPECTED[number]
    arguments = json.loads(call.arguments_json)
    valid = Draft202012Validator(dict(schemas[call.name])).is_valid(arguments)
    tool = call.name == expected.tool
    return Verdict(valid, tool, tool and matches(expected.arguments, arguments))
