"""A whole forward of a quantised decoder as one kernel, run side by side by several workers (see sync.py).

    embed | per layer: norm, qkv, rotary and KV write, attention tasks, merge, output matrix, [norm], norm, gate and up, down, [norm] | norm, head

Each is a stage whose chunks (rows, blocks of 32 outputs, tasks of attention) are independent of one another. Every chunk is
computed by the same code in the same order for any number of tokens, so a row of logits depends on its own tokens alone: bit
for bit the same for one token, a draft of eight, a batch of sixteen or a prefill of hundreds. What a matrix multiplies is rounded
by groups of 32 where it is made (see integers.py). Knows nothing of requests or of how weights were quantised.
"""

from __future__ import annotations

import numpy as np

from agentkit.engine.kernels.attention import RANGE, attend, merge, weigh
from agentkit.engine.kernels.integers import GROUP_WORDS
from agentkit.engine.kernels.library import inner, kernel
from agentkit.engine.kernels.linear import CODE_BYTES, SCALES, block, rounded
from agentkit.engine.kernels.rows import add_norm, gate, mix, norm, rotate, turn_table
from agentkit.engine.kernels.sync import borrowed, chunk_of, draw, finish_chunk, next_stage, stage_of
from agentkit.engine.kernels.tables import (
    AFTER_ATTENTION,
    AFTER_MLP,
    BEFORE_ATTENTION,
    BEFORE_MLP,
    BIAS,
    BLOCKS,
    CODES,
    GROUPS,
    KIND,
    M_DOWN,
    M_GATE_UP,
    M_OUT,
    M_QKV,
    MATRICES,
    QK_NORM,
    ROPE,
    SCALES_AT,
    WINDOW,
)
from agentkit.engine.kernels.tiles import GROUP, LANES, WIDTH, add_row, cap_all, in_whole_numbers, narrow_row, row_size, scale_row

COLUMNS = 96  # tokens of a chunk
MATRIX_SCRATCH = (2 * COLUMNS + 3) * WIDTH  # floats: sums of two blocks, scales of a group, outputs of a gate
HEAD_BLOCKS = 8  # of the head in one chunk: there are many
STAGES = 11  # per layer
NORM, QKV, TURN, ATTEND, MERGE, OUT, OUT_NORM, NORM_MLP, GATE_UP, DOWN, DOWN_NORM = range(STAGES)


@kernel
def forward(worker, sync, shape, constants, weights, batch, work, data, slots, scratch):
    """One worker's share of a forward. data: the flat pool of `slots` slots; scratch: this worker's own floats."""
    weights, batch, work = borrowed(weights), borrowed(batch), borrowed(work)
    sync, data, scratch = borrowed(sync), borrowed(data), borrowed(scratch)
    last = 1 + STAGES * shape.layers + 2
    begun, before = -1, 0  # the newest stage that this worker knows of, and the chunks of all up to it
    while True:
        ticket = draw(sync)
        stage, chunk = stage_of(ticket), chunk_of(ticket)
        if stage >= last:
            return
        count = chunks_of(stage, shape, weights, batch, work)
        if chunk < count:
            run_chunk(stage, chunk, shape, constants, weights, batch, work, data, slots, scratch)
            finish_chunk(sync)
            continue
        if stage > begun:
            begun = stage
            before += count
        next_stage(sync, worker, stage, before)


@kernel
def project(worker, sync, weights, matrix, x, x_stride, codes, out, scratch):
    """One worker's share of out [T, outputs of the matrix] = x [T, x_stride] @ matrix, all flat. codes: room for the rounded rows of x."""
    rows, blocks, stride = x.size // x_stride, weights.matrices[matrix, BLOCKS], words_of(x_stride)
    chunks = blocks * _tiles(rows)
    while True:
        ticket = draw(sync)
        stage, chunk = stage_of(ticket), chunk_of(ticket)
        if stage == 0 and chunk < rows:
            round_row(weights, matrix, x, chunk * x_stride, x_stride, codes, chunk * stride)
        elif stage == 1 and chunk < chunks:
            _project(weights, matrix, chunk, codes, stride, rows, out, 0, blocks * WIDTH, False, scratch)
        elif stage > 1:
            return
        else:
            next_stage(sync, worker, stage, rows + stage * chunks)
            continue
        finish_chunk(sync)


@inner
def words_of(stride):
    """Words of a rounded row."""
    return stride // GROUP * GROUP_WORDS


