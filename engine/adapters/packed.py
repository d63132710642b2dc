"""The change of a matrix in panels, as the CPU's kernel multiplies it, and the panels that its kernels read. Knows nothing of batches or of who uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentkit.engine.adapters.adapter import LowRank
from agentkit.engine.kernels.low_rank import ROWS, add_low_rank, scratch_floats
from agentkit.engine.kernels.team import TEAM
from agentkit.engine.kernels.tiles import WIDTH

__all__ = ["PackedLowRank", "panels"]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class PackedLowRank:
    """See low_rank.py for `down`, `up` and `parts`. ranks: of all parts, filled up to whole panels."""

    inputs: int
    ranks: int
    down: Array
    up: Array
    parts: Array

    @classmethod
    def of(cls, low: LowRank) -> PackedLowRank:
        """low: in float32 on the CPU."""
        down, at = panels(low.down.numpy(), WIDTH, low.down.shape[1]), 0
        ups, parts = [], []
        for up, rank, column in low.parts:
            ups.append(panels(up.numpy(), WIDTH, up.shape[1]).ravel())
            parts.append((rank, up.shape[1], column, up.shape[0], at))
            at += ups[-1].size
        return cls(low.down.shape[1], down.shape[0] * WIDTH, down.ravel(), np.concatenate(ups), np.array(parts, np.int64))

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + self.up.nbytes

    def add(self, x: torch.Tensor, out: torch.Tensor, rows: slice, scale: float) -> None:
        """See Change. x and out in float32 on the CPU; a step of few rows wakes no helpers."""
        stride, count = out.stride(0), rows.stop - rows.start
        flat = out.as_strided(((out.shape[0] - 1) * stride + out.shape[1],), (1,)).numpy()
        TEAM.run(
            add_low_rank, 1 if count <= ROWS else torch.get_num_threads(), scratch_floats(self.ranks), x.contiguous().view(-1).numpy(), self.inputs,
            flat, stride, rows.start, count, self.down, self.ranks, self.up, self.parts, np.float32(scale),
        )  # fmt: skip


def panels(matrix: Array, width: int, columns: int) -> Array:
    """A matrix [N, K] as panels [N / width, columns, width], filled up with zeros."""
    count = -(-matrix.shape[0] // width)
    wide = np.zeros((count * width, columns), np.float32)
    wide[: matrix.shape[0], : matrix.shape[1]] = matrix
    return np.ascontiguousarray(wide.reshape(count, width, columns).transpose(0, 2, 1))
