"""Inner loops in explicit vectors of eight floats, written as LLVM IR so that registers and the order of sums are ours to choose.

    tile(columns)   acc[c, 0:32] += sum over k of x[c, k] * panel[k, 0:32]      for 1, 2 or 3 columns at once
    panel / dot     quantised blocks of 32 outputs to such a panel, or straight into the sums of one column
    transpose       a page of keys [32, D] to a panel [D, 32]
    widen, narrow   rows of keys and values as they are stored to floats and back
    exp, max, sums  for softmax and gates

Every sum over k is one chain of fused multiply-adds in ascending k, whatever the number of columns and whether a panel was made
or not: results do not depend on how many tokens are computed together. Vector types are legal LLVM on every processor; they are
fast where registers hold eight floats (AVX2 and beyond). Arrays come with element offsets; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from agentkit.engine.kernels.layout import SCALE_BYTES

LANES = 8
WIDTH = 32  # outputs of a block, keys of a page
GROUP = 32  # weights that share a scale
_REGISTERS = WIDTH // LANES

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VF, _VI = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_LN2_HIGH, _LN2_LOW, _LOG2_E = 0.693359375, -2.12194440e-4, 1.44269504088896341
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)  # Cephes' expf
_LOWEST, _HIGHEST = -87.33654, 88.37626


class _Emit:
    """A builder with the few vector operations that the loops are made of."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.b = builder
        self.stored = [getattr(t, "dtype", t) for t in signature.args]  # of arrays the type of a number
        self.args = [
            context.make_array(t)(context, builder, a).data if isinstance(t, types.Array) else a for t, a in zip(signature.args, arguments, strict=True)
        ]

    def at(self, pointer: Any, *offsets: Any) -> Any:
        for offset in offsets:
            pointer = self.b.gep(pointer, [_I64(offset) if isinstance(offset, int) else offset])
        return pointer

    def load(self, pointer: Any, kind: Any = _VF) -> Any:
        return self.b.load(self.b.bitcast(pointer, kind.as_pointer()), align=1)

    def store(self, value: Any, pointer: Any) -> None:
        self.b.store(value, self.b.bitcast(pointer, value.type.as_pointer()), align=1)

    def splat(self, value: Any, kind: Any = _VF) -> Any:
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), ir.Constant(_VI, [0] * LANES))

    def constant(self, value: float) -> Any:
        return ir.Constant(_VF, [value] * LANES)

    def integer(self, value: int) -> Any:
        return ir.Constant(_VI, [value] * LANES)

    def call(self, name: str, *operands: Any) -> Any:
        kind = ir.FunctionType(_VF, [_VF] * len(operands))
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, f"llvm.{name}.v8f32"), operands)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("fma", a, b, c)

    def variables(self, count: int, values: Callable[[int], Any]) -> list[Any]:
        return [cgutils.alloca_once_value(self.b, values(i)) for i in range(count)]

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with cgutils.for_range(self.b, _I64(count) if isinstance(count, int) else count, intp=_I64) as loop:
            yield loop.index

    def times(self, value: Any, factor: int) -> Any:
        return self.b.mul(value, _I64(factor))

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
        power = b.bitcast(b.shl(b.add(b.fptosi(n, _VI), self.integer(127)), self.integer(23)), _VF)
        return b.select(tiny, self.constant(0.0), b.fmul(p, power))

    def across(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """All lanes combined in a tree -> scalar."""
        for half in (4, 2, 1):
            moved = self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), ir.Constant(_VI, [(i + half) % LANES for i in range(LANES)]))
            vector = combine(vector, moved)
        return self.b.extract_element(vector, _I32(0))

    def larger(self, a: Any, b: Any) -> Any:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)


def _emitted(names: int, result: Any, body: Callable[[_Emit], Any]) -> Any:
    """An intrinsic whose argument types are whatever arrays it is called with; integers arrive as int64, floats as float32."""

    def typing(_context: Any, *arguments: Any) -> Any:
        plain = [types.int64 if isinstance(a, types.Integer) else types.float32 if isinstance(a, types.Float) else a for a in arguments]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = body(_Emit(context, builder, signature, values))
            return context.get_dummy_value() if value is None else value

        return result(*plain), codegen

    parameters = ", ".join(f"a{i}" for i in range(names))
    scope: dict[str, Any] = {"typing": typing}
    exec(f"def {body.__name__}(context, {parameters}):\n    return typing(context, {parameters})", scope)
    return intrinsic(scope[body.__name__])


