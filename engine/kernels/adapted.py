"""The whole forward of a quantised decoder with low-rank adapters beside its matrices, other ones for the rows of each request.

The stages are those of forward.py, and one more per layer. What an adapter adds, scale * (x A^T) B^T, is computed where its parts are at
hand: x A^T by whoever makes the row x (norms, merged attention; what the last matrix of a layer multiplies has a stage of its own), and
that times B^T by whoever multiplies x by a block of 32 outputs. So a row's result depends on its own tokens and adapter alone, as ever,
and rows without an adapter get the bits that forward.py gives them. Knows nothing of requests or files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from agentkit.engine.kernels.forward import (
    COLUMNS,
    DOWN,
    GATE_UP,
    MERGE,
    NORM,
    NORM_MLP,
    OUT,
    QKV,
    STAGES,
    chunks_of,
    columns_of,
    round_row,
    run_chunk,
    words_of,
)
from agentkit.engine.kernels.integers import GROUP_WORDS
from agentkit.engine.kernels.library import inner, kernel
from agentkit.engine.kernels.linear import multiply
from agentkit.engine.kernels.rows import gate
from agentkit.engine.kernels.sync import array_at, borrowed, chunk_of, draw, finish_chunk, next_stage, stage_of
from agentkit.engine.kernels.tables import AFTER_ATTENTION, AFTER_MLP, BLOCKS, M_DOWN, M_GATE_UP, M_OUT, M_QKV, MATRICES
from agentkit.engine.kernels.tiles import LANES, WIDTH, scale_row, tile8

SHRINK = DOWN  # the further stage comes before this one
ADAPTED_STAGES = STAGES + 1
PLACE_COLUMNS = 3
RANKS, DOWN_AT, BLOCKS_AT = range(PLACE_COLUMNS)
"""An adapter's integers begin with a line per matrix, as Weights.matrices has: ranks (a multiple of 8; 0: no change), where A lies among its floats
in panels [ranks / 8, inputs, 8], and where among the integers a line per block of 32 outputs lies."""
BLOCK_COLUMNS = 3
FIRST_RANK, RANK_COUNT, UP_AT = range(BLOCK_COLUMNS)
"""Of a block: which of the ranks change it (count 0: none), and where their part of B lies among the floats, a panel [count, 32]."""


class Beside(NamedTuple):
    """users [T], chosen_users [N]: the line in `adapters` of each row, before and after the last layer's attention; -1: none.

    adapters [U, 2]: addresses of an adapter's floats (float32) and integers (int64).   scales [U] float32.
    h [max(T, N), ranks], fed [max(T, N), inner_stride]: room for x A^T, and for what the last matrix of a layer multiplies.
    """

    users: Any
    chosen_users: Any
    adapters: Any
    scales: Any
    h: Any
    ranks: int
    fed: Any


@kernel
def forward_adapted(worker, sync, shape, constants, weights, batch, work, data, slots, beside, scratch):
    """One worker's share of a forward; see forward.forward."""
    weights, batch, work, beside = borrowed(weights), borrowed(batch), borrowed(work), borrowed(beside)
    sync, data, scratch = borrowed(sync), borrowed(data), borrowed(scratch)
    last = 1 + ADAPTED_STAGES * shape.layers + 2
    begun, before = -1, 0  # the newest stage that this worker knows of, and the chunks of all up to it
    while True:
        ticket = draw(sync)
        stage, chunk = stage_of(ticket), chunk_of(ticket)
        if stage >= last:
            return
        layer, part = (stage - 1) // ADAPTED_STAGES, (stage - 1) % ADAPTED_STAGES
        inside = 0 < stage <= ADAPTED_STAGES * shape.layers
        plain = _plain(stage, layer, part, inside, shape)
        shrinks = inside and part == SHRINK
        count = _rows_after(layer, shape, batch) if shrinks else chunks_of(plain, shape, weights, batch, work)
        if chunk < count:
            if shrinks:
                _shrink(layer, M_DOWN, shape, beside, _after(layer, shape, beside), chunk, beside.fed, shape.inner_stride)
            elif inside and part == GATE_UP:
                _gate_up(chunk, layer, shape, weights, batch, work, beside, scratch)
            else:
                run_chunk(plain, chunk, shape, constants, weights, batch, work, data, slots, scratch)
                if inside:
                    _add(chunk, layer, part if part < SHRINK else part - 1, shape, weights, batch, work, beside)
            finish_chunk(sync)
            continue
        if stage > begun:
            begun = stage
            before += count
        next_stage(sync, worker, stage, before)


@inner
def _plain(stage, layer, part, inside, shape):
    """The stage of forward.py; of the further one some stage."""
    if inside:
        return 1 + STAGES * layer + (part if part < SHRINK else part - 1)
    return stage if stage == 0 else stage - shape.layers


@inner
def _rows_after(layer, shape, batch):
    """Rows that go on after a layer's attention."""
    return batch.chosen.size if layer == shape.layers - 1 else batch.ids.size


@inner
def _after(layer, shape, beside):
    """The adapters of those rows."""
    return beside.chosen_users if layer == shape.layers - 1 else beside.users


