"""Products of quantised weights with activations that were rounded by groups of 32, in whole numbers.

    round16 / round8        a row of float32 activations to groups: scale, scale times sum of codes, codes of 16 or 8 bits
    four16, four8, eight16  acc[c, 0:32] += one group of 32 outputs' weights times the same group of 1 or 2 columns

Weights of 4 bits meet activations of 16 or 8 bits, weights of 8 bits those of 16. Sums within a group are exact (vpmaddwd, vpmaddubsw); groups
follow one another in one chain of fused multiply-adds. So no result depends on how many columns are computed together.
16 bits: the scale is a power of two, the error at most 2^-15 of the group's largest magnitude. 8 bits: at most 1/254 of it, as in
llama.cpp's Q8_1. Not-a-number and infinities make the whole group, and what is computed from it, not-a-number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from agentkit.engine.kernels.emit import F32, I32, I64, LANES, VF, VI, Emit, emitted
from agentkit.engine.kernels.tiles import GROUP, WIDTH

GROUP_WORDS = 18  # 32-bit words of a rounded group: scale, sum, room for 32 codes of 16 bits
_REGISTERS, _OCTETS = WIDTH // LANES, GROUP // LANES
_BYTES, _SHORTS = ir.VectorType(ir.IntType(8), 4 * LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_SMALLEST = 2.0**-90  # magnitudes of a group below this count as zero


def _x86(e: Emit, name: str, kind: Any, *operands: Any) -> Any:
    signature = ir.FunctionType(kind, [o.type for o in operands])
    return e.b.call(cgutils.get_or_insert_function(e.b.module, signature, f"llvm.x86.{name}"), operands)


def _every(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _short_pairs(e: Emit, a: Any, b: Any) -> Any:
    """[16] x [16] int16 -> 8 sums of two products, int32."""
    return _x86(e, "avx2.pmadd.wd", VI, a, b)


# -- activations ---------------------------------------------------------------------------------------------------


def _power_of_two(e: Emit, largest: Any) -> tuple[Any, Any]:
    """The least power of two that is at least largest / 2^15, and its inverse."""
    bits = e.b.and_(e.b.bitcast(largest, I32), I32(0xFF << 23))
    scale = e.b.sub(bits, I32(14 << 23))
    return e.b.bitcast(scale, F32), e.b.bitcast(e.b.sub(I32(254 << 23), scale), F32)


def _full_byte(e: Emit, largest: Any) -> tuple[Any, Any]:
    return e.b.fdiv(largest, F32(127.0)), e.b.fdiv(F32(127.0), largest)


def _rounding(bits: int, scaling: Callable[[Emit, Any], tuple[Any, Any]], order: list[int]) -> Any:
    """order: how the codes of eight activations lie in memory, so that a 32-bit word meets what lies together in a weight's word."""
    top = float((1 << (bits - 1)) - 1)
    narrow = ir.VectorType(ir.IntType(bits), LANES)

    def rounding(e: Emit) -> None:
        x, at, groups, out, out_at = e.args
        with e.loop(groups) as group:
            values = [e.load(e.at(x, at, e.times(group, GROUP), LANES * i)) for i in range(_OCTETS)]
            odd = e.constant(0.0)  # NaN where any value is no finite number
            largest = e.constant(_SMALLEST)
            for value in values:
                odd = e.fma(value, e.constant(0.0), odd)
                largest = e.larger(e.call("fabs", value), largest)
            scale, inverse = scaling(e, e.across(largest, e.larger))
            target = e.at(out, out_at, e.times(group, GROUP_WORDS))
            total = e.integer(0)
            for i, value in enumerate(values):
                scaled = e.b.fmul(value, e.splat(inverse))
                code = _x86(e, "avx.cvt.ps2dq.256", VI, e.b.select(e.b.fcmp_ordered(">", scaled, e.constant(top)), e.constant(top), scaled))
                total = e.b.add(total, code)
                short = e.b.trunc(code, narrow)
                e.store(e.b.shuffle_vector(short, short, ir.Constant(VI, order)), e.at(target, 2 + i * bits // 4))
            scale = e.b.fadd(scale, e.across(odd, e.b.fadd))
            e.b.store(scale, target)
            e.b.store(e.b.fmul(scale, e.b.sitofp(e.across(total, e.b.add), F32)), e.at(target, 1))

    return emitted(5, types.void, rounding)


round16 = _rounding(16, _power_of_two, [0, 4, 1, 5, 2, 6, 3, 7])
round8 = _rounding(8, _full_byte, [0, 2, 4, 6, 1, 3, 5, 7])
"""round(x, at, groups, out, out_at): float32 [groups * 32] to [groups * GROUP_WORDS] words (of a float32 array, as bits)."""


# -- weights -------------------------------------------------------------------------------------------------------


def widen(e: Emit) -> None:
    scales, at, octets, out = e.args
    with e.loop(octets) as i:
        half = e.load(e.at(scales, at, e.times(i, LANES)), ir.VectorType(ir.HalfType(), LANES))
        e.store(e.b.fpext(half, VF), e.at(out, e.times(i, LANES)))


widen_scales = emitted(4, types.void, widen)
"""widen_scales(scales uint16, at, octets, out): half-precision numbers as float32."""


def prefetch(e: Emit) -> None:
    data, at, count = e.args
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), I32, I32, I32])
    with e.loop(e.b.sdiv(count, I64(64))) as line:
        place = e.b.bitcast(e.at(data, at, e.times(line, 64)), ir.IntType(8).as_pointer())
        e.b.call(cgutils.get_or_insert_function(e.b.module, kind, "llvm.prefetch.p0"), [place, I32(0), I32(3), I32(1)])


