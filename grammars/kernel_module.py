"""Kernels whose argument types are known, compiled together: one module of machine code, one file in the cache folder.

What several kernels call is translated, optimised and loaded once; kernels compiled one by one (`jit.KernelLibrary`) would each hold
a copy of it. The file is made by the first process that calls one of the kernels, and read by all later ones; it holds for one kind of
processor. It is unpickled, like the files of numba's own cache: a cache folder is as trusted as the code. Knows nothing of what the
kernels do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba import njit
from numba.core import serialize
from numba.core.compiler import Flags, compile_extra, compile_result
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment

from agentkit.grammars.jit import COMPILED, KernelFolder
from agentkit.grammars.linking import KernelCompiler, KernelsTogether

__all__ = ["KernelModule"]

_CHECKSUM = 16  # bytes in front of the file's content


class KernelModule(KernelFolder):
    """A library of kernels that are compiled all at once, when the first of them is called.

    Calls with other types than declared are converted where numba does so without loss (an int32, an array that may be
    written where one is only read); else they are a TypeError. Nothing is ever compiled for them.
    """

    def __init__(self, name: str, sources: Path) -> None:
        super().__init__(name, sources, Path(__file__))
        self._kernels: list[tuple[Any, tuple[Any, ...]]] = []
        self._loaded = False

    def entry(self, *types: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates an entry point for Python. types: numba's, of its arguments."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not COMPILED:
                return function
            dispatcher: Any = njit(nogil=True, boundscheck=False)(function)
            dispatcher.compile = partial(self._entry_point, dispatcher)
            self._kernels.append((dispatcher, types))
            entry: Callable[..., Any] = dispatcher
            return entry

        return decorate

    def cached(self) -> bool:
        """Have they been compiled on this machine before?"""
        return not self._kernels or self._path.exists()

    @property
    def _target(self) -> Any:
        return self._kernels[0][0].targetctx

    @property
    def _path(self) -> Path:
        processor = hashlib.blake2b(repr(self._target.codegen().magic_tuple()).encode(), digest_size=8)
        return self.folder / f"kernels-{processor.hexdigest()}.bin"

    def _entry_point(self, dispatcher: Any, given: tuple[Any, ...]) -> Any:
        """What numba calls where a dispatcher has no code for arguments of the types `given`."""
        with global_compiler_lock:
            if not self._loaded:
                self._target.refresh()
                content = self._read()
                if content is None:
                    content = self._compiled()
                    self._write(content)
                    self.clear_stale()
                self._install(*content)
                self._loaded = True
        (result,) = dispatcher.overloads.values()
        for number, (type_, declared) in enumerate(zip(given, result.signature.args, strict=True)):
            if type_ != declared and dispatcher.typingctx.can_convert(type_, declared) is None:
                raise TypeError(f"{dispatcher.py_func.__name__}: argument {number} is {type_}, and has to be {declared}")
        return result.entry_point

    def _compiled(self) -> tuple[Any, ...]:
        """The machine code, and by kernel what numba needs in order to call it."""
        codegen = self._target.codegen()
        module, entries = KernelsTogether(codegen, self.folder.name), []
        for dispatcher, types in self._kernels:
            flags: Any = Flags()
            dispatcher.targetdescr.options.parse_as_flags(flags, dispatcher.targetoptions)
            flags.no_compile = flags.no_cfunc_wrapper = True
            result = compile_extra(dispatcher.typingctx, self._target, dispatcher.py_func, types, None, flags, {}, module, KernelCompiler)
            result.fndesc.typemap = result.fndesc.calltypes = None
            entries.append((result.fndesc, result.environment, result.signature))
        code = module.machine_code()
        globals_ = [variable.name for variable in module._final_module.global_variables]
        named = [lookup_environment(name) for name in globals_ if name.startswith("_ZN08NumbaEnv")]
        return code, entries, [environment for environment in named if environment is not None and environment.can_cache()]

    def _install(self, code: bytes, entries: list[Any], environments: list[Any]) -> None:
        """Load the machine code. numba asks a module beside it for the symbols that are to be found: a list of empty functions will do."""
        names = "\n".join(f'define void @"{description.llvm_cpython_wrapper_name}"() {{ ret void }}' for description, _, _ in entries)
        library = self._target.codegen().unserialize_library((self.folder.name, "object", (code, binding.parse_assembly(names).as_bitcode())))
        for (dispatcher, _), (description, environment, signature) in zip(self._kernels, entries, strict=True):
            result = compile_result(
                typing_context=dispatcher.typingctx,
                target_context=self._target,
                entry_point=self._target.get_executable(library, description, environment),
                signature=signature,
                objectmode=False,
                lifted=(),
                fndesc=description,
                library=library,
                environment=environment,
            )
            dispatcher.add_overload(result)
            dispatcher.disable_compile()
        for environment in environments:
            library.codegen.set_env(environment.env_name, environment)

    def _read(self) -> tuple[Any, ...] | None:
        """The content of the file; None if there is none, or not a whole one."""
        try:
            data = self._path.read_bytes()
        except OSError:
            return None
        self.note_use()
        checksum, data = data[:_CHECKSUM], data[_CHECKSUM:]
        if hashlib.blake2b(data, digest_size=_CHECKSUM).digest() != checksum:
            return None
        content: tuple[Any, ...] = pickle.loads(data)
        return content

    def _write(self, content: tuple[Any, ...]) -> None:
        """Readable for whom the folder is: an image may be warmed up by another user than the one who runs it."""
        data = serialize.dumps(content)
        part = self._path.with_suffix(f".{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):  # a read-only home or a full disk: each process compiles for itself
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_bytes(hashlib.blake2b(data, digest_size=_CHECKSUM).digest() + data)
                os.replace(part, self._path)
            finally:
                part.unlink(missing_ok=True)
