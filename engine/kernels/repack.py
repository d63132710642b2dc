"""From blocks as files hold them (rows of groups of 32 weights) to the layout that integers.py reads.

File formats (llama.cpp's ggml-common.h): Q4_0 d, 16 bytes of codes; Q4_1 d, m, 16 bytes; Q8_0 d, 32 signed bytes; d and m in half
precision. Byte j of a 4-bit group holds weight j in its low half and weight j + 16 in its high half.
"""

from __future__ import annotations

import numpy as np

from agentkit.engine.kernels.library import inner, kernel
from agentkit.engine.kernels.linear import CODE_BYTES, EIGHT, FOUR, SCALES
from agentkit.engine.kernels.tiles import GROUP, WIDTH

Q4_0, Q4_1, Q8_0 = 0, 1, 2
BLOCK_BYTES = (18, 20, 34)
_SIGN, _TIMES_8 = np.uint16(0x8000), np.uint16(3 << 10)
_EXPONENT, _SMALLEST = np.uint16(0x7C00), np.uint16(1 << 10)


@kernel
def repack(source, raw, order, first, groups, codes, codes_at, scales, scales_at):
    """Writes every row i of raw [rows, groups * BLOCK_BYTES] as output order[first + i] of the matrix at codes_at, scales_at.

    Q4_0 becomes Q4_1 with m = -8 d. Returns how many groups have a scale too large for that in half precision (left at m = -inf).
    """
    too_large = 0
    for i in range(raw.shape[0]):
        target = order[first + i]
        for g in range(groups):
            at = g * BLOCK_BYTES[source]
            if source == Q8_0:
                place = codes_at + ((target // WIDTH) * groups + g) * CODE_BYTES[EIGHT] + target % WIDTH * 4
                for k in range(GROUP):  # a word holds k, k+1, k+4, k+5 of an octet: see integers.py
                    codes[place + (k // 8 * 2 + k % 4 // 2) * 4 * WIDTH + k % 2 + k % 8 // 4 * 2] = raw[i, at + 2 + k]
                scales[scales_at + ((target // WIDTH) * groups + g) * SCALES[EIGHT] + target % WIDTH] = _half(raw, i, at)
                continue
            place = scales_at + ((target // WIDTH) * groups + g) * SCALES[FOUR] + target % WIDTH
            d = _half(raw, i, at)
            scales[place] = d
            if source == Q4_1:
                scales[place + WIDTH] = _half(raw, i, at + 2)
            else:
                m = _minus_eight(d)
                too_large += (m & _EXPONENT) == _EXPONENT
                scales[place + WIDTH] = m
            place = codes_at + ((target // WIDTH) * groups + g) * CODE_BYTES[FOUR] + target % WIDTH * 4
            _nibbles(raw, i, at + BLOCK_BYTES[source] - GROUP // 2, codes, place)
    return too_large


@inner
def _half(raw, row, at):
    return np.uint16(raw[row, at]) | np.uint16(np.uint16(raw[row, at + 1]) << np.uint16(8))


@inner
def _minus_eight(d):
    """-8 d in half precision, exactly; an infinity where that is too large."""
    magnitude = d & np.uint16(0x7FFF)
    sign = (d ^ _SIGN) & _SIGN
    if magnitude >= np.uint16(0x7000):  # 8 d > 65504, or not a number
        return sign | _EXPONENT
    exponent = magnitude >> np.uint16(10)
    if exponent == 0:  # subnormal: shift the fraction up, into the exponents where it overflows
        fraction = np.int64(magnitude) << 3
        if fraction < 2048:
            return sign | np.uint16(fraction)
        shift = 0
        while fraction >= 2048:
            fraction >>= 1
            shift += 1
        return sign | np.uint16((shift + 1 << 10) | (fraction & 1023))
    return sign | np.uint16(magnitude + _TIMES_8)


@inner
def _nibbles(raw, row, at, codes, place):
    """16 bytes -> four 32-bit words, 8 weights each, one for each octet of k; words of one octet lie side by side."""
    for octet in range(4):
        for pair in range(4):
            byte = np.uint8(0)
            for half in range(2):
                k = octet * 8 + pair * 2 + half
                code = (raw[row, at + k % 16] >> np.uint8(4 * (k // 16))) & np.uint8(15)
                byte |= np.uint8(code << np.uint8(4 * half))
            codes[place + octet * 4 * WIDTH + pair] = byte
