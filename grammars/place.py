"""Where a text stands in a device's tables, and the 64 bits that stand for such a place. Knows nothing of grammars or of how tables are made."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Place", "key_of"]


class Place(NamedTuple):
    """Where a text stands: the head, and the frames below it, the deepest first."""

    head: int
    frames: tuple[int, ...] = ()


_SIGN = 1 << 63


def _signed(value: int) -> int:
    return ((value + _SIGN) & (2 * _SIGN - 1)) - _SIGN


def _mixed(value: int) -> int:
    """splitmix64 (Steele et al., OOPSLA 2014) on signed numbers, with arithmetic shifts, so that every array library has it."""
    value = _signed((value ^ (value >> 30)) * -4658895280553007687)
    value = _signed((value ^ (value >> 27)) * -7723592293110705685)
    return value ^ (value >> 31)


def key_of(place: Place) -> int:
    """64 bits that stand for a place, as the kernels compute them; never 0."""
    key = _mixed(_signed(place.head + 1))
    for height, frame in enumerate(place.frames):
        key += _mixed(_signed((frame + 1) * 4294967296 + height))
    return _signed(key) or 1
