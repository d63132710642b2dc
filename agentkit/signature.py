"""A callable as one Pydantic model of its arguments, and the way back from an instance to a call.

Input: any callable (function, method, partial, object with `__call__`, class). Output: a `CallPlan`.
Rules: a parameter annotated `RunContext` is injected and left out; what a partial fixed is left out; `*rest: T` is an
optional array of T, `**extra: T` admits further keys with values T; a parameter the model leaves out is not passed at all,
so the function's own default applies, whatever it is.
Knows nothing of tool results, models or runs.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from agentkit.annotations import resolve_annotations
from agentkit.context import RunContext
from agentkit.errors import ToolDefinitionError
from agentkit.schema import JSONSchema, json_schema_of

__all__ = ["CallPlan", "ToolArguments", "call_plan"]


class ToolArguments(BaseModel):
    """Base of the argument models made from functions.

    Attributes have the parameters' names; where such a name is taken by Pydantic (`json`, `copy`, `_id`, ...) the attribute
    ends in an underscore instead (`json_`, `copy_`, `id_`), and `arguments["json"]` works for every parameter.
    `model_dump()` and the schema always use the parameters' own names.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), serialize_by_alias=True, arbitrary_types_allowed=False)

    def __getitem__(self, parameter: str) -> Any:
        for field_name, info in type(self).model_fields.items():
            if (info.alias or field_name) == parameter:
                return getattr(self, field_name)
        return (self.model_extra or {})[parameter]


_RESERVED = frozenset(dir(ToolArguments)) | {"model_config", "model_fields", "model_computed_fields"}


@dataclass(frozen=True)
class CallPlan:
    """How to call a function with validated arguments.

    arguments: the model. schema: its JSON Schema, with the parameters' own names.
    parameters: (parameter, field name in the model), in the order of the signature, injected one left out.
    context: name of the RunContext parameter, or None.
    """

    arguments: type[BaseModel]
    schema: JSONSchema
    parameters: tuple[tuple[Parameter, str], ...]
    context: str | None
    signature: inspect.Signature

    def bind(self, arguments: BaseModel, context: Any) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the call; parameters the model left out are not passed."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        field_of = {parameter.name: field_name for parameter, field_name in self.parameters}
        rest = next((name for p, name in self.parameters if p.kind is Parameter.VAR_POSITIONAL), None)
        spread = bool(rest and getattr(arguments, rest))  # then everything before *rest must be positional
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is Parameter.VAR_KEYWORD:
                keywords.update(arguments.model_extra or {})
            elif parameter.kind is Parameter.VAR_POSITIONAL:
                positional.extend(getattr(arguments, rest) if rest and spread else ())
            elif name == self.context or name in field_of:
                given, value = self._value(parameter, field_of.get(name), arguments, context)
                by_position = parameter.kind is Parameter.POSITIONAL_ONLY or (spread and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD)
                if by_position and (given or parameter.default is not Parameter.empty):
                    positional.append(value)
                elif given:
                    keywords[name] = value
        return positional, keywords

    def _value(self, parameter: Parameter, field_name: str | None, arguments: BaseModel, context: Any) -> tuple[bool, Any]:
        """(was it given, its value or default)."""
        if field_name is None:
            return True, context
        given = field_name in arguments.model_fields_set
        if given or parameter.default is Parameter.empty or (isinstance(parameter.default, FieldInfo) and not _is_absent(parameter.default)):
            return True, getattr(arguments, field_name)
        return False, parameter.default


def call_plan(function: Callable[..., Any], name: str, descriptions: Mapping[str, str], *, skip_first: bool = False) -> CallPlan:
    """The plan of a callable.

    Args:
        function: what will be called.
        name: of the tool, for errors and the model's name.
        descriptions: parameter name -> description, used where the annotation has none.
        skip_first: the first parameter is `self` or `cls` and not bound yet.

    Raises:
        ToolDefinitionError: no signature, a name that cannot be resolved, a type Pydantic cannot validate or describe.
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ToolDefinitionError(f"tool {name!r}: {function!r} has no signature that can be read: {error}; wrap it in a function with annotations") from error
    parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
    fixed = _fixed_keywords(function)
    signature = signature.replace(parameters=[p for p in parameters if p.name not in fixed])
    annotations = resolve_annotations(function, signature, name)
    signature, annotations = _unpack_typed_dict(signature, annotations)
    context = _context_parameter(annotations, name)
    shown = [p for p in signature.parameters.values() if p.name != context]
    return _build(name, shown, annotations, descriptions, context, signature)


def _fixed_keywords(function: Any) -> set[str]:
    fixed: set[str] = set()
    while isinstance(function, functools.partial):
        fixed |= function.keywords.keys()
        function = function.func
    return fixed


def _unpack_typed_dict(signature: inspect.Signature, annotations: dict[str, Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """PEP 692: `**options: Unpack[SomeTypedDict]` is that many keyword-only parameters."""
    last = next((p for p in signature.parameters.values() if p.kind is Parameter.VAR_KEYWORD), None)
    inner = typing.get_args(annotations[last.name]) if last else ()
    if last is None or len(inner) != 1 or not is_typeddict(inner[0]):
        return signature, annotations
    hints = typing.get_type_hints(inner[0], include_extras=True)
    parameters = [p for p in signature.parameters.values() if p is not last]
    for key, hint in hints.items():
        marker = typing.get_origin(hint)  # __required_keys__ misses markers in annotations that are strings
        required = marker is typing.Required or (marker is not typing.NotRequired and key in inner[0].__required_keys__)
        if marker in (typing.Required, typing.NotRequired):
            hint = typing.get_args(hint)[0]
        annotations = {**annotations, key: hint}
        default = Parameter.empty if required else Field(default=None, json_schema_extra=_without_default)
        parameters.append(Parameter(key, Parameter.KEYWORD_ONLY, default=default))
    return signature.replace(parameters=parameters), annotations


def _is_absent(default: FieldInfo) -> bool:
    return default.json_schema_extra is _without_default


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _context_parameter(annotations: Mapping[str, Any], name: str) -> str | None:
    found = [key for key, hint in annotations.items() if _is_context(hint)]
    if len(found) > 1:
        raise ToolDefinitionError(f"tool {name!r}: the parameters {found} are all annotated RunContext; keep one")
    return found[0] if found else None


def _is_context(hint: Any) -> bool:
    """RunContext, RunContext[Deps], and either of them under Annotated or Optional."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated or origin in (typing.Union, types.UnionType):
        return any(map(_is_context, typing.get_args(hint)))
    return hint is RunContext or origin is RunContext


