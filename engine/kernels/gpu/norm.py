"""Root-mean-square norm with the residual sum before it, in one pass over a token's row.

Inputs: what a block has computed, the residual stream it is added to, and weights. Sums are in float32; the residual is rounded to its
type before it is normed, as a separate sum would be. Knows nothing of layers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.plan import next_power

__all__ = ["add_norm", "norm"]


@triton.jit
def _add_norm(x, residual, before, weight, out, x_row, residual_row, out_row, E, eps, BLOCK: tl.constexpr):
    """Grid (T,). out = norm(residual + (x or norm(x) * before)) * weight, the sum kept in `residual`; without one: norm(x) * weight."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < E
    row = tl.load(x + token * x_row + column, mask=inside, other=0.0).to(tl.float32)
    if before is not None:
        row = row * tl.rsqrt(tl.sum(row * row, 0) / E + eps) * tl.load(before + column, mask=inside, other=0.0)
        row = row.to(x.dtype.element_ty).to(tl.float32)
    if residual is not None:
        total = (row + tl.load(residual + token * residual_row + column, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(residual + token * residual_row + column, total, mask=inside)
        row = total.to(tl.float32)
    row = row * tl.rsqrt(tl.sum(row * row, 0) / E + eps) * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + token * out_row + column, row.to(out.dtype.element_ty), mask=inside)


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, before: torch.Tensor | None = None) -> torch.Tensor:
    """Adds x [T, E] to `residual` [T, E] in place and returns the norm of the sum, times weight [E] (float32).

    before [E]: x is normed by itself first, times this (the outer norms of Gemma's sandwiches).
    """
    return _launch(x, residual, weight, eps, before)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of x [T, E] over its last axis, times weight [E] (float32)."""
    return _launch(x, None, weight, eps, None)


def _launch(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, before: torch.Tensor | None) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = next_power(width)
    _add_norm[(tokens,)](
        x, residual, before, weight, out, x.stride(0), 0 if residual is None else residual.stride(0), out.stride(0), width, eps,
        BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    return out
