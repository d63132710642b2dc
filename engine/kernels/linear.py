"""A block of 32 outputs of a quantised matrix, for any number of tokens. See tiles.py for the order of sums."""

from __future__ import annotations

from agentkit.engine.kernels.library import inner
from agentkit.engine.kernels.tiles import GROUP, WIDTH, dot4, dot8, panel4, panel8, tile1, tile2, tile3

FOUR, EIGHT = 0, 1
CODE_BYTES = (WIDTH * GROUP // 2, WIDTH * GROUP)  # of a group of one block, by kind
SCALES = (2 * WIDTH, WIDTH)
DEPTH = 8  # groups in a panel: 32 kB, which stays in the first cache


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
def block(kind, codes, codes_at, scales, scales_at, groups, x, x_at, x_stride, columns, acc, panel):
    """acc[c, 0:32] = x[c] @ one block of outputs, c < columns. panel: room for DEPTH * 32 * 32 floats."""
    for i in range(columns * WIDTH):
        acc[i] = 0.0
    if columns == 1:
        if kind == FOUR:
            dot4(codes, codes_at, scales, scales_at, groups, x, x_at, acc)
        else:
            dot8(codes, codes_at, scales, scales_at, groups, x, x_at, acc)
        return
    group = 0
    while group < groups:
        depth = min(DEPTH, groups - group)
        if kind == FOUR:
            panel4(codes, codes_at + group * CODE_BYTES[FOUR], scales, scales_at + group * SCALES[FOUR], depth, panel)
        else:
            panel8(codes, codes_at + group * CODE_BYTES[EIGHT], scales, scales_at + group * SCALES[EIGHT], depth, panel)
        multiply(panel, 0, WIDTH, x, x_at + group * GROUP, x_stride, depth * GROUP, acc, 0, WIDTH, columns)
        group += depth
