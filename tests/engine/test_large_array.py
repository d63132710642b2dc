"""Arrays begin where a large page begins if they are large, else where a line of the cache does."""

from __future__ import annotations

import pytest

from agentkit.engine.large_array import large_array


@pytest.mark.parametrize(("size", "border"), [(0, 64), (100, 64), (4 << 20, 2 << 20), ((9 << 20) + 5, 2 << 20)])
def test_size_and_border(size: int, border: int) -> None:
    array = large_array(size)
    assert array.nbytes == size
    assert array.flags.writeable
    assert size == 0 or array.ctypes.data % border == 0


def test_memory_that_cannot_be_had() -> None:
    with pytest.raises(MemoryError):
        large_array(1 << 60)
