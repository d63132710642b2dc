"""A decoder whose matrices are blocks of 8 or 4 bits, with the whole forward in one kernel on the CPU.

Input: a plain `Decoder`, and where there are any the blocks that its matrices were stored as (taken unchanged: the model is then
exactly the one in the file). Same contract as `Decoder.forward`. With a BatchAttention over a pool on the CPU one kernel does
everything; with any other `attend` the same matrices serve as the linear layers of the plain decoder. This module knows nothing
of files, requests or pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agentkit.engine.attention import BatchAttention, Plan
from agentkit.engine.kernels import forward as f
from agentkit.engine.kernels import tables as t
from agentkit.engine.kernels.attention import ROWS, scratch_floats
from agentkit.engine.kernels.integers import GROUP_WORDS
from agentkit.engine.kernels.linear import CODE_BYTES, EIGHT, FOUR, SCALES
from agentkit.engine.kernels.repack import Q8_0, repack
from agentkit.engine.kernels.rows import GELU, GELU_TANH, SILU
from agentkit.engine.kernels.team import TEAM
from agentkit.engine.kernels.tiles import GROUP, LANES, WIDTH
from agentkit.engine.large_array import large_array
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Allowed, Attend, Decoder, RowSelection
from agentkit.engine.weights.blocks import Blocks
from agentkit.errors import EngineError

Array = np.ndarray[Any, np.dtype[Any]]
_ACTIVATIONS = {"silu": SILU, "gelu": GELU, "gelu_tanh": GELU_TANH}
_NAMES = ("qkv", "out", "gate_up", "down")
_EVERY = np.uint32(0xFFFFFFFF)
assert WIDTH == 32, "a word of a mask is a block of the head"


@dataclass(frozen=True)
class Part:
    """One of a decoder's matrices as blocks: sources stacked along the outputs, in the order of `Decoder`'s fused layers.

    orders: for each source, which of its output rows each of its rows is (None: as they come).
    """

    sources: Sequence[Blocks]
    orders: Sequence[Array | None]


class PackedLinear:
    """One of the matrices as a linear layer: x [T, in] float32 -> [T, out]."""

    def __init__(self, tables: t.Weights, matrix: int, columns: int, rows: Array) -> None:
        """columns: in; rows [out]: which output of the packed matrix is each output of this layer."""
        self._tables, self._matrix, self._columns, self._rows = tables, matrix, columns, rows
        self._plain = bool((rows == np.arange(rows.size)).all())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        line = self._tables.matrices[self._matrix]
        padded = np.zeros((x.shape[0], int(line[t.GROUPS]) * GROUP), np.float32)
        padded[:, : self._columns] = x.numpy()
        out = np.empty((x.shape[0], int(line[t.BLOCKS]) * WIDTH), np.float32)
        codes = np.empty(padded.size // GROUP * GROUP_WORDS, np.float32)
        TEAM.run(f.project, torch.get_num_threads(), f.MATRIX_SCRATCH, self._tables, self._matrix, padded.ravel(), padded.shape[1], codes, out.ravel())
        return torch.from_numpy(out[:, : self._rows.size] if self._plain else out.take(self._rows, 1))  # rows stay rows in memory


class PackedDecoder(Decoder):
    """See the module. It runs on as many threads as torch is set to."""

    def __init__(self, plain: Decoder, parts: Callable[[int, str], Part], *, narrow: bool = False) -> None:
        """parts(layer, name): the matrix `name` ("qkv", "out", "gate_up", "down") of a layer; (-1, "head") is the head.

        narrow: round what matrices of 4 bits multiply to 8 bits, not 16.
        """
        self._tables, orders = _pack(plain, parts, narrow)
        linears = [PackedLinear(self._tables, i, columns, rows) for i, (columns, rows) in enumerate(orders)]
        layers = []
        for i, layer in enumerate(plain.layers):
            qkv, out, gate_up, down = linears[i * t.MATRICES :][: t.MATRICES]
            layers.append(replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down))
        super().__init__(plain.config, plain.embedding, layers, plain.final_norm, linears[-1])
        self._shape, self._constants = _shape(self.config, self._tables), _constants(self.config)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return int(self._tables.codes.nbytes + self._tables.scales.nbytes)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logits_for: RowSelection = None) -> torch.Tensor:
        plan = self._plan(attend)
        if plan is None:
            return super().forward(token_ids, positions, attend, logits_for)
        return torch.from_numpy(self._run(plan, token_ids, positions, logits_for, None).logits)

    __call__ = forward

    def forward_with_states(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, states_for: torch.Tensor, logits: int, allowed: Allowed | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plan = self._plan(attend)
        if plan is None:
            return super().forward_with_states(token_ids, positions, attend, states_for, logits, allowed)
        work = self._run(plan, token_ids, positions, states_for, logits, allowed)
        states = work.normed.reshape(-1, self._shape.hidden_stride)[: states_for.shape[0], : self._shape.hidden]  # as the last norm left them
        return torch.from_numpy(work.logits), torch.from_numpy(states)

    def _plan(self, attend: Attend) -> Plan | None:
        return attend.plan(self.config.num_heads // self.config.num_kv_heads) if isinstance(attend, BatchAttention) else None

    def _run(
        self, plan: Plan, token_ids: torch.Tensor, positions: torch.Tensor, rows: RowSelection, logits: int | None, allowed: Allowed | None = None
    ) -> t.Work:
        """logits: of so many of the rows; None: of all. allowed: see forward_with_states."""
        ids = token_ids.numpy()
        chosen = np.arange(ids.size)
        if rows is not None:
            chosen = chosen[rows if isinstance(rows, slice) else rows.numpy()]
        sampled = int(chosen.size) if logits is None else logits
        order, wanted = _in_order(chosen.size, allowed, int(self._tables.matrices[-1, t.BLOCKS]))
        batch = t.Batch(
            ids,
            positions.numpy(),
            plan.slots,
            chosen,
            sampled,
            order,
            wanted,
            plan.pages,
            plan.tasks,
            plan.rows,
            plan.parts,
            plan.trees,
            plan.window,
            plan.sinks,
            plan.left_out,
            plan.positions,
            plan.places,
        )
        work = self._work(ids.size, sampled, plan)
        scratch = max(f.MATRIX_SCRATCH, scratch_floats(self.config.head_dim))
        self._compute(scratch, batch, work, plan)
        plan.add_up(self.config.num_kv_heads, work.received)
        return work

    def _compute(self, scratch: int, batch: t.Batch, work: t.Work, plan: Plan) -> None:
        """Runs the kernel. scratch: floats that each worker needs."""
        TEAM.run(f.forward, torch.get_num_threads(), scratch, self._shape, self._constants, self._tables, batch, work, plan.data, plan.slot_count)

    def _work(self, tokens: int, sampled: int, plan: Plan) -> t.Work:
        s = self._shape
        exponentials, received = plan.weighing(s.heads, s.kv_heads)

        def zeros(*shape: int) -> Array:
            return np.zeros(int(np.prod(shape)), np.float32)

        def rounded(rows: int, stride: int) -> Array:
            return np.empty(rows * stride // GROUP * GROUP_WORDS, np.float32)

        return t.Work(
            residual=zeros(2, tokens, s.hidden_stride),
            normed=zeros(tokens, s.hidden_stride),
            to_hidden=rounded(tokens, s.hidden_stride),
            qkv=zeros(tokens, s.qkv_stride),
            attended=zeros(tokens, s.heads_stride),
            to_out=rounded(tokens, s.heads_stride),
            to_down=rounded(tokens, s.inner_stride),
            partial=zeros(plan.partials, s.heads * (s.head_dim + 2)),
            turns=zeros(s.ropes, tokens, s.head_dim),
            back=zeros(s.ropes if plan.sinks else 0, tokens, s.head_dim),
            exponentials=exponentials,
            received=received,
            logits=np.empty((sampled, s.vocabulary), np.float32),
        )


def _in_order(rows: int, allowed: Allowed | None, blocks: int) -> tuple[Array, Array]:
    """order and allowed of t.Batch: rows of which most is wanted come first, so that those that want a block of the head lie together."""
    order = np.arange(rows)
    if allowed is None:
        return order, np.empty((0, 0), np.uint32)
    wanted = np.zeros((len(allowed), blocks), np.uint32)
    for own, row in zip(wanted, allowed, strict=True):
        count = blocks if row is None else min(blocks, row.size)
        own[:count] = _EVERY if row is None else row[:count]
    order[: len(allowed)] = np.argsort(-np.count_nonzero(wanted, 1), kind="stable")
    return order, wanted[order[: len(allowed)]]


def _pack(plain: Decoder, parts: Callable[[int, str], Part], narrow: bool) -> tuple[t.Weights, list[tuple[int, Array]]]:
    """The tables of the kernel; and of each matrix its inputs and which packed output each of its outputs is."""
    places = [(i, name) for i in range(len(plain.layers)) for name in _NAMES] + [(-1, "head")]
    floats = _Floats()
    layers = np.array([_layer_line(plain, i, floats) for i in range(len(plain.layers))], np.int64)
    lines, orders, loaded = [], [], []
    codes_at = scales_at = 0
    for layer, name in places:
        part = parts(layer, name)
        kind = EIGHT if part.sources[0].kind == Q8_0 else FOUR
        if any((EIGHT if s.kind == Q8_0 else FOUR) != kind or s.columns != part.sources[0].columns for s in part.sources):
            raise EngineError(f"the parts of {name} in layer {layer} differ in width or in bits; quantise them alike")
        groups, order, blocks = part.sources[0].groups, *order_of(name, sum(source.rows for source in part.sources))
        bias = getattr(plain.layers[layer], name).bias if layer >= 0 else plain.head.bias  # type: ignore[attr-defined]
        lines.append([kind, codes_at, scales_at, groups, blocks, floats.spread(bias, order, blocks * WIDTH)])
        orders.append((part.sources[0].columns, order))
        loaded.append(part)
        codes_at += blocks * groups * CODE_BYTES[kind]
        scales_at += blocks * groups * SCALES[kind]
    if narrow and all(line[t.KIND] == EIGHT for line in lines):
        raise EngineError("activations='int8' is for matrices of 4 bits, and this model has none; leave it out")
    codes, scales = large_array(codes_at), large_array(2 * scales_at).view(np.uint16)
    codes[:], scales[:] = 0, 0
    for line, part, (_, order) in zip(lines, loaded, orders, strict=True):
        first = 0
        for source, own in zip(part.sources, part.orders, strict=True):
            target = order[first : first + source.rows]
            moved = target if own is None else target[own]
            if repack(source.kind, source.raw, moved, 0, source.groups, codes, line[t.CODES], scales, line[t.SCALES_AT]):
                raise EngineError("weights: a Q4_0 block's scale is too large for half precision; use weights='fp32'")
            first += source.rows
    final = floats.add(plain.final_norm)
    assert final >= 0
    ropes = plain.config.ropes
    frequencies = np.array([rope.inverse_frequencies for rope in ropes], np.float32).ravel()
    factors = np.array([rope.attention_factor for rope in ropes], np.float32)
    tables = t.Weights(narrow, np.array(lines, np.int64), layers, codes, scales, floats.array(), frequencies, factors, plain.embedding.numpy())
    return tables, orders


class _Floats:
    """Norms and biases one after the other."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self.size = 0

    def add(self, values: torch.Tensor | Array | None) -> int:
        """Where the values begin; -1 for None."""
        if values is None:
            return -1
        flat = np.asarray(values, np.float32).ravel()
        self._parts.append(flat)
        self.size += flat.size
        return self.size - flat.size

    def spread(self, bias: torch.Tensor | None, order: Array, size: int) -> int:
        """A bias in the order of the packed outputs, 0 elsewhere."""
        if bias is None:
            return -1
        wide = np.zeros(size, np.float32)
        wide[order] = bias.numpy()
        return self.add(wide)

    def array(self) -> Array:
        return np.concatenate(self._parts)


