"""How an attention over a batch is cut into programs: tile sizes, and into how many parts the keys are split.

Inputs: the shape of the batch, never its values, so that a captured graph stays valid. Sizes are chosen by rule, not by trial: a
rule is the same on every start. Knows nothing of Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch

from agentkit.engine.kernels.gpu.batch import Batch, BatchShape

__all__ = ["Launch", "Part", "Prefix", "launch_for", "next_power"]

MAX_SPLITS = 32
LEAST_KEYS = 256  # of a split: below, merging costs more than reading them in turn
PROGRAMS_PER_PROCESSOR = 2
PARTIAL_BYTES = 64 << 20  # of unmerged results at most
LARGE = 128 << 10  # bytes of shared memory that a GPU of a data centre has, and others have not


@dataclass(frozen=True)
class Launch:
    """block_m rows (query heads of tokens) by block_n keys; splits of the keys; warps and pipeline stages of a program."""

    block_m: int
    block_n: int
    splits: int = 1
    warps: int = 4
    stages: int = 2

    def tokens_per_tile(self, group: int) -> int:
        """group: query heads per key head."""
        return self.block_m // group

    def tiles(self, shape: BatchShape, group: int) -> int:
        """Tiles of all requests together: exact where each has one, else an upper bound that needs only the shape."""
        tokens = self.tokens_per_tile(group)
        return shape.requests if shape.queries <= tokens else shape.tokens // tokens + shape.requests


@dataclass(frozen=True)
class Prefix:
    """Beginnings that neighbouring requests share, for attention in two parts (cascade). Device tensors, int32.

    query_starts [N + 1]: tokens of group n, all of whose requests begin with the same keys; lengths [N]: how many keys (0: nothing shared).
    pages [G, N, P]: their pages, by each page table; those of layers with windows are not shared, and nobody reads them.
    first_keys [B]: where the keys of its own begin, for each request of the batch.   queries: tokens of one group at most.
    """

    query_starts: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    first_keys: torch.Tensor
    queries: int

    def shape(self, batch: BatchShape) -> BatchShape:
        """That of the groups' attention, each taken for a request."""
        return BatchShape(batch.tokens, self.lengths.shape[0], self.pages.shape[2], batch.rows, self.queries, tables=batch.tables)


class Part(NamedTuple):
    """Requests of a batch that follow one another and are attended to by themselves.   prefix: beginnings that they share; None: nothing is known of any."""

    batch: Batch
    prefix: Prefix | None = None


def launch_for(
    shape: BatchShape, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, processors: int, *, coded: bool = False, window: int | None = None,
    shared: int = LARGE,
) -> Launch:  # fmt: skip
    """dtype: of the queries.   processors: of the device; each should have a few programs.   coded: keys and values are in 8 bits.

    window: keys that a token sees at most; None: any number.   shared: bytes of shared memory that a program may have.

    The sizes are those with which nothing spills from an H200's registers: tests/engine/gpu/test_hopper.py.
    """
    group, narrow = heads // kv_heads, dtype != torch.float32
    widest = (64 if coded or (head_dim > 128 and shared < LARGE) else 128) if narrow else 32
    block_m = max(16, next_power(group), min(widest, next_power(shape.queries * group)))
    block_n = 64 if narrow and head_dim <= 128 else 32
    launch = Launch(block_m, block_n, warps=8 if block_m >= 128 or not narrow else 4, stages=3 if narrow and head_dim <= 128 else 2)
    programs = launch.tiles(shape, group) * kv_heads
    by_need = next_power(-(-PROGRAMS_PER_PROCESSOR * processors // programs))
    keys = shape.max_length if window is None else min(shape.max_length, window + launch.tokens_per_tile(group))
    by_keys = max(1, keys // LEAST_KEYS)
    by_memory = max(1, PARTIAL_BYTES // (shape.tokens * heads * head_dim * 4))
    splits = min(MAX_SPLITS, by_need, by_keys, by_memory)
    return Launch(launch.block_m, launch.block_n, splits, launch.warps, launch.stages)


@cache
def processors_of(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for the interpreter, which runs one program after the other."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@cache
def shared_of(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin) if device.type == "cuda" else LARGE  # type: ignore[attr-defined] # missing from its stubs


def next_power(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(0, number - 1).bit_length()
