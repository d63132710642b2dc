"""Random small schemas over every keyword that binds, and random values likely to sit on their boundaries.

Input: a `random.Random`; output: schemas and values small enough for the slow reference matcher. Recursion, references
and combinations of the logical keywords come up often; sizes stay tiny.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ("a", "b", "ab", "")
STRINGS = ("", "a", "b", "ab", "ba", "aab", "é", "12", "x y")
NUMBERS = (0, 1, 2, 3, -1, 1.5, 2.0, 10, 0.5, 0.3, 1e-05)
PATTERNS = ("^a", "b$", "a", "^[ab]+$", "^$")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def value(r: random.Random, depth: int = 2) -> Any:
    kind = r.randrange(7 if depth else 5)
    if kind == 0:
        return None
    if kind == 1:
        return r.random() < 0.5
    if kind == 2:
        return r.choice(NUMBERS)
    if kind in (3, 4):
        return r.choice(STRINGS)
    if kind == 5:
        return [value(r, depth - 1) for _ in range(r.randrange(4))]
    return {n: value(r, depth - 1) for n in r.sample(NAMES, r.randrange(len(NAMES)))}


class Maker:
    """Schemas with `defs` named definitions to refer to; `strings`: also patterns and lengths."""

    def __init__(self, r: random.Random, *, strings: bool = True) -> None:
        self.r = r
        self.strings = strings
        self.defs = ["d0", "d1"]

    def document(self) -> dict[str, Any]:
        schema = self.schema(3)
        if isinstance(schema, bool):
            schema = {"allOf": [schema]}
        return {**schema, "$defs": {name: self.schema(2) for name in self.defs}}

    def schema(self, depth: int) -> Any:
        r = self.r
        if r.random() < 0.06:
            return r.random() < 0.7
        out: dict[str, Any] = {}
        if r.random() < 0.5:
            out["type"] = r.choice(TYPES) if r.random() < 0.8 else r.sample(TYPES, 2)
        for _ in range(r.choice((1, 1, 2, 2, 3))):
            r.choice(self._makers(depth))(out, depth - 1)
        return out

    def _makers(self, depth: int) -> list[Callable[[dict[str, Any], int], None]]:
        flat = [self._number, self._value, self._value, *([self._string] * 2 if self.strings else [])]
        return flat if depth <= 0 else [*flat, self._array, self._array, self._object, self._object, self._object, self._logic, self._logic, self._reference]

    def _number(self, out: dict[str, Any], depth: int) -> None:
        keyword = self.r.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
        out[keyword] = self.r.choice((1, 2, 0.5, 3, 0.1)) if keyword == "multipleOf" else self.r.choice(NUMBERS)

    def _string(self, out: dict[str, Any], depth: int) -> None:
        keyword = self.r.choice(("minLength", "maxLength", "pattern"))
        out[keyword] = self.r.choice(PATTERNS) if keyword == "pattern" else self.r.randrange(4)

    def _value(self, out: dict[str, Any], depth: int) -> None:
        if self.r.random() < 0.3:
            out["const"] = value(self.r)
        else:
            out["enum"] = [value(self.r, 1) for _ in range(self.r.randrange(1, 5))]

    def _array(self, out: dict[str, Any], depth: int) -> None:
        r = self.r
        keyword = r.choice(("prefixItems", "items", "minItems", "maxItems", "contains", "unevaluatedItems"))
        if keyword == "prefixItems":
            out[keyword] = [self.schema(depth) for _ in range(r.randrange(1, 3))]
        elif keyword == "contains":
            out[keyword] = self.schema(depth)
            if r.random() < 0.5:
                out[r.choice(("minContains", "maxContains"))] = r.randrange(3)
        else:
            out[keyword] = r.randrange(4) if keyword in ("minItems", "maxItems") else self.schema(depth)

    def _object(self, out: dict[str, Any], depth: int) -> None:
        r = self.r
        keyword = r.choice(("properties", "properties", "additionalProperties", "required", "minProperties", "maxProperties", "unevaluatedProperties", "names"))
        if keyword == "properties":
            out[keyword] = {n: self.schema(depth) for n in r.sample(NAMES, r.randrange(1, 3))}
        elif keyword == "required":
            out[keyword] = r.sample(NAMES, r.randrange(3))
        elif keyword == "names":
            if self.strings:
                out["patternProperties"] = {p: self.schema(depth) for p in r.sample(PATTERNS, r.randrange(1, 3))}
                if r.random() < 0.3:
                    out["propertyNames"] = self.schema(0)
        else:
            out[keyword] = r.randrange(4) if keyword.endswith("nProperties") or keyword.startswith("max") else self.schema(depth)

    def _logic(self, out: dict[str, Any], depth: int) -> None:
        r = self.r
        keyword = r.choice(("allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas"))
        if keyword in ("allOf", "anyOf", "oneOf"):
            out[keyword] = [self.schema(depth) for _ in range(r.randrange(1, 4))]
        elif keyword == "not":
            out[keyword] = self.schema(depth)
        elif keyword == "if":
            out.update({k: self.schema(depth) for k in ("if", "then", "else") if k == "if" or r.random() < 0.7})
        elif keyword == "dependentRequired":
            out[keyword] = {r.choice(NAMES): r.sample(NAMES, r.randrange(3))}
        else:
            out[keyword] = {r.choice(NAMES): self.schema(depth)}

    def _reference(self, out: dict[str, Any], depth: int) -> None:
        out["$ref"] = "#" if self.r.random() < 0.2 else "#/$defs/" + self.r.choice(self.defs)
