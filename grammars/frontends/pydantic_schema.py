"""Pydantic's JSON Schema, as narrow and as wide as Pydantic's validation.

Input: core schemas; output: JSON Schemas. Where Pydantic's own generator lets through texts that validation refuses (keys
of dicts, addresses with a scheme, discriminators left to their default) or leaves out texts that it writes itself (times
without an offset), the schema is made to say what validation checks: what is generated is validated afterwards. Checks
that are Python code (validators, PathType, AfterValidator ...) cannot be read and are left to validation. Knows nothing of
how a schema becomes a grammar.
"""

from __future__ import annotations

import datetime
import enum
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

DECIMAL_DIGITS = 20  # before and after the point of a Decimal in a string, unless its type says less
INTEGER_KEY = r"^(0|-?[1-9]\d{0,18})$"
NATURAL_KEY = r"^(0|[1-9]\d{0,18})$"
FLOAT_KEY = r"^-?(0|[1-9]\d{0,19})(\.\d{1,20})?(e[+-]?\d{1,2})?$"

_WITHOUT_KEYS = frozenset({"tuple", "list", "set", "frozenset", "dict", "model", "dataclass", "typed-dict"})


class ReadableSchema(GenerateJsonSchema):
    """Pydantic's schema, without types for which it writes one although no JSON ever satisfies their validation."""

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Members of an enum are found by value only where they are strings or integers themselves."""
        lost = [e for e in schema["expected"] if isinstance(e, enum.Enum) and not isinstance(e, str | int)]
        if lost and self.mode == "validation":
            owner = type(lost[0]).__name__
            return self.handle_invalid_for_json_schema(
                schema, f"Literal[{lost[0]}], which no JSON value equals; make it class {owner}(str, Enum) or an IntEnum"
            )
        return super().literal_schema(schema)

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, f"type[{schema['cls'].__name__}]: a class is not a JSON value")

    def union_schema(self, schema: core_schema.UnionSchema) -> JsonSchemaValue:
        return self._with_a_choice(super().union_schema(schema), schema)

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        return self._with_a_choice(super().tagged_union_schema(schema), schema)

    def _with_a_choice(self, made: JsonSchemaValue, schema: core_schema.CoreSchema) -> JsonSchemaValue:
        """Choices that have no schema are skipped; one must be left."""
        if [] in (made.get("anyOf"), made.get("oneOf")):
            return self.handle_invalid_for_json_schema(schema, "a union of which no member has a JSON form that validates, such as literals of a plain Enum")
        return made


class ValidatedSchema(ReadableSchema):
    """Pydantic's schema with what validation checks, where a schema can say it."""

    # ------------------------------------------------------------------ containers
    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Keys that the key type refuses are not allowed."""
        made = super().dict_schema(schema)
        keys = schema.get("keys_schema")
        if self.mode != "validation" or keys is None:
            return made
        if "patternProperties" in made:
            made.setdefault("additionalProperties", False)
            return made
        names = _key_names(keys)
        if names is not None:
            made["propertyNames"] = names
        return made

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """The discriminator is needed even where its field has a default. One that is a function cannot be read."""
        made = super().tagged_union_schema(schema)
        if self.mode == "validation" and "oneOf" in made:
            tag = made.get("discriminator", {}).get("propertyName")
            if tag is None or not isinstance(schema["discriminator"], str):
                made["anyOf"] = made.pop("oneOf")
            else:
                made["required"] = [tag]
        return made

    # ------------------------------------------------------------------ scalars
    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        """An offset is optional unless the type says more."""
        made = super().datetime_schema(schema)
        aware = schema.get("tz_constraint")
        if self.mode == "validation" and aware != "aware":
            made["format"] = "naive-datetime" if aware == "naive" else "datetime"
        return made

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        made = super().time_schema(schema)
        aware = schema.get("tz_constraint")
        if self.mode == "validation" and aware != "aware":
            made["format"] = "naive-clock" if aware == "naive" else "clock"
        return made

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        """Negative ones and fractions of a second, as Pydantic writes them."""
        made = super().timedelta_schema(schema)
        if self.mode == "validation" and made.get("format") == "duration":
            made["format"] = "timedelta"
        return made

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        """Bounds are kept; "past" and "future" as of now."""
        made = super().date_schema(schema)
        if self.mode != "validation":
            return made
        patterns = [_from(d) for d in _bounds(schema, "ge", "gt", 1)] + [_to(d) for d in _bounds(schema, "le", "lt", -1)]
        today = datetime.datetime.now(datetime.UTC).date()
        if schema.get("now_op") == "future":
            patterns.append(_from(today + datetime.timedelta(days=1)))
        elif schema.get("now_op") == "past":
            patterns.append(_to(today - datetime.timedelta(days=1)))
        return {**made, "allOf": [{"pattern": p} for p in patterns]} if patterns else made

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        return self._address(super().url_schema(schema), schema, "url")

    def multi_host_url_schema(self, schema: core_schema.MultiHostUrlSchema) -> JsonSchemaValue:
        return self._address(super().multi_host_url_schema(schema), schema, "multi-host-url")

    def _address(self, made: JsonSchemaValue, schema: Any, name: str) -> JsonSchemaValue:
        """The schemes that the type allows are part of the format."""
        schemes = schema.get("allowed_schemes")
        if self.mode == "validation" and schemes:
            made["format"] = f"{name}({','.join(schemes)})"
        return made

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Lengths count bytes: where there is an upper one, text is ASCII."""
        made = super().bytes_schema(schema)
        if self.mode == "validation" and made.get("format") == "binary":
            if self._config.val_json_bytes == "hex":
                made = {"type": "string", "pattern": "^([0-9A-Fa-f]{2})*$"}
            elif schema.get("max_length") is not None:
                made["pattern"] = r"^[\x00-\x7f]*$"
        return made

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A number, or a string that holds one: with the same counts of digits, and the same bounds where these are about the sign."""
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
        positive = bounds in ({"gt": 0}, {"ge": 0})
        text: JsonSchemaValue = {"type": "string", "pattern": _decimal_pattern(digits, places, "[+]?" if positive else "[+-]?")}
        if "gt" in bounds:
            text["allOf"] = [{"pattern": "[1-9]"}]
        if bounds and not positive:
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


def _key_names(keys: Any) -> JsonSchemaValue | bool | None:
    """What the names of a dict's keys are, if Pydantic's own schema says too little; False: there can be none."""
    kind = keys["type"]
    if kind in ("function-before", "function-after", "function-wrap", "default"):
        return _key_names(keys["schema"])
    if kind == "int":
        least = max(keys.get("ge", -1), keys.get("gt", -2) + 1)
        return {"pattern": NATURAL_KEY if least >= 0 else INTEGER_KEY, **({"not": {"const": "0"}} if least > 0 else {})}
    if kind == "float":
        return {"pattern": FLOAT_KEY}
    if kind == "decimal":
        return {"pattern": _decimal_pattern(keys.get("max_digits"), keys.get("decimal_places"))}
    if kind == "bool":
        return {"enum": ["true", "false"]}
    if kind == "enum" and not all(isinstance(m.value, str) for m in keys["members"]):
        return {"enum": [str(m.value) for m in keys["members"] if _names_itself(m, keys.get("sub_type"))]}
    return False if kind in _WITHOUT_KEYS else None


def _names_itself(member: enum.Enum, sub_type: str | None) -> bool:
    return isinstance(member.value, str) or (sub_type == "int" and isinstance(member.value, int))


def _bounds(schema: Any, inclusive: str, exclusive: str, inward: int) -> list[datetime.date]:
    """The bounds of one side, each as the last date that it allows."""
    found = [schema[inclusive]] if schema.get(inclusive) is not None else []
    if schema.get(exclusive) is not None:
        found.append(schema[exclusive] + datetime.timedelta(days=inward))
    return found


def _from(first: datetime.date) -> str:
    """A pattern of dates not before `first`: texts of one length are ordered as their dates."""
    text = first.isoformat()
    later = [rf"{text[:i]}[{int(c) + 1}-9]" for i, c in enumerate(text) if c.isdigit() and c != "9"]
    return f"^({'|'.join([*later, text])})"


def _to(last: datetime.date) -> str:
    text = last.isoformat()
    earlier = [rf"{text[:i]}[0-{int(c) - 1}]" for i, c in enumerate(text) if c.isdigit() and c != "0"]
    return f"^({'|'.join([*earlier, text])})"


def _decimal_pattern(digits: int | None, places: int | None, sign: str = "[+-]?") -> str:
    """Plain decimals of at most `digits` digits, `places` of them after the point."""
    if digits is None:
        after = DECIMAL_DIGITS if places is None else places
        return rf"^{sign}\d{{1,{DECIMAL_DIGITS}}}" + (rf"(\.\d{{1,{after}}})?$" if after else "$")
    forms = []
    for whole in range(digits + 1):
        after = min(digits - whole, digits if places is None else places)
        head = "0" if whole == 0 else rf"[1-9]\d{{{whole - 1}}}"
        if whole <= digits - (places or 0):
            forms.append(head + (rf"(\.\d{{1,{after}}})?" if after else ""))
    return f"^{sign}(" + "|".join(forms) + ")$"
