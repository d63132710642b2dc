"""Memory for arenas whose pages cost nothing until they are touched.

Output: int32 arrays. Knows nothing of what is in them.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

__all__ = ["Image", "zeros"]


def zeros(count: int) -> np.ndarray:
    """int32 [count], all zero. malloc would clear recycled memory at once; pages of one's own come cleared, one by one."""
    private: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return np.frombuffer(mmap.mmap(-1, 4 * count, **private), np.int32)


class Image:
    """An int32 array to make copies of: they share its pages until they write to them. Plain copies where the system cannot do that."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self._file: Any = None
        if hasattr(os, "memfd_create"):
            try:
                self._file = os.fdopen(os.memfd_create("agentkit-arena"), "w+b")
                self._file.write(array.tobytes())
                self._file.flush()
            except OSError:  # forbidden, or no memory for it
                self._file = None

    def copy(self) -> np.ndarray:
        """int32, as long as the array and writeable; what is written to it shows nowhere else."""
        if self._file is None:
            return self._array.copy()
        pages = mmap.mmap(self._file.fileno(), self._array.nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return np.frombuffer(pages, np.int32)
