"""Reference attention: one sequence, one contiguous KV cache, torch's own scaled-dot-product attention.

For tests and as the plainest example of the `Attend` contract of decoder.py. Causal, windowed, grouped-query, soft-capped, with sinks.
Knows nothing of models beyond their `ModelShape`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from agentkit.engine.models.config import ModelShape
from agentkit.engine.models.decoder import Decoder, RowSelection

__all__ = ["ReferenceCache", "greedy", "run"]


class ReferenceCache:
    """Keys and values of one sequence: [layers][capacity, KV, D]; `length` positions are filled.

    Used as the `attend` argument of `Decoder.forward`; call `commit(T)` after each forward of T tokens, or use `run`.
    """

    def __init__(self, config: ModelShape, capacity: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        shape = (config.num_layers, capacity, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    def __call__(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        end = self.length + q.shape[0]
        if end > self.keys.shape[1]:
            raise IndexError(f"the reference cache holds {self.keys.shape[1]} positions, {end} are needed")
        self.keys[layer, self.length : end] = k
        self.values[layer, self.length : end] = v
        return attention(q, self.keys[layer, :end], self.values[layer, :end], window=window, scale=scale, softcap=softcap, sinks=sinks)

    def commit(self, tokens: int) -> None:
        """Makes the last `tokens` positions written part of the sequence."""
        self.length += tokens


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None, scale: float, softcap: float | None, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention of the last T of S positions: q [T, H, D], k and v [S, KV, D], sinks [H] -> [T, H, D]."""
    tokens, positions = q.shape[0], k.shape[0]
    query = torch.arange(positions - tokens, positions, device=q.device)[:, None]
    key = torch.arange(positions, device=q.device)[None]
    mask = key <= query
    if window is not None:
        mask &= key > query - window
    if softcap is None and sinks is None:
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("thd,shd->hts", q.float(), k.float().repeat_interleave(group, 1)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float()[:, None, None].expand(-1, tokens, 1)), -1)
    weights = scores.softmax(-1)[..., :positions]
    out = torch.einsum("hts,shd->thd", weights, v.float().repeat_interleave(group, 1))
    return out.to(q.dtype)


def run(model: Decoder, cache: ReferenceCache, token_ids: Sequence[int], logits_for: RowSelection = None) -> torch.Tensor:
    """Feeds tokens after those in the cache; logits [N, V] as `Decoder.forward` gives them."""
    tokens = torch.tensor(token_ids, dtype=torch.int64, device=model.device)
    positions = torch.arange(cache.length, cache.length + len(token_ids), device=model.device)
    logits = model.forward(tokens, positions, cache, logits_for)
    cache.commit(len(token_ids))
    return logits


def greedy(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """The next `count` tokens of each prompt by exact argmax, stop tokens not heeded; all sequences step together."""
    caches = [ReferenceCache(model.config, len(prompt) + count, dtype=model.dtype, device=model.device) for prompt in prompts]
    last = [int(run(model, cache, prompt, slice(-1, None)).argmax()) for cache, prompt in zip(caches, prompts, strict=True)]
    out = [[token] for token in last]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **settings: Any) -> torch.Tensor:
        rows = [slice(row, row + 1) for row in range(len(caches))]
        return torch.cat([cache(layer, q[row], k[row], v[row], **settings) for cache, row in zip(caches, rows, strict=True)])

    for _ in range(count - 1):
        positions = torch.tensor([cache.length for cache in caches], device=model.device)
        last = model.forward(torch.tensor(last, device=model.device), positions, attend).argmax(-1).tolist()
        for cache, tokens, token in zip(caches, out, last, strict=True):
            cache.commit(1)
            tokens.append(token)
    return out
