"""Between a layer's projections and its attention, in one pass: norm of the heads, rotation, and keys and values into the cache.

Inputs: the projected q, k and v of each token side by side, cosines and sines per token, and the slots. Queries go to a tensor of
their own: turning them in place would let one thread overwrite what another one still has to read. Halves are turned as in
models/rope.py. Knows nothing of frequencies or pages.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.cache import LARGEST, KVLayer
from agentkit.engine.kernels.gpu.plan import next_power
from agentkit.engine.kernels.gpu.store import put
from agentkit.engine.kv_format import mixed

__all__ = ["rotate_and_write"]


@triton.jit(do_not_specialize=["T"], do_not_specialize_on_alignment=["slots"])
def _rotate_and_write(
    qkv, cos, sin, weight, mixer, slots, q, keys, values, key_scales, value_scales, T, eps, qkv_token, qkv_head, kv_head, kv_slot, scale_head, scale_slot,
    H: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr,
    SHRINK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of T * (H + 2 KV)). qkv [T, H + 2 KV, D]; cos, sin [T, D / 2] float32; weight [H + KV, D]; mixer [D, D]; q [T, H, D]."""
    row, dim = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    head, token = row % (H + 2 * KV), (row // (H + 2 * KV)).to(tl.int64)
    slot = tl.load(slots + token, mask=token < T, other=-1).to(tl.int64)
    half: tl.constexpr = DIM // 2
    inside = (token < T)[:, None] & (dim < DIM)[None, :]
    base = qkv + (token * qkv_token + head * qkv_head)[:, None]
    other = tl.where(dim < half, dim + half, dim - half)
    own = tl.load(base + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    across = tl.load(base + other[None, :], mask=inside, other=0.0).to(tl.float32)
    x = own
    if weight is not None:
        turned = inside & (head < H + KV)[:, None]
        inverse = tl.rsqrt(tl.sum(own * own, 1) / DIM + eps)[:, None]
        x = x * inverse * tl.load(weight + head[:, None] * DIM + dim[None, :], mask=turned, other=0.0)
        across = across * inverse * tl.load(weight + head[:, None] * DIM + other[None, :], mask=turned, other=0.0)
    angle = token[:, None] * half + (dim % half)[None, :]
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    x = x * c + across * tl.where((dim < half)[None, :], -s, s)
    if mixer is not None:
        signs = tl.load(mixer + dim[:, None] * DIM + dim[None, :], mask=(dim < DIM)[:, None] & (dim < DIM)[None, :], other=0.0)
        x = tl.dot(x.to(signs.dtype), signs, input_precision=PRECISION) * SHRINK
    x = tl.where((head < H + KV)[:, None], x, own)
    tl.store(q + (token * H + head)[:, None] * DIM + dim[None, :], x.to(q.dtype.element_ty), mask=inside & (head < H)[:, None])
    spot = slot[:, None] * kv_slot + dim[None, :]
    key, value = (head - H).to(tl.int64), (head - H - KV).to(tl.int64)
    is_key, is_value = (key >= 0) & (key < KV) & (slot >= 0), (value >= 0) & (value < KV) & (slot >= 0)
    put(x, key[:, None] * kv_head + spot, is_key[:, None] & inside, keys, key_scales, key * scale_head + slot * scale_slot, is_key, LARGEST, WHOLE)
    put(x, value[:, None] * kv_head + spot, is_value[:, None] & inside, values, value_scales, value * scale_head + slot * scale_slot, is_value, LARGEST, WHOLE)


def rotate_and_write(
    qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layer: KVLayer, slots: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 0.0
) -> torch.Tensor:
    """qkv [T, H + 2 KV, D] in the order q, k, v -> rotated q [T, H, D]; k rotated and v as it is go to `slots` [T] of the layer.

    cos, sin [T, D / 2] float32.   weight [H + KV, D] float32: heads of q and k are normed first, times this.   Slots below zero take nothing.
    Where the layer keeps its keys mixed, q and k are mixed after they are rotated.
    """
    tokens, all_heads, dim = qkv.shape
    heads = all_heads - 2 * layer.kv_heads
    q = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    rows, wide = 16 if layer.is_mixed or tokens * all_heads > 8192 else 4, max(16, next_power(dim))  # a product of matrices takes 16 rows at least
    _rotate_and_write[(triton.cdiv(tokens * all_heads, rows),)](
        qkv, cos, sin, weight, _signs(dim, qkv.dtype, qkv.device) if layer.is_mixed else None, slots, q,
        layer.keys, layer.values, layer.key_scales, layer.value_scales, tokens, eps,
        qkv.stride(0), qkv.stride(1), layer.keys.stride(0), layer.keys.stride(1), *layer.scale_strides,
        H=heads, KV=layer.kv_heads, DIM=dim, ROWS=rows, BLOCK_D=wide,
        LARGEST=LARGEST.get(layer.keys.dtype, 0.0), WHOLE=layer.keys.dtype == torch.int8,
        SHRINK=(dim & -dim) ** -0.5, PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32", num_warps=rows // 4 * max(1, wide // 128),
    )  # fmt: skip
    return q


@cache
def _signs(dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[D, D]: what kv_format.mixed multiplies by, without its factor: ones and minus ones are exact in any type."""
    return mixed(torch.eye(dim)).sign().to(device, dtype)
