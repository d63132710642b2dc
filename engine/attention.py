"""Attention of a forward's new tokens over paged keys and values: the `attend` that a model calls in each layer.

Inputs: queries, keys and values of the tokens of several spans, one behind the other, and the pool that holds what came
before them. Keys and values are written into their slots, then attended to as views of them; nothing is gathered or repeated
(grouped queries read each key once, by a stride of zero over the group). This module knows nothing of models or requests.
"""

from __future__ import annotations

import math
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
from agentkit.engine.kv_format import encode, is_mixed, mixed, row_dim
from agentkit.engine.kv_groups import PageGroups
from agentkit.engine.kv_policy import Reach
from agentkit.engine.run_attention import Sight, Tree, attend_and_sum, attend_run, attend_sinks, merge, runs_of, tree_of

Array = np.ndarray[Any, np.dtype[Any]]
_STORED = {torch.float32: torch.float32, torch.float16: torch.int16, torch.bfloat16: torch.uint16, torch.int8: torch.int8, torch.uint8: torch.uint8}
"""Types of the pool, and how the kernels see them."""


class PagedSequence(Protocol):
    """By each of its page tables, position p lies in slot table[p // PAGE] * PAGE + p % PAGE of the pool. Pages that nobody sees any more may be gone."""

    @property
    def tables(self) -> Sequence[Sequence[int]]: ...


class PagedPool(Protocol):
    """data [layers of a page, 2, KV, S, row]: keys (0) and values (1) of every slot, see kv_format.py. groups: which layers share pages.

    reach: what a token sees. sums [S]: where attention decides what is kept, what each slot has received is added up there; else None.
    """

    @property
    def data(self) -> torch.Tensor: ...
    @property
    def groups(self) -> PageGroups: ...
    @property
    def reach(self) -> Reach: ...
    @property
    def sums(self) -> torch.Tensor | None: ...


@dataclass(frozen=True)
class Plan:
    """What the kernels need to attend: see engine/kernels/attention.py. data: the flat pool of slot_count slots per layer of a page and head.

    slots [tables, T], pages [tables, n], places (as `tables`), window, sinks, left_out: see forward.Batch. sums: see PagedPool.
    """

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
    window: int
    sinks: int
    left_out: Array
    places: Array
    sums: Array | None

    def weighing(self, heads: int, kv_heads: int) -> tuple[Array, Array]:
        """Room for exponentials, and zeros for what keys receive from them (see kernels.weigh); empty where nobody wants it."""
        if self.sums is None:
            return np.empty(0, np.float32), np.empty(0, np.float32)
        return np.empty(self.partials * heads * kernels.RANGE, np.float32), np.zeros(len(self.tasks) * kv_heads * kernels.RANGE, np.float32)

    def add_up(self, kv_heads: int, received: Array, *, begin: bool = True) -> None:
        """Adds what was received to the sums. begin: those of the new slots are 0 before."""
        if self.sums is None:
            return
        if begin:
            self.sums[self.slots[0]] = 0.0
        kernels.add_up(self.pages[0], self.tasks, kv_heads, received, self.sums)


