"""Slots and page tables for attention alone: what BatchAttention needs of a pool and of a sequence, nothing handed out or given back."""

from __future__ import annotations

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.kv_groups import together
from agentkit.engine.kv_policy import Reach


class Sequence:
    def __init__(self, pages: list[int]) -> None:
        self.tables = [pages]


class Slots:
    """Pages that hold NaN, or the largest code, until they are written."""

    def __init__(self, layers: int, kv: int, dim: int, *, pages: int, dtype: torch.dtype = torch.float32, reach: Reach | None = None) -> None:
        self.reach = reach or Reach()
        self.groups = together(layers, self.reach)
        self.sums = None
        self.data = torch.full((layers, 2, kv, pages * PAGE, row_size(dtype, dim)), torch.nan if dtype.is_floating_point else 127, dtype=dtype)
