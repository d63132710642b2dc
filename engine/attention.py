"""Attention of one span of new tokens over its sequence's arena: the `attend` that a model calls in each layer.

Inputs: queries, keys and values of the span's tokens, and the KVSequence they belong to. Keys and values are written
into the arena, then attended to as views of it; nothing is gathered or repeated (grouped queries read each key once, by
a stride of zero over the group). This module knows nothing of models or requests.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from agentkit.engine.kv import KVSequence


def _flash_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float) -> torch.Tensor:
    """[B, H, T, D] x [B, H, S, D] -> [B, H, T, D]; follows the operands' strides."""
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)[0]
    return out


class SpanAttention:
    """Causal attention for the `count` tokens that follow what `sequence` holds; one object per forward.

    Called as attend(layer, q, k, v, window=, scale=, softcap=) with q [T, H, D], k and v [T, KV, D] -> [T, H, D].
    window: a token sees itself and the window-1 before it; None: everything.   softcap: logits become cap*tanh(x/cap).
    """

    def __init__(self, sequence: KVSequence, count: int) -> None:
        self._sequence = sequence
        self._offset = sequence.length
        self._count = count
        self._masks: dict[int | None, torch.Tensor] = {}

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None = None, scale: float, softcap: float | None = None
    ) -> torch.Tensor:
        end = self._offset + self._count
        self._sequence.write(layer, self._offset, k, v)
        first = 0 if window is None else max(0, self._offset - window + 1)
        keys, values = self._sequence.view(layer, first, end)
        if softcap is not None:
            return attend_explicit(q, keys, values, self._mask(first, window, q), scale, softcap)
        plain = self._offset == 0 and (window is None or window >= self._count)
        mask = None if self._count == 1 or plain else self._mask(first, window, q)
        return attend_fused(q, keys, values, mask, scale, causal=plain and self._count > 1)

    def _mask(self, first: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """Additive mask [T, S] over the keys from position `first`; one per window and forward."""
        mask = self._masks.get(window)
        if mask is None:
            rows = torch.arange(self._offset, self._offset + self._count, device=like.device).unsqueeze(1)
            columns = torch.arange(first, self._offset + self._count, device=like.device)
            hidden = columns > rows
            if window is not None:
                hidden |= columns <= rows - window
            mask = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask
        return mask


def attend_fused(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, *, causal: bool) -> torch.Tensor:
    """FlashAttention. q [T, H, D], keys and values [KV, S, D], mask additive [T, S] or None -> [T, H, D].

    causal: token t sees keys 0..t (only for S = T). Head h belongs to key head h // (H / KV).
    """
    t, heads, dim = q.shape
    kv = keys.shape[0]
    if q.device.type != "cpu":
        out = functional.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=heads != kv
        )
        return out[0].transpose(0, 1)
    if t == 1:  # the group's heads are rows of one small matrix: each key is read once
        out = _flash_cpu(q.view(1, kv, heads // kv, dim), keys.unsqueeze(0), values.unsqueeze(0), None, False, scale)
        return out.reshape(1, heads, dim)
    queries = q.view(t, kv, heads // kv, dim).permute(1, 2, 0, 3)  # [KV, G, T, D]
    shape = (kv, heads // kv, keys.shape[1], dim)
    out = _flash_cpu(queries, keys.unsqueeze(1).expand(shape), values.unsqueeze(1).expand(shape), mask, causal, scale)
    return out.permute(2, 0, 1, 3).reshape(t, heads, dim)


def attend_explicit(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """The same in plain products, in float32; the reference for `attend_fused`, and the path for logits with a soft cap."""
    t, heads, dim = q.shape
    kv = keys.shape[0]
    queries = q.float().view(t, kv, heads // kv, dim).permute(1, 2, 0, 3).reshape(kv, -1, dim)  # [KV, G*T, D]
    scores = torch.bmm(queries, keys.float().transpose(1, 2)).mul_(scale).view(kv, heads // kv, t, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).view(kv, -1, scores.shape[-1])
    out = torch.bmm(weights, values.float()).view(kv, heads // kv, t, dim)
    return out.permute(2, 0, 1, 3).reshape(t, heads, dim).to(q.dtype)
