"""Attention of a batch's tokens over paged keys and values: prefill, decode, trees of guesses and shared prefixes, by one kernel.

Inputs: queries of ragged requests, a layer's keys and values (whole or quantised), and the batch's tables. A program takes a tile
of rows, a row being one query head of a token, all of one key head, so that a key is read once for its whole group; it goes over
the keys with a running softmax (FlashAttention-2, arXiv:2307.08691). Where tiles are few the keys are split among several
programs, and a second kernel merges what they found by the log-sum-exp. Knows nothing of models or of the host's books.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.batch import Batch, BatchShape
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Launch, Prefix, launch_for, next_power, processors_of, shared_of
from agentkit.engine.kernels.layout import PAGE

__all__ = ["attend", "attend_shared", "attend_streaming", "scores_of"]

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)
LAST_BIT: tl.constexpr = tl.constexpr(62)
_LOG2_E = 1.4426950408889634


@triton.jit
def request_of(tile, query_starts, requests, BLOCK_Q: tl.constexpr):
    """The request that `tile` belongs to; request b has its first tile at query_starts[b] // BLOCK_Q + b."""
    low: tl.int32 = 0
    high = requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // BLOCK_Q + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def _hidden(key, end, own, place, low, path, tree, nodes, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr, APART: tl.constexpr):
    """[M, N]: keys [N] that a row may not see.

    own, place, low, path [M]: a row's own key, its position, the last position before its window, its ancestors.   tree: first key of the tree;
    nodes: the positions of its guesses.   APART: keys are sinks, for rows in whose window they are not.
    """
    hidden = (key >= end)[None, :]
    if APART:
        hidden = hidden | (low < 0)[:, None]
    if CAUSAL:
        hidden = hidden | (key[None, :] > own[:, None])
    stands = key
    if TREE:
        node = key - tree
        bit = (path[:, None] >> tl.minimum(tl.maximum(node, 0), LAST_BIT).to(tl.int64)[None, :]) & 1
        hidden = hidden | ((node >= 0)[None, :] & (bit == 0))
        if WINDOW:
            stands = tl.where(node >= 0, tl.load(nodes + node, mask=(node >= 0) & (key < end), other=0), key)
    if WINDOW:
        hidden = hidden | (stands[None, :] <= low[:, None])
    return hidden


