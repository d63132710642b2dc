"""How numba's compiled functions are put together: each is translated once, and optimised where a kernel takes it in.

Left to itself numba optimises every function together with all that it calls, generates code for it, and does so again for
each of its callers. Here a *part*, a function that only others call, stays as it was translated. A *kernel* links in all the
parts that it reaches, each once, and is then optimised as one module. Functions may call each other in a circle; within a module
such calls are direct ones.

Uses numba's interfaces for compilers (`pipeline_class`, `CodeLibrary`, `Flags`). Knows nothing of caches.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import types
from numba.core.codegen import JITCodeLibrary, RuntimeLinker
from numba.core.compiler import Compiler, Flags
from numba.core.typed_passes import DumpParforDiagnostics, InlineOverloads
from numba.core.untyped_passes import (
    DeadBranchPrune,
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    RewriteSemanticConstants,
    WithLifting,
)

__all__ = ["KernelCompiler", "KernelsTogether", "PartCompiler", "as_part", "with_one_signature"]


_UNUSED = (
    DeadBranchPrune,
    DumpParforDiagnostics,
    InlineClosureLikes,
    InlineInlinables,
    InlineOverloads,
    LiteralUnroll,
    MakeFunctionToJitFunction,
    RewriteDynamicRaises,
    RewriteSemanticConstants,
    WithLifting,
)
"""Steps of numba's for what kernels do not hold: closures, `with`, code that depends on constant arguments ..."""

_CALLED_LATER = RuntimeLinker.PREFIX  # begins the name of a pointer to a function that was still being translated when it was called
_parts: dict[str, _Part] = {}  # by the name of the function


class _Part(JITCodeLibrary):
    """A function as it was translated: neither optimised together with others nor turned into machine code."""

    def finalize(self) -> None:
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def links(self) -> list[Any]:
        """The libraries of the functions that it calls."""
        return [*self._linking_libraries, *(_parts[name.removeprefix(_CALLED_LATER)] for name in _pointers(self._final_module))]

    def _get_module_for_linking(self) -> Any:
        """For functions that numba compiles in its own way."""
        reached, whole = _reached([self]), binding.parse_assembly("")
        for function in _link_parts(whole, reached):
            whole.get_function(function).linkage = "linkonce_odr"
        for library in reached:
            if not isinstance(library, _Part):
                whole.link_in(library._get_module_for_linking(), preserve=True)
        return whole


class _Kernel(JITCodeLibrary):
    """A kernel with all the parts that it reaches."""

    def finalize(self) -> None:
        reached = _reached(self._linking_libraries)
        for function in _link_parts(self._final_module, reached):
            self._final_module.get_function(function).linkage = "linkonce_odr"
        self._linking_libraries = [library for library in reached if not isinstance(library, _Part)]
        super().finalize()


class KernelsTogether(_Kernel):
    """Several kernels in one module. They do not run from here: their machine code is to be loaded."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def machine_code(self) -> bytes:
        """An object file."""
        self._ensure_finalized()
        code: bytes = self._codegen._tm.emit_object(self._final_module)
        return code


def _link_parts(module: Any, libraries: list[Any]) -> list[str]:
    """Link the parts among `libraries` into `module`; returns the names of their functions."""
    functions = []
    for library in libraries:
        if isinstance(library, _Part):
            functions += [function.name for function in library.get_defined_functions()]
            module.link_in(library._final_module, preserve=True)
    _close_circles(module)
    return functions


def _pointers(module: Any) -> list[str]:
    return [variable.name for variable in module.global_variables if variable.name.startswith(_CALLED_LATER)]


def _reached(libraries: list[Any]) -> list[Any]:
    """`libraries` and those that the parts among them link to, each once."""
    reached: dict[Any, None] = {}
    left = libraries[::-1]
    while left:
        library = left.pop()
        if library not in reached:
            reached[library] = None
            left.extend(library.links() if isinstance(library, _Part) else ())
    return list(reached)


def _close_circles(module: Any) -> None:
    """Let calls of functions that were still being translated go to them directly: their pointers become constants."""
    names = _pointers(module)
    constants, address = ir.Module("circles"), ir.IntType(8).as_pointer()
    constants.triple = module.triple
    for name in names:
        target = ir.Function(constants, ir.FunctionType(ir.VoidType(), []), name.removeprefix(_CALLED_LATER))
        pointer = ir.GlobalVariable(constants, address, name)
        pointer.initializer, pointer.global_constant = target.bitcast(address), True
    module.link_in(binding.parse_assembly(str(constants)))
    for name in names:
        module.get_global_variable(name).linkage = "internal"


class _QuickFlags(Flags):
    """Flags that are compared by what has been set: numba looks them up with every operation that it gives a type."""

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _QuickFlags) and self._values == other._values)


class KernelCompiler(Compiler):
    """Compiles what Python calls."""

    _library: type[JITCodeLibrary] = _Kernel

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Any, locals: Any) -> None:
        super().__init__(typingctx, targetctx, library, args, return_type, _QuickFlags(flags), locals)

    def define_pipelines(self) -> Any:
        if self.state.library is None:
            self.state.library = self._library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
            self.state.library.enable_object_caching()
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [(step, name) for step, name in pipeline.passes if step not in _UNUSED]
        return pipelines


class PartCompiler(KernelCompiler):
    """Translates what only kernels call."""

    _library = _Part

    def _compile_core(self) -> Any:
        self.state.flags.no_compile = True
        result = super()._compile_core()
        _parts[result.fndesc.llvm_func_name] = result.library
        key = object()
        self.state.targetctx.insert_user_function(key, result.fndesc, [result.library])
        return result._replace(entry_point=key)


def as_part(function: Any) -> Any:
    """For numba's dispatcher of a part: its overloads are there for callers that are being compiled, and not for Python."""

    def add_overload(result: Any) -> None:
        function.overloads[tuple(result.signature.args)] = result

    function.add_overload = add_overload
    return function


def with_one_signature(function: Any) -> Any:
    """Have calls from compiled code pass every integer as int64, so that each function is compiled once.

    Otherwise numba compiles a function again for each mixture of integer widths and literal arguments it is called with.
    """
    resolve = function.get_call_template
    known: dict[tuple[Any, ...], Any] = {}

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        unliteral: list[Any] = [types.unliteral(a) for a in args]
        plain = tuple(types.int64 if isinstance(a, types.Integer) else a for a in unliteral)
        if kws:
            return resolve(plain, kws)
        found = known.get(plain)
        if found is None:
            found = known[plain] = resolve(plain, kws)
        return found

    function.get_call_template = get_call_template
    return function
