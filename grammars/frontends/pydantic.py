"""The JSON Schemas of Pydantic models and Python types, from which their grammars are made.

Input: a BaseModel subclass, or anything TypeAdapter takes (dataclasses, TypedDict, Annotated, unions, enums,
Literal ...). What the schema says beyond Pydantic's own is in pydantic_schema.py. Knows nothing of how a schema becomes a
grammar.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError

from agentkit.errors import InvalidGrammar
from agentkit.grammars.frontends.pydantic_schema import ClosedSchema, ValidatedSchema


def json_schema_of(model: Any, *, mode: Literal["validation", "serialization"] = "validation", by_alias: bool = True, closed: bool = False) -> dict[str, Any]:
    """The JSON Schema of a model or type, as Pydantic makes it but for what ValidatedSchema (closed: ClosedSchema) narrows.

    Raises InvalidGrammar when Pydantic cannot express the type, naming the reason.
    """
    generator = ClosedSchema if closed else ValidatedSchema
    try:
        if isinstance(model, type) and issubclass(model, BaseModel):
            return model.model_json_schema(by_alias=by_alias, mode=mode, schema_generator=generator)
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        return adapter.json_schema(by_alias=by_alias, mode=mode, schema_generator=generator)
    except (PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError) as e:
        raise InvalidGrammar(f"{_name(model)} has no JSON Schema: {e}") from e


def _name(model: Any) -> str:
    return getattr(model, "__name__", None) or repr(model)
