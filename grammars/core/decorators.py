"""How the functions of this package are compiled: the decorators, and the types that kernels take.

`@kernel(types of its arguments)` is what Python calls; `@inner` is a part of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import types

from agentkit.grammars.jit import COMPILED, part
from agentkit.grammars.kernel_module import KernelModule
from agentkit.grammars.linking import with_one_signature

__all__ = ["BYTES", "GRAMMARS", "INT", "INTS", "LONGS", "OUT_BYTES", "ROW", "ROWS", "inner", "kernel"]

INT, INTS, LONGS = types.int64, types.int32[::1], types.int64[::1]
BYTES, OUT_BYTES = types.Array(types.uint8, 1, "C", readonly=True), types.uint8[::1]
ROW, ROWS = types.uint32[::1], types.uint32[:, ::1]

GRAMMARS = KernelModule("grammars", Path(__file__).parent)
kernel = GRAMMARS.entry


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only kernels call; its integers are int64."""
    made: Callable[..., Any] = with_one_signature(part(function)) if COMPILED else function
    return made
