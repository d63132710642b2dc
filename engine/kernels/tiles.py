"""Inner loops in float32, in explicit vectors (see emit.py).

    tile(columns)   acc[c, 0:32] += sum over k of x[c, k] * panel[k, 0:32]      for 1, 2 or 3 columns at once
    transpose       a page of keys [32, D] to a panel [D, 32]
    widen, narrow   rows of keys and values as they are stored to floats and back
    exp, max, sums  for softmax and gates
    scale, add, ... rows of floats, where numba's own loops would check every index for its sign

Every sum over k is one chain of fused multiply-adds in ascending k, whatever the number of columns: results do not depend on how many
tokens are computed together. Arrays come with element offsets; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from agentkit.engine.kernels.emit import F32, I32, I64, VF, VI, Emit, emitted
from agentkit.engine.kernels.emit import LANES as LANES
from agentkit.engine.kernels.layout import SCALE_BYTES

WIDTH = 32  # outputs of a block, keys of a page
GROUP = 32  # weights that share a scale
_REGISTERS = WIDTH // LANES


def _tile(columns: int, registers: int = _REGISTERS) -> Any:
    def tile(e: Emit) -> None:
        panel, panel_at, panel_stride, x, x_at, x_stride, count, acc, acc_at, acc_stride = e.args
        inputs = [e.at(x, x_at, e.times(x_stride, c)) for c in range(columns)]
        outputs = [e.at(acc, acc_at, e.times(acc_stride, c), LANES * r) for c in range(columns) for r in range(registers)]
        sums = e.variables(len(outputs), lambda i: e.load(outputs[i]))
        with e.loop(count) as k:
            row = e.at(panel, panel_at, e.b.mul(k, panel_stride))
            factors = [e.splat(e.b.load(e.at(pointer, k))) for pointer in inputs]
            for r in range(registers):
                weight = e.load(e.at(row, LANES * r))
                for c, factor in enumerate(factors):
                    total = sums[c * registers + r]
                    e.b.store(e.fma(factor, weight, e.b.load(total)), total)
        for total, pointer in zip(sums, outputs, strict=True):
            e.store(e.b.load(total), pointer)

    return emitted(10, types.void, tile)


tile1, tile2, tile3, tile8 = _tile(1), _tile(2), _tile(3), _tile(1, 1)
"""tile(panel, at, stride, x, at, stride, count, acc, at, stride): x [columns, count], panel [count, 32], acc [columns, 32], all float32.
tile8: of one row and a panel of 8 columns.
"""


_I8, _I16 = ir.IntType(8), ir.IntType(16)
_V8, _V16, _VH = ir.VectorType(_I8, LANES), ir.VectorType(_I16, LANES), ir.VectorType(ir.HalfType(), LANES)
HALF, WHOLE, E4M3 = types.int16, types.int8, types.uint8
"""Numbers are stored as float32, as half precision seen as int16, as bfloat16 seen as uint16, or in 8 bits: as whole numbers (int8) or
e4m3 seen as uint8 (4 bits of exponent, 3 of mantissa). Rows in 8 bits have a scale behind their numbers: see engine/kv_format.py."""
MOST = {WHOLE: 127.0, E4M3: 448.0}


def _scale(e: Emit, place: Any, stored: Any) -> Any:
    """The scale of a row in 8 bits as a vector; None for others. place: behind its numbers."""
    if stored not in MOST:
        return None
    bits = e.b.zext(e.load(place, _I16), I32)
    scale = e.b.bitcast(e.b.shl(bits, I32(16)), F32)
    return e.splat(e.b.fmul(scale, F32(256.0)) if stored == E4M3 else scale)


def _widened(e: Emit, pointer: Any, stored: Any, scale: Any) -> Any:
    """Eight stored numbers as floats."""
    b = e.b
    if stored == types.float32:
        return e.load(pointer)
    if stored == HALF:
        return b.fpext(e.load(pointer, _VH), VF)
    if stored == WHOLE:
        return b.fmul(b.sitofp(e.load(pointer, _V8), VF), scale)
    if stored == E4M3:  # as half precision, whose exponents are larger by 8
        codes = b.zext(e.load(pointer, _V8), _V16)
        sign, rest = (b.shl(b.and_(codes, ir.Constant(_V16, [mask] * LANES)), ir.Constant(_V16, [by] * LANES)) for mask, by in ((0x80, 8), (0x7F, 7)))
        return b.fmul(b.fpext(b.bitcast(b.or_(sign, rest), _VH), VF), scale)
    return b.bitcast(b.shl(b.zext(e.load(pointer, _V16), VI), e.integer(16)), VF)


def _write_scale(e: Emit, row: Any, octets: Any, place: Any, stored: Any) -> Any:
    """Stores the scale of a row of floats: largest amount / MOST as a bfloat16, rounded up; -> what to divide by, a vector. NaN stays NaN."""
    b = e.b
    best = cgutils.alloca_once_value(b, e.integer(0))
    with e.loop(octets) as i:
        bits = b.and_(b.bitcast(e.load(e.at(row, e.times(i, LANES))), VI), e.integer(0x7FFFFFFF))  # in the order of the amounts, NaN last
        b.store(b.select(b.icmp_signed(">", bits, b.load(best)), bits, b.load(best)), best)
    largest = e.across(b.load(best), lambda x, y: b.select(b.icmp_signed(">", x, y), x, y))
    step = b.fdiv(b.bitcast(largest, F32), F32(MOST[stored]))
    up = b.lshr(b.add(b.bitcast(step, I32), I32(0xFFFF)), I32(16))
    kept = b.select(b.fcmp_unordered("uno", step, step), I32(0x7FC0), up)
    e.store(b.trunc(kept, _I16), place)
    scale = b.bitcast(b.shl(kept, I32(16)), F32)
    return e.splat(b.select(b.fcmp_ordered(">", scale, F32(0.0)), scale, F32(1.0)))


def _in_e4m3(e: Emit, value: Any) -> Any:
    """Eight floats of at most 448 as e4m3, rounded to nearest even."""
    b = e.b
    bits = b.bitcast(value, VI)
    amount = b.and_(bits, e.integer(0x7FFFFFFF))
    odd = b.and_(b.lshr(amount, e.integer(20)), e.integer(1))
    normal = b.sub(b.lshr(b.add(amount, b.add(odd, e.integer(0x7FFFF))), e.integer(20)), e.integer((127 - 7) << 3))
    steps = b.fptosi(e.call("rint", b.fmul(b.bitcast(amount, VF), e.constant(512.0))), VI)  # below 2^-6 numbers lie 2^-9 apart
    code = b.select(b.icmp_signed("<", amount, e.integer((127 - 6) << 23)), steps, normal)
    return b.trunc(b.or_(code, b.lshr(b.and_(bits, e.integer(-(1 << 31))), e.integer(24))), _V8)


def _narrowed(e: Emit, value: Any, stored: Any, divisor: Any) -> Any:
    """Eight floats as they are stored, rounded to nearest even."""
    if stored == WHOLE:
        return e.b.fptosi(e.call("rint", e.b.fdiv(value, divisor)), _V8)
    if stored == E4M3:
        return _in_e4m3(e, e.b.fdiv(value, divisor))
    if stored == types.float32:
        return value
    if stored == HALF:
        return e.b.fptrunc(value, _VH)
    bits = e.b.bitcast(value, VI)
    odd = e.b.and_(e.b.lshr(bits, e.integer(16)), e.integer(1))
    rounded = e.b.lshr(e.b.add(bits, e.b.add(odd, e.integer(0x7FFF))), e.integer(16))
    return e.b.trunc(e.b.select(e.b.fcmp_unordered("uno", value, value), e.integer(0x7FC0), rounded), _V16)


def _shuffle(e: Emit, a: Any, b: Any, lanes: list[int]) -> Any:
    return e.b.shuffle_vector(a, b, ir.Constant(VI, lanes))


def transpose(e: Emit) -> None:
    source, at, stride, octets, out = e.args
    with e.loop(WIDTH // LANES) as rows:
        edge = e.at(source, at, e.b.mul(e.times(rows, LANES), stride))
        scales = [_scale(e, e.at(edge, e.times(stride, i), e.times(octets, LANES)), e.stored[0]) for i in range(LANES)]
        with e.loop(octets) as columns:
            _transpose_corner(e, e.at(edge, e.times(columns, LANES)), stride, scales, e.at(out, e.times(columns, LANES * WIDTH), e.times(rows, LANES)))


def _transpose_corner(e: Emit, corner: Any, stride: Any, scales: list[Any], out: Any) -> None:
    """Eight rows of eight stored numbers -> eight vectors, WIDTH floats apart."""
    v = [_widened(e, e.at(corner, e.times(stride, i)), e.stored[0], scales[i]) for i in range(LANES)]
    v = [_shuffle(e, v[i & 6], v[i | 1], [2, 10, 3, 11, 6, 14, 7, 15] if i & 1 else [0, 8, 1, 9, 4, 12, 5, 13]) for i in range(LANES)]
    pairs = [i & 4 | i >> 1 & 1 for i in range(LANES)]
    v = [_shuffle(e, v[p], v[p | 2], [2, 3, 10, 11, 6, 7, 14, 15] if i & 1 else [0, 1, 8, 9, 4, 5, 12, 13]) for i, p in enumerate(pairs)]
    v = [_shuffle(e, v[i & 3], v[i & 3 | 4], [4, 5, 6, 7, 12, 13, 14, 15] if i & 4 else [0, 1, 2, 3, 8, 9, 10, 11]) for i in range(LANES)]
    for i, vector in enumerate(v):
        e.store(vector, e.at(out, i * WIDTH))


transpose_page = emitted(5, types.void, transpose)
"""transpose_page(source, at, stride, octets, out): 32 rows of 8*octets stored numbers -> out [8*octets, 32] float32."""


def widen(e: Emit) -> None:
    source, at, octets, out, out_at = e.args
    scale = _scale(e, e.at(source, at, e.times(octets, LANES)), e.stored[0])
    with e.loop(octets) as i:
        e.store(_widened(e, e.at(source, at, e.times(i, LANES)), e.stored[0], scale), e.at(out, out_at, e.times(i, LANES)))


widen_row = emitted(5, types.void, widen)
"""widen_row(source, at, octets, out, at): 8*octets stored numbers as float32."""


def narrow(e: Emit) -> None:
    source, at, octets, out, out_at = e.args
    row, stored = e.at(source, at), e.stored[3]
    divisor = _write_scale(e, row, octets, e.at(out, out_at, e.times(octets, LANES)), stored) if stored in MOST else None
    with e.loop(octets) as i:
        e.store(_narrowed(e, e.load(e.at(row, e.times(i, LANES))), stored, divisor), e.at(out, out_at, e.times(i, LANES)))


narrow_row = emitted(5, types.void, narrow)
"""narrow_row(source, at, octets, out, at): 8*octets floats into stored numbers."""


def row(e: Emit) -> Any:
    dim = e.args[1]
    return e.b.add(dim, I64(SCALE_BYTES)) if e.stored[0] in MOST else dim


row_size = emitted(2, types.int64, row)
"""row_size(data, D): stored numbers from one row of D to the next."""


def whole(e: Emit) -> Any:
    return ir.Constant(ir.IntType(1), int(e.stored[0] == WHOLE))


in_whole_numbers = emitted(1, types.boolean, whole)
"""in_whole_numbers(data): are rows stored as whole numbers of 8 bits?"""


def largest(e: Emit) -> Any:
    x, at, octets = e.args
    best = cgutils.alloca_once_value(e.b, e.constant(float("-inf")))
    with e.loop(octets) as i:
        e.b.store(e.larger(e.load(e.at(x, at, e.times(i, LANES))), e.b.load(best)), best)
    return e.across(e.b.load(best), e.larger)


largest_of = emitted(3, types.float32, largest)
"""largest_of(x, at, octets): the maximum of 8*octets floats; NaN is passed over."""


def exponentials(e: Emit) -> Any:
    x, at, octets, shift = e.args
    total, less = cgutils.alloca_once_value(e.b, e.constant(0.0)), e.splat(shift)
    with e.loop(octets) as i:
        place = e.at(x, at, e.times(i, LANES))
        value = e.exp_of_negative(e.b.fsub(e.load(place), less))
        e.store(value, place)
        e.b.store(e.b.fadd(e.b.load(total), value), total)
    return e.across(e.b.load(total), e.b.fadd)


exponentials_of = emitted(4, types.float32, exponentials)
"""exponentials_of(x, at, octets, shift): x becomes e^(x - shift) in place; their sum. No x may be larger than shift."""


def capped(e: Emit) -> None:
    x, at, octets, cap = e.args
    inverse = e.splat(e.b.fdiv(F32(2.0), cap))
    with e.loop(octets) as i:
        place = e.at(x, at, e.times(i, LANES))
        grown = e.exp(e.b.fmul(e.load(place), inverse))
        tanh = e.b.fsub(e.constant(1.0), e.b.fdiv(e.constant(2.0), e.b.fadd(grown, e.constant(1.0))))
        e.store(e.b.fmul(tanh, e.splat(cap)), place)


cap_all = emitted(4, types.void, capped)
"""cap_all(x, at, octets, cap): x becomes cap*tanh(x / cap) in place."""


def _gate(argument: Callable[[Emit, Any], Any]) -> Any:
    def gate(e: Emit) -> None:
        g, at, u, u_at, octets, out, out_at = e.args
        with e.loop(octets) as i:
            x = e.load(e.at(g, at, e.times(i, LANES)))
            share = e.b.fdiv(e.constant(1.0), e.b.fadd(e.constant(1.0), e.exp(argument(e, x))))
            product = e.b.fmul(e.b.fmul(x, share), e.load(e.at(u, u_at, e.times(i, LANES))))
            e.store(product, e.at(out, out_at, e.times(i, LANES)))

    return emitted(7, types.void, gate)


def _negative(e: Emit, x: Any) -> Any:
    return e.b.fmul(x, e.constant(-1.0))


def _gelu_argument(e: Emit, x: Any) -> Any:
    """-2*sqrt(2/pi)*(x + 0.044715 x^3): gelu(x) = x / (1 + e^this), the same as 0.5 x (1 + tanh(...))."""
    inner = e.fma(e.b.fmul(e.b.fmul(x, x), x), e.constant(0.044715), x)
    return e.b.fmul(inner, e.constant(-1.5957691216057308))


gate_silu, gate_gelu_tanh = _gate(_negative), _gate(_gelu_argument)
"""gate(g, at, u, at, octets, out, at): out = activation(g) * u."""


def squares(e: Emit) -> Any:
    x, at, octets = e.args
    total = cgutils.alloca_once_value(e.b, e.constant(0.0))
    with e.loop(octets) as i:
        value = e.load(e.at(x, at, e.times(i, LANES)))
        e.b.store(e.fma(value, value, e.b.load(total)), total)
    return e.across(e.b.load(total), e.b.fadd)


def _rows(count: int, body: Callable[..., Any]) -> Any:
    """A loop over vectors: out = body(e, vectors of `count` inputs, the splat factor, out as it was)."""

    def rows(e: Emit) -> None:
        *inputs, octets, factor, out, out_at = e.args
        wide = e.splat(factor)
        with e.loop(octets) as i:
            place = e.at(out, out_at, e.times(i, LANES))
            values = [e.load(e.at(inputs[2 * k], inputs[2 * k + 1], e.times(i, LANES))) for k in range(count)]
            e.store(body(e, values, wide, place), place)

    return emitted(2 * count + 4, types.void, rows)


scale_row = _rows(1, lambda e, x, factor, _: e.b.fmul(x[0], factor))
add_row = _rows(1, lambda e, x, factor, out: e.fma(x[0], factor, e.load(out)))
weigh_row = _rows(2, lambda e, x, factor, _: e.b.fmul(e.b.fmul(x[0], factor), x[1]))
add_weighed = _rows(2, lambda e, x, factor, out: e.fma(e.b.fmul(x[0], factor), x[1], e.load(out)))
"""scale_row, add_row (x, at, octets, factor, out, at): out = or += x * factor; weigh_row, add_weighed (x, at, y, at, octets, factor, out, at):
out = or += x * factor * y. In place, too."""


def _turn(sign: float) -> Any:
    def turn(e: Emit) -> None:
        x, at, table, table_at, half, octets = e.args
        with e.loop(octets) as i:
            places = e.at(x, at, e.times(i, LANES)), e.at(x, at, half, e.times(i, LANES))
            a, b = e.load(places[0]), e.load(places[1])
            cos, sin = e.load(e.at(table, table_at, e.times(i, LANES))), e.load(e.at(table, table_at, half, e.times(i, LANES)))
            sin = e.b.fmul(sin, e.constant(sign))
            e.store(e.fma(b, e.b.fmul(sin, e.constant(-1.0)), e.b.fmul(a, cos)), places[0])
            e.store(e.fma(a, sin, e.b.fmul(b, cos)), places[1])

    return emitted(6, types.void, turn)


turn_forth, turn_back = _turn(1.0), _turn(-1.0)
"""turn(x, at, table, at, half, octets): the first 8*octets of `half` pairs x[i], x[half + i] by the angles whose cosines and sines the table has."""

squares_of = emitted(3, types.float32, squares)
"""squares_of(x, at, octets): the sum of the squares of 8*octets floats."""
