"""How kernels are compiled one by one: two decorators, and one cache folder per library, keyed by all its sources.

numba caches a function by its own file and does not see that a function it calls has changed in another one. So the cache
folder's name holds a digest over every source of the library and the versions of numba, llvmlite and Python: a change anywhere
starts a fresh folder and nothing stale is ever loaded. Nothing in it depends on where the package is installed, so every environment
of a user shares it. Kernels release the GIL and keep all their state in the arrays that are passed to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba import njit
from numba.core import caching

from agentkit.cache_folder import cache_root
from agentkit.grammars import linking
from agentkit.grammars.linking import KernelCompiler, PartCompiler, as_part, with_one_signature

__all__ = ["COMPILED", "KEPT_DAYS", "KernelFolder", "KernelLibrary", "part"]

KEPT_DAYS = 30
COMPILED: bool = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""False with NUMBA_DISABLE_JIT=1: then kernels are the Python functions that they are written as."""


class KernelFolder:
    """Where the compiled kernels of one package lie, of these sources and no others.

    Args:
        name: begins the name of the cache folder.
        sources: folder whose Python files hold the kernels.
        *others: further files that the compiled code depends on.
    """

    def __init__(self, name: str, sources: Path, *others: Path) -> None:
        h = hashlib.blake2b(repr((numba.__version__, llvmlite.__version__, sys.version_info[:3])).encode(), digest_size=8)
        for path in (*sorted(sources.glob("*.py")), Path(__file__), Path(linking.__file__), *others):
            h.update(path.read_bytes())
        self.digest = h.hexdigest()
        self.folder = cache_root() / "kernels" / f"{name}-{self.digest}"

    def note_use(self) -> None:
        """Mark the cache folder as used today."""
        with contextlib.suppress(OSError):  # not there yet, or read-only: then nobody clears it either
            os.utime(self.folder)

    def clear_stale(self) -> None:
        """Remove the folders of other sources that nobody has used for KEPT_DAYS.

        A process that runs their kernels still has them in memory; what it loads later it compiles anew.
        """
        oldest = time.time() - KEPT_DAYS * 24 * 3600
        for folder in self.folder.parent.glob("*-" + 16 * "[0-9a-f]"):
            with contextlib.suppress(OSError):  # another process has removed it, or it is not ours to remove
                if folder != self.folder and folder.stat().st_mtime < oldest:
                    shutil.rmtree(folder)


class KernelLibrary(KernelFolder):
    """Kernels that are compiled one by one, each for the types that it is called with: see `KernelFolder`.

    For kernels of which a process needs some only, or for types that are known when it runs (what keys and values are held in).
    """

    def __init__(self, name: str, sources: Path) -> None:
        super().__init__(name, sources)
        self._entries: list[Any] = []

    def kernel(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """An entry point for Python: compiled on first use, or loaded from the cache folder. options: numba's own, such as parallel=True."""
        if not COMPILED:
            return function
        dispatcher: Any = with_one_signature(njit(nogil=True, boundscheck=False, pipeline_class=KernelCompiler, **options)(function))
        dispatcher._cache = _cache_in(self, function)
        self._entries.append(dispatcher)
        entry: Callable[..., Any] = dispatcher
        return entry

    def cached(self) -> bool:
        """Have all entry points that have been imported been compiled on this machine before?"""
        modules = [(k.py_func.__module__.rpartition(".")[2], k.py_func.__name__) for k in self._entries]
        return all(any(self.folder.glob(f"{module}.{name}-*.nbi")) for module, name in modules)


def _cache_in(library: KernelFolder, function: Callable[..., Any]) -> Any:
    """numba's cache of a function, in the library's folder and valid as long as that folder is."""

    class Locator(caching._CacheLocator):
        def __init__(self, py_func: Any, py_file: str) -> None:
            self._py_file, self._lineno = py_file, py_func.__code__.co_firstlineno

        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            return cls(py_func, py_file)

        def get_cache_path(self) -> str:
            return str(library.folder)

        def get_source_stamp(self) -> str:
            return library.digest

        def get_disambiguator(self) -> str:
            return str(self._lineno)

    class Implementation(caching.CompileResultCacheImpl):
        _locator_classes = [Locator]  # noqa: RUF012 - as numba declares it

    class Cache(caching.FunctionCache):
        _impl_class = Implementation

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            library.note_use()
            return super().load_overload(sig, target_context)

        def save_overload(self, sig: Any, data: Any) -> None:
            with contextlib.suppress(OSError):  # a read-only home or a full disk: each process compiles for itself
                super().save_overload(sig, data)
            library.clear_stale()

    return Cache(function)


def part(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that only kernels call. options: numba's own, such as fastmath."""
    if not COMPILED:
        return function
    without: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made: Callable[..., Any] = as_part(njit(nogil=True, boundscheck=False, pipeline_class=PartCompiler, **without, **options)(function))
    return made
