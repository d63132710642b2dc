"""Low-rank adapters (LoRA, arXiv:2106.09685) beside a matrix, another one for each request of a batch: out += scale * (x A^T) B^T.

Inputs: a batch's tokens, the adapters of all requests stacked, and which of them each request uses. Shrinking to the rank and expanding
from it are a kernel each; a program takes some tokens of one request, so that it reads one adapter (grouped as in Punica,
arXiv:2310.18547). Long rows are summed in parts, in a fixed order. Each request scales what its adapter adds. Knows nothing of where adapters come from.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.attention import request_of
from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.plan import PROGRAMS_PER_PROCESSOR, Launch, next_power, processors_of

__all__ = ["NO_ADAPTER", "expand", "shrink"]

NO_ADAPTER = -1
MAX_PARTS = 8
LEAST_COLUMNS = 512  # of a part of a row


@triton.jit
def _tile(tile, query_starts, requests, adapters, BLOCK_M: tl.constexpr, ONE_TILE: tl.constexpr):
    """A tile's request, its adapter (below zero: nothing to do), its rows [M] among the batch's tokens, and which of them are real."""
    request, block = tile, 0
    if not ONE_TILE:
        request = request_of(tile, query_starts, requests, BLOCK_M)
        block = tile - tl.load(query_starts + request) // BLOCK_M - request
    first = tl.load(query_starts + request)
    count = tl.load(query_starts + request + 1) - first
    token = block * BLOCK_M + tl.arange(0, BLOCK_M)
    adapter = tl.load(adapters + request)
    adapter = tl.where(block * BLOCK_M < count, adapter, -1)
    return request, adapter.to(tl.int64), (first + token).to(tl.int64), token < count


@triton.jit(do_not_specialize=["requests"], do_not_specialize_on_alignment=["query_starts", "adapters"])
def _shrink(
    x, down, h, query_starts, adapters, requests, part_columns, x_row, down_adapter, down_row, h_part, h_row, COLUMNS, R,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, ONE_TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, parts). x [T, K], down [N, R, K] -> h [parts, T, R] float32."""
    _, adapter, rows, real = _tile(tl.program_id(0), query_starts, requests, adapters, BLOCK_M, ONE_TILE)
    if adapter < 0:
        return
    part, rank = tl.program_id(1), tl.arange(0, BLOCK_R)
    begin = part * part_columns
    end = tl.minimum(begin + part_columns, COLUMNS)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for at in range(begin, end, BLOCK_K):
        column = at + tl.arange(0, BLOCK_K)
        inside = column < end
        own = tl.load(x + rows[:, None] * x_row + column[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        weight = tl.load(down + adapter * down_adapter + rank[:, None] * down_row + column[None, :], mask=(rank < R)[:, None] & inside[None, :], other=0.0)
        acc += tl.dot(own, tl.trans(weight), input_precision=PRECISION)
    tl.store(h + part * h_part + rows[:, None] * h_row + rank[None, :], acc, mask=real[:, None] & (rank < R)[None, :])


@triton.jit(do_not_specialize=["requests", "parts"], do_not_specialize_on_alignment=["query_starts", "adapters", "scales"])
def _expand(
    h, up, scales, out, query_starts, adapters, requests, parts, h_part, h_row, up_adapter, up_row, out_row, COLUMNS, R,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, ONE_TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, blocks of columns). out [T, COLUMNS] += scales * sum over parts of h [parts, T, R] times up [N, COLUMNS, R]."""
    request, adapter, rows, real = _tile(tl.program_id(0), query_starts, requests, adapters, BLOCK_M, ONE_TILE)
    if adapter < 0:
        return
    column, rank = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
    low = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for part in range(parts):
        low += tl.load(h + part * h_part + rows[:, None] * h_row + rank[None, :], mask=real[:, None] & (rank < R)[None, :], other=0.0)
    spot = adapter * up_adapter + column[:, None].to(tl.int64) * up_row + rank[None, :]
    weight = tl.load(up + spot, mask=(column < COLUMNS)[:, None] & (rank < R)[None, :], other=0.0)
    added = tl.dot(low.to(weight.dtype), tl.trans(weight), input_precision=PRECISION) * tl.load(scales + request)
    valid, place = real[:, None] & (column < COLUMNS)[None, :], out + rows[:, None] * out_row + column[None, :]
    tl.store(place, (tl.load(place, mask=valid, other=0.0).to(tl.float32) + added).to(out.dtype.element_ty), mask=valid)


def shrink(x: torch.Tensor, down: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> torch.Tensor:
    """x [T, K] through the first matrices down [N, R, K] -> [parts, T, R] float32, for `expand`; rows without an adapter are left undefined.

    adapters [B] int32: which of the N each request uses, NO_ADAPTER: none. Ranks beneath R are filled up with zeros by whoever stacks them.
    """
    (tokens, columns), (_, rank, _) = x.shape, down.shape
    launch = _launch(batch)
    tiles = launch.tiles(batch.shape, 1)
    parts = min(MAX_PARTS, max(1, columns // LEAST_COLUMNS), next_power(-(-PROGRAMS_PER_PROCESSOR * processors_of(x.device) // tiles)))
    block_k = 64 if x.dtype != torch.float32 else 32
    part_columns = -(-columns // (parts * block_k)) * block_k
    h = torch.empty(parts, tokens, rank, device=x.device)
    _shrink[(tiles, parts)](
        x, down, h, batch.query_starts, adapters, batch.shape.requests, part_columns, x.stride(0), down.stride(0), down.stride(1), h.stride(0), h.stride(1),
        columns, rank, BLOCK_M=launch.block_m, BLOCK_K=block_k, BLOCK_R=max(16, next_power(rank)),
        ONE_TILE=batch.shape.queries <= launch.block_m, PRECISION=_precision(x), num_warps=4, num_stages=3,
    )  # fmt: skip
    return h


def expand(h: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> None:
    """Adds scales [B] float32, of each request, times what `shrink` gave, through the second matrices up [N, C, R], to out [T, C] in place.

    h: [parts, T, R]; of adapters for matrices that are fused, the slice of this one's ranks.   out: may be a slice of columns, too.
    """
    launch, (_, columns, rank) = _launch(batch), up.shape
    _expand[(launch.tiles(batch.shape, 1), triton.cdiv(columns, launch.block_n))](
        h, up, scales, out, batch.query_starts, adapters, batch.shape.requests, h.shape[0], h.stride(0), h.stride(1), up.stride(0), up.stride(1), out.stride(0),
        columns, rank, BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, BLOCK_R=max(16, next_power(rank)),
        ONE_TILE=batch.shape.queries <= launch.block_m, PRECISION=_precision(up), num_warps=4, num_stages=2,
    )  # fmt: skip


def _launch(batch: Batch) -> Launch:
    return Launch(max(16, min(64, next_power(batch.shape.queries))), 64)


def _precision(like: torch.Tensor) -> str:
    return "ieee" if like.dtype == torch.float32 else "tf32"