@triton.jit
def _seen(
    first_keys, positions, tree_starts, paths, request, block, first, count, length, rows, real, own, window, sink_keys,
    BLOCK_Q: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """What a tile's rows see, as `_hidden` has it, and the keys begin .. end that some row sees, those before `clear` seen by all."""
    place, low, path, tree, nodes, begin = own, own, own, length, positions, 0
    end, clear = length, length
    if first_keys is not None:
        begin = tl.load(first_keys + request)
    if CAUSAL:
        end = tl.minimum(length, length - count + (block + 1) * BLOCK_Q)
        clear = tl.minimum(length, length - count + block * BLOCK_Q + 1)
    if TREE:
        tree = tl.load(tree_starts + request)
        path = tl.load(paths + rows, mask=real, other=0)
        place = tl.load(positions + rows, mask=real, other=0)
        nodes = positions + first + count - (length - tree)
        clear = tl.minimum(clear, tree)
    if APART:
        place = tl.load(positions + rows, mask=real, other=0)
    if WINDOW or APART:
        low = tl.where(place < window + sink_keys, -1, place - window)
        if APART:  # nothing to see while the window reaches back to the sinks
            end = tl.where(tl.max(tl.where(real, low, -1), 0) < 0, 0, tl.minimum(length, sink_keys))
        else:
            begin = tl.maximum(begin, tl.min(tl.where(real, low, length), 0) + 1)
        clear = begin
    return place, low, path, tree, nodes, begin, end, clear


@triton.jit
def scores_of(q, k, slot, there, key_scales, scale_slot, scale, cap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """[M, N] to base 2: queries q [M, D] by keys k [N, D], as they are stored in `slot` [N].   scale: to base 2 already, unless scores are capped."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if key_scales is not None:
        scores = scores * tl.load(key_scales + slot * scale_slot, mask=there, other=0.0).to(tl.float32)[None, :]
    if CAPPED:  # cap * tanh(scores / cap), then to base 2
        decay = tl.exp2(tl.abs(scores) * (-2.0 * LOG2_E / cap))
        scores = tl.where(scores < 0, -LOG2_E * cap, LOG2_E * cap) * (1.0 - decay) / (1.0 + decay)
    return scores


@triton.jit
def _over(
    acc, top, total, q, begin, until, end, keys, values, key_scales, value_scales, page_row, kv_slot, scale_slot, dim, in_dim,
    own, place, low, path, tree, nodes, scale, cap,
    PAGE: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr, APART: tl.constexpr, CAPPED: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax (acc [M, D]; top and total [M], to base 2) taken over the keys begin .. until, of which there are `end`."""
    for at in range(begin, until, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        there = key < end
        slot = tl.load(page_row + key // PAGE, mask=there, other=0).to(tl.int64) * PAGE + key % PAGE
        spot = slot[:, None] * kv_slot + dim[None, :]
        valid = there[:, None] & in_dim[None, :]
        k = tl.load(keys + spot, mask=valid, other=0.0).to(q.dtype)
        scores = scores_of(q, k, slot, there, key_scales, scale_slot, scale, cap, CAPPED, PRECISION)
        if MASKED:
            scores = tl.where(_hidden(key, end, own, place, low, path, tree, nodes, CAUSAL, WINDOW, TREE, APART), float("-inf"), scores)
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # where a row has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        if value_scales is not None:
            weights = weights * tl.load(value_scales + slot * scale_slot, mask=there, other=0.0).to(tl.float32)[None, :]
        v = tl.load(values + spot, mask=valid, other=0.0).to(q.dtype)
        acc = acc * shrink[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
        top = higher
    return acc, top, total


@triton.jit(
    do_not_specialize=["requests", "splits", "window", "sink_keys", "page_request", "lse_token", "lse_head", "out_split"],
    do_not_specialize_on_alignment=["query_starts", "lengths", "first_keys", "pages", "positions", "tree_starts", "paths"],
)
def _attend(
    queries, out, lse, keys, values, key_scales, value_scales, sinks, query_starts, lengths, first_keys, pages, positions, tree_starts, paths,
    requests, splits, window, sink_keys, scale, cap, q_token, q_head, out_token, out_head, out_split, lse_token, lse_head,
    kv_head, kv_slot, scale_head, scale_slot, page_request,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_Q: tl.constexpr,
    PAGE: tl.constexpr, ONE_TILE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr,
    APART: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, KV, splits). queries [T, H, D]; out [T, H, splits, D] and lse [T, H, splits] (natural logarithm)."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, block = tile, 0
    if not ONE_TILE:
        request = request_of(tile, query_starts, requests, BLOCK_Q)
        block = tile - tl.load(query_starts + request) // BLOCK_Q - request
    first = tl.load(query_starts + request)
    count = tl.load(query_starts + request + 1) - first
    if block * BLOCK_Q >= count:
        return
    length = tl.load(lengths + request)
    row = tl.arange(0, BLOCK_M)
    token = block * BLOCK_Q + row // GROUP
    real = (token < count) & (row < BLOCK_Q * GROUP)
    heads = head * GROUP + row % GROUP
    dim = tl.arange(0, BLOCK_D)
    in_dim = dim < DIM
    rows = (first + token).to(tl.int64)
    q = tl.load(queries + rows[:, None] * q_token + heads[:, None] * q_head + dim[None, :], mask=real[:, None] & in_dim[None, :], other=0.0)

    own = length - count + token
    place, low, path, tree, nodes, begin, end, clear = _seen(
        first_keys, positions, tree_starts, paths, request, block, first, count, length, rows, real, own, window, sink_keys,
        BLOCK_Q, CAUSAL, WINDOW, TREE, APART,
    )  # fmt: skip
    share = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), splits), BLOCK_N) * BLOCK_N
    begin = begin + split * share
    end = tl.minimum(end, begin + share)
    clear = begin + tl.maximum(tl.minimum(clear, end) - begin, 0) // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:
        if split == 0:
            top = tl.load(sinks + heads, mask=real, other=0.0).to(tl.float32) * LOG2_E
            total = tl.full([BLOCK_M], 1.0, tl.float32)
    keys += head.to(tl.int64) * kv_head
    values += head.to(tl.int64) * kv_head
    if key_scales is not None:
        key_scales += head.to(tl.int64) * scale_head
        value_scales += head.to(tl.int64) * scale_head
    page_row = pages + request.to(tl.int64) * page_request
    if not (WINDOW or APART):
        acc, top, total = _over(
            acc, top, total, q, begin, clear, end, keys, values, key_scales, value_scales, page_row, kv_slot, scale_slot, dim, in_dim,
            own, place, low, path, tree, nodes, scale, cap, PAGE, BLOCK_N, CAUSAL, WINDOW, TREE, APART, CAPPED, False, PRECISION,
        )  # fmt: skip
    acc, top, total = _over(
        acc, top, total, q, clear, end, end, keys, values, key_scales, value_scales, page_row, kv_slot, scale_slot, dim, in_dim,
        own, place, low, path, tree, nodes, scale, cap, PAGE, BLOCK_N, CAUSAL, WINDOW, TREE, APART, CAPPED, True, PRECISION,
    )  # fmt: skip
    seen = tl.where(total > 0, total, 1.0)
    acc = acc / seen[:, None]
    spot = rows[:, None] * out_token + heads[:, None] * out_head + split * out_split + dim[None, :]
    tl.store(out + spot, acc.to(out.dtype.element_ty), mask=real[:, None] & in_dim[None, :])
    if lse is not None:
        tl.store(lse + rows * lse_token + heads * lse_head + split, tl.where(total > 0, (top + tl.log2(seen)) * LN_2, float("-inf")), mask=real)


@triton.jit(do_not_specialize=["H", "P"])
def _merge(parts, part_lse, out, lse, out_token, out_head, H, P, BLOCK_P: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Grid (T, H). parts [T, H, P, D] and part_lse [T, H, P] -> out [T, H, D], lse [T, H]."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = token * H + head
    part, dim = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_D)
    own = tl.load(part_lse + row * P + part, mask=part < P, other=float("-inf"))
    top = tl.max(own, 0)
    weights = tl.exp2((own - tl.where(top == float("-inf"), 0.0, top)) * LOG2_E)
    total = tl.sum(weights, 0)
    safe = tl.where(total > 0, total, 1.0)
    seen = (part < P)[:, None] & (dim < DIM)[None, :]
    values = tl.load(parts + row * P * DIM + part[:, None] * DIM + dim[None, :], mask=seen, other=0.0)
    merged = tl.sum(values * weights[:, None], 0) / safe
    tl.store(out + token * out_token + head * out_head + dim, merged.to(out.dtype.element_ty), mask=dim < DIM)
    if lse is not None:
        tl.store(lse + row, tl.where(total > 0, top + tl.log2(safe) * LN_2, float("-inf")))


@dataclass(frozen=True)
class _Rules:
    """What a token sees and how scores are bent; see `attend`. sink_keys: first keys that stay; apart: only those, where the window has left them."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    sink_keys: int = 0
    apart: bool = False


@dataclass(frozen=True)
class _Tables:
    """Whose tokens see which keys; as the fields of Batch and Prefix."""

    query_starts: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    first_keys: torch.Tensor | None
    shape: BatchShape
    causal: bool

    @classmethod
    def of(cls, batch: Batch, table: int, first_keys: torch.Tensor | None = None) -> _Tables:
        return cls(batch.query_starts, batch.lengths, batch.pages[table], first_keys, batch.shape, True)


def attend(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """q [T, H, D], last axis without gaps, over the keys that each token sees -> [T, H, D]; rows of padding are left undefined.

    window: a token sees its own position and the window - 1 before it.   softcap c: scores become c * tanh(s / c).   sinks [H]: scores that
    take part in the softmax and bring no value.   lse [T, H] float32: receives the log-sum-exp of the scores, sinks included.
    launch: how it is cut; None: by rule.
    """
    launch = launch or _launch(q, layer, batch.shape, window)
    rules, tables = _Rules(scale, window, softcap, sinks), _Tables.of(batch, layer.table)
    if launch.splits == 1:
        out = _empty(q)
        _run(q, layer, batch, tables, rules, launch, out.unsqueeze(2), None if lse is None else lse.unsqueeze(2))
        return out
    parts, part_lse = _partials(q, launch.splits)
    _run(q, layer, batch, tables, rules, launch, parts, part_lse)
    return _merged(q, parts, part_lse, lse)


def attend_shared(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    prefix: Prefix,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    launches: tuple[Launch, Launch] | None = None,
) -> torch.Tensor:
    """The same as `attend`, without windows, where requests share beginnings: those keys are read once for all that share them.

    All tokens of a group over its prefix, then each request over the rest, merged by log-sum-exp (cascade; FlashInfer, arXiv:2501.01005).
    launches: of the two parts; None: by rule.
    """
    groups = prefix.shape(batch.shape)
    shared, rest = launches or (_launch(q, layer, groups), _launch(q, layer, batch.shape))
    parts, part_lse = _partials(q, shared.splits + rest.splits)
    tables = _Tables(prefix.query_starts, prefix.lengths, prefix.pages[layer.table], None, groups, causal=False)
    _run(q, layer, batch, tables, _Rules(scale, None, softcap), shared, parts[:, :, : shared.splits], part_lse[:, :, : shared.splits])
    tables = _Tables.of(batch, layer.table, prefix.first_keys)
    _run(q, layer, batch, tables, _Rules(scale, None, softcap, sinks), rest, parts[:, :, shared.splits :], part_lse[:, :, shared.splits :])
    return _merged(q, parts, part_lse, lse)


def attend_streaming(
    q: torch.Tensor,
    back: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    *,
    scale: float,
    window: int,
    sink_keys: int,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """The same as `attend` with a window, where the first `sink_keys` keys are seen beside it (StreamingLLM, arXiv:2309.17453).

    back [T, H, D]: the queries as they meet those keys, turned back by the positions that lie between them and the window. A token whose
    window reaches back to the sinks sees all keys as one run, by its own query.
    """
    launch = launch or _launch(q, layer, batch.shape, window)
    parts, part_lse = _partials(q, 1 + launch.splits)
    tables = _Tables(batch.query_starts, batch.lengths, batch.pages[layer.table], None, batch.shape, causal=False)
    once = replace(launch, splits=1)
    _run(back, layer, batch, tables, _Rules(scale, window, softcap, None, sink_keys, apart=True), once, parts[:, :, :1], part_lse[:, :, :1])
    _run(q, layer, batch, _Tables.of(batch, layer.table), _Rules(scale, window, softcap, sinks, sink_keys), launch, parts[:, :, 1:], part_lse[:, :, 1:])
    return _merged(q, parts, part_lse, None)


def _launch(q: torch.Tensor, layer: KVLayer, shape: BatchShape, window: int | None = None) -> Launch:
    coded, shared = layer.key_scales is not None, shared_of(q.device)
    return launch_for(shape, q.shape[1], layer.kv_heads, layer.head_dim, q.dtype, processors_of(q.device), coded=coded, window=window, shared=shared)


def _empty(q: torch.Tensor) -> torch.Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def _partials(q: torch.Tensor, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads, dim = q.shape
    return torch.empty(tokens, heads, parts, dim, device=q.device), torch.empty(tokens, heads, parts, device=q.device)


def _run(q: torch.Tensor, layer: KVLayer, batch: Batch, tables: _Tables, rules: _Rules, launch: Launch, out: torch.Tensor, lse: torch.Tensor | None) -> None:
    """out [T, H, splits, D], lse [T, H, splits]."""
    heads, dim = q.shape[1:]
    group, shape = heads // layer.kv_heads, tables.shape
    if heads % layer.kv_heads or launch.block_m < group:
        raise ValueError(f"{heads} query heads over {layer.kv_heads} key heads do not fit into tiles of {launch.block_m} rows")
    block_q = launch.tokens_per_tile(group)
    _attend[(launch.tiles(shape, group), layer.kv_heads, launch.splits)](
        q, out, lse, layer.keys, layer.values, layer.key_scales, layer.value_scales, rules.sinks,
        tables.query_starts, tables.lengths, tables.first_keys, tables.pages, batch.positions, batch.tree_starts, batch.paths,
        shape.requests, launch.splits, rules.window or 0, rules.sink_keys, rules.scale * (1.0 if rules.softcap else _LOG2_E), rules.softcap or 1.0,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), out.stride(2), *((0, 0) if lse is None else lse.stride()[:2]),
        layer.keys.stride(0), layer.keys.stride(1), *layer.scale_strides, tables.pages.stride(0),
        GROUP=group, DIM=dim, BLOCK_D=max(16, next_power(dim)), BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, BLOCK_Q=block_q,
        PAGE=PAGE, ONE_TILE=shape.queries <= block_q, CAUSAL=tables.causal, WINDOW=rules.window is not None and not rules.apart,
        TREE=tables.causal and shape.trees, APART=rules.apart, CAPPED=rules.softcap is not None, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


def _merged(q: torch.Tensor, parts: torch.Tensor, part_lse: torch.Tensor, lse: torch.Tensor | None) -> torch.Tensor:
    tokens, heads, count, dim = parts.shape
    out = _empty(q)
    _merge[(tokens, heads)](
        parts, part_lse, out, lse, out.stride(0), out.stride(1), heads,
        P=count, BLOCK_P=max(8, next_power(count)), DIM=dim, BLOCK_D=next_power(dim), num_warps=4,
    )  # fmt: skip
    return out
