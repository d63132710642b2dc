"""How an attention is cut into programs, for shapes that a server meets."""

from __future__ import annotations

import pytest
import torch

from agentkit.engine.kernels.gpu.batch import BatchShape
from agentkit.engine.kernels.gpu.plan import LEAST_KEYS, MAX_SPLITS, PARTIAL_BYTES, launch_for, next_power
from agentkit.engine.kernels.layout import PAGE


@pytest.mark.parametrize("requests", [1, 8, 64, 256])
@pytest.mark.parametrize("length", [PAGE, 1024, 32768])
def test_decode_splits_keys_until_every_processor_has_work(requests: int, length: int) -> None:
    shape = BatchShape(requests, requests, length // PAGE, requests, queries=1)
    launch = launch_for(shape, 28, 4, 128, torch.bfloat16, processors=132)
    programs = launch.tiles(shape, 7) * 4 * launch.splits
    assert launch.tiles(shape, 7) == requests
    assert launch.block_m == 16
    assert launch.splits == 1 or length // launch.splits >= LEAST_KEYS
    assert programs >= 132 or launch.splits in (MAX_SPLITS, max(1, length // LEAST_KEYS))


def test_a_window_is_not_split_as_a_long_text_would_be() -> None:
    shape = BatchShape(1, 1, 1024, 1, queries=1)
    launches = [launch_for(shape, 4, 1, 256, torch.bfloat16, processors=132, window=window) for window in (None, 512, 100, 40_000)]
    assert [launch.splits for launch in launches] == [MAX_SPLITS, 2, 1, MAX_SPLITS]


def test_long_prompts_take_wide_tiles_and_no_splits() -> None:
    launch = launch_for(BatchShape(8192, 1, 256, 1, queries=8192), 28, 4, 128, torch.bfloat16, processors=132)
    assert (launch.block_m, launch.block_n, launch.splits) == (128, 64, 1)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [1, 3, 7, 16, 40])
@pytest.mark.parametrize("queries", [1, 5, 4096])
def test_tiles_are_legal_and_fit_into_a_processor(dim: int, dtype: torch.dtype, group: int, queries: int) -> None:
    shape = BatchShape(queries + 7, 8, 1024, 8, queries)
    launch = launch_for(shape, 2 * group, 2, dim, dtype, processors=132)
    assert launch.block_m >= max(16, group)
    assert launch.block_m == next_power(launch.block_m)
    assert launch.block_n >= 16
    row = dim * dtype.itemsize
    assert launch.block_m * row + 2 * launch.stages * launch.block_n * row <= 200 << 10  # shared memory, bytes
    assert launch.splits == 1 or shape.tokens * 2 * group * dim * 4 * launch.splits <= PARTIAL_BYTES


def test_tiles_cover_every_split_of_tokens_among_requests() -> None:
    launch = launch_for(BatchShape(40, 3, 4, 3, 38), 7, 1, 16, torch.float32, processors=1)
    size = launch.tokens_per_tile(7)
    for first in range(1, 39):
        for second in range(1, 40 - first):
            counts = (first, second, 40 - first - second)
            needed = sum(-(-count // size) for count in counts)
            assert needed <= launch.tiles(BatchShape(40, 3, 4, 3, max(counts)), 7)


def test_wide_heads_take_smaller_tiles_where_a_processor_has_little_memory() -> None:
    """A GPU for desktops has 99 KiB for a program, in which 128 rows of 256 numbers and their keys have no room."""
    shape = BatchShape(8192, 1, 256, 1, queries=8192)
    rows = [launch_for(shape, 4, 1, dim, torch.bfloat16, processors=128, shared=99 << 10).block_m for dim in (128, 256)]
    assert rows == [128, 64]
    assert launch_for(shape, 4, 1, 256, torch.bfloat16, processors=132, shared=227 << 10).block_m == 128
