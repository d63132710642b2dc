"""Low-rank adapters beside a matrix on the CPU: out += scale * (x A^T) B^T, both products in one pass over a few rows at a time.

Both matrices are panels of 32 columns (see tiles.py), so a row's sums have one order whatever else is computed: what it gets depends on
itself alone. Knows nothing of requests, or of which rows an adapter belongs to.
"""

from __future__ import annotations

from agentkit.engine.kernels.library import inner, kernel
from agentkit.engine.kernels.linear import multiply
from agentkit.engine.kernels.sync import chunk_of, draw, finish_chunk, next_stage, stage_of
from agentkit.engine.kernels.tiles import LANES, WIDTH, scale_row

ROWS = 24
"""Rows of a chunk."""
PART_COLUMNS = 5
FIRST_RANK, RANKS, FIRST_COLUMN, COLUMNS, UP_AT = range(PART_COLUMNS)
"""Of each part of a fused matrix: its ranks, its outputs, and where its panels begin among those of B."""


def scratch_floats(ranks: int) -> int:
    """Floats of scratch for so many ranks, filled up to whole panels."""
    return ROWS * (ranks + WIDTH)


@kernel
def add_low_rank(worker, sync, x, inputs, out, out_stride, first, rows, down, ranks, up, parts, scale, scratch):
    """One worker's share of out[first : first + rows] += scale * (x[...] A^T) B^T. x [T, inputs], out [T, out_stride], flat.

    down: A, panels [ranks / 32, inputs, 32].   up, parts: B of each part, panels [outputs / 32, ranks of the part, 32].
    """
    chunks = (rows + ROWS - 1) // ROWS
    while True:
        ticket = draw(sync)
        stage, chunk = stage_of(ticket), chunk_of(ticket)
        if stage > 0:
            return
        if chunk < chunks:
            row, count = first + chunk * ROWS, min(ROWS, rows - chunk * ROWS)
            _shrink(x, row * inputs, inputs, down, ranks, scale, count, scratch)
            for p in range(parts.shape[0]):
                _expand(scratch, ranks, up, parts[p], out, row * out_stride, out_stride, count, scratch[ROWS * ranks :])
            finish_chunk(sync)
        else:
            next_stage(sync, worker, stage, chunks)


@inner
def _shrink(x, x_at, inputs, down, ranks, scale, count, h):
    """h [count, ranks] = scale * x A^T."""
    for i in range(count * ranks):
        h[i] = 0.0
    for panel in range(ranks // WIDTH):
        multiply(down, panel * inputs * WIDTH, WIDTH, x, x_at, inputs, inputs, h, panel * WIDTH, ranks, count)
    scale_row(h, 0, count * ranks // LANES, scale, h, 0)


@inner
def _expand(h, h_stride, up, part, out, out_at, out_stride, count, acc):
    """out [count, outputs of the part] += h B^T. acc: room for the last outputs, where they are no whole panel."""
    for first in range(0, part[COLUMNS], WIDTH):
        panel, at = part[UP_AT] + first * part[RANKS], out_at + part[FIRST_COLUMN] + first
        if first + WIDTH <= part[COLUMNS]:
            multiply(up, panel, WIDTH, h, part[FIRST_RANK], h_stride, part[RANKS], out, at, out_stride, count)
            continue
        for i in range(count * WIDTH):
            acc[i] = 0.0
        multiply(up, panel, WIDTH, h, part[FIRST_RANK], h_stride, part[RANKS], acc, 0, WIDTH, count)
        for c in range(count):
            for j in range(part[COLUMNS] - first):
                out[at + c * out_stride + j] += acc[c * WIDTH + j]
