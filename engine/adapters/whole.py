"""Adapters beside a decoder whose whole forward is one kernel: their matrices as that kernel reads them, and the decoder for one batch.

Inputs: the changes of all places, and which rows use which adapter. Knows nothing of requests, pages or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from agentkit.engine.adapters.adapter import MATRICES, AdapterUse, LowRank, Place
from agentkit.engine.adapters.packed import panels
from agentkit.engine.attention import Plan
from agentkit.engine.kernels import adapted as a
from agentkit.engine.kernels import tables as t
from agentkit.engine.kernels.team import TEAM
from agentkit.engine.kernels.tiles import LANES, WIDTH
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Attend, Decoder
from agentkit.engine.weights.packed import PackedDecoder, order_of

__all__ = ["WholeAdapter", "with_adapters"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class WholeAdapter:
    """An adapter's floats and integers, see adapted.py. ranks: the most of a place, a multiple of 8."""

    floats: Array
    whole: Array
    ranks: int

    @property
    def nbytes(self) -> int:
        return self.floats.nbytes + self.whole.nbytes

    @classmethod
    def of(cls, places: Mapping[Place, LowRank], config: ModelConfig) -> WholeAdapter:
        """places: in float32 on the CPU."""
        lines = np.zeros((config.num_layers * len(MATRICES), a.PLACE_COLUMNS), np.int64)
        floats, blocks, at = [], [], 0
        first_block = lines.size
        for (layer, name), low in places.items():
            down = panels(low.down.numpy(), LANES, -(-low.down.shape[1] // WIDTH) * WIDTH)
            table, ups = _blocks(low, name, _outputs(name, config), at + down.size)
            lines[layer * len(MATRICES) + MATRICES.index(name)] = down.shape[0] * LANES, at, first_block
            floats += [down.ravel(), *ups]
            blocks.append(table.ravel())
            at += down.size + sum(up.size for up in ups)
            first_block += table.size
        return cls(np.concatenate(floats), np.concatenate([lines.ravel(), *blocks]), int(lines[:, a.RANKS].max()))


class _Adapted(PackedDecoder):
    """A decoder in blocks with adapters beside its matrices, for one forward."""

    def __init__(self, plain: PackedDecoder, uses: Sequence[AdapterUse | None], chosen: Sequence[int]) -> None:
        self.__dict__.update(plain.__dict__)  # all of its tables are shared
        self._distinct = list(dict.fromkeys(use for use in uses if use is not None))
        numbers = {use: number for number, use in enumerate(self._distinct)}
        self._users = np.array([-1 if use is None else numbers[use] for use in uses], np.int64)
        self._chosen_users = self._users[np.array(chosen, np.int64)]

    def _plan(self, attend: Attend) -> Plan | None:
        plan = super()._plan(attend)
        assert plan is not None, "layer by layer there would be no adapters; a runner's attention has a plan for the kernel"
        return plan

    def _compute(self, scratch: int, batch: t.Batch, work: t.Work, plan: Plan) -> None:
        forms = [cast("WholeAdapter", use.adapter.form) for use in self._distinct]  # an engine loads all in the form that its model needs
        rows, ranks = max(self._users.size, self._chosen_users.size), max(form.ranks for form in forms)
        addresses = [(form.floats.ctypes.data, form.whole.ctypes.data) for form in forms]
        beside = a.Beside(
            self._users, self._chosen_users, np.array(addresses, np.int64), np.array([use.scale for use in self._distinct], np.float32),
            np.empty(rows * ranks, np.float32), ranks, np.empty(rows * self._shape.inner_stride, np.float32),
        )  # fmt: skip
        TEAM.run(
            a.forward_adapted, torch.get_num_threads(), scratch, self._shape, self._constants, self._tables, batch, work, plan.data, plan.slot_count, beside
        )


def with_adapters(decoder: PackedDecoder, uses: Sequence[AdapterUse | None], chosen: Sequence[int]) -> Decoder:
    """The decoder for one forward. uses: of each row of the batch.   chosen: the rows that go on after the last layer's attention."""
    return _Adapted(decoder, uses, chosen)


def _outputs(name: str, c: ModelConfig) -> int:
    sizes = {"qkv": (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, "gate_up": 2 * c.intermediate_size}
    return sizes.get(name, c.hidden_size)


def _blocks(low: LowRank, name: str, outputs: int, at: int) -> tuple[Array, list[Array]]:
    """The line of each block of 32 packed outputs, and the panels that they name, which begin at `at` among the floats."""
    order, blocks = order_of(name, outputs)
    up = np.zeros((blocks * WIDTH, low.down.shape[0]), np.float32)  # [packed outputs, ranks of all parts]
    changed = np.zeros(up.shape, np.bool_)
    for part in low.parts:
        own = order[part.column : part.column + part.up.shape[0], None], np.arange(part.rank, part.rank + part.up.shape[1])
        up[own], changed[own] = part.up.numpy(), True
    table, panels = np.zeros((blocks, a.BLOCK_COLUMNS), np.int64), []
    for block in range(blocks):
        rows = slice(block * WIDTH, (block + 1) * WIDTH)
        ranks = np.flatnonzero(changed[rows].any(0))
        if ranks.size:
            first, end = int(ranks[0]), int(ranks[-1]) + 1
            table[block] = first, end - first, at
            panels.append(np.ascontiguousarray(up[rows, first:end].T).ravel())
            at += panels[-1].size
    return table, panels
