"""Checks of the numbers among the options of agents, runs and limits.

Each gives the value back, or raises InvalidOption with the option's name, what was given and what is possible. Knows
nothing of what the options mean.
"""

from __future__ import annotations

import math
from typing import Any

from agentkit.errors import InvalidOption

__all__ = ["integer", "number"]


def integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An int within the bounds; True is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOption(f"{name} is {value!r}; it must be an integer")
    if value < least or (most is not None and value > most):
        raise InvalidOption(f"{name} is {value}; it must be at least {least}" + ("" if most is None else f" and at most {most}"))
    return value


def number(name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False) -> float:
    """A finite number within the bounds; `above`: greater than the lower one."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < least or value > most or (above and value == least):
        bounds = f"{'above' if above else 'at least'} {least:g}" + (f" and at most {most:g}" if math.isfinite(most) else "")
        raise InvalidOption(f"{name} is {value!r}; it must be a number, {bounds}")
    return float(value)