prefetch_bytes = emitted(3, types.void, prefetch)
"""prefetch_bytes(data uint8, at, count): asks for them to be brought into the first cache; harmless beyond the end."""


def _four_as_bytes(e: Emit, codes: Any, octet: int) -> Iterator[Any]:
    """A word of 8 codes per output -> its even codes, then its odd ones, as 4 bytes."""
    word = e.load(e.at(codes, octet * WIDTH * 4), _SHORTS)
    for half in range(2):
        yield e.b.and_(e.b.bitcast(e.b.lshr(word, _every(_SHORTS, 4)) if half else word, _BYTES), _every(_BYTES, 15))


def _four_as_shorts(e: Emit, codes: Any, octet: int) -> Iterator[Any]:
    """The same word -> codes (k, k + 4) as two numbers of 16 bits, for k = 0..3."""
    word = e.load(e.at(codes, octet * WIDTH * 4), _SHORTS)
    for k in range(4):
        shifted = e.b.lshr(word, _every(_SHORTS, 4 * k)) if k else word
        yield shifted if k == 3 else e.b.and_(shifted, _every(_SHORTS, 15))


def _eight_as_shorts(e: Emit, codes: Any, octet: int) -> Iterator[Any]:
    """Two words per output, of codes 0, 1, 4, 5 and 2, 3, 6, 7 -> the same pairs."""
    for half in range(2):
        word = e.load(e.at(codes, (2 * octet + half) * WIDTH * 4), _SHORTS)
        yield e.b.ashr(e.b.shl(word, _every(_SHORTS, 8)), _every(_SHORTS, 8))
        yield e.b.ashr(word, _every(_SHORTS, 8))


def _byte_products(e: Emit, weight: Any, x: Any, total: Any) -> Any:
    """Sums of two products stay in 16 bits over a whole group: 8 * 2 * 15 * 127 < 2^15."""
    return e.b.add(total, _x86(e, "avx2.pmadd.ub.sw", _SHORTS, weight, e.b.bitcast(x, _BYTES)))


def _short_products(e: Emit, weight: Any, x: Any, total: Any) -> Any:
    return e.b.add(total, _short_pairs(e, weight, e.b.bitcast(x, _SHORTS)))


def _product(columns: int, unpack: Callable[[Emit, Any, int], Iterator[Any]], add: Callable[..., Any], sums: Any, *, offset: bool) -> Any:
    """sums: the type in which a group is summed up. offset: weights are d*q + m, not d*q."""
    rows = _REGISTERS // 2  # vectors of outputs at once; more would not stay in registers

    def product(e: Emit) -> None:
        codes, codes_at, scales, x, x_at, x_stride, acc, acc_at = e.args
        inputs = [e.at(x, x_at, e.times(x_stride, c)) for c in range(columns)]
        with e.loop(_REGISTERS // rows) as part:
            first = e.times(part, rows * LANES)
            weights = [e.at(codes, codes_at, e.times(first, 4), 4 * LANES * r) for r in range(rows)]
            totals = [[_every(sums, 0)] * rows for _ in range(columns)]
            word = 2
            for octet in range(_OCTETS):
                for unpacked in zip(*(unpack(e, weight, octet) for weight in weights), strict=True):
                    for c in range(columns):
                        factor = e.splat(e.load(e.at(inputs[c], word), I32), VI)
                        totals[c] = [add(e, unpacked[r], factor, totals[c][r]) for r in range(rows)]
                    word += 1
            for c in range(columns):
                scale, total = (e.splat(e.b.load(e.at(inputs[c], i))) for i in (0, 1))
                for r in range(rows):
                    exact = totals[c][r] if sums is VI else _short_pairs(e, totals[c][r], _every(_SHORTS, 1))
                    place, own = e.at(acc, acc_at, first, WIDTH * c + LANES * r), e.at(scales, first, LANES * r)
                    value = e.load(place)
                    if offset:
                        value = e.fma(e.load(e.at(own, WIDTH)), total, value)
                    e.store(e.fma(e.b.fmul(e.load(own), scale), e.b.sitofp(exact, VF), value), place)

    return emitted(8, types.void, product)


four8 = [_product(columns, _four_as_bytes, _byte_products, _SHORTS, offset=True) for columns in (1, 2)]
four16 = [_product(columns, _four_as_shorts, _short_products, VI, offset=True) for columns in (1, 2)]
eight16 = [_product(columns, _eight_as_shorts, _short_products, VI, offset=False) for columns in (1, 2)]
"""product(codes, at, scales float32, x, at, stride, acc, at): one group; scales d[32], then m[32] for 4 bits."""