@inner
def round_row(weights, matrix, x, x_at, stride, out, out_at):
    """A row that the matrix is about to multiply."""
    rounded(weights.matrices[matrix, KIND], weights.narrow, x, x_at, stride // GROUP, out, out_at)


@inner
def _tiles(rows):
    return (rows + COLUMNS - 1) // COLUMNS


@inner
def chunks_of(stage, shape, weights, batch, work):
    tokens, chosen = batch.ids.size, batch.chosen.size
    if stage == 0:
        return tokens
    if stage == 1 + STAGES * shape.layers:
        return chosen
    if stage > STAGES * shape.layers:
        return (weights.matrices[MATRICES * shape.layers, BLOCKS] + HEAD_BLOCKS - 1) // HEAD_BLOCKS * _tiles(batch.sampled)
    layer, part = (stage - 1) // STAGES, (stage - 1) % STAGES
    rest = chosen if layer == shape.layers - 1 else tokens  # rows that go on after attention
    if part == NORM or part == TURN:
        return tokens
    if part == QKV:
        return weights.matrices[MATRICES * layer + M_QKV, BLOCKS] * _tiles(tokens)
    pairs = batch.tasks.shape[0] * shape.kv_heads
    if part == ATTEND:
        return pairs if rest > 0 or work.received.size > 0 else 0
    if part == MERGE:
        return rest + pairs if work.received.size > 0 else rest
    if part == NORM_MLP:
        return rest
    if part == OUT_NORM:
        return rest if weights.layers[layer, AFTER_ATTENTION] >= 0 else 0
    if part == DOWN_NORM:
        return rest if weights.layers[layer, AFTER_MLP] >= 0 else 0
    if part == OUT:
        return weights.matrices[MATRICES * layer + M_OUT, BLOCKS] * _tiles(rest)
    if part == GATE_UP:
        return weights.matrices[MATRICES * layer + M_GATE_UP, BLOCKS] // 2 * _tiles(rest)
    return weights.matrices[MATRICES * layer + M_DOWN, BLOCKS] * _tiles(rest)


@inner
def run_chunk(stage, chunk, shape, constants, weights, batch, work, data, slots, scratch):
    """One chunk of one stage."""
    if stage == 0:
        _embed(chunk, shape, constants, weights, batch, work)
        return
    tail = work.residual.size // 2  # rows that are wanted at the end move there in the last layer
    if stage == 1 + STAGES * shape.layers:
        at = batch.order[chunk] * shape.hidden_stride
        norm(work.residual, tail + at, shape.hidden, weights.floats, shape.final_norm, constants.eps, work.normed, at)
        round_row(weights, MATRICES * shape.layers, work.normed, at, shape.hidden_stride, work.to_hidden, chunk * words_of(shape.hidden_stride))
        return
    if stage > STAGES * shape.layers:
        _head(chunk, shape, constants, weights, batch, work, scratch)
        return
    layer, part = (stage - 1) // STAGES, (stage - 1) % STAGES
    final = layer == shape.layers - 1
    stream = tail if final else 0
    rest = batch.chosen.size if final else batch.ids.size
    table = weights.layers[layer]
    matrix = MATRICES * layer
    at = chunk * shape.hidden_stride
    if part == NORM:
        norm(work.residual, at, shape.hidden, weights.floats, table[BEFORE_ATTENTION], constants.eps, work.normed, at)
        round_row(weights, matrix + M_QKV, work.normed, at, shape.hidden_stride, work.to_hidden, chunk * words_of(shape.hidden_stride))
    elif part == QKV:
        _project(weights, matrix + M_QKV, chunk, work.to_hidden, words_of(shape.hidden_stride), batch.ids.size, work.qkv, 0, shape.qkv_stride, False, scratch)
    elif part == TURN:
        _turn(chunk, layer, shape, constants, weights, batch, work, data, slots)
    elif part == ATTEND:
        _attend(chunk, layer, shape, constants, weights, batch, work, data, slots, scratch)
    elif part == MERGE and chunk >= rest:
        pair, group, stride = chunk - rest, shape.heads // shape.kv_heads, shape.heads * (shape.head_dim + 2)
        task, head = batch.tasks[pair // shape.kv_heads], pair % shape.kv_heads * group
        weigh(task, batch.rows, batch.parts, head, group, shape.head_dim, work.partial, stride, work.exponentials, work.received, pair * RANGE)
    elif part == MERGE:
        token = batch.chosen[chunk] if final else chunk
        merge(batch.parts, token, work.partial, shape.heads * (shape.head_dim + 2), shape.heads, shape.head_dim, work.attended, chunk * shape.heads_stride)
        round_row(weights, matrix + M_OUT, work.attended, chunk * shape.heads_stride, shape.heads_stride, work.to_out, chunk * words_of(shape.heads_stride))
        if final:
            scale_row(work.residual, token * shape.hidden_stride, shape.hidden_stride // LANES, np.float32(1.0), work.residual, tail + at)
    elif part == OUT:
        inside = table[AFTER_ATTENTION] >= 0  # its norm comes before the sum
        out, place = (work.normed, 0) if inside else (work.residual, stream)
        _project(weights, matrix + M_OUT, chunk, work.to_out, words_of(shape.heads_stride), rest, out, place, shape.hidden_stride, not inside, scratch)
    elif part == OUT_NORM:
        add_norm(work.normed, at, shape.hidden, weights.floats, table[AFTER_ATTENTION], constants.eps, work.residual, stream + at)
    elif part == NORM_MLP:
        norm(work.residual, stream + at, shape.hidden, weights.floats, table[BEFORE_MLP], constants.eps, work.normed, at)
        round_row(weights, matrix + M_GATE_UP, work.normed, at, shape.hidden_stride, work.to_hidden, chunk * words_of(shape.hidden_stride))
    elif part == GATE_UP:
        _gate_up(weights, matrix + M_GATE_UP, chunk, shape, rest, work, scratch)
    elif part == DOWN:
        inside = table[AFTER_MLP] >= 0
        out, place = (work.normed, 0) if inside else (work.residual, stream)
        _project(weights, matrix + M_DOWN, chunk, work.to_down, words_of(shape.inner_stride), rest, out, place, shape.hidden_stride, not inside, scratch)
    else:
        add_norm(work.normed, at, shape.hidden, weights.floats, table[AFTER_MLP], constants.eps, work.residual, stream + at)


@inner
def _embed(token, shape, constants, weights, batch, work):
    at = token * shape.hidden_stride
    for i in range(shape.hidden):
        work.residual[at + i] = weights.embedding[batch.ids[token], i] * constants.embed_scale
    half = shape.head_dim // 2
    for rope in range(shape.ropes):
        place = (rope * batch.ids.size + token) * shape.head_dim
        turn_table(batch.positions[token], weights.frequencies, rope * half, half, weights.factors[rope], work.turns, place)
        if batch.sinks > 0:
            turn_table(batch.left_out[token], weights.frequencies, rope * half, half, np.float32(1.0), work.back, place)


@inner
def columns_of(weights, matrix, index, first, x, x_stride, columns, acc, wide):
    """acc[c, 0:32] = x[first + c] @ block `index` of a matrix."""
    m = weights.matrices[matrix]
    kind, groups = m[KIND], m[GROUPS]
    codes, scales = m[CODES] + index * groups * CODE_BYTES[kind], m[SCALES_AT] + index * groups * SCALES[kind]
    block(kind, weights.narrow, weights.codes, codes, weights.scales, scales, groups, x, first * x_stride, x_stride, columns, acc, wide)
    if m[BIAS] >= 0:
        for c in range(columns):
            add_row(weights.floats, m[BIAS] + index * WIDTH, WIDTH // LANES, np.float32(1.0), acc, c * WIDTH)


@inner
def _project(weights, matrix, chunk, x, x_stride, rows, out, out_at, out_stride, add, scratch):
    """out[r, block] = or += x[r] @ one block, for the rows of this chunk."""
    blocks = weights.matrices[matrix, BLOCKS]
    index, first = chunk % blocks, chunk // blocks * COLUMNS
    columns = min(COLUMNS, rows - first)
    columns_of(weights, matrix, index, first, x, x_stride, columns, scratch, scratch[2 * COLUMNS * WIDTH :])
    for c in range(columns):
        at = out_at + (first + c) * out_stride + index * WIDTH
        if add:
            add_row(scratch, c * WIDTH, WIDTH // LANES, np.float32(1.0), out, at)
        else:
            scale_row(scratch, c * WIDTH, WIDTH // LANES, np.float32(1.0), out, at)


@inner
def _gate_up(weights, matrix, chunk, shape, rows, work, scratch):
    """Blocks of gate and up lie alternately, so that a chunk has both halves of its outputs."""
    blocks = weights.matrices[matrix, BLOCKS] // 2
    index, first = chunk % blocks, chunk // blocks * COLUMNS
    columns = min(COLUMNS, rows - first)
    gates, ups, wide = scratch[: COLUMNS * WIDTH], scratch[COLUMNS * WIDTH : 2 * COLUMNS * WIDTH], scratch[2 * COLUMNS * WIDTH :]
    columns_of(weights, matrix, 2 * index, first, work.to_hidden, words_of(shape.hidden_stride), columns, gates, wide)
    columns_of(weights, matrix, 2 * index + 1, first, work.to_hidden, words_of(shape.hidden_stride), columns, ups, wide)
    for c in range(columns):
        gate(shape.activation, gates, ups, c * WIDTH, wide, 0)
        place = (first + c) * words_of(shape.inner_stride) + index * GROUP_WORDS
        round_row(weights, matrix + M_DOWN - M_GATE_UP, wide, 0, WIDTH, work.to_down, place)


@inner
def _turn(token, layer, shape, constants, weights, batch, work, data, slots):
    """Norms and rotates q and k of one token, and writes k and v to their slot."""
    dim, at = shape.head_dim, token * shape.qkv_stride
    table = (weights.layers[layer, ROPE] * batch.ids.size + token) * dim
    qk_norm = weights.layers[layer, QK_NORM]
    for head in range(shape.heads + shape.kv_heads):
        place = at + head * dim
        if qk_norm >= 0:
            norm(work.qkv, place, dim, weights.floats, qk_norm + head * dim, constants.eps, work.qkv, place)
        rotate(work.qkv, place, work.turns, table, dim // 2)
    for part in range(2):
        for head in range(shape.kv_heads):
            row = at + (shape.heads + part * shape.kv_heads + head) * dim
            place = (((batch.tables[layer, 1] * 2 + part) * shape.kv_heads + head) * slots + batch.slots[batch.tables[layer, 0], token]) * row_size(data, dim)
            if part == 0 and in_whole_numbers(data):
                mix(work.qkv, row, dim)
            narrow_row(work.qkv, row, dim // LANES, data, place)


@inner
def _attend(chunk, layer, shape, constants, weights, batch, work, data, slots, scratch):
    head, dim, group = chunk % shape.kv_heads, shape.head_dim, shape.heads // shape.kv_heads
    table, stored = batch.tables[layer, 0], batch.tables[layer, 1]
    keys = (stored * 2 * shape.kv_heads + head) * slots * row_size(data, dim)
    values = keys + shape.kv_heads * slots * row_size(data, dim)
    window = weights.layers[layer, WINDOW]
    if batch.window > 0:
        window = min(window, batch.window) if window > 0 else batch.window
    turns_at = weights.layers[layer, ROPE] * batch.ids.size * dim
    attend(
        batch.tasks[chunk // shape.kv_heads], batch.pages[table], batch.rows, batch.places, batch.trees, work.qkv, shape.qkv_stride, head * group,
        group, data, keys, values, dim, window, batch.sinks, work.back, turns_at, constants.scale, constants.attention_cap, work.partial,
        shape.heads * (dim + 2), work.exponentials, scratch,
    )  # fmt: skip


@inner
def _head(chunk, shape, constants, weights, batch, work, scratch):
    """Some blocks of the head for some rows; what is allowed of a block decides for which of the rows it is computed."""
    matrix = MATRICES * shape.layers
    blocks = weights.matrices[matrix, BLOCKS]
    spans = (blocks + HEAD_BLOCKS - 1) // HEAD_BLOCKS
    begin, first = chunk % spans * HEAD_BLOCKS, chunk // spans * COLUMNS
    end = min(first + COLUMNS, batch.sampled)
    for index in range(begin, min(begin + HEAD_BLOCKS, blocks)):
        row = first
        while row < end:
            stop = _alike(batch.allowed, row, end, index)
            count = stop - row
            if batch.allowed.size > 0 and batch.allowed[row, index] == 0:
                scratch[: count * WIDTH] = -np.inf
            else:
                columns_of(weights, matrix, index, row, work.to_hidden, words_of(shape.hidden_stride), count, scratch, scratch[2 * COLUMNS * WIDTH :])
                if constants.logit_cap > 0:
                    cap_all(scratch, 0, count * WIDTH // LANES, constants.logit_cap)
            for c in range(count):
                _hand_out(scratch, c * WIDTH, work.logits[batch.order[row + c]], index * WIDTH, min(WIDTH, shape.vocabulary - index * WIDTH))
            row = stop


@inner
def _alike(allowed, row, end, index):
    """The end of the run of rows from `row` on that all want something of a block, or all nothing."""
    if allowed.size == 0:
        return end
    stop = row + 1
    while stop < end and (allowed[stop, index] != 0) == (allowed[row, index] != 0):
        stop += 1
    return stop


@inner
def _hand_out(values, at, logits, first, count):
    scale_row(values, at, count // LANES, np.float32(1.0), logits, first)
    for j in range(count // LANES * LANES, count):
        logits[first + j] = values[at + j]
