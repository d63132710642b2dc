"""Checks of the values that callers give: numbers within bounds, yes or no. Knows nothing of what they mean."""

from __future__ import annotations

import math
import numbers
import operator
from dataclasses import fields
from typing import Any


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


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False, hint: str = "") -> None:
    """Checks `low <= value <= high` (`low <` with `open_low`); bools and NaN are not numbers. Raises ValueError."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or value > high or (open_low and value == low):
        left = "(" if open_low else "["
        bounds = f"{left}{low:g}, {high:g}]" if math.isfinite(high) else f"{'> ' if open_low else '>= '}{low:g}"
        raise ValueError(f"{name} must be a number in {bounds}, not {value!r}" + (f"; {hint}" if hint else ""))


def integer(name: str, value: Any, low: int, high: int | None = None, *, hint: str = "") -> None:
    """Checks `low <= value <= high`; bools are not integers. Raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be an integer {bounds}, not {value!r}" + (f"; {hint}" if hint else ""))


def flag(name: str, value: Any) -> None:
    """Raises ValueError for anything but True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
