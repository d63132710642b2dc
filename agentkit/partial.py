"""The partial form of a Pydantic model: what can be known of it while its JSON is still being written.

`Partial(Model)` is a model with the same fields, each optional and each nested model partial too. A field whose value has
not begun, or does not fit its type yet, is None; bounds and validators are left to the whole model, once there is one.
Models that refer to themselves are fine.
Input: a model class, or a prefix of JSON text. Knows nothing of streams.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Annotated, Any, ForwardRef, Self, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, create_model
from pydantic_core import from_json

__all__ = ["Partial", "PartialModel"]


class PartialModel(BaseModel):
    """Base of partial forms."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), defer_build=True)

    @classmethod
    def from_prefix(cls, text: str | bytes) -> Self:
        """What a prefix of a JSON object says so far; strings that are still open count as far as they go.

        Raises:
            ValueError: the text is not a prefix of JSON.
            pydantic.ValidationError: it is, but not of an object.
        """
        data = from_json(text, allow_partial="trailing-strings") if text.strip() else {}
        return cls.model_validate(data)


def _none_if_not_yet(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """A value that is still being written may not satisfy its type yet: it is not known, then."""
    try:
        return handler(value)
    except ValidationError:
        return None


@functools.lru_cache(maxsize=256)
def Partial(model: type[BaseModel]) -> type[PartialModel]:  # reads as the type it gives
    """The partial form of a model, the same object each time. Raises TypeError for what is no Pydantic model."""
    forms = _Forms()
    wanted = forms.name_of(_model(model))
    built: dict[str, type[PartialModel]] = {}
    while forms.pending:
        source, name = forms.pending.pop()
        built[name] = forms.build(source)
    for form in built.values():
        form.model_rebuild(_types_namespace=built)
    return built[wanted]


def _model(given: Any) -> type[BaseModel]:
    if not (isinstance(given, type) and issubclass(given, BaseModel)):
        raise TypeError(f"Partial takes a Pydantic model, not {given!r}")
    return given


class _Forms:
    """The models met on the way from one to all it refers to; each gets a name, by which forms refer to each other before they exist."""

    def __init__(self) -> None:
        self._names: dict[type[BaseModel], str] = {}
        self.pending: list[tuple[type[BaseModel], str]] = []

    def name_of(self, model: type[BaseModel]) -> str:
        if model not in self._names:
            self._names[model] = f"Partial{len(self._names)}"
            self.pending.append((model, self._names[model]))
        return self._names[model]

    def build(self, model: type[BaseModel]) -> type[PartialModel]:
        fields: dict[str, Any] = {}
        model.model_rebuild()  # does nothing where the model is complete
        for name, info in model.model_fields.items():
            partial: Any = Union[self._partial(info.annotation), None]  # noqa: UP007  # may be a ForwardRef
            fields[name] = (Annotated[partial, WrapValidator(_none_if_not_yet)], Field(default=None, validation_alias=info.validation_alias))
        return create_model(f"Partial{model.__name__}", __base__=PartialModel, __module__=model.__module__, **fields)

    def _partial(self, hint: Any) -> Any:
        """The same type with each model in it replaced by a reference to its partial form."""
        if isinstance(hint, type) and not typing.get_args(hint) and issubclass(hint, BaseModel):
            return ForwardRef(self.name_of(hint))
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if not arguments or origin is typing.Literal:
            return hint
        if origin is Annotated:
            return self._partial(arguments[0])
        parts = tuple(argument if argument is Ellipsis else self._partial(argument) for argument in arguments)
        if origin in (Union, types.UnionType):
            return Union[parts]  # noqa: UP007  # the members are only known now
        return origin[parts] if parts != arguments else hint
