"""The memory of keys and values itself: one tensor of slots, and how rows move about in it.

Inputs: a model's sizes, which of its layers share pages, and page numbers. Knows nothing of who holds a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_groups import PageGroups
from agentkit.engine.kv_sequence import KVShape
from agentkit.engine.large_array import large_array
from agentkit.errors import EngineError


class KVStore:
    """data: [layers of a page, 2, KV, S, row], S = pages * PAGE slots; keys at 0, values at 1. row: head_dim, in 8 bits with the scale behind it.

    page_bytes: of one page.   page_count: as many whole pages as fit into `budget` bytes, at least one.   Raises EngineError without memory.
    """

    def __init__(self, shape: KVShape, groups: PageGroups, budget: int) -> None:
        self._groups = groups
        self.page_bytes = shape.page_bytes(groups)
        self.page_count = max(1, budget // self.page_bytes)
        slots = self.page_count * PAGE  # untouched memory is not taken from the machine
        try:
            self.data = _room((groups.width, 2, shape.kv_heads, slots, shape.row), shape)
        except (MemoryError, RuntimeError) as error:  # what numpy and torch raise where memory cannot be had
            needed = self.page_count * self.page_bytes
            raise EngineError(f"{needed} bytes for keys and values cannot be had on {shape.device}; lower kv_memory") from error

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """The first `length` slots of pages to other pages."""
        for source, target in zip(sources, targets, strict=True):
            old, new = source * PAGE, target * PAGE
            self.data[:, :, :, new : new + length].copy_(self.data[:, :, :, old : old + length])

    def move(self, sources: Sequence[int] | torch.Tensor, targets: Sequence[int] | torch.Tensor) -> None:
        """Slots to other slots, all at once."""
        self.data[:, :, :, targets] = self.data[:, :, :, sources]

    def read(self, group: int, part: Sequence[int], length: int) -> torch.Tensor:
        """The first `length` slots of a group's pages for one block [layers of the group, 2, KV, length, row]."""
        pages = [self.data[:, :, :, page * PAGE : page * PAGE + length] for page in part]
        return torch.cat(pages)[: len(self._groups.groups[group].layers)]

    def write(self, part: Sequence[int], rows: torch.Tensor) -> None:
        """The opposite of `read`: rows of a group's layers to its pages for one block."""
        length, width = rows.shape[3], self._groups.width
        for number, page in enumerate(part):
            own = rows[number * width : (number + 1) * width]
            self.data[: len(own), :, :, page * PAGE : page * PAGE + length].copy_(own)


def _room(sizes: tuple[int, ...], shape: KVShape) -> torch.Tensor:
    if torch.device(shape.device).type != "cpu":
        return torch.empty(sizes, dtype=shape.dtype, device=shape.device)
    return torch.from_numpy(large_array(math.prod(sizes) * shape.dtype.itemsize)).view(shape.dtype).view(sizes)
