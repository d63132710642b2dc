"""Attention of a forward's new tokens over paged keys and values: the `attend` that a model calls in each layer.

Inputs: queries, keys and values of the tokens of several spans, one behind the other, and the pool that holds what came
before them. Keys and values are written into their slots, then attended to as views of them; nothing is gathered or repeated
(grouped queries read each key once, by a stride of zero over the group). This module knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from agentkit.engine.kernels import attention as kernels
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kernels.library import supported
from agentkit.engine.kernels.team import TEAM
from agentkit.engine.kernels.tiles import LANES
from agentkit.engine.kv_format import decode, encode, is_mixed, mixed, row_dim

Array = np.ndarray[Any, np.dtype[Any]]
_STORED = {torch.float32: torch.float32, torch.float16: torch.int16, torch.bfloat16: torch.uint16, torch.int8: torch.int8, torch.uint8: torch.uint8}
"""Types of the pool, and how the kernels see them."""


class PagedSequence(Protocol):
    """Position p lies in slot pages[p // PAGE] * PAGE + p % PAGE of the pool."""

    @property
    def pages(self) -> Sequence[int]: ...


class PagedPool(Protocol):
    """data [L, 2, KV, S, row]: keys (0) and values (1) of every slot, see kv_format.py."""

    @property
    def data(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Plan:
    """What the kernels need to attend: see engine/kernels/attention.py. data: the flat pool of slot_count slots per layer and head."""

    data: Array
    slot_count: int
    slots: Array
    positions: Array
    trees: Array
    pages: Array
    tasks: Array
    rows: Array
    parts: Array
    partials: int


class BatchAttention:
    """Causal attention for the tokens of several spans, concatenated along T; one object per forward.

    spans: (sequence, offset, count): `count` tokens at the positions offset, offset+1, ...; everything before is in the pool.
    Called as attend(layer, q, k, v, window=, scale=, softcap=, sinks=) with q [T, H, D], k and v [T, KV, D] -> [T, H, D].
    window: a token sees itself and the window-1 before it; None: everything.   softcap: logits become cap*tanh(x/cap).
    sinks [H]: scores that take part in the softmax without a value; with them the runs are read by torch, not by the kernels.
    parents: for each span those of its last tokens, which are a tree of guesses (-1: the span's last known token); () for none. Such a
    token sees what is known and its own ancestors, at the position that its depth gives it.
    On a CPU with kernels the pages are read in place, and spans that share pages attend to them together; a token's result is bit
    for bit the same whatever else is in the batch. Elsewhere keys and values are read as runs of neighbouring pages, and what
    the runs yield is merged by the log-sum-exp of their scores.
    """

    def __init__(self, pool: PagedPool, spans: Sequence[tuple[PagedSequence, int, int]], parents: Sequence[Sequence[int]] | None = None) -> None:
        self._data = pool.data
        self._spans = tuple(spans)
        self._trees = [_tree(tree, offset + count) for tree, (_, offset, count) in zip(parents, spans, strict=True)] if parents else [None] * len(spans)
        self._plan: Plan | None = None

    def plan(self, group: int) -> Plan | None:
        """The tables of this batch for `group` query heads per key head; None where the kernels do not apply."""
        if self._plan is None and self._data.device.type == "cpu" and self._data.dtype in _STORED and row_dim(self._data) % LANES == 0 and supported():
            self._plan = _plan(self._data, self._spans, self._trees, group)
        return self._plan

    @cached_property
    def _slots(self) -> torch.Tensor:
        slots = [slot for sequence, offset, count in self._spans for slot in _slots(sequence.pages, offset, offset + count)]
        return torch.tensor(slots, dtype=torch.long, device=self._data.device)  # [T]

    @cached_property
    def _runs(self) -> list[list[tuple[int, int, int]]]:
        return [_runs(sequence.pages, offset, offset + count) for sequence, offset, count in self._spans]

    def __call__(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        window: int | None = None,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        for part, new in enumerate((k, v)):
            self._data[layer, part].index_copy_(1, self._slots, encode(new.transpose(0, 1), self._data.dtype, keys=part == 0))
        plan = self.plan(q.shape[1] // k.shape[1]) if q.dtype == torch.float32 and sinks is None else None
        if plan is not None:
            return _attend_pages(plan, layer, q, k.shape[1], window, scale, softcap)
        if is_mixed(self._data.dtype):
            q = mixed(q)
        out = torch.empty_like(q)
        start = 0
        for (_, offset, count), runs, tree in zip(self._spans, self._runs, self._trees, strict=True):
            own = q[start : start + count]
            out[start : start + count] = self._attend(layer, own, offset, runs, tree, window, scale, softcap, sinks)
            start += count
        return out

    def _attend(
        self,
        layer: int,
        q: torch.Tensor,
        offset: int,
        runs: list[tuple[int, int, int]],
        tree: Tree | None,
        window: int | None,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """One span's q [T, H, D] over its runs -> [T, H, D]."""
        parts = []
        for start, slot, length in runs:
            skip = 0 if window is None else max(0, min(length, offset - window + 1 - start))
            if skip == length:
                continue
            first = start + skip
            keys, values = (decode(self._data[layer, i, :, slot + skip : slot + length], q.dtype) for i in (0, 1))
            mask = _mask(offset, q.shape[0], first, start + length, window, q) if tree is None else _tree_mask(offset, tree, first, start + length, window, q)
            parts.append(_partial(q, keys, values, mask, scale, softcap))
        if sinks is not None:
            parts.append((torch.zeros_like(q), sinks.float().expand(q.shape[:2])))
        return merge(parts)


@dataclass(frozen=True)
class Tree:
    """Guesses at the keys start, start + 1, ...: depths [N], 1 for a child of the last known token; paths [N]: bits of a node and its ancestors."""

    start: int
    depths: Array
    paths: Array


def _tree(parents: Sequence[int], end: int) -> Tree | None:
    """None for a chain, which is causal."""
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        return None
    depths, paths = np.empty(len(parents), np.int64), np.empty(len(parents), np.int64)
    for i, parent in enumerate(parents):
        depths[i] = 1 if parent < 0 else depths[parent] + 1
        paths[i] = 1 << i | (0 if parent < 0 else int(paths[parent]))
    return Tree(end - len(parents), depths, paths)


def one_range(start: int, count: int) -> bool:
    """Whether the keys start, ..., start + count - 1 may be a tree: the kernels want them in one range."""
    return start // kernels.RANGE == (start + count - 1) // kernels.RANGE


def _plan(data: torch.Tensor, spans: Sequence[tuple[PagedSequence, int, int]], trees: Sequence[Tree | None], group: int) -> Plan:
    offsets = np.array([offset for _, offset, _ in spans], np.int64)
    counts = np.array([count for _, _, count in spans], np.int64)
    needed = (offsets + counts + PAGE - 1) // PAGE
    pages = np.concatenate([np.array(s.pages[:n], np.int64) for (s, _, _), n in zip(spans, needed.tolist(), strict=True)])
    first_page = np.concatenate((np.zeros(1, np.int64), np.cumsum(needed)[:-1]))
    positions = np.concatenate([np.arange(offset, offset + count) for _, offset, count in spans])
    slots = pages[np.repeat(first_page, counts) + positions // PAGE] * PAGE + positions % PAGE
    ranges = (offsets + counts + kernels.RANGE - 1) // kernels.RANGE
    tiles = -(-counts // max(1, kernels.ROWS // group))
    tasks = np.empty((int((ranges * tiles).sum()), kernels.TASK_COLUMNS), np.int64)
    rows = np.empty(int((ranges * counts).sum()), np.int64)
    parts = np.empty((int(counts.sum()), int(ranges.max())), np.int64)
    used, partials = kernels.plan(pages, first_page, offsets, counts, group, tasks, rows, parts)
    lines, at = np.full((positions.size, 2), -1, np.int64), 0
    for (_, _, count), tree in zip(spans, trees, strict=True):
        at += count
        if tree is not None:
            own = slice(at - tree.paths.size, at)
            positions[own] = tree.start - 1 + tree.depths
            lines[own, 0], lines[own, 1] = tree.start, tree.paths
    return Plan(data.view(_STORED[data.dtype]).view(-1).numpy(), data.shape[3], slots, positions, lines, pages, tasks[:used], rows, parts, partials)


def _attend_pages(plan: Plan, layer: int, q: torch.Tensor, kv: int, window: int | None, scale: float, softcap: float | None) -> torch.Tensor:
    """q [T, H, D] over the pages of one layer, by the kernel."""
    heads, dim = q.shape[1:]
    out = torch.empty(q.shape)
    partial = np.empty(plan.partials * heads * (dim + 2), np.float32)
    constants = np.float32(scale), np.float32(softcap or 0.0)
    TEAM.run(
        kernels.attend_pages, torch.get_num_threads(), kernels.scratch_floats(dim), plan.pages, plan.tasks, plan.rows, plan.parts, plan.positions, plan.trees,
        q.contiguous().view(-1).numpy(), heads, dim, plan.data, layer, kv, plan.slot_count, window or 0, *constants, partial, out.view(-1).numpy(),
    )  # fmt: skip
    return out


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


def _tree_mask(offset: int, tree: Tree, first: int, end: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """The same for tokens at offset, ..., the last of which are a tree."""
    places = np.concatenate((np.arange(offset, tree.start), tree.start - 1 + tree.depths))  # [T]
    columns = np.arange(first, end)
    nodes = columns - tree.start
    of_nodes = np.where(nodes < 0, columns, tree.start - 1 + tree.depths[np.clip(nodes, 0, None)])  # positions of the keys
    seen = of_nodes <= places[:, None]
    own = (tree.paths[:, None] >> np.clip(nodes, 0, None)) & 1 == 1
    known = places.size - tree.paths.size
    seen[known:] &= (nodes < 0) | own
    seen[:known] &= nodes < 0
    if window is not None:
        seen &= of_nodes > places[:, None] - window
    hidden = torch.from_numpy(~seen).to(like.device)
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


def attend_explicit(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, softcap: float | None = None
) -> torch.Tensor:
    """Attention in plain products, in float32. q [T, H, D], keys and values [KV, S, D], mask additive [T, S] or None -> [T, H, D].

    A reference for tests. Head h belongs to key head h // (H / KV).
    """
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
