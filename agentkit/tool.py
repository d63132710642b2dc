"""Tools: Python callables and Pydantic models that a model may call.

Input: a function, method, partial, callable object or Pydantic model. Output: a `Tool` with a name, a description, the JSON
Schema of its arguments, and a way to validate arguments and call. Everything that can be wrong with a declaration is
raised here, when the tool is defined, as ToolDefinitionError.
Knows nothing of models, prompts or runs.
"""

from __future__ import annotations

import copy
import functools
import inspect
import numbers
import re
import types
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, cast, overload

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import to_json
from typing_extensions import ParamSpec

from agentkit.annotations import innermost
from agentkit.docstrings import Description, describe
from agentkit.engine.checks import flag, integer, number
from agentkit.errors import InvalidOption, ToolDefinitionError, ToolError, did_you_mean
from agentkit.schema import JSONSchema, json_schema_of
from agentkit.signature import CallPlan, call_plan

__all__ = ["Tool", "as_tool", "result_text", "tool", "validation_message"]

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(Generic[P, R]):
    """Something a model may call.

    A tool made from a function is still called like that function, and in a class body it binds like a method.
    A tool made from a Pydantic model has no body: its validated instance is what a run returns.

    Args:
        target: the callable or model.
        name: what the model calls it; default: the function's or class's own name. Must match ^[a-zA-Z0-9_-]{1,64}$.
        description: shown to the model; default: from the docstring.
        timeout: seconds one run may take; None: no limit.
        retries: how often in a row the model may fail with this tool; None: the agent's number.
        approval: each run must be approved first (see Agent(approve=...)).

    Attributes:
        arguments: the Pydantic model of the arguments.
        parameters: its JSON Schema (type "object"), under the parameters' own names.
        accepted: the same as a grammar enforces it, saying what Pydantic's validation checks beyond the JSON Schema it writes.
        has_body: False for a Pydantic model.

    Raises:
        ToolDefinitionError: a bad name, or arguments that cannot be described; names the tool and the parameter.
    """

    arguments: type[BaseModel]

    def __init__(
        self,
        target: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        approval: bool = False,
    ) -> None:
        self.function, self._binds_to = _unwrapped(target)
        self.name = _checked_name(name if name is not None else _derived_name(self.function), self.function)
        self.timeout, self.retries, self.approval = _checked_options(self.name, timeout, retries, approval)
        self.has_body = not (inspect.isclass(self.function) and issubclass(self.function, BaseModel))
        self._plan: CallPlan | None = None
        text = self._read_function() if self.has_body else self._read_model()
        self.description = text.text if description is None else _checked_description(self.name, description)
        self.parameters = self._schema(text.parameters)
        if not inspect.isclass(self.function):
            functools.update_wrapper(cast(Any, self), self.function, updated=())
            if inspect.iscoroutinefunction(innermost(self.function)) and hasattr(inspect, "markcoroutinefunction"):
                inspect.markcoroutinefunction(self)

    def _read_model(self) -> Description:
        self.arguments = self.function
        return describe(self.function.__doc__, self.function.model_fields.keys(), owner=f"tool {self.name!r}")

    def _read_function(self) -> Description:
        inner = innermost(self.function)
        if inspect.isasyncgenfunction(inner):
            raise ToolDefinitionError(f"tool {self.name!r} is an async generator; return a value (a list, for instance) instead of yielding")
        code = getattr(inner, "__code__", None)
        names: tuple[str, ...] = code.co_varnames if code is not None else ()
        docstring = inspect.getdoc(self.function) if inspect.isclass(self.function) else inner.__doc__
        text = describe(docstring, names, owner=f"tool {self.name!r}")
        self._plan = call_plan(self.function, self.name, text.parameters, skip_first=self.unbound)
        self.arguments = self._plan.arguments
        return text

    @cached_property
    def accepted(self) -> JSONSchema:
        """See the class."""
        return json_schema_of(self.arguments, exact=True)

    def _schema(self, descriptions: Mapping[str, str]) -> JSONSchema:
        try:
            schema = self._plan.schema if self._plan is not None else json_schema_of(self.arguments)
        except PydanticUserError as error:
            raise ToolDefinitionError(f"tool {self.name!r}: {self.arguments.__name__} has no JSON Schema: {error}") from error
        if schema.get("type") != "object":
            kind = schema.get("type", "a choice")
            what = f"arguments must form an object, but {self.arguments.__name__} is {kind!r}"
            raise ToolDefinitionError(f"tool {self.name!r}: {what}; make it a field of a model")
        schema.pop("description", None)
        for key, property_schema in schema.get("properties", {}).items():
            if key in descriptions and isinstance(property_schema, dict):
                property_schema.setdefault("description", descriptions[key])
        return schema

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))

    @overload
    def __get__(self, instance: None, owner: type) -> Tool[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Tool[..., R]:
        to = owner if self._binds_to == "class" else instance
        return self if self._binds_to is None or to is None else self.bind(to)

    def bind(self, instance: object) -> Tool[..., R]:
        """This method, bound to an object (what attribute access does)."""
        bound = copy.copy(self)
        bound.function, bound._binds_to = types.MethodType(self.function, instance), None
        return cast("Tool[..., R]", bound)

    @property
    def unbound(self) -> bool:
        """A method that has not been taken from an object yet; it cannot be given to an agent."""
        return self._binds_to is not None

    @property
    def is_async(self) -> bool:
        """Runs on the event loop; anything else runs in a thread."""
        call = getattr(type(self.function), "__call__", None)  # noqa: B004  # the function itself is wanted, not whether there is one
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def validate(self, arguments: str | bytes | Mapping[str, Any] | None) -> BaseModel:
        """Arguments as a validated instance of `self.arguments`. None and "" mean no arguments; text is JSON.

        Raises:
            pydantic.ValidationError: see `validation_message`.
        """
        if arguments is None or (isinstance(arguments, str | bytes) and not arguments.strip()):
            arguments = {}
        if isinstance(arguments, str | bytes):
            return self.arguments.model_validate_json(arguments)
        return self.arguments.model_validate(dict(arguments))

    def invoke(self, arguments: BaseModel | str | bytes | Mapping[str, Any] | None = None, context: Any = None) -> Any:
        """Validates the arguments and calls the function here and now (an async one gives its coroutine).

        Raises:
            pydantic.ValidationError: the arguments are not valid.
            ToolError: this tool has no body, or is an unbound method.
        """
        if self._plan is None:
            raise ToolError(f"tool {self.name!r} is a Pydantic model: it has no body to run; validate() gives its instance")
        self.check_bound()
        validated = arguments if isinstance(arguments, BaseModel) else self.validate(arguments)
        positional, keywords = self._plan.bind(validated, context)
        return self.function(*positional, **keywords)

    def check_bound(self) -> None:
        """Raises ToolDefinitionError for a method without its object."""
        if self.unbound:
            where, method = self.function.__qualname__, self.function.__name__
            raise ToolDefinitionError(f"tool {self.name!r} is the method {where} without its object; take it from an instance: instance.{method}")

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, parameters={list(self.parameters.get('properties', {}))})"


