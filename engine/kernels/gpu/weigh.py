"""How much attention each key receives from a batch's tokens, which H2O (arXiv:2306.14048) keeps count of.

Inputs: the queries that have just been attended with, the keys in their pages, and the log-sum-exp of each query's scores. Flash attention keeps no
weights, so they are made again, exp(score - log-sum-exp), as the gradient of keys is (FlashAttention-2, arXiv:2307.08691): a program owns some
keys of one request and head, goes over the tokens that see them, and adds up. No other program writes what these keys have received, so sums
have one order and nothing is atomic. Knows nothing of what the sums are for.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.attention import LOG2_E, scores_of
from agentkit.engine.kernels.gpu.batch import Batch, BatchShape
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Launch, launch_for, next_power, processors_of, shared_of
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.received import Received

__all__ = ["weigh"]

_LOG2_E = 1.4426950408889634
WIDEST = 64
"""Rows of a tile: with them heads of 256 leave room in 99 KiB."""


@triton.jit(do_not_specialize=["page_request"], do_not_specialize_on_alignment=["query_starts", "lengths", "slots", "pages"])
def _weigh_keys(
    queries, lse, keys, key_scales, sums, fresh, ends, query_starts, lengths, slots, pages, scale, cap, q_token, q_head, lse_token,
    kv_head, kv_slot, scale_head, scale_slot, sums_head, page_request,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_Q: tl.constexpr, PAGE: tl.constexpr,
    BEGIN: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (requests, tiles of keys, KV). queries [T, H, D]; lse [T, H]; sums, fresh, ends [KV, S]: see Received."""
    request, head = tl.program_id(0), tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + request)
    begin = tl.program_id(1) * BLOCK_N
    if begin >= length:
        return
    first = tl.load(query_starts + request)
    if tl.load(slots + first) < 0:  # stands still
        return
    count = tl.load(query_starts + request + 1) - first
    known = length - count
    key = begin + tl.arange(0, BLOCK_N)
    there = key < length
    slot = tl.load(pages + request.to(tl.int64) * page_request + key // PAGE, mask=there, other=0).to(tl.int64) * PAGE + key % PAGE
    dim, row = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_M)
    in_dim = dim < DIM
    valid = there[:, None] & in_dim[None, :]
    k = tl.load(keys + head * kv_head + slot[:, None] * kv_slot + dim[None, :], mask=valid, other=0.0).to(queries.dtype.element_ty)
    if key_scales is not None:
        key_scales += head * scale_head
    weights = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for at in range(tl.maximum(begin - known, 0) // BLOCK_Q * BLOCK_Q, count, BLOCK_Q):
        token = at + row // GROUP
        real = (token < count) & (row < BLOCK_Q * GROUP)
        rows, heads = (first + token).to(tl.int64), head * GROUP + row % GROUP
        q = tl.load(queries + rows[:, None] * q_token + heads[:, None] * q_head + dim[None, :], mask=real[:, None] & in_dim[None, :], other=0.0)
        total = tl.load(lse + rows * lse_token + heads, mask=real, other=float("inf")) * LOG2_E
        scores = scores_of(q, k, slot, there, key_scales, scale_slot, scale, cap, CAPPED, PRECISION)
        seen = real[:, None] & (key[None, :] <= (known + token)[:, None])
        weights += tl.where(seen, tl.exp2(scores - total[:, None]), 0.0)
    received = tl.sum(weights, 0)
    spot = head * sums_head + slot
    if BEGIN:
        old = there & (key < known)
        goes_on = old & (tl.load(ends + spot, mask=old, other=0) == known)
        counted = tl.load(sums + spot, mask=old, other=0.0) + tl.load(fresh + spot, mask=goes_on, other=0.0)
        tl.store(sums + spot, counted, mask=there)
        tl.store(ends + spot, tl.zeros([BLOCK_N], tl.int32) + length, mask=there)
    else:
        received += tl.load(fresh + spot, mask=there, other=0.0)
    tl.store(fresh + spot, received, mask=there)


def weigh(
    q: torch.Tensor,
    layer: KVLayer,
    batch: Batch,
    lse: torch.Tensor,
    received: Received,
    *,
    begin: bool,
    scale: float,
    softcap: float | None = None,
    launch: Launch | None = None,
) -> None:
    """Adds to `received`, apart from what counts already, what each key receives from the batch's tokens in this layer, over all heads of its group.

    q [T, H, D], as `attend` took it, last axis without gaps.   lse [T, H] float32: what `attend` said of it.   No windows and no trees: H2O has none.
    A request whose tokens are written nowhere stands still, and what it does counts nowhere.
    begin: the first layer of a forward. What the last forward set apart begins to count where the request goes on from it; keys that are new
    have received nothing.   launch: its tiles and warps; None: by rule.
    """
    heads, dim = q.shape[1:]
    group, shape, pages = heads // layer.kv_heads, batch.shape, batch.pages[layer.table]
    launch = launch or _launch(q, layer, shape)
    _weigh_keys[(shape.requests, triton.cdiv(shape.max_length, launch.block_n), layer.kv_heads)](
        q, lse, layer.keys, layer.key_scales, received.sums, received.fresh, received.ends, batch.query_starts, batch.lengths, batch.slots[layer.table], pages,
        scale * (1.0 if softcap else _LOG2_E), softcap or 1.0, q.stride(0), q.stride(1), lse.stride(0),
        layer.keys.stride(0), layer.keys.stride(1), *layer.scale_strides, received.sums.stride(0), pages.stride(0),
        GROUP=group, DIM=dim, BLOCK_D=max(16, next_power(dim)), BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, BLOCK_Q=launch.tokens_per_tile(group),
        PAGE=PAGE, BEGIN=begin, CAPPED=softcap is not None, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip


def _launch(q: torch.Tensor, layer: KVLayer, shape: BatchShape) -> Launch:
    """Tiles as for attention, but it is queries that are read ahead: at most WIDEST rows, for shared memory; none in full precision, for registers."""
    heads, coded = q.shape[1], layer.key_scales is not None
    launch = launch_for(shape, heads, layer.kv_heads, layer.head_dim, q.dtype, processors_of(q.device), coded=coded, shared=shared_of(q.device))
    if q.dtype == torch.float32:
        return replace(launch, stages=1)
    widest = max(WIDEST, next_power(heads // layer.kv_heads))
    return launch if launch.block_m <= widest else replace(launch, block_m=widest, warps=4)