def _build(
    name: str, shown: list[Parameter], annotations: Mapping[str, Any], descriptions: Mapping[str, str], context: str | None, signature: inspect.Signature
) -> CallPlan:
    fields: dict[str, Any] = {}
    plan: list[tuple[Parameter, str]] = []
    base: type[ToolArguments] = ToolArguments
    taken = {parameter.name for parameter in shown}
    for parameter in shown:
        hint = annotations[parameter.name]
        if parameter.kind is Parameter.VAR_KEYWORD:
            base = _open_base(hint)
            continue
        field_name = _field_name(parameter.name, taken)
        taken.add(field_name)
        fields[field_name] = _field(parameter, field_name, hint, _annotated_description(hint) or descriptions.get(parameter.name))
        plan.append((parameter, field_name))
    try:
        model = create_model(f"{name}_arguments", __base__=base, __module__=__name__, **fields)
        schema = json_schema_of(model)
    except (PydanticUserError, PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError, NameError) as error:
        raise _definition_error(name, shown, annotations, error) from error
    return CallPlan(model, schema, tuple(plan), context, signature)


def _open_base(hint: Any) -> type[ToolArguments]:
    """A base that admits further keys with values of `hint`."""

    def body(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = {"__pydantic_extra__": dict[str, hint]}
        namespace["__module__"] = __name__
        namespace["model_config"] = ConfigDict(extra="allow")

    return typing.cast(type[ToolArguments], types.new_class("OpenToolArguments", (ToolArguments,), {}, body))


def _field_name(parameter: str, taken: set[str]) -> str:
    """An attribute name that Pydantic allows: the parameter's own wherever possible."""
    if not parameter.startswith("_") and parameter not in _RESERVED:
        return parameter
    candidate = (parameter.lstrip("_") or "blank") + "_"
    while candidate in taken or candidate in _RESERVED:
        candidate += "_"
    return candidate


def _field(parameter: Parameter, field_name: str, hint: Any, description: str | None) -> tuple[Any, Any]:
    options: dict[str, Any] = {} if field_name == parameter.name else {"alias": parameter.name}
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[hint], Field(default_factory=list, description=description, **options)
    if isinstance(parameter.default, FieldInfo):
        if description and not parameter.default.description and not _has_description(hint):
            options["description"] = description
        return (typing.Annotated[hint, Field(**options)] if options else hint), parameter.default
    if description and not _has_description(hint):
        options["description"] = description
    if parameter.default is not Parameter.empty:
        default = parameter.default
        return hint, Field(default_factory=lambda: default, **options) if default is Ellipsis else Field(default, **options)
    return hint, Field(**options)


def _has_description(hint: Any) -> bool:
    if typing.get_origin(hint) is not typing.Annotated:
        return False
    return any(isinstance(item, FieldInfo) and item.description for item in hint.__metadata__)


def _annotated_description(hint: Any) -> str | None:
    """What `Annotated[T, "text"]` or `Annotated[T, Doc("text")]` (PEP 727) says; a Field's description comes before both."""
    if typing.get_origin(hint) is not typing.Annotated:
        return None
    documentation = (getattr(item, "documentation", item) for item in hint.__metadata__)
    return next((text for text in documentation if isinstance(text, str)), None)


def _definition_error(name: str, shown: list[Parameter], annotations: Mapping[str, Any], error: Exception) -> ToolDefinitionError:
    """Names the parameter that is responsible, found by trying each alone."""
    for parameter in shown:
        try:
            json_schema_of(annotations[parameter.name])
        except (PydanticUserError, PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError, NameError) as own:
            missing = getattr(own, "name", None)
            detail = f"the name {missing!r} cannot be found where the tool is defined" if missing else str(own).split("\n\n")[0].splitlines()[0]
            return ToolDefinitionError(
                f"tool {name!r}, parameter {parameter.name!r}: the type {annotations[parameter.name]!r} cannot become an argument: {detail}. "
                "Use types that have a JSON form (scalars, containers, Pydantic models, dataclasses, enums)."
            )
    return ToolDefinitionError(f"tool {name!r}: the arguments cannot become one model: {error}")
