"""How the grammar kernels are compiled: three decorators, and one cache folder keyed by all kernel sources.

numba caches a function by the time stamp of its own file and does not see that a function it calls has changed in
another one. So the cache folder's name holds a digest over every kernel source, numba's version and
Python's: a change anywhere starts a fresh folder and nothing stale is ever loaded. The kernels are serial, release
the GIL, and keep all their state in the arrays that are passed to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from numba import njit, types

ENTRY_POINTS = 12  # kernels that Python calls; each leaves one index file in the cache folder
CORE = Path(__file__).parent / "core"


def source_digest(folder: Path, extra: str = "") -> str:
    """Hex digest over the sources in `folder` and everything else that machine code depends on."""
    h = hashlib.blake2b(digest_size=8)
    for path in (*sorted(folder.glob("*.py")), Path(__file__)):
        h.update(path.read_bytes())
    h.update(repr((numba.__version__, sys.version_info[:3], extra)).encode())
    return h.hexdigest()


def cache_root() -> Path:
    """Folder for compiled kernels: AGENTKIT_CACHE if set, else the user's cache folder."""
    base = os.environ.get("AGENTKIT_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "agentkit")
    return Path(base) / "kernels"


@contextlib.contextmanager
def _cache_folder() -> Iterator[None]:
    # numba picks the folder when the decorator runs; the setting is global, so it is put back at once
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(_FOLDER)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


_FOLDER = cache_root() / f"grammars-{source_digest(CORE)}"


def kernels_cached() -> bool:
    """Have the kernels of these sources been compiled on this machine before?"""
    return len(list(_FOLDER.rglob("*.nbi"))) >= ENTRY_POINTS


def _one_signature(function: Any) -> Any:
    """Have calls from compiled code pass every integer as int64, so that each function is compiled once.

    Otherwise numba compiles a function again for each mixture of integer widths and literal arguments it is called with.
    """
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    resolve = function.get_call_template

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        plain = (types.unliteral(a) for a in args)  # type: ignore[no-untyped-call]
        return resolve(tuple(types.int64 if isinstance(a, types.Integer) else a for a in plain), kws)

    function.get_call_template = get_call_template
    return function


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry point for Python: compiled on first use, or loaded from the cache folder."""
    with _cache_folder():
        return _one_signature(njit(cache=True, nogil=True, boundscheck=False)(function))  # type: ignore[no-any-return]


def inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only kernels call: compiled into them, without a wrapper for Python and without a cache entry."""
    return _one_signature(njit(nogil=True, boundscheck=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))  # type: ignore[call-overload, no-any-return]


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a recursive kernel that calls it back: pasted into it, so that the recursion is the kernel's own.

    numba's cache loses the links between functions that call each other in a circle; a function that only calls
    itself is safe.
    """
    return _one_signature(njit(nogil=True, boundscheck=False, inline="always")(function))  # type: ignore[no-any-return]