class BatchAttention:
    """Causal attention for the tokens of several spans, concatenated along T; one object per forward.

    spans: (sequence, offset, count): `count` tokens at the positions offset, offset+1, ...; everything before is in the pool, as far as
    the pool's reach needs it. Where attention decides what is kept, positions are places among what is left.
    Called as attend(layer, q, k, v, window=, scale=, softcap=, sinks=) with q [T, H, D], k and v [T, KV, D] -> [T, H, D].
    window: a token sees itself and the window-1 before it; None: everything; the pool's reach may narrow it.
    softcap: logits become cap*tanh(x/cap).
    sinks [H]: scores that take part in the softmax without a value; with them the runs are read by torch, not by the kernels.
    parents: for each span those of its last tokens, which are a tree of guesses (-1: the span's last known token); () for none. Such a
    token sees what is known and its own ancestors, at the position that its depth gives it.
    On a CPU with kernels the pages are read in place, and spans that share pages attend to them together; a token's result is bit
    for bit the same whatever else is in the batch. Elsewhere keys and values are read as runs of neighbouring pages, and what
    the runs yield is merged by the log-sum-exp of their scores.
    """

    def __init__(self, pool: PagedPool, spans: Sequence[tuple[PagedSequence, int, int]], parents: Sequence[Sequence[int]] | None = None) -> None:
        self._data = pool.data
        self._groups = pool.groups
        self._reach = pool.reach
        self._sums = pool.sums
        self._spans = tuple(spans)
        self._trees = [tree_of(tree, offset + count) for tree, (_, offset, count) in zip(parents, spans, strict=True)] if parents else [None] * len(spans)
        self._plan: Plan | None = None
        self._turns: dict[int, torch.Tensor] = {}
        self._runs_of: dict[int, list[list[tuple[int, int, int]]]] = {}

    def plan(self, group: int) -> Plan | None:
        """The tables of this batch for `group` query heads per key head; None where the kernels do not apply."""
        if self._plan is None and self._data.device.type == "cpu" and self._data.dtype in _STORED and row_dim(self._data) % LANES == 0 and supported():
            self._plan = _plan(self._data, self._groups, self._spans, self._trees, self._positions, group, self._reach, self._sums)
        return self._plan

    @cached_property
    def _positions(self) -> Array:
        """[T], of guesses those of their depth."""
        parts = []
        for (_, offset, count), tree in zip(self._spans, self._trees, strict=True):
            parts.append(np.arange(offset, offset + count))
            if tree is not None:
                parts[-1][tree.start - offset :] = tree.start - 1 + tree.depths
        return np.concatenate(parts)

    @cached_property
    def _slots(self) -> list[torch.Tensor]:
        """By each table [T]."""
        of_tables: list[list[int]] = [[] for _ in range(self._groups.tables)]
        for sequence, offset, count in self._spans:
            for slots, pages in zip(of_tables, sequence.tables, strict=True):
                slots.extend(pages[p // PAGE] * PAGE + p % PAGE for p in range(offset, offset + count))
        return list(torch.tensor(of_tables, dtype=torch.long, device=self._data.device))

    def _runs(self, table: int) -> list[list[tuple[int, int, int]]]:
        if table not in self._runs_of:
            lowest = next(group.lowest for group in self._groups.groups if table in group.tables)
            self._runs_of[table] = [runs_of(sequence.tables[table], lowest(offset), offset, offset + count) for sequence, offset, count in self._spans]
        return self._runs_of[table]

    def _back(self, layer: int) -> torch.Tensor:
        """Cosines, then sines [T, D], of the positions that each token leaves out between the sinks and its window."""
        rope = self._reach.rope_of_layer[layer]
        if rope not in self._turns:
            out = torch.from_numpy(_left_out(self._positions, self._reach)).to(self._data.device)
            angles = out.double().unsqueeze(1) * torch.tensor(self._reach.ropes[rope], dtype=torch.float64, device=self._data.device)
            angles = angles.remainder(2 * math.pi)
            self._turns[rope] = torch.cat((angles.cos(), angles.sin()), 1).float()
        return self._turns[rope]

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
        table, stored = self._groups.places[layer]
        for part, new in enumerate((k, v)):
            self._data[stored, part].index_copy_(1, self._slots[table], encode(new.transpose(0, 1), self._data.dtype, keys=part == 0))
        limit = self._reach.window
        sight = Sight(window if limit is None or (window is not None and window < limit) else limit, self._reach.sinks)
        plan = self.plan(q.shape[1] // k.shape[1]) if q.dtype == torch.float32 and sinks is None else None
        if plan is not None:
            turns = self._back(layer).reshape(-1).numpy() if plan.sinks else np.empty(0, np.float32)
            return _attend_pages(plan, layer, q, k.shape[1], sight, turns, scale, softcap)
        return self._by_runs(layer, q, sight, (scale, softcap), sinks)

    def _by_runs(self, layer: int, q: torch.Tensor, sight: Sight, cap: tuple[float, float | None], extra: torch.Tensor | None) -> torch.Tensor:
        """q [T, H, D] of all spans, by torch. extra [H]: scores without a value."""
        if self._sums is not None and layer == 0:
            self._sums[self._slots[0]] = 0.0
        mix = mixed if is_mixed(self._data.dtype) else _as_it_is
        back = mix(_turned_back(q, self._back(layer))) if sight.sinks else q
        q, positions = mix(q), torch.from_numpy(self._positions).to(q.device)
        table, stored = self._groups.places[layer]
        data, out, start = self._data[stored], torch.empty_like(q), 0
        for (sequence, offset, count), runs, tree in zip(self._spans, self._runs(table), self._trees, strict=True):
            own = slice(start, start + count)
            if self._sums is not None:
                out[own] = attend_and_sum(data, q[own], runs, self._sums, cap, extra)
                start += count
                continue
            found = [attend_run(data, q[own], run, (offset, positions[own]), tree, sight, cap) for run in runs]
            if sight.sinks:
                found.append(attend_sinks(data, back[own], sequence.tables[table], positions[own], sight, cap))
            if extra is not None:
                found.append((torch.zeros_like(q[own]), extra.float().expand(q[own].shape[:2])))
            out[own] = merge([part for part in found if part is not None])
            start += count
        return out


def one_range(start: int, count: int) -> bool:
    """Whether the keys start, ..., start + count - 1 may be a tree: the kernels want them in one range."""
    return start // kernels.RANGE == (start + count - 1) // kernels.RANGE


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _turned_back(q: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """q [T, H, D] rotated by the negative of turns [T, D], which holds cosines, then sines."""
    cos, sin = turns.unsqueeze(1).chunk(2, -1)
    a, b = q.float().chunk(2, -1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), -1).to(q.dtype)


def _left_out(positions: Array, reach: Reach) -> Array:
    """How many positions lie between the sinks and the window of each token."""
    assert reach.kept is not None
    out: Array = np.maximum(0, positions - reach.kept - reach.sinks + 1)
    return out


def _plan(
    data: torch.Tensor,
    groups: PageGroups,
    spans: Sequence[tuple[PagedSequence, int, int]],
    trees: Sequence[Tree | None],
    positions: Array,
    group: int,
    reach: Reach,
    sums: torch.Tensor | None,
) -> Plan:
    offsets = np.array([offset for _, offset, _ in spans], np.int64)
    counts = np.array([count for _, _, count in spans], np.int64)
    lowest = groups.groups[0].lowest  # other groups see less: what is gone for them their tokens do not look at
    starts = np.array([lowest(offset) // kernels.RANGE for _, offset, _ in spans], np.int64)
    skipped, needed = starts * kernels.RANGE_PAGES, (offsets + counts + PAGE - 1) // PAGE
    bounds = zip(spans, skipped.tolist(), needed.tolist(), strict=True)
    listed = [np.array([pages[first:end] for pages in s.tables], np.int64) for (s, _, _), first, end in bounds]  # [tables, pages]
    first_page = np.concatenate((np.zeros(1, np.int64), np.cumsum(needed - skipped)))
    sink_pages = -(-reach.sinks // PAGE)
    if sink_pages:
        listed += [np.array([(*s.tables[0][:sink_pages], *[0] * sink_pages)[:sink_pages]], np.int64) for s, _, _ in spans]
    pages = np.concatenate(listed, 1)
    branching = any(tree is not None for tree in trees)
    at = np.concatenate([np.arange(offset, offset + count) for _, offset, count in spans]) if branching else positions
    slots = pages[:, np.repeat(first_page[:-1] - skipped, counts) + at // PAGE] * PAGE + at % PAGE
    ranges = (offsets + counts + kernels.RANGE - 1) // kernels.RANGE - starts + bool(reach.sinks)
    tiles = -(-counts // max(1, kernels.ROWS // group))
    tasks = np.empty((int((ranges * tiles).sum()), kernels.TASK_COLUMNS), np.int64)
    rows = np.empty(int((ranges * counts).sum()), np.int64)
    parts = np.empty((int(counts.sum()), int(ranges.max())), np.int64)
    used, row, partials = kernels.plan(pages, first_page[:-1], starts, offsets, counts, group, tasks, rows, parts)
    left_out = np.empty(0, np.int64)
    if reach.sinks:
        assert reach.kept is not None
        sinks_at = first_page[-1] + sink_pages * np.arange(len(spans))
        apart = reach.kept + reach.sinks
        used, partials = kernels.plan_sinks(sinks_at, np.cumsum(counts), positions, apart, reach.sinks, group, used, row, partials, tasks, rows, parts)
        left_out = _left_out(positions, reach)
    lines, end = np.full((positions.size, 2), -1, np.int64), 0
    for (_, _, count), tree in zip(spans, trees, strict=True):
        end += count
        if tree is not None:
            lines[end - tree.paths.size : end, 0], lines[end - tree.paths.size : end, 1] = tree.start, tree.paths
    flat = data.view(_STORED[data.dtype]).view(-1).numpy()
    return Plan(
        flat, data.shape[3], slots, positions, lines, pages, tasks[:used], rows, parts, partials, reach.window or 0, reach.sinks, left_out,
        groups.lines, None if sums is None else sums.numpy(),
    )  # fmt: skip


def _attend_pages(plan: Plan, layer: int, q: torch.Tensor, kv: int, sight: Sight, turns: Array, scale: float, softcap: float | None) -> torch.Tensor:
    """q [T, H, D] over the pages of one layer, by the kernel."""
    heads, dim = q.shape[1:]
    out = torch.empty(q.shape)
    partial = np.empty(plan.partials * heads * (dim + 2), np.float32)
    constants, (table, stored) = (np.float32(scale), np.float32(softcap or 0.0)), plan.places[layer]
    exponentials, received = plan.weighing(heads, kv)
    TEAM.run(
        kernels.attend_pages, torch.get_num_threads(), kernels.scratch_floats(dim), plan.pages[table], plan.tasks, plan.rows, plan.parts, plan.positions,
        plan.trees, q.contiguous().view(-1).numpy(), heads, dim, plan.data, int(stored), kv, plan.slot_count, sight.window or 0, sight.sinks, turns,
        *constants, partial, exponentials, received, out.view(-1).numpy(),
    )  # fmt: skip
    plan.add_up(kv, received, begin=layer == 0)
    return out
