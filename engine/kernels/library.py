"""How the engine's kernels are compiled: one library in the kernel cache, and whether this machine can run them.

Kernels release the GIL and never allocate Python objects. `inner` functions may fuse a product with a sum, but never reorder sums: what
a row yields depends on nothing beside it. Infinities and NaN keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from agentkit.grammars.jit import COMPILED, KernelLibrary, part

ENGINE = KernelLibrary("engine", Path(__file__).parent)
kernel = ENGINE.kernel


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only kernels call."""
    return part(function, fastmath={"contract"})


@cache
def supported() -> bool:
    """Can this processor run the kernels fast? They are written for registers of eight floats and fused multiply-adds."""
    if not COMPILED:
        return False
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("avx2", "fma", "f16c"))
