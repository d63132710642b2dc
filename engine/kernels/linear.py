"""A block of 32 outputs of a matrix, for any number of tokens: a quantised one of rounded activations, and a panel of floats.

See integers.py and tiles.py for the order of sums.
"""

from __future__ import annotations

from agentkit.engine.kernels.integers import GROUP_WORDS, eight16, four8, four16, prefetch_bytes, round8, round16, widen_scales
from agentkit.engine.kernels.library import inner
from agentkit.engine.kernels.tiles import GROUP, LANES, WIDTH, tile1, tile2, tile3

FOUR, EIGHT = 0, 1
CODE_BYTES = (WIDTH * GROUP // 2, WIDTH * GROUP)  # of a group of one block, by kind
SCALES = (2 * WIDTH, WIDTH)
AHEAD = 4  # groups that are fetched before they are needed: hardware does not look across pages
_ONE_FOUR8, _TWO_FOUR8 = four8
_ONE_FOUR16, _TWO_FOUR16 = four16
_ONE_EIGHT16, _TWO_EIGHT16 = eight16


@inner
def multiply(panel, panel_at, panel_stride, x, x_at, x_stride, count, acc, acc_at, acc_stride, columns):
    """acc[c, 0:32] += x[c, 0:count] @ panel[0:count, 0:32] for `columns` rows of x."""
    c = 0
    while c + 3 <= columns:
        tile3(panel, panel_at, panel_stride, x, x_at + c * x_stride, x_stride, count, acc, acc_at + c * acc_stride, acc_stride)
        c += 3
    if c + 2 == columns:
        tile2(panel, panel_at, panel_stride, x, x_at + c * x_stride, x_stride, count, acc, acc_at + c * acc_stride, acc_stride)
    elif c + 1 == columns:
        tile1(panel, panel_at, panel_stride, x, x_at + c * x_stride, x_stride, count, acc, acc_at + c * acc_stride, acc_stride)


@inner
def rounded(kind, narrow, x, x_at, groups, out, out_at):
    """Activations as a matrix of this kind takes them: 8 bits with `narrow` for matrices of 4 bits, else 16."""
    if kind == FOUR and narrow:
        round8(x, x_at, groups, out, out_at)
    else:
        round16(x, x_at, groups, out, out_at)


@inner
def block(kind, narrow, codes, codes_at, scales, scales_at, groups, x, x_at, x_stride, columns, acc, wide):
    """acc[c, 0:32] = x[c] @ one block of outputs, c < columns. x: rounded rows. wide: room for 64 floats."""
    for i in range(columns * WIDTH):
        acc[i] = 0.0
    for group in range(groups):
        code, place = codes_at + group * CODE_BYTES[kind], x_at + group * GROUP_WORDS
        prefetch_bytes(codes, code + AHEAD * CODE_BYTES[kind], CODE_BYTES[kind])
        widen_scales(scales, scales_at + group * SCALES[kind], SCALES[kind] // LANES, wide)
        pairs = columns // 2
        if kind == EIGHT:
            for c in range(0, 2 * pairs, 2):
                _TWO_EIGHT16(codes, code, wide, x, place + c * x_stride, x_stride, acc, c * WIDTH)
            if columns % 2:
                _ONE_EIGHT16(codes, code, wide, x, place + 2 * pairs * x_stride, x_stride, acc, 2 * pairs * WIDTH)
        elif narrow:
            for c in range(0, 2 * pairs, 2):
                _TWO_FOUR8(codes, code, wide, x, place + c * x_stride, x_stride, acc, c * WIDTH)
            if columns % 2:
                _ONE_FOUR8(codes, code, wide, x, place + 2 * pairs * x_stride, x_stride, acc, 2 * pairs * WIDTH)
        else:
            for c in range(0, 2 * pairs, 2):
                _TWO_FOUR16(codes, code, wide, x, place + c * x_stride, x_stride, acc, c * WIDTH)
            if columns % 2:
                _ONE_FOUR16(codes, code, wide, x, place + 2 * pairs * x_stride, x_stride, acc, 2 * pairs * WIDTH)
