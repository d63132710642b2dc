"""Attention of one span of new tokens over its sequence's arena: the `attend` that a model calls in each layer.

Inputs: queries, keys and values of the span's tokens, and the KVSequence they belong to. Keys and values are written
into the arena, then attended to as views of it; nothing is gathered or repeated (grouped queries read each key once, by
a stride of zero over the group). This module knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

from agentkit.engine.kernels.layout import PAGE
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


class PagedSequence(Protocol):
    """Position p lies in slot pages[p // PAGE] * PAGE + p % PAGE of the pool."""

    @property
    def pages(self) -> Sequence[int]: ...


class PagedPool(Protocol):
    """data [L, 2, KV, S, D]: keys (0) and values (1) of every slot."""

    @property
    def data(self) -> torch.Tensor: ...


class BatchAttention:
    """Causal attention for the tokens of several spans, concatenated along T; one object per forward.

    spans: (sequence, offset, count): `count` tokens at the positions offset, offset+1, ...; everything before is in the pool.
    Called as SpanAttention is. Keys and values are read as runs of neighbouring pages, never gathered; what the runs yield is
    merged by the log-sum-exp of their scores.
    """

    def __init__(self, pool: PagedPool, spans: Sequence[tuple[PagedSequence, int, int]]) -> None:
        self._data = pool.data
        self._spans = tuple(spans)
        slots = [s for sequence, offset, count in self._spans for s in _slots(sequence.pages, offset, offset + count)]
        self._slots = torch.tensor(slots, dtype=torch.long, device=self._data.device)  # [T]
        self._runs = [_runs(sequence.pages, offset, offset + count) for sequence, offset, count in self._spans]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None = None, scale: float, softcap: float | None = None
    ) -> torch.Tensor:
        for part, new in enumerate((k, v)):
            self._data[layer, part].index_copy_(1, self._slots, new.transpose(0, 1).to(self._data.dtype))
        out = torch.empty_like(q)
        start = 0
        for (_, offset, count), runs in zip(self._spans, self._runs, strict=True):
            part = q[start : start + count]
            out[start : start + count] = self._attend(layer, part, offset, runs, window, scale, softcap)
            start += count
        return out

    def _attend(
        self, layer: int, q: torch.Tensor, offset: int, runs: list[tuple[int, int, int]], window: int | None, scale: float, softcap: float | None
    ) -> torch.Tensor:
        """One span's q [T, H, D] over its runs -> [T, H, D]."""
        parts = []
        for start, slot, length in runs:
            skip = 0 if window is None else max(0, min(length, offset - window + 1 - start))
            if skip == length:
                continue
            first = start + skip
            keys, values = (self._data[layer, i, :, slot + skip : slot + length].to(q.dtype) for i in (0, 1))
            mask = _mask(offset, q.shape[0], first, start + length, window, q)
            parts.append(_partial(q, keys, values, mask, scale, softcap))
        return merge(parts)


def merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention over the union of disjoint sets of keys, from (out [T, H, D], log-sum-exp [T, H]) over each of them.

    A row that sees none of a set's keys brings a log-sum-exp of -inf for it. FlashInfer's cascade: arXiv:2501.01005.
    """
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.stack([lse for _, lse in parts]).softmax(0).unsqueeze(-1)  # [parts, T, H, 1]
    out = parts[0][0] * weights[0]
    for (part, _), weight in zip(parts[1:], weights[1:], strict=True):
        out = out + part * weight
    return out


def _slots(pages: Sequence[int], start: int, end: int) -> list[int]:
    return [pages[p // PAGE] * PAGE + p % PAGE for p in range(start, end)]


def _runs(pages: Sequence[int], offset: int, end: int) -> list[tuple[int, int, int]]:
    """(position, slot, length) of stretches without a gap that cover 0..end; none of them crosses `offset`."""
    runs: list[tuple[int, int, int]] = []
    for start, stop in ((0, offset), (offset, end)):
        first = len(runs)
        while start < stop:
            length, slot = min(PAGE - start % PAGE, stop - start), pages[start // PAGE] * PAGE + start % PAGE
            if len(runs) > first and runs[-1][1] + runs[-1][2] == slot:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + length)
            else:
                runs.append((start, slot, length))
            start += length
    return runs


def _mask(offset: int, count: int, first: int, end: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
    """Additive mask [count, end-first] of positions first..end for the tokens at offset..offset+count; None: all are seen."""
    if (end <= offset or count == 1) and (window is None or first > offset + count - 1 - window):
        return None
    rows = torch.arange(offset, offset + count, device=like.device).unsqueeze(1)
    columns = torch.arange(first, end, device=like.device)
    hidden = columns > rows
    if window is not None:
        hidden |= columns <= rows - window
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


def _partial(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, D] over keys and values [KV, S, D] -> (out [T, H, D], log-sum-exp [T, H]); rows that see no key: (0, -inf)."""
    t, heads, dim = q.shape
    kv = keys.shape[0]
    blind = None if mask is None else (mask == -torch.inf).all(1)
    if q.device.type == "cpu" and softcap is None and (blind is None or not bool(blind.any())):
        queries = q.view(t, kv, heads // kv, dim).permute(1, 2, 0, 3)  # [KV, G, T, D]
        shape = (kv, heads // kv, keys.shape[1], dim)
        wide = keys.unsqueeze(1).expand(shape), values.unsqueeze(1).expand(shape)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, *wide, 0.0, False, attn_mask=mask, scale=scale)
        return out.permute(2, 0, 1, 3).reshape(t, heads, dim), lse.permute(2, 0, 1).reshape(t, heads)
    queries = q.float().view(t, kv, heads // kv, dim).permute(1, 2, 0, 3).reshape(kv, -1, dim)  # [KV, G*T, D]
    scores = torch.bmm(queries, keys.float().transpose(1, 2)).mul_(scale).view(kv, heads // kv, t, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.clamp(min=-1e30).unsqueeze(-1)).view(kv, -1, scores.shape[-1])
    out = torch.bmm(weights, values.float()).view(kv, heads // kv, t, dim)
    return out.permute(2, 0, 1, 3).reshape(t, heads, dim).to(q.dtype), lse.permute(2, 0, 1).reshape(t, heads)


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