@overload
def tool(target: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None, retries: int | None = None, approval: bool = False
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(target: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a tool of a function or Pydantic model: `@tool`, or `@tool(name=, description=, timeout=, retries=, approval=)`. See Tool.

    Raises:
        ToolDefinitionError: an option that does not exist, and what Tool raises.
    """
    known = ("name", "description", "timeout", "retries", "approval")
    unknown = next((option for option in options if option not in known), None)
    if unknown is not None:
        raise ToolDefinitionError(f"@tool has no option {unknown!r}.{did_you_mean(unknown, known)} The options are {', '.join(known)}")
    if isinstance(target, str):
        raise ToolDefinitionError(f"@tool({target!r}): options go by name; write @tool(name={target!r})")
    return functools.partial(Tool, **options) if target is None else Tool(target, **options)


def as_tool(target: Tool[..., Any] | Callable[..., Any]) -> Tool[..., Any]:
    """The tool itself, or a tool made of a plain callable or model; a method without its object is refused."""
    made = target if isinstance(target, Tool) else Tool(target)
    made.check_bound()
    return made


def result_text(value: Any, tool_name: str) -> str:
    """What the model is shown of a result: a string as it is, anything else as JSON (models by alias, dates in ISO form, views as lists).

    Raises:
        ToolError: the value has no JSON form; names the tool.
    """
    if isinstance(value, str):
        text = value
    else:
        try:
            text = to_json(value, by_alias=True, inf_nan_mode="strings", fallback=_plain).decode()
        except (ValueError, TypeError, RecursionError) as error:  # PydanticSerializationError is a ValueError
            what = f"tool {tool_name!r} returned {type(value).__name__} {value!r:.80}"
            raise ToolError(f"{what}, which cannot be turned into JSON: {error}; return JSON types, dataclasses or Pydantic models") from error
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"tool {tool_name!r} returned text with a lone surrogate at {error.start}, which has no UTF-8 form; return valid Unicode") from error
    return text


def _plain(value: Any) -> Any:
    """Kin of lists, dicts and numbers as these: a range, a dict's views, numpy's scalars."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | Set | ValuesView) and not isinstance(value, memoryview):
        return list(value)
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def validation_message(error: ValidationError) -> str:
    """A validation error as one line for each problem, naming the field; for the model to read."""
    lines = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(step) for step in problem["loc"])
        lines.append(f"{where}: {problem['msg']}" if where else problem["msg"])
    return "\n".join(lines)


def _unwrapped(target: Any) -> tuple[Any, Literal["instance", "class"] | None]:
    """(the callable or model to use, what it must still be bound to)."""
    if isinstance(target, Tool):
        return target.function, target._binds_to
    if isinstance(target, types.MethodType) and isinstance(target.__func__, Tool):  # a classmethod over @tool, Python 3.13
        return types.MethodType(target.__func__.function, target.__self__), None
    if isinstance(target, staticmethod):
        return target.__func__, None
    if isinstance(target, classmethod):
        return target.__func__, "class"
    if not callable(target):
        raise ToolDefinitionError(f"{target!r} cannot be a tool: it is neither callable nor a Pydantic model")
    return target, "instance" if inspect.isfunction(target) and _is_method(target) else None


def _is_method(function: types.FunctionType) -> bool:
    """Defined in a class body with a first parameter `self` or `cls`."""
    scope = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if not scope or scope.endswith("<locals>") or first is None:
        return False
    return first.name in ("self", "cls") and first.annotation is inspect.Parameter.empty


def _derived_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _checked_name(name: Any, function: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        owner = getattr(function, "__qualname__", type(function).__name__)
        raise ToolDefinitionError(f"the tool name {name!r} (of {owner}) is not allowed: 1 to 64 of the characters a-z A-Z 0-9 _ -; give name=")
    return name


def _checked_description(name: str, description: Any) -> str:
    if not isinstance(description, str):
        raise ToolDefinitionError(f"tool {name!r}: description is {description!r}; give text")
    return description


def _checked_options(name: str, timeout: Any, retries: Any, approval: Any) -> tuple[float | None, int | None, bool]:
    try:
        seconds = None if timeout is None else number("timeout", timeout, 0.0, open_low=True, hint="seconds, or None for no limit")
        tries = None if retries is None else integer("retries", retries, 0, hint="or None for the agent's")
        return seconds, tries, flag("approval", approval, hint="who approves is approve= of the Agent")
    except InvalidOption as error:
        raise ToolDefinitionError(f"tool {name!r}: {error}") from error
