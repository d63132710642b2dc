"""Attention of one span by torch, over runs of neighbouring slots: where the kernels do not apply.

Inputs: queries of a span, the pool of one layer, the span's pages and place. What the runs yield is merged by the log-sum-exp of their
scores. Knows nothing of batches, models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import decode

Array = np.ndarray[Any, np.dtype[Any]]
Part = tuple[torch.Tensor, torch.Tensor]
"""Attention over some keys: out [T, H, D] and log-sum-exp [T, H]; rows that see none of them: (0, -inf)."""


@dataclass(frozen=True)
class Tree:
    """Guesses at the keys start, start + 1, ...: depths [N], 1 for a child of the last known token; paths [N]: bits of a node and its ancestors."""

    start: int
    depths: Array
    paths: Array


def tree_of(parents: Sequence[int], end: int) -> Tree | None:
    """None for a chain, which is causal."""
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        return None
    depths, paths = np.empty(len(parents), np.int64), np.empty(len(parents), np.int64)
    for i, parent in enumerate(parents):
        depths[i] = 1 if parent < 0 else depths[parent] + 1
        paths[i] = 1 << i | (0 if parent < 0 else int(paths[parent]))
    return Tree(end - len(parents), depths, paths)


@dataclass(frozen=True)
class Sight:
    """What a layer's tokens see: a window of positions, their own included (None: everything), and the first `sinks` keys beside it."""

    window: int | None
    sinks: int = 0

    def lowest(self, position: int) -> int:
        """The first key in the window of a token."""
        return 0 if self.window is None or position < self.window + self.sinks else position - self.window + 1

    def lowest_of(self, positions: torch.Tensor) -> torch.Tensor:
        """The same for many tokens."""
        if self.window is None:
            return torch.zeros_like(positions)
        return torch.where(positions < self.window + self.sinks, 0, positions - self.window + 1)


def attend_run(
    data: torch.Tensor, q: torch.Tensor, run: tuple[int, int, int], places: tuple[int, torch.Tensor], tree: Tree | None, sight: Sight, cap: tuple[float, Any]
) -> Part | None:
    """q [T, H, D] over a run (position, slot, length) of data [2, KV, S, row]; None where no token sees any of it.

    places: the first token's, and the positions [T] of all.   cap: scale, and soft cap or None.
    """
    offset, positions = places
    start, slot, length = run
    skip = max(0, min(length, sight.lowest(offset) - start))
    if skip == length:
        return None
    keys, values = (decode(data[i, :, slot + skip : slot + length], q.dtype) for i in (0, 1))
    first, end = start + skip, start + length
    mask = _mask(offset, q.shape[0], first, end, sight, q) if tree is None else _tree_mask(offset, positions, tree, first, end, sight, q)
    return _partial(q, keys, values, mask, *cap)


def attend_sinks(data: torch.Tensor, q: torch.Tensor, pages: Sequence[int], positions: torch.Tensor, sight: Sight, cap: tuple[float, Any]) -> Part | None:
    """q [T, H, D], turned back, over the sinks, for tokens that do not have them in their window; None where there are none."""
    assert sight.window is not None
    blind = positions < sight.window + sight.sinks
    if bool(blind.all()):
        return None
    slots = torch.tensor([pages[p // PAGE] * PAGE + p % PAGE for p in range(sight.sinks)], device=q.device)
    keys, values = (decode(data[i].index_select(1, slots), q.dtype) for i in (0, 1))
    mask = None
    if bool(blind.any()):
        mask = torch.zeros(q.shape[0], sight.sinks, dtype=q.dtype, device=q.device).masked_fill_(blind.unsqueeze(1), -torch.inf)
    return _partial(q, keys, values, mask, *cap)


def attend_and_sum(
    data: torch.Tensor, q: torch.Tensor, runs: Sequence[tuple[int, int, int]], sums: torch.Tensor, cap: tuple[float, float | None], extra: torch.Tensor | None
) -> torch.Tensor:
    """q [T, H, D], the last T of the places in `runs`, over all of them; adds what each slot receives, over heads and tokens, to sums [S].

    extra [H]: scores without a value. Keys are as few as a budget, so the probabilities are made as they are.
    """
    tokens, heads, dim = q.shape
    scale, softcap = cap
    keys, values = (torch.cat([decode(data[i, :, slot : slot + length], torch.float32) for _, slot, length in runs], 1) for i in (0, 1))  # [KV, N, D]
    kv, count = keys.shape[:2]
    queries = q.float().view(tokens, kv, heads // kv, dim).permute(1, 2, 0, 3).reshape(kv, -1, dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(scale).view(kv, heads // kv, tokens, count)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores += torch.full((tokens, count), -torch.inf, device=q.device).triu_(count - tokens + 1)
    if extra is not None:
        scores = torch.cat((scores, extra.float().view(kv, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1)[..., :count]
    received, at = weights.sum((0, 1, 2)), 0
    for _, slot, length in runs:
        sums[slot : slot + length] += received[at : at + length]
        at += length
    out = torch.bmm(weights.reshape(kv, -1, count), values).view(kv, heads // kv, tokens, dim)
    return out.permute(2, 0, 1, 3).reshape(tokens, heads, dim).to(q.dtype)


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


def runs_of(pages: Sequence[int], first: int, offset: int, end: int) -> list[tuple[int, int, int]]:
    """(position, slot, length) of stretches without a gap that cover first..end; none of them crosses `offset`."""
    runs: list[tuple[int, int, int]] = []
    for start, stop in ((first, offset), (offset, end)):
        known = len(runs)
        while start < stop:
            length, slot = min(PAGE - start % PAGE, stop - start), pages[start // PAGE] * PAGE + start % PAGE
            if len(runs) > known and runs[-1][1] + runs[-1][2] == slot:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + length)
            else:
                runs.append((start, slot, length))
            start += length
    return runs


def _mask(offset: int, count: int, first: int, end: int, sight: Sight, like: torch.Tensor) -> torch.Tensor | None:
    """Additive mask [count, end-first] of positions first..end for the tokens at offset..offset+count; None: all are seen."""
    if (end <= offset or count == 1) and first >= sight.lowest(offset + count - 1):
        return None
    rows = torch.arange(offset, offset + count, device=like.device).unsqueeze(1)
    columns = torch.arange(first, end, device=like.device)
    hidden = (columns > rows) | (columns < sight.lowest_of(rows))
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


def _tree_mask(offset: int, positions: torch.Tensor, tree: Tree, first: int, end: int, sight: Sight, like: torch.Tensor) -> torch.Tensor:
    """The same for tokens at offset, ..., the last of which are a tree."""
    places = positions.cpu().numpy()  # [T]
    columns = np.arange(first, end)
    nodes = columns - tree.start
    of_nodes = np.where(nodes < 0, columns, tree.start - 1 + tree.depths[np.clip(nodes, 0, None)])  # positions of the keys
    seen = of_nodes <= places[:, None]
    own = (tree.paths[:, None] >> np.clip(nodes, 0, None)) & 1 == 1
    known = places.size - tree.paths.size
    seen[known:] &= (nodes < 0) | own
    seen[:known] &= nodes < 0
    seen &= of_nodes >= sight.lowest_of(positions.cpu()).numpy()[:, None]
    hidden = torch.from_numpy(~seen).to(like.device)
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


def _partial(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None) -> Part:
    """q [T, H, D] over keys and values [KV, S, D]."""
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
