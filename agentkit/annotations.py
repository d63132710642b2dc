"""Annotations of a callable, resolved to types where the callable is defined.

Handles `from __future__ import annotations`, names only imported for type checking (an error naming them), classes local to
an enclosing function (looked up in closures, then in the calling frames) and PEP 695 type parameters.
Input: a callable and its signature. Output: types by parameter name. Knows nothing of schemas.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentkit.errors import ToolDefinitionError

__all__ = ["innermost", "resolve_annotations"]


def innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function under partials, bound methods and `functools.wraps` layers; the `__call__` or `__init__` of an object or class."""
    seen: Any = function
    while True:
        if isinstance(seen, functools.partial):
            seen = seen.func
        elif hasattr(seen, "__wrapped__"):
            seen = seen.__wrapped__
        elif inspect.ismethod(seen):
            seen = seen.__func__
        elif inspect.isclass(seen):
            seen = seen.__init__
        else:
            call = getattr(type(seen), "__call__", None)  # noqa: B004  # the function itself is wanted, not whether there is one
            return typing.cast(Callable[..., Any], seen if inspect.isroutine(seen) or not inspect.isfunction(call) else call)


def resolve_annotations(function: Callable[..., Any], signature: inspect.Signature, name: str) -> dict[str, Any]:
    """Types of the parameters; Any where there is no annotation.

    Args:
        function: the callable; its module, closure and the frames that are running now are searched for names.
        name: the tool's name, for errors.

    Raises:
        ToolDefinitionError: an annotation cannot be evaluated; names the function, the parameter and what is missing.
    """
    source = innermost(function)
    scopes = _Scopes(source)
    resolved: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        resolved[parameter.name] = Any if annotation is inspect.Parameter.empty else _resolve(annotation, scopes, name, parameter.name)
    return resolved


class _Scopes:
    """Where names in annotations are looked up: module globals, type parameters, closure, then the frames of the callers."""

    def __init__(self, source: Callable[..., Any]) -> None:
        self.module: dict[str, Any] = getattr(source, "__globals__", {})
        self.closure: dict[str, Any] = {parameter.__name__: parameter for parameter in getattr(source, "__type_params__", ())}
        code, cells = getattr(source, "__code__", None), getattr(source, "__closure__", None) or ()
        for cell_name, cell in zip(code.co_freevars if code else (), cells, strict=True):
            try:
                self.closure[cell_name] = cell.cell_contents
            except ValueError:  # assigned later in the enclosing function: not known yet
                continue

    def locals(self) -> Iterator[Mapping[str, Any]]:
        """Closure alone first; then, one frame further out at a time, the locals of callers in the same module."""
        yield self.closure
        seen: dict[str, Any] = dict(self.closure)
        frame = sys._getframe(1)
        caller: types.FrameType | None = frame
        while caller is not None:
            if caller.f_globals is self.module and caller.f_locals is not self.module:
                seen = {**caller.f_locals, **seen}
                yield seen
            caller = caller.f_back


def _resolve(annotation: Any, scopes: _Scopes, name: str, parameter: str) -> Any:
    where = f"tool {name!r}, parameter {parameter!r}"
    failure: Exception | None = None
    for local_names in scopes.locals():
        holder = types.SimpleNamespace(__annotations__={parameter: annotation})
        try:
            return typing.get_type_hints(holder, scopes.module, dict(local_names), include_extras=True)[parameter]
        except NameError as error:
            failure = failure or error
        except Exception as error:  # evaluating a developer's annotation can raise anything; it becomes one typed error
            raise ToolDefinitionError(f"{where}: the annotation {annotation!r} cannot be evaluated: {type(error).__name__}: {error}") from error
    missing = getattr(failure, "name", None) or str(failure)
    raise ToolDefinitionError(
        f"{where}: the annotation {annotation!r} uses the name {missing!r}, which cannot be found where the tool is defined. "
        f"Import {missing!r} at run time (not only under TYPE_CHECKING), and define it before the tool."
    ) from failure
