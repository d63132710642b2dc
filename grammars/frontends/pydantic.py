"""The JSON Schemas of Pydantic models and Python types, from which their grammars are made.

Input: a BaseModel subclass, or anything TypeAdapter takes (dataclasses, TypedDict, Annotated, unions, enums,
Literal ...). What the schema says beyond Pydantic's own is in pydantic_schema.py. Knows nothing of how a schema becomes a
grammar.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError

from agentkit.errors import InvalidGrammar
from agentkit.grammars.frontends.pydantic_schema import ClosedSchema, ValidatedSchema

_TYPES_OF_TYPES = frozenset({"types", "typing", "typing_extensions"})  # where the classes of `int | None`, `list[int]`, `Literal[1]` ... are


def json_schema_of(model: Any, *, mode: Literal["validation", "serialization"] = "validation", by_alias: bool = True, closed: bool = False) -> dict[str, Any]:
    """The JSON Schema of a model or type, as Pydantic makes it but for what ValidatedSchema (closed: ClosedSchema) narrows.

    Raises InvalidGrammar when Pydantic cannot express the type, naming the reason.
    """
    problem = None if isinstance(model, TypeAdapter) else misfit(model)
    if problem is not None:
        raise InvalidGrammar(f"the schema {problem}")
    generator = ClosedSchema if closed else ValidatedSchema
    try:
        if isinstance(model, type) and issubclass(model, BaseModel):
            return model.model_json_schema(by_alias=by_alias, mode=mode, schema_generator=generator)
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        return adapter.json_schema(by_alias=by_alias, mode=mode, schema_generator=generator)
    except (PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError, SchemaError) as e:
        raise InvalidGrammar(f"{_name(model)} has no JSON Schema: {first_line(e)}") from e


def misfit(value: Any) -> str | None:
    """What is wrong with something that is given for a type, to go after its name; None for a type."""
    if value is None or isinstance(value, type) or type(value).__module__ in _TYPES_OF_TYPES:
        return None
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        return f"is the function {getattr(value, '__name__', repr(value))}; give a type"
    if isinstance(value, list | tuple) and value and not any(map(misfit, value)):
        return f"is a {type(value).__name__} of types; write alternatives as a union, such as int | str"
    return f"is an instance of {type(value).__name__}; give the class or type itself, not an instance"


def first_line(error: Exception) -> str:
    """Pydantic's message without its links and advice."""
    return str(error).strip().partition("\n")[0]


def _name(model: Any) -> str:
    return getattr(model, "__name__", None) or repr(model)
