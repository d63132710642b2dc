"""Writes the keys and values of a batch's tokens into their slots, quantised where the cache is.

Inputs: what the model computed for each token, the slot of each, and a layer's cache. A program takes some tokens of one key head.
Padding (a slot below zero) is written nowhere. Knows nothing of pages or models.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.cache import LARGEST, KVLayer
from agentkit.engine.kernels.gpu.plan import next_power

__all__ = ["put", "write"]


TO_WHOLE: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds to whole numbers, halves to even


@triton.jit
def put(rows, spot, valid, stored, scales, scale_spot, kept, LARGEST: tl.constexpr, WHOLE: tl.constexpr):
    """Stores rows [N, D] float32 at stored + spot [N, D]; where LARGEST > 0 as kv_format.encode does, with scales at scales + scale_spot [N].

    kept [N]: rows to store at all; valid [N, D]: the same, without columns beyond the head.   WHOLE: codes are whole numbers.
    """
    if LARGEST > 0:
        largest = tl.max(tl.abs(rows), 1)
        step = tl.math.div_rn(largest, tl.zeros_like(largest) + LARGEST)  # "/" may be off by the last bit, and bytes are to be those of kv_format
        bits = (step.to(tl.int32, bitcast=True) + 0xFFFF) >> 16  # the bfloat16 that is not below it
        tl.store(scales + scale_spot, bits.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=kept)
        step = (bits << 16).to(tl.float32, bitcast=True)
        rows = tl.math.div_rn(rows, tl.zeros_like(rows) + tl.where(step > 0, step, 1.0)[:, None])
        if WHOLE:
            rows = (rows + TO_WHOLE) - TO_WHOLE
    tl.store(stored + spot, rows.to(stored.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["T"], do_not_specialize_on_alignment=["slots"])
def _write(
    k, v, slots, keys, values, key_scales, value_scales, T, k_token, k_head, v_token, v_head, kv_head, kv_slot, scale_head, scale_slot,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of T, KV)."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + token, mask=token < T, other=-1).to(tl.int64)
    dim, kept = tl.arange(0, BLOCK_D), slot >= 0
    valid = kept[:, None] & (dim < DIM)[None, :]
    rows = token.to(tl.int64)[:, None]
    spot, scale_spot = head * kv_head + slot[:, None] * kv_slot + dim[None, :], head * scale_head + slot * scale_slot
    key = tl.load(k + rows * k_token + head * k_head + dim[None, :], mask=valid, other=0.0).to(tl.float32)
    put(key, spot, valid, keys, key_scales, scale_spot, kept, LARGEST, WHOLE)
    value = tl.load(v + rows * v_token + head * v_head + dim[None, :], mask=valid, other=0.0).to(tl.float32)
    put(value, spot, valid, values, value_scales, scale_spot, kept, LARGEST, WHOLE)


def write(k: torch.Tensor, v: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None:
    """k, v [T, KV, D], last axis without gaps, into `slots` [T] of the layer; those below zero are left out. Mixes nothing (see KVLayer)."""
    tokens, heads, dim = k.shape
    block = 1 if tokens <= 256 else 16
    _write[(triton.cdiv(tokens, block), heads)](
        k, v, slots, layer.keys, layer.values, layer.key_scales, layer.value_scales, tokens,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), layer.keys.stride(0), layer.keys.stride(1), *layer.scale_strides,
        DIM=dim, BLOCK_D=next_power(dim), BLOCK_T=block, LARGEST=LARGEST.get(layer.keys.dtype, 0.0), WHOLE=layer.keys.dtype == torch.int8,
        num_warps=1 if block == 1 else 4,
    )  # fmt: skip
