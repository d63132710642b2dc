"""The keywords of JSON Schema: which draft knows which, what they apply to, and whether a value is well-formed.

Input: single keywords with their values. Malformed ones raise InvalidGrammar with the JSON pointer of the keyword.
This module knows nothing of references or of the languages that keywords describe.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from agentkit.errors import GrammarTooComplex, InvalidGrammar
from agentkit.grammars.frontends.numbers import MAX_BOUND_DIGITS

MAX_BITS = 10 * MAX_BOUND_DIGITS // 3

DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020 = range(5)

REFERENCE, TYPE, VALUES, NUMBER, STRING, ARRAY, OBJECT, LOGIC, UNEVALUATED = (1 << i for i in range(9))

_TABLE: dict[str, tuple[int, int, int]] = {  # keyword: (group, first draft, last draft)
    "$ref": (REFERENCE, DRAFT_4, DRAFT_2020),
    "$recursiveRef": (REFERENCE, DRAFT_2019, DRAFT_2019),
    "$dynamicRef": (REFERENCE, DRAFT_2020, DRAFT_2020),
    "type": (TYPE, DRAFT_4, DRAFT_2020),
    "enum": (VALUES, DRAFT_4, DRAFT_2020),
    "const": (VALUES, DRAFT_6, DRAFT_2020),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), (NUMBER, DRAFT_4, DRAFT_2020)),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), (STRING, DRAFT_4, DRAFT_2020)),
    "prefixItems": (ARRAY, DRAFT_2020, DRAFT_2020),
    **dict.fromkeys(("items", "minItems", "maxItems", "uniqueItems"), (ARRAY, DRAFT_4, DRAFT_2020)),
    "additionalItems": (ARRAY, DRAFT_4, DRAFT_2019),
    "contains": (ARRAY, DRAFT_6, DRAFT_2020),
    **dict.fromkeys(("minContains", "maxContains"), (ARRAY, DRAFT_2019, DRAFT_2020)),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"), (OBJECT, DRAFT_4, DRAFT_2020)),
    "propertyNames": (OBJECT, DRAFT_6, DRAFT_2020),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "dependencies"), (LOGIC, DRAFT_4, DRAFT_2020)),
    **dict.fromkeys(("if", "then", "else"), (LOGIC, DRAFT_7, DRAFT_2020)),
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), (LOGIC, DRAFT_2019, DRAFT_2020)),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), (UNEVALUATED, DRAFT_2019, DRAFT_2020)),
}

SUBSCHEMAS = frozenset(
    {
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items", "prefixItems", "additionalItems", "contains"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
    }
)
KEYED_SUBSCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
ANNOTATIONS = frozenset(
    {
        *_TABLE,  # those of other drafts
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$comment", "$defs", "definitions"),
        *("example", "nullable", "discriminator", "xml", "externalDocs"),  # OpenAPI
    }
)
"""Names that are spelled right, whether they bind or not."""
TYPES = ("null", "boolean", "number", "string", "array", "object")


def scope(draft: int, declared: bool) -> dict[str, int]:
    """keyword -> group, for the keywords that bind in a draft; a schema that names no draft gets all of them."""
    return _SCOPES[draft if declared else -1]


_SCOPES = {d: {k: g for k, (g, first, last) in _TABLE.items() if first <= d <= last} for d in range(5)}
_SCOPES[-1] = {k: g for k, (g, _, _) in _TABLE.items()}


def malformed(pointer: str, keyword: str, value: Any, wanted: str) -> InvalidGrammar:
    where = f"{pointer}/{keyword}"
    return InvalidGrammar(f"{where}: must be {wanted}, not {_short(value)}", pointer=where)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def count(schema: dict[str, Any], keyword: str, pointer: str) -> int | None:
    """A keyword that counts (minItems, maxLength ...): a non-negative integer, 2.0 being one."""
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise malformed(pointer, keyword, value, "a non-negative integer")
    return value


def number(value: Any, keyword: str, pointer: str) -> Fraction:
    """A finite number as the exact value of its shortest decimal spelling (0.1 is one tenth)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value in (float("inf"), float("-inf")):
        raise malformed(pointer, keyword, value, "a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise GrammarTooComplex("number digits", f"{pointer}/{keyword}: a number of more than {MAX_BOUND_DIGITS} digits")
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def subschema(value: Any, keyword: str, pointer: str) -> Any:
    if not isinstance(value, (dict, bool)):
        raise malformed(pointer, keyword, value, "a schema (an object, true or false)")
    return value


def subschemas(value: Any, keyword: str, pointer: str, *, empty: bool = False) -> list[Any]:
    """The members of allOf, prefixItems ...: a list of schemas, not empty unless said so."""
    if not isinstance(value, list) or (not value and not empty):
        raise malformed(pointer, keyword, value, "a list of schemas" if empty else "a non-empty list of schemas")
    for i, member in enumerate(value):
        subschema(member, f"{keyword}/{i}", pointer)
    return value


def named_subschemas(value: Any, keyword: str, pointer: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise malformed(pointer, keyword, value, "an object of schemas")
    for name, member in value.items():
        if not isinstance(name, str):
            raise malformed(pointer, keyword, value, "an object whose names are strings")
        if not isinstance(member, (dict, bool)):
            subschema(member, f"{keyword}/{name}", pointer)
    return value


def names(value: Any, keyword: str, pointer: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(n, str) for n in value):
        raise malformed(pointer, keyword, value, "a list of property names")
    return value


def type_names(value: Any, pointer: str) -> list[str]:
    """`type` as a list, each name known."""
    listed = value if isinstance(value, list) else [value]
    for name in listed:
        if not isinstance(name, str) or (name not in TYPES and name != "integer"):
            raise malformed(pointer, "type", value, "one of null, boolean, integer, number, string, array, object or a list of them")
    if not listed:
        raise malformed(pointer, "type", value, "at least one type")
    return listed