def _tile(columns: int) -> Any:
    def tile(e: _Emit) -> None:
        panel, panel_at, panel_stride, x, x_at, x_stride, count, acc, acc_at, acc_stride = e.args
        inputs = [e.at(x, x_at, e.times(x_stride, c)) for c in range(columns)]
        outputs = [e.at(acc, acc_at, e.times(acc_stride, c), LANES * r) for c in range(columns) for r in range(_REGISTERS)]
        sums = e.variables(len(outputs), lambda i: e.load(outputs[i]))
        with e.loop(count) as k:
            row = e.at(panel, panel_at, e.b.mul(k, panel_stride))
            factors = [e.splat(e.b.load(e.at(pointer, k))) for pointer in inputs]
            for r in range(_REGISTERS):
                weight = e.load(e.at(row, LANES * r))
                for c, factor in enumerate(factors):
                    total = sums[c * _REGISTERS + r]
                    e.b.store(e.fma(factor, weight, e.b.load(total)), total)
        for total, pointer in zip(sums, outputs, strict=True):
            e.store(e.b.load(total), pointer)

    return _emitted(10, types.void, tile)


tile1, tile2, tile3 = _tile(1), _tile(2), _tile(3)
"""tile(panel, at, stride, x, at, stride, count, acc, at, stride): x [columns, count], panel [count, 32], acc [columns, 32], all float32."""


def _halves(e: _Emit, pointer: Any) -> list[Any]:
    """32 half-precision numbers -> four vectors."""
    return [e.b.fpext(e.load(e.at(pointer, LANES * r), ir.VectorType(ir.HalfType(), LANES)), _VF) for r in range(_REGISTERS)]


