"""The JSON Schemas of Pydantic models and Python types, from which their grammars are made.

Input: a BaseModel subclass, or anything TypeAdapter takes (dataclasses, TypedDict, Annotated, unions, enums,
Literal ...). Where Pydantic's schema lets through texts that its validation refuses (the strings of Decimal, keys of
dicts), the schema is made to say what validation checks, since what is generated is validated afterwards. Knows nothing
of how a schema becomes a grammar.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from agentkit.errors import InvalidGrammar

DECIMAL_DIGITS = 20  # before and after the point of a Decimal in a string, unless its type says less
INTEGER_KEY = r"^(0|-?[1-9]\d{0,18})$"


class ValidatedSchema(GenerateJsonSchema):
    """Pydantic's schema, as narrow as its validation where that is cheap to say."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Keys that the key type refuses are not allowed."""
        made = super().dict_schema(schema)
        keys = schema.get("keys_schema")
        if self.mode != "validation" or keys is None:
            return made
        if "patternProperties" in made:
            made.setdefault("additionalProperties", False)
        elif keys["type"] == "int" and "propertyNames" not in made:
            made["propertyNames"] = {"pattern": INTEGER_KEY}
        return made

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number, or a string that holds one; bounds are kept by the number alone, counts of digits by both."""
        if self.mode != "validation":
            return super().decimal_schema(schema)
        bounds = {k: v for k in ("multiple_of", "le", "ge", "lt", "gt") if (v := schema.get(k)) is not None}
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        number: JsonSchemaValue = super().decimal_schema(schema)["anyOf"][0]
        if places is not None:
            number = {"allOf": [number, {"multipleOf": float(f"1e-{places}")}]} if places else {**number, "type": "integer"}
        if digits is not None:
            limit = 10 ** (digits - (places or 0))
            number = {"allOf": [number, {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}]}
        text = {"type": "string", "pattern": _decimal_pattern(digits, places)}
        if bounds:
            return number if digits is None or places is not None else {"allOf": [number, {"type": "integer"}]}
        return text if digits is not None and places is None else {"anyOf": [number, text]}


class ClosedSchema(ValidatedSchema):
    """The same with objects closed to undeclared keys unless their class asks for extras: Pydantic would drop them."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    if schema.get("type") == "object":
        schema.setdefault("additionalProperties", False)
    return schema


def _decimal_pattern(digits: int | None, places: int | None) -> str:
    """Plain decimals of at most `digits` digits, `places` of them after the point."""
    if digits is None:
        after = DECIMAL_DIGITS if places is None else places
        return rf"^[+-]?\d{{1,{DECIMAL_DIGITS}}}" + (rf"(\.\d{{1,{after}}})?$" if after else "$")
    forms = []
    for whole in range(digits + 1):
        after = min(digits - whole, digits if places is None else places)
        head = "0" if whole == 0 else rf"[1-9]\d{{{whole - 1}}}"
        if whole <= digits - (places or 0):
            forms.append(head + (rf"(\.\d{{1,{after}}})?" if after else ""))
    return "^[+-]?(" + "|".join(forms) + ")$"


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
