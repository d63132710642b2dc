"""Memory for what is read all through on every step: weights, keys and values of a CPU.

Begins where a large page begins, so that the system may back it with pages of 2 MB (numpy asks Linux for them): of small ones the
processor knows too few addresses at a time, and it does not fetch ahead from one into the next. A step of one token takes a tenth less.
What is never touched is not taken from the machine; what is, in pieces of up to 2 MB. Knows nothing of what is kept there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LARGE_PAGE = 2 << 20
_CACHE_LINE = 64


def large_array(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`size` bytes as they are found. Raises MemoryError."""
    border = _LARGE_PAGE if size >= 2 * _LARGE_PAGE else _CACHE_LINE
    room = np.empty(size + border, np.uint8)
    begin = -room.ctypes.data % border
    return room[begin : begin + size]