def _four_bits(e: _Emit, codes: Any, scales: Any, groups: Any, use: Callable[[Any, list[Any]], None]) -> None:
    """use(k, four vectors of weights) for every k. A group: 4 octets of k x 32 outputs x one 32-bit word of 8 codes; d[32], m[32]."""
    with e.loop(groups) as group:
        d, m = (_halves(e, e.at(scales, e.times(group, 2 * WIDTH), part * WIDTH)) for part in (0, 1))
        with e.loop(GROUP // 8) as octet:
            base = e.at(codes, e.times(group, WIDTH * GROUP // 2), e.times(octet, WIDTH * 4))
            words = [e.load(e.at(base, 4 * LANES * r), _VI) for r in range(_REGISTERS)]
            first = e.b.add(e.times(group, GROUP), e.times(octet, 8))
            for step in range(8):
                weights = []
                for r in range(_REGISTERS):
                    code = e.b.and_(e.b.lshr(words[r], e.integer(4 * step)), e.integer(15))
                    weights.append(e.fma(e.b.sitofp(code, _VF), d[r], m[r]))
                use(e.b.add(first, _I64(step)), weights)


def _eight_bits(e: _Emit, codes: Any, scales: Any, groups: Any, use: Callable[[Any, list[Any]], None]) -> None:
    """The same for a group of 32 k x 32 outputs x one signed byte; d[32]."""
    with e.loop(groups) as group:
        d = _halves(e, e.at(scales, e.times(group, WIDTH)))
        with e.loop(GROUP // 4) as quarter:
            first = e.b.add(e.times(group, GROUP), e.times(quarter, 4))
            for step in range(4):
                k = e.b.add(first, _I64(step))
                row = e.at(codes, e.times(k, WIDTH))
                narrow = [e.load(e.at(row, LANES * r), ir.VectorType(ir.IntType(8), LANES)) for r in range(_REGISTERS)]
                use(k, [e.b.fmul(e.b.sitofp(e.b.sext(code, _VI), _VF), d[r]) for r, code in enumerate(narrow)])


def _panel(weights: Callable[..., None]) -> Any:
    def panel(e: _Emit) -> None:
        codes, codes_at, scales, scales_at, groups, out = e.args

        def use(k: Any, vectors: list[Any]) -> None:
            for r, vector in enumerate(vectors):
                e.store(vector, e.at(out, e.times(k, WIDTH), LANES * r))

        weights(e, e.at(codes, codes_at), e.at(scales, scales_at), groups, use)

    return _emitted(6, types.void, panel)


def _dot(weights: Callable[..., None]) -> Any:
    def dot(e: _Emit) -> None:
        codes, codes_at, scales, scales_at, groups, x, x_at, acc = e.args
        sums = e.variables(_REGISTERS, lambda r: e.load(e.at(acc, LANES * r)))

        def use(k: Any, vectors: list[Any]) -> None:
            factor = e.splat(e.b.load(e.at(x, x_at, k)))
            for total, vector in zip(sums, vectors, strict=True):
                e.b.store(e.fma(factor, vector, e.b.load(total)), total)

        weights(e, e.at(codes, codes_at), e.at(scales, scales_at), groups, use)
        for r, total in enumerate(sums):
            e.store(e.b.load(total), e.at(acc, LANES * r))

    return _emitted(8, types.void, dot)


panel4, panel8 = _panel(_four_bits), _panel(_eight_bits)
"""panel(codes uint8, at, scales uint16, at, groups, out): one block of 32 outputs dequantised to out [groups*32, 32]."""
dot4, dot8 = _dot(_four_bits), _dot(_eight_bits)
"""dot(codes, at, scales, at, groups, x, at, acc): acc[0:32] += block @ x[0:groups*32]."""


_I8, _I16 = ir.IntType(8), ir.IntType(16)
_V8, _V16, _VH = ir.VectorType(_I8, LANES), ir.VectorType(_I16, LANES), ir.VectorType(ir.HalfType(), LANES)
HALF, WHOLE, E4M3 = types.int16, types.int8, types.uint8
"""Numbers are stored as float32, as half precision seen as int16, as bfloat16 seen as uint16, or in 8 bits: as whole numbers (int8) or
e4m3 seen as uint8 (4 bits of exponent, 3 of mantissa). Rows in 8 bits have a scale behind their numbers: see engine/kv_format.py."""
MOST = {WHOLE: 127.0, E4M3: 448.0}


def _scale(e: _Emit, place: Any, stored: Any) -> Any:
    """The scale of a row in 8 bits as a vector; None for others. place: behind its numbers."""
    if stored not in MOST:
        return None
    bits = e.b.zext(e.load(place, _I16), _I32)
    scale = e.b.bitcast(e.b.shl(bits, _I32(16)), _F32)
    return e.splat(e.b.fmul(scale, _F32(256.0)) if stored == E4M3 else scale)


def _widened(e: _Emit, pointer: Any, stored: Any, scale: Any) -> Any:
    """Eight stored numbers as floats."""
    b = e.b
    if stored == types.float32:
        return e.load(pointer)
    if stored == HALF:
        return b.fpext(e.load(pointer, _VH), _VF)
    if stored == WHOLE:
        return b.fmul(b.sitofp(e.load(pointer, _V8), _VF), scale)
    if stored == E4M3:  # as half precision, whose exponents are larger by 8
        codes = b.zext(e.load(pointer, _V8), _V16)
        sign, rest = (b.shl(b.and_(codes, ir.Constant(_V16, [mask] * LANES)), ir.Constant(_V16, [by] * LANES)) for mask, by in ((0x80, 8), (0x7F, 7)))
        return b.fmul(b.fpext(b.bitcast(b.or_(sign, rest), _VH), _VF), scale)
    return b.bitcast(b.shl(b.zext(e.load(pointer, _V16), _VI), e.integer(16)), _VF)


def _write_scale(e: _Emit, row: Any, octets: Any, place: Any, stored: Any) -> Any:
    """Stores the scale of a row of floats: largest amount / MOST as a bfloat16, rounded up; -> what to divide by, a vector. NaN stays NaN."""
    b = e.b
    best = cgutils.alloca_once_value(b, e.integer(0))
    with e.loop(octets) as i:
        bits = b.and_(b.bitcast(e.load(e.at(row, e.times(i, LANES))), _VI), e.integer(0x7FFFFFFF))  # in the order of the amounts, NaN last
        b.store(b.select(b.icmp_signed(">", bits, b.load(best)), bits, b.load(best)), best)
    largest = e.across(b.load(best), lambda x, y: b.select(b.icmp_signed(">", x, y), x, y))
    step = b.fdiv(b.bitcast(largest, _F32), _F32(MOST[stored]))
    up = b.lshr(b.add(b.bitcast(step, _I32), _I32(0xFFFF)), _I32(16))
    kept = b.select(b.fcmp_unordered("uno", step, step), _I32(0x7FC0), up)
    e.store(b.trunc(kept, _I16), place)
    scale = b.bitcast(b.shl(kept, _I32(16)), _F32)
    return e.splat(b.select(b.fcmp_ordered(">", scale, _F32(0.0)), scale, _F32(1.0)))


def _in_e4m3(e: _Emit, value: Any) -> Any:
    """Eight floats of at most 448 as e4m3, rounded to nearest even."""
    b = e.b
    bits = b.bitcast(value, _VI)
    amount = b.and_(bits, e.integer(0x7FFFFFFF))
    odd = b.and_(b.lshr(amount, e.integer(20)), e.integer(1))
    normal = b.sub(b.lshr(b.add(amount, b.add(odd, e.integer(0x7FFFF))), e.integer(20)), e.integer((127 - 7) << 3))
    steps = b.fptosi(e.call("rint", b.fmul(b.bitcast(amount, _VF), e.constant(512.0))), _VI)  # below 2^-6 numbers lie 2^-9 apart
    code = b.select(b.icmp_signed("<", amount, e.integer((127 - 6) << 23)), steps, normal)
    return b.trunc(b.or_(code, b.lshr(b.and_(bits, e.integer(-(1 << 31))), e.integer(24))), _V8)


def _narrowed(e: _Emit, value: Any, stored: Any, divisor: Any) -> Any:
    """Eight floats as they are stored, rounded to nearest even."""
    if stored == WHOLE:
        return e.b.fptosi(e.call("rint", e.b.fdiv(value, divisor)), _V8)
    if stored == E4M3:
        return _in_e4m3(e, e.b.fdiv(value, divisor))
    if stored == types.float32:
        return value
    if stored == HALF:
        return e.b.fptrunc(value, _VH)
    bits = e.b.bitcast(value, _VI)
    odd = e.b.and_(e.b.lshr(bits, e.integer(16)), e.integer(1))
    rounded = e.b.lshr(e.b.add(bits, e.b.add(odd, e.integer(0x7FFF))), e.integer(16))
    return e.b.trunc(e.b.select(e.b.fcmp_unordered("uno", value, value), e.integer(0x7FC0), rounded), _V16)


def _shuffle(e: _Emit, a: Any, b: Any, lanes: list[int]) -> Any:
    return e.b.shuffle_vector(a, b, ir.Constant(_VI, lanes))


def transpose(e: _Emit) -> None:
    source, at, stride, octets, out = e.args
    with e.loop(WIDTH // LANES) as rows:
        edge = e.at(source, at, e.b.mul(e.times(rows, LANES), stride))
        scales = [_scale(e, e.at(edge, e.times(stride, i), e.times(octets, LANES)), e.stored[0]) for i in range(LANES)]
        with e.loop(octets) as columns:
            _transpose_corner(e, e.at(edge, e.times(columns, LANES)), stride, scales, e.at(out, e.times(columns, LANES * WIDTH), e.times(rows, LANES)))


def _transpose_corner(e: _Emit, corner: Any, stride: Any, scales: list[Any], out: Any) -> None:
    """Eight rows of eight stored numbers -> eight vectors, WIDTH floats apart."""
    v = [_widened(e, e.at(corner, e.times(stride, i)), e.stored[0], scales[i]) for i in range(LANES)]
    v = [_shuffle(e, v[i & 6], v[i | 1], [2, 10, 3, 11, 6, 14, 7, 15] if i & 1 else [0, 8, 1, 9, 4, 12, 5, 13]) for i in range(LANES)]
    pairs = [i & 4 | i >> 1 & 1 for i in range(LANES)]
    v = [_shuffle(e, v[p], v[p | 2], [2, 3, 10, 11, 6, 7, 14, 15] if i & 1 else [0, 1, 8, 9, 4, 5, 12, 13]) for i, p in enumerate(pairs)]
    v = [_shuffle(e, v[i & 3], v[i & 3 | 4], [4, 5, 6, 7, 12, 13, 14, 15] if i & 4 else [0, 1, 2, 3, 8, 9, 10, 11]) for i in range(LANES)]
    for i, vector in enumerate(v):
        e.store(vector, e.at(out, i * WIDTH))


transpose_page = _emitted(5, types.void, transpose)
"""transpose_page(source, at, stride, octets, out): 32 rows of 8*octets stored numbers -> out [8*octets, 32] float32."""


def widen(e: _Emit) -> None:
    source, at, octets, out, out_at = e.args
    scale = _scale(e, e.at(source, at, e.times(octets, LANES)), e.stored[0])
    with e.loop(octets) as i:
        e.store(_widened(e, e.at(source, at, e.times(i, LANES)), e.stored[0], scale), e.at(out, out_at, e.times(i, LANES)))


widen_row = _emitted(5, types.void, widen)
"""widen_row(source, at, octets, out, at): 8*octets stored numbers as float32."""


def narrow(e: _Emit) -> None:
    source, at, octets, out, out_at = e.args
    row, stored = e.at(source, at), e.stored[3]
    divisor = _write_scale(e, row, octets, e.at(out, out_at, e.times(octets, LANES)), stored) if stored in MOST else None
    with e.loop(octets) as i:
        e.store(_narrowed(e, e.load(e.at(row, e.times(i, LANES))), stored, divisor), e.at(out, out_at, e.times(i, LANES)))


narrow_row = _emitted(5, types.void, narrow)
"""narrow_row(source, at, octets, out, at): 8*octets floats into stored numbers."""


def row(e: _Emit) -> Any:
    dim = e.args[1]
    return e.b.add(dim, _I64(SCALE_BYTES)) if e.stored[0] in MOST else dim


row_size = _emitted(2, types.int64, row)
"""row_size(data, D): stored numbers from one row of D to the next."""


def whole(e: _Emit) -> Any:
    return ir.Constant(ir.IntType(1), int(e.stored[0] == WHOLE))


in_whole_numbers = _emitted(1, types.boolean, whole)
"""in_whole_numbers(data): are rows stored as whole numbers of 8 bits?"""


def largest(e: _Emit) -> Any:
    x, at, octets = e.args
    best = cgutils.alloca_once_value(e.b, e.constant(float("-inf")))
    with e.loop(octets) as i:
        e.b.store(e.larger(e.load(e.at(x, at, e.times(i, LANES))), e.b.load(best)), best)
    return e.across(e.b.load(best), e.larger)


largest_of = _emitted(3, types.float32, largest)
"""largest_of(x, at, octets): the maximum of 8*octets floats; NaN is passed over."""


def exponentials(e: _Emit) -> Any:
    x, at, octets, shift = e.args
    total, less = cgutils.alloca_once_value(e.b, e.constant(0.0)), e.splat(shift)
    with e.loop(octets) as i:
        place = e.at(x, at, e.times(i, LANES))
        value = e.exp(e.b.fsub(e.load(place), less))
        e.store(value, place)
        e.b.store(e.b.fadd(e.b.load(total), value), total)
    return e.across(e.b.load(total), e.b.fadd)


exponentials_of = _emitted(4, types.float32, exponentials)
"""exponentials_of(x, at, octets, shift): x becomes e^(x - shift) in place; their sum."""


def capped(e: _Emit) -> None:
    x, at, octets, cap = e.args
    inverse = e.splat(e.b.fdiv(_F32(2.0), cap))
    with e.loop(octets) as i:
        place = e.at(x, at, e.times(i, LANES))
        grown = e.exp(e.b.fmul(e.load(place), inverse))
        tanh = e.b.fsub(e.constant(1.0), e.b.fdiv(e.constant(2.0), e.b.fadd(grown, e.constant(1.0))))
        e.store(e.b.fmul(tanh, e.splat(cap)), place)


cap_all = _emitted(4, types.void, capped)
"""cap_all(x, at, octets, cap): x becomes cap*tanh(x / cap) in place."""


def _gate(argument: Callable[[_Emit, Any], Any]) -> Any:
    def gate(e: _Emit) -> None:
        g, at, u, u_at, octets, out, out_at = e.args
        with e.loop(octets) as i:
            x = e.load(e.at(g, at, e.times(i, LANES)))
            share = e.b.fdiv(e.constant(1.0), e.b.fadd(e.constant(1.0), e.exp(argument(e, x))))
            product = e.b.fmul(e.b.fmul(x, share), e.load(e.at(u, u_at, e.times(i, LANES))))
            e.store(product, e.at(out, out_at, e.times(i, LANES)))

    return _emitted(7, types.void, gate)


def _negative(e: _Emit, x: Any) -> Any:
    return e.b.fmul(x, e.constant(-1.0))


def _gelu_argument(e: _Emit, x: Any) -> Any:
    """-2*sqrt(2/pi)*(x + 0.044715 x^3): gelu(x) = x / (1 + e^this), the same as 0.5 x (1 + tanh(...))."""
    inner = e.fma(e.b.fmul(e.b.fmul(x, x), x), e.constant(0.044715), x)
    return e.b.fmul(inner, e.constant(-1.5957691216057308))


gate_silu, gate_gelu_tanh = _gate(_negative), _gate(_gelu_argument)
"""gate(g, at, u, at, octets, out, at): out = activation(g) * u."""


def squares(e: _Emit) -> Any:
    x, at, octets = e.args
    total = cgutils.alloca_once_value(e.b, e.constant(0.0))
    with e.loop(octets) as i:
        value = e.load(e.at(x, at, e.times(i, LANES)))
        e.b.store(e.fma(value, value, e.b.load(total)), total)
    return e.across(e.b.load(total), e.b.fadd)


squares_of = _emitted(3, types.float32, squares)
"""squares_of(x, at, octets): the sum of the squares of 8*octets floats."""
