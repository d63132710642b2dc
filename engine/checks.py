"""Checks of the values that callers give, of engines, agents and runs alike: numbers within bounds, yes or no. Knows nothing of what they mean.

Numbers of other libraries count as numbers; each check gives the plain value back, or raises InvalidOption, which is a ValueError.
"""

from __future__ import annotations

import inspect
import math
import numbers
import operator
from dataclasses import fields
from typing import Any

from agentkit.errors import InvalidOption

SEED_BITS = 64


def plain_numbers(options: Any) -> None:
    """Numbers of other libraries (numpy.int64, numpy.float32) among the fields of a frozen dataclass become int and float."""
    for each in fields(options):
        value = plain(getattr(options, each.name))
        object.__setattr__(options, each.name, value)


def plain(value: Any) -> Any:
    """An int for whatever counts as an integer, a float for other real numbers; anything else as it is."""
    if isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__index__"):
        try:
            return operator.index(value)
        except TypeError:  # numpy.bool, arrays
            return value
    return float(value) if isinstance(value, numbers.Real) else value


def number(name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, hint: str = "") -> float:
    """Checks `low <= value <= high` (`low <` with `open_low`); bools and NaN are not numbers."""
    given = plain(value)
    good = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not good or given < low or given > high or (open_low and given == low):
        left = "(" if open_low else "["
        bounds = f"in {left}{low:g}, {high:g}]" if math.isfinite(high) else f"{'>' if open_low else '>='} {low:g}"
        raise _refused(name, f"a number {bounds}", value, hint)
    return float(given)


def integer(name: str, value: Any, low: int, high: int | None = None, *, hint: str = "") -> int:
    """Checks `low <= value <= high`; bools are not integers."""
    given = plain(value)
    if not isinstance(given, int) or isinstance(given, bool) or given < low or (high is not None and given > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise _refused(name, f"an integer {bounds}", value, hint)
    return given


def flag(name: str, value: Any, *, hint: str = "") -> bool:
    """For anything but True and False an error."""
    if not isinstance(value, bool):
        raise _refused(name, "True or False", value, hint)
    return value


def listener(name: str, value: Any) -> None:
    """A listener is None or a function that can be called where it is: an async one, or a generator, would never run."""
    if value is None:
        return
    if not callable(value):
        raise _refused(name, "a function of one event, or None", value)
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(kind(each) for kind in kinds for each in (value, getattr(type(value), "__call__", None))):  # noqa: B004  # the method itself is wanted
        raise _refused(name, "a plain function of one event", value, "an async function or generator would never run; iterate over astream(...) instead")


def check_seed(seed: Any) -> None:
    """A seed is None or any signed or unsigned 64-bit integer."""
    if seed is not None:
        integer("seed", seed, -(1 << (SEED_BITS - 1)), (1 << SEED_BITS) - 1, hint="any 64-bit integer will do, or None for a fresh one")


def _refused(name: str, wanted: str, value: Any, hint: str = "") -> InvalidOption:
    return InvalidOption(f"{name} must be {wanted}, not {value!r}" + (f"; {hint}" if hint else ""))