def _layer_line(plain: Decoder, index: int, floats: _Floats) -> list[int]:
    layer, config = plain.layers[index], plain.config
    norms = (layer.before_attention, layer.before_mlp, layer.qk_norm, layer.after_attention, layer.after_mlp)
    return [*(floats.add(norm) for norm in norms), config.windows[index] or 0, config.rope_of_layer[index]]


def order_of(name: str, rows: int) -> tuple[Array, int]:
    """Which packed output each output of a layer's matrix is, and how many blocks there are. gate and up alternate by blocks."""
    if name != "gate_up":
        return np.arange(rows), -(-rows // WIDTH)
    half = np.arange(rows // 2)
    gate = half // WIDTH * 2 * WIDTH + half % WIDTH
    return np.concatenate((gate, gate + WIDTH)), 2 * -(-half.size // WIDTH)


def _shape(config: ModelConfig, tables: t.Weights) -> t.Shape:
    inputs = tables.matrices[:, t.GROUPS] * GROUP
    return t.Shape(
        layers=config.num_layers, hidden=config.hidden_size, heads=config.num_heads, kv_heads=config.num_kv_heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, activation=_ACTIVATIONS[config.activation], ropes=len(config.ropes),
        final_norm=tables.floats.size - config.hidden_size, hidden_stride=int(inputs[t.M_QKV]), heads_stride=int(inputs[t.M_OUT]),
        inner_stride=int(inputs[t.M_DOWN]), qkv_stride=int(tables.matrices[t.M_QKV, t.BLOCKS]) * WIDTH,
    )  # fmt: skip


def _constants(config: ModelConfig) -> t.Constants:
    values = (config.norm_eps, config.embed_scale, config.attention_scale, config.attention_softcap or 0.0, config.logit_softcap or 0.0)
    return t.Constants(*(np.float32(value) for value in values))


def packable(config: ModelConfig) -> bool:
    """Does the kernel fit this decoder? Heads must be whole vectors, and a key head's group of queries must fit a task."""
    return config.head_dim % (2 * LANES) == 0 and config.num_heads // config.num_kv_heads <= ROWS
