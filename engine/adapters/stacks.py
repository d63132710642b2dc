"""The adapters that are in use on a device, stacked so that its kernels find each by a number, and a decoder's layers with them beside.

Inputs: the layers of a decoder on the device, and per batch who uses what. An adapter is copied to the device when it is first used, and its
number is free again when nobody holds it. Knows nothing of requests, pages or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from agentkit.engine.adapters.adapter import MATRICES, Adapter, AdapterUse, Layered, LowRank, Place
from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.choose import Kernels
from agentkit.engine.models.decoder import Layer, Linear

__all__ = ["AdapterStacks"]

NO_ADAPTER = -1


class _Part(NamedTuple):
    """up [N, columns, rank] of a part of a fused matrix, for N adapters; see adapter.Part."""

    up: torch.Tensor
    rank: int
    column: int


@dataclass(frozen=True)
class _Stack:
    """All adapters' changes of one place. down [N, R, in]; ranks that an adapter does not have are zeros."""

    down: torch.Tensor
    parts: tuple[_Part, ...]

    @classmethod
    def room(cls, lows: Sequence[LowRank], count: int, dtype: torch.dtype, device: torch.device) -> _Stack:
        """For `count` adapters that are as large as the largest of these in each part."""
        sizes: dict[int, tuple[int, int]] = {}
        for low in lows:
            for up, _, column in low.parts:
                sizes[column] = up.shape[0], max(up.shape[1], sizes.get(column, (0, 0))[1])
        parts, total = [], 0
        for column, (columns, rank) in sorted(sizes.items()):
            parts.append(_Part(torch.zeros(count, columns, rank, dtype=dtype, device=device), total, column))
            total += rank
        return cls(torch.zeros(count, total, lows[0].down.shape[1], dtype=dtype, device=device), tuple(parts))

    def holds(self, low: LowRank) -> bool:
        ranks = {part.column: part.up.shape[2] for part in self.parts}
        return all(up.shape[1] <= ranks.get(column, 0) for up, _, column in low.parts)

    def put(self, number: int, low: LowRank | None) -> None:
        """None: this adapter changes nothing here."""
        for tensor in (self.down, *(part.up for part in self.parts)):
            tensor[number].zero_()
        own = {part.column: part for part in self.parts}
        for up, rank, column in low.parts if low is not None else ():
            count, target = up.shape[1], own[column]
            target.up[number, :, :count] = up
            assert low is not None
            self.down[number, target.rank : target.rank + count] = low.down[rank : rank + count]


@dataclass(frozen=True)
class _Rows:
    """Rows of a matrix by requests, as the kernels want them: batch.query_starts, and of each request its adapter's number [B] int32 and scale [B]."""

    batch: Batch
    numbers: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, slots=True)
class _StackedLinear:
    """x [T, in] -> [T, out]."""

    base: Linear
    stack: _Stack
    rows: _Rows
    kernels: Kernels

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.base(x)
        if x.shape[0]:
            batch, numbers, scales = self.rows.batch, self.rows.numbers, self.rows.scales
            h = self.kernels.shrink(x, self.stack.down, batch, numbers)
            for up, rank, column in self.stack.parts:
                self.kernels.expand(h[..., rank : rank + up.shape[2]], up, scales, out[:, column : column + up.shape[1]], batch, numbers)
        return out


class AdapterStacks:
    """layers: of the decoder.   kernels: for `shrink` and `expand`.   dtype, device: the decoder's."""

    def __init__(self, layers: Sequence[Layer], kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
        self._layers, self._kernels = layers, kernels
        self._dtype, self._device = dtype, device
        self._numbers: WeakKeyDictionary[Adapter, int] = WeakKeyDictionary()
        self._stacks: dict[Place, _Stack] = {}
        self._room = 0

    def beside(self, batch: Batch, uses: Sequence[AdapterUse | None], rows: Sequence[int]) -> list[Layer]:
        """The layers for one forward over a batch.   uses: of each of its requests.   rows: how many of the batch's rows each request has."""
        for use in uses:
            if use is not None and use.adapter not in self._numbers:
                self._take_in(use.adapter)
        all_tokens = self._rows(batch, uses)
        after = [use for use, count in zip(uses, rows, strict=True) for _ in range(count)]
        starts = torch.arange(len(after) + 1, dtype=torch.int32, device=self._device)
        shape = replace(batch.shape, tokens=len(after), requests=len(after), queries=1)
        chosen = self._rows(replace(batch, shape=shape, query_starts=starts), after)
        last = len(self._layers) - 1
        return [self._layer(index, layer, all_tokens, chosen if index == last else all_tokens) for index, layer in enumerate(self._layers)]

    def _layer(self, index: int, layer: Layer, rows: _Rows, after_attention: _Rows) -> Layer:
        changed: dict[str, Any] = {}
        for name in MATRICES:
            stack = self._stacks.get((index, name))
            if stack is not None:
                changed[name] = _StackedLinear(getattr(layer, name), stack, rows if name == "qkv" else after_attention, self._kernels)
        return replace(layer, **changed) if changed else layer

    def _rows(self, batch: Batch, uses: Sequence[AdapterUse | None]) -> _Rows:
        numbers = [NO_ADAPTER if use is None else self._numbers[use.adapter] for use in uses]
        scales = [0.0 if use is None else use.scale for use in uses]
        return _Rows(batch, torch.tensor(numbers, dtype=torch.int32, device=self._device), torch.tensor(scales, dtype=torch.float32, device=self._device))

    def _take_in(self, adapter: Adapter) -> None:
        """Copies an adapter to the device: to a number that is free, or with all others to larger stacks."""
        number = next((n for n in range(self._room) if n not in self._numbers.values()), None)
        changes = _low_ranks(adapter)
        if number is not None and all(place in self._stacks and self._stacks[place].holds(low) for place, low in changes.items()):
            self._put(number, adapter)
            return
        living = [*self._numbers, adapter]
        room = 1 << (len(living) - 1).bit_length()
        lows: dict[Place, list[LowRank]] = {}
        for each in living:
            for place, low in _low_ranks(each).items():
                lows.setdefault(place, []).append(low)
        self._stacks = {place: _Stack.room(own, room, self._dtype, self._device) for place, own in lows.items()}
        self._room = room  # only now: where the device has no memory for them the old ones go on
        self._numbers.clear()
        for number, each in enumerate(living):
            self._put(number, each)

    def _put(self, number: int, adapter: Adapter) -> None:
        changes = _low_ranks(adapter)
        for place, stack in self._stacks.items():
            stack.put(number, changes.get(place))
        self._numbers[adapter] = number


def _low_ranks(adapter: Adapter) -> Mapping[Place, LowRank]:
    """An adapter's changes as tensors, which it holds where a device computes (see assembly.adapters_for)."""
    assert isinstance(adapter.form, Layered), "adapters of an engine are in the form that its model needs"
    return {place: change for place, change in adapter.form.places.items() if isinstance(change, LowRank)}
