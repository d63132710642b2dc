"""The type of an agent's final answer: its schema for the model, and the way from text to a validated value.

`str` is free text; anything else is one JSON value. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError

from agentkit.errors import InvalidOption
from agentkit.grammars.frontends.pydantic import first_line, misfit
from agentkit.schema import JSONSchema, json_schema_of

__all__ = ["OutputSpec"]


class OutputSpec:
    """What a final answer must be.

    Args:
        type_: str (free text), a Pydantic model, any type Pydantic validates, or a list/tuple of alternatives.

    Attributes:
        schema: JSON Schema; None for free text.      accepted: as a grammar should enforce it.

    Raises:
        InvalidOption: the type has no JSON form.
    """

    def __init__(self, type_: Any) -> None:
        if isinstance(type_, Sequence) and not isinstance(type_, str | bytes):
            if not type_:
                raise InvalidOption("output_type is an empty list; give at least one type")
            for member in type_:
                _check_type(member)
            type_ = Union[tuple(type_)]  # noqa: UP007  # the members are only known now
        _check_type(type_)
        self.type = type_
        self.schema: JSONSchema | None = None
        self.accepted: JSONSchema | None = None
        self._adapter: TypeAdapter[Any] | None = None
        if type_ is str:
            return
        try:
            self._adapter = TypeAdapter(type_)
            self.schema, self.accepted = json_schema_of(self._adapter), json_schema_of(self._adapter, exact=True)
        except (PydanticUserError, PydanticSchemaGenerationError, SchemaError, TypeError, NameError) as error:
            raise InvalidOption(f"output_type {type_!r} has no JSON form: {first_line(error)}") from error

    def validate(self, text: str) -> Any:
        """The value of a final answer.

        Raises:
            pydantic.ValidationError: the text is not valid.
        """
        return text.strip() if self._adapter is None else self._adapter.validate_json(text.strip())


def _check_type(given: Any) -> None:
    if isinstance(given, dict):
        raise InvalidOption("output_type is a dict; give a type or a model; a JSON Schema goes to engine.generate(schema=...)")
    problem = misfit(given)
    if problem is not None:
        raise InvalidOption(f"output_type {problem}" + (", or pass it among the tools" if callable(given) else ""))
