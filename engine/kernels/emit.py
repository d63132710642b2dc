"""Loops in explicit vectors of eight floats, written as LLVM IR so that registers and the order of sums are ours to choose.

What a kernel's innermost loops are built from: a builder with the few vector operations they need, and `emitted`, which makes such a
loop callable from compiled code. Vector types are legal LLVM on every processor; they are fast where registers hold eight floats
(AVX2 and beyond). Arrays come with element offsets; nothing is checked. Knows nothing of what the loops compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VF, VI = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
_LN2_HIGH, _LN2_LOW, _LOG2_E = 0.693359375, -2.12194440e-4, 1.44269504088896341
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)  # Cephes' expf
_EXP2 = (1.326472731e-3, 9.671512991e-3, 5.550733581e-2, 2.402224243e-1, 6.931470037e-1, 1.0)  # of 2^r, |r| <= 1/2: least largest error
_LOWEST, _HIGHEST = -87.33654, 88.37626


class Emit:
    """A builder with the few vector operations that the loops are made of."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.b = builder
        self.stored = [getattr(t, "dtype", t) for t in signature.args]  # of arrays the type of a number
        self.args = [
            context.make_array(t)(context, builder, a).data if isinstance(t, types.Array) else a for t, a in zip(signature.args, arguments, strict=True)
        ]

    def at(self, pointer: Any, *offsets: Any) -> Any:
        for offset in offsets:
            pointer = self.b.gep(pointer, [I64(offset) if isinstance(offset, int) else offset])
        return pointer

    def load(self, pointer: Any, kind: Any = VF) -> Any:
        return self.b.load(self.b.bitcast(pointer, kind.as_pointer()), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        self.b.store(value, self.b.bitcast(pointer, value.type.as_pointer()), align=1)

    def splat(self, value: Any, kind: Any = VF) -> Any:
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(VI, [0] * LANES))

    def constant(self, value: float) -> Any:
        return ir.Constant(VF, [value] * LANES)

    def integer(self, value: int) -> Any:
        return ir.Constant(VI, [value] * LANES)

    def call(self, name: str, *operands: Any) -> Any:
        kind = ir.FunctionType(VF, [VF] * len(operands))
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v8f32"), operands)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("fma", a, b, c)

    def variables(self, count: int, values: Callable[[int], Any]) -> list[Any]:
        return [cgutils.alloca_once_value(self.b, values(i)) for i in range(count)]

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with cgutils.for_range(self.b, I64(count) if isinstance(count, int) else count, intp=I64) as loop:
            yield loop.index

    def times(self, value: Any, factor: int) -> Any:
        return self.b.mul(value, I64(factor))

    def exp(self, x: Any) -> Any:
        """e^x within 2 units in the last place; 0 below -87.3, a large number above 88.3; NaN stays NaN."""
        b = self.b
        tiny = b.fcmp_ordered("<", x, self.constant(_LOWEST))
        x = b.select(b.fcmp_ordered(">", x, self.constant(_HIGHEST)), self.constant(_HIGHEST), x)
        x = b.select(tiny, self.constant(_LOWEST), x)
        n = self.call("rint", b.fmul(x, self.constant(_LOG2_E)))
        r = self.fma(n, self.constant(-_LN2_HIGH), x)
        r = self.fma(n, self.constant(-_LN2_LOW), r)
        p = self.constant(_EXP[0])
        for coefficient in _EXP[1:]:
            p = self.fma(p, r, self.constant(coefficient))
        p = self.fma(p, b.fmul(r, r), b.fadd(r, self.constant(1.0)))
        power = b.bitcast(b.shl(b.add(b.fptosi(n, VI), self.integer(127)), self.integer(23)), VF)
        return b.select(tiny, self.constant(0.0), b.fmul(p, power))

    def exp_of_negative(self, x: Any) -> Any:
        """e^x for x <= 0 with a relative error of at most 2e-7 + 7.5e-8 |x|, exactly 1 at 0 and 0 below -87.3; NaN stays NaN. Half of `exp`'s work."""
        b = self.b
        y = b.fmul(x, self.constant(_LOG2_E))
        n = self.call("rint", y)
        r = b.fsub(y, n)
        p = self.constant(_EXP2[0])
        for coefficient in _EXP2[1:]:
            p = self.fma(p, r, self.constant(coefficient))
        power = b.bitcast(b.add(b.bitcast(p, VI), b.shl(b.fptosi(n, VI), self.integer(23))), VF)
        return b.select(b.fcmp_unordered(">=", x, self.constant(_LOWEST)), power, self.constant(0.0))

    def across(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """All lanes combined in a tree -> scalar."""
        for half in (4, 2, 1):
            moved = self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), ir.Constant(VI, [(i + half) % LANES for i in range(LANES)]))
            vector = combine(vector, moved)
        return self.b.extract_element(vector, I32(0))

    def larger(self, a: Any, b: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)


def emitted(names: int, result: Any, body: Callable[[Emit], Any]) -> Any:
    """An intrinsic whose argument types are whatever arrays it is called with; integers arrive as int64, floats as float32."""

    def typing(_context: Any, *arguments: Any) -> Any:
        plain = [types.int64 if isinstance(a, types.Integer) else types.float32 if isinstance(a, types.Float) else a for a in arguments]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = body(Emit(context, builder, signature, values))
            return context.get_dummy_value() if value is None else value

        return result(*plain), codegen

    parameters = ", ".join(f"a{i}" for i in range(names))
    scope: dict[str, Any] = {"typing": typing}
    exec(f"def {body.__name__}(context, {parameters}):\n    return typing(context, {parameters})", scope)
    return intrinsic(scope[body.__name__])
