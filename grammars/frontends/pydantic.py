"""Pydantic models and Python types as grammars, by way of the JSON Schema that Pydantic makes of them.

Input: a BaseModel subclass, or anything TypeAdapter takes (dataclasses, TypedDict, Annotated, unions, enums,
Literal ...). Knows nothing of how a schema becomes a grammar.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema

from agentkit.errors import InvalidGrammar
from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.json_schema import CompiledSchema, compile_schema
from agentkit.grammars.frontends.json_schema.emit import KeyOrder, Whitespace


def json_schema_of(model: Any, *, mode: Literal["validation", "serialization"] = "validation", by_alias: bool = True) -> dict[str, Any]:
    """The JSON Schema of a model or type, as Pydantic makes it.

    Raises InvalidGrammar when Pydantic cannot express the type, naming the reason.
    """
    try:
        if isinstance(model, type) and issubclass(model, BaseModel):
            return model.model_json_schema(by_alias=by_alias, mode=mode, ref_template=DEFAULT_REF_TEMPLATE, schema_generator=GenerateJsonSchema)
        adapter = model if isinstance(model, TypeAdapter) else TypeAdapter(model)
        return adapter.json_schema(by_alias=by_alias, mode=mode)
    except (PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError) as e:
        raise InvalidGrammar(f"{_name(model)} has no JSON Schema: {e}") from e


def from_pydantic(
    model: Any,
    *,
    mode: Literal["validation", "serialization"] = "validation",
    by_alias: bool = True,
    whitespace: Whitespace = "compact",
    key_order: KeyOrder = "declared",
    builder: Builder | None = None,
) -> CompiledSchema:
    """The grammar of a Pydantic model or Python type.

    Args:
        model: BaseModel subclass, TypeAdapter, or any type that TypeAdapter takes.
        mode: "validation": what the model accepts; "serialization": what it writes.
        by_alias: keys are the fields' aliases where they have one.
        whitespace, key_order, builder: as for `compile_schema`.

    Raises InvalidGrammar when Pydantic has no JSON Schema for the type, and what `compile_schema` raises.
    """
    return compile_schema(json_schema_of(model, mode=mode, by_alias=by_alias), whitespace=whitespace, key_order=key_order, builder=builder)


def _name(model: Any) -> str:
    return getattr(model, "__name__", None) or repr(model)
