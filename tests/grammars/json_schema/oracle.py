"""What the tests of this folder share: verdicts of the slow reference matcher on a compiled schema.

`takes(schema, text)`: does the compiled language hold the text?  `check(schema, good, bad)`: both lists of texts, told apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import jsonschema

from agentkit.grammars import Grammar
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars import reference


def language(schema: Any, **options: Any) -> reference.Reference:
    make = compile_schema if isinstance(schema, (dict, bool)) else Grammar.from_pydantic
    return reference.Reference(make(schema, **options).program)


def takes(schema: Any, text: str, **options: Any) -> bool:
    return reference.accepts(language(schema, **options), text.encode("utf-8", "surrogatepass"))


def check(schema: Any, good: Iterable[str], bad: Iterable[str], **options: Any) -> None:
    """Every text of `good` is in the language, none of `bad` is."""
    known = language(schema, **options)
    refused = [t for t in good if not reference.accepts(known, t.encode("utf-8", "surrogatepass"))]
    taken = [t for t in bad if reference.accepts(known, t.encode("utf-8", "surrogatepass"))]
    assert (refused, taken) == ([], []), "(wrongly refused, wrongly accepted)"


def dump(value: Any) -> str:
    """The canonical compact spelling."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _exact(value: float) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def _multiple_of(validator: Any, step: float, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "number") and _exact(instance) % _exact(step):
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {step}")


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "string") and not re.search(_python(pattern), instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _python(pattern: str) -> str:
    """An ECMA-262 pattern without classes of its own as Python's `re` has it: `$` is the very end, digits and letters are ASCII."""
    return pattern.replace("$", r"\Z").replace(r"\d", "[0-9]").replace(r"\w", "[A-Za-z0-9_]")


Exact = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": _multiple_of, "pattern": _pattern})
"""The jsonschema package's validator with multipleOf on exact decimals and patterns as ECMA-262 reads them."""
