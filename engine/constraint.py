"""What an output must look like, and the Python value it stands for.

Inputs: one of schema (a dict, bool, Pydantic model or any type), regex, grammar (a Grammar, Lark or GBNF text) and choices.
This module knows nothing of models, tokens or requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from agentkit.grammars import Grammar

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.M)


@dataclass(frozen=True)
class Constraint:
    """A grammar and how to read its texts. `parse` may raise what a Pydantic validator of the caller's own raises."""

    grammar: Grammar
    parse: Callable[[str], Any] | None = None


def resolve(schema: Any = None, regex: str | None = None, grammar: Grammar | str | None = None, choices: Sequence[str] | None = None) -> Constraint | None:
    """The constraint that was asked for, or None. Value: parsed JSON (an instance where schema is a type); with choices the text.

    Raises ValueError if more than one is given, TypeError for something that is none of these, and GrammarError from the compiler.
    """
    given = [name for name, value in (("schema", schema), ("regex", regex), ("grammar", grammar), ("choices", choices)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} were given; an output has one constraint, so choose one (or combine them in one grammar)")
    if schema is not None:
        return _from_schema(schema)
    if regex is not None:
        return Constraint(Grammar.from_regex(_text("regex", regex)))
    if choices is not None:
        if isinstance(choices, str):
            raise TypeError(f"choices must be a sequence of strings, not the string {choices!r}")
        return Constraint(Grammar.from_choices(list(choices)), str)
    if grammar is not None:
        return Constraint(grammar if isinstance(grammar, Grammar) else _from_text(_text("grammar", grammar)))
    return None


def _from_text(text: str) -> Grammar:
    """A GBNF text has a line that begins with `name ::=`, which no Lark text has."""
    return Grammar.from_gbnf(text) if _GBNF_RULE.search(text) else Grammar.from_lark(text)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a {'Grammar or a ' if name == 'grammar' else ''}string, not {type(value).__name__}")
    return value


def _from_schema(schema: Any) -> Constraint:
    if isinstance(schema, dict | bool):
        return Constraint(Grammar.from_json_schema(schema, plain_integers=True), json.loads)
    if isinstance(schema, str):
        raise TypeError("schema must be a dict, a Pydantic model or a type; parse JSON text with json.loads first")
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return Constraint(Grammar.from_pydantic(schema, closed=True), schema.model_validate_json)
    return Constraint(Grammar.from_pydantic(schema, closed=True), _adapter(schema).validate_json)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    if isinstance(annotation, TypeAdapter):
        return annotation
    try:
        return _cached_adapter(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return TypeAdapter(annotation)


@lru_cache(maxsize=256)
def _cached_adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)