@inner
def _add(chunk, layer, part, shape, weights, batch, work, beside):
    """What adapters have to do with a chunk of a stage of forward.py that has just been computed."""
    users = _after(layer, shape, beside)
    rows = _rows_after(layer, shape, batch)
    stream = work.residual.size // 2 if layer == shape.layers - 1 else 0
    if part == NORM:
        _shrink(layer, M_QKV, shape, beside, beside.users, chunk, work.normed, shape.hidden_stride)
    elif part == MERGE and chunk < rows:
        _shrink(layer, M_OUT, shape, beside, users, chunk, work.attended, shape.heads_stride)
    elif part == NORM_MLP:
        _shrink(layer, M_GATE_UP, shape, beside, users, chunk, work.normed, shape.hidden_stride)
    elif part == QKV:
        _expand(layer, M_QKV, chunk, weights, beside, beside.users, batch.ids.size, work.qkv, 0, shape.qkv_stride)
    elif part == OUT:
        inside = weights.layers[layer, AFTER_ATTENTION] >= 0
        out, place = (work.normed, 0) if inside else (work.residual, stream)
        _expand(layer, M_OUT, chunk, weights, beside, users, rows, out, place, shape.hidden_stride)
    elif part == DOWN:
        inside = weights.layers[layer, AFTER_MLP] >= 0
        out, place = (work.normed, 0) if inside else (work.residual, stream)
        _expand(layer, M_DOWN, chunk, weights, beside, users, rows, out, place, shape.hidden_stride)


@inner
def _inputs(matrix, shape):
    """Numbers of a row that an adapter's first matrix multiplies; those beyond, up to the stride, are zeros."""
    if matrix == M_OUT:
        return shape.heads_stride
    return shape.inner_stride if matrix == M_DOWN else shape.hidden_stride


@inner
def _shrink(layer, matrix, shape, beside, users, row, x, x_stride):
    """h of a row: scale * x A^T."""
    user = users[row]
    if user < 0:
        return
    floats, whole = array_at(beside.adapters[user, 0], beside.scales), array_at(beside.adapters[user, 1], beside.users)
    line, inputs = (MATRICES * layer + matrix) * PLACE_COLUMNS, _inputs(matrix, shape)
    ranks, at = whole[line + RANKS], row * beside.ranks
    for i in range(ranks):
        beside.h[at + i] = 0.0
    for panel in range(ranks // LANES):
        tile8(floats, whole[line + DOWN_AT] + panel * inputs * LANES, LANES, x, row * x_stride, x_stride, inputs, beside.h, at + panel * LANES, LANES)
    scale_row(beside.h, at, ranks // LANES, beside.scales[user], beside.h, at)


@inner
def _expand(layer, matrix, chunk, weights, beside, users, rows, out, out_at, out_stride):
    """out[r, block] += h[r] B^T for the rows of this chunk; see forward._project."""
    blocks = weights.matrices[MATRICES * layer + matrix, BLOCKS]
    index, first = chunk % blocks, chunk // blocks * COLUMNS
    columns = min(COLUMNS, rows - first)
    _expand_block(layer, matrix, index, beside, users, first, columns, out, out_at + first * out_stride + index * WIDTH, out_stride)


@inner
def _expand_block(layer, matrix, index, beside, users, first, columns, out, out_at, out_stride):
    """out[c, 0:32] += h[first + c] times one block of B^T; rows of the same adapter together."""
    line = (MATRICES * layer + matrix) * PLACE_COLUMNS
    c = 0
    while c < columns:
        user, stop = users[first + c], c + 1
        while stop < columns and users[first + stop] == user:
            stop += 1
        if user >= 0:
            floats, whole = array_at(beside.adapters[user, 0], beside.scales), array_at(beside.adapters[user, 1], beside.users)
            if whole[line + RANKS] > 0:
                block = whole[line + BLOCKS_AT] + index * BLOCK_COLUMNS
                at = (first + c) * beside.ranks + whole[block + FIRST_RANK]
                ranks, panel = whole[block + RANK_COUNT], whole[block + UP_AT]
                multiply(floats, panel, WIDTH, beside.h, at, beside.ranks, ranks, out, out_at + c * out_stride, out_stride, stop - c)
        c = stop


@inner
def _gate_up(chunk, layer, shape, weights, batch, work, beside, scratch):
    """forward._gate_up with what adapters add before the gate, and their rows kept for the further stage."""
    matrix, rows, users = MATRICES * layer + M_GATE_UP, _rows_after(layer, shape, batch), _after(layer, shape, beside)
    blocks = weights.matrices[matrix, BLOCKS] // 2
    index, first = chunk % blocks, chunk // blocks * COLUMNS
    columns = min(COLUMNS, rows - first)
    gates, ups, wide = scratch[: COLUMNS * WIDTH], scratch[COLUMNS * WIDTH : 2 * COLUMNS * WIDTH], scratch[2 * COLUMNS * WIDTH :]
    for part in range(2):
        out = gates if part == 0 else ups
        columns_of(weights, matrix, 2 * index + part, first, work.to_hidden, words_of(shape.hidden_stride), columns, out, wide)
        _expand_block(layer, M_GATE_UP, 2 * index + part, beside, users, first, columns, out, 0, WIDTH)
    for c in range(columns):
        gate(shape.activation, gates, ups, c * WIDTH, wide, 0)
        place = (first + c) * words_of(shape.inner_stride) + index * GROUP_WORDS
        round_row(weights, matrix + M_DOWN - M_GATE_UP, wide, 0, WIDTH, work.to_down, place)
        if users[first + c] >= 0:
            scale_row(wide, 0, WIDTH // LANES, np.float32(1.0), beside.fed, (first + c) * shape.inner_stride + index * WIDTH)
