"""Which physical pages of the KV memory are free, who counts on a page, and which pages to hand out next.

Inputs: how many pages there are. A page is used while its reference count is above zero; a sequence and the prefix cache
each hold one reference. Sequences get neighbouring pages where that is possible, because attention reads a run of pages
in one go: a new sequence starts at a free stretch that has room for all it may need, and the rest of that stretch is
spared for it as long as there is anything else. This module knows nothing of tokens, tensors or prefixes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NOBODY = 0


class PageAllocator:
    """Reference counts of `count` pages, and the choice of the next ones."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.references = np.zeros(count, np.int32)
        self._spared = np.zeros(count, np.int64)  # number of the sequence that a free page is spared for
        self._free = count

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free

    def retain(self, page: int) -> None:
        """One more holder of a page that is in use."""
        assert self.references[page] > 0, f"page {page} is free and cannot be shared"
        self.references[page] += 1

    def release(self, page: int) -> None:
        """One holder less; the page is free when none is left."""
        assert self.references[page] > 0, f"page {page} was freed twice"
        self.references[page] -= 1
        if self.references[page] == 0:
            self._free += 1

    def allocate(self, count: int, owner: int, after: int | None, room: int) -> list[int] | None:
        """`count` pages with one reference each, or None (and nothing taken) if fewer are free.

        owner: number of the sequence, above 0.   after: the page before them, which they shall follow.   room: pages that the
        sequence may need in all from here on; as many are spared for it where a new stretch begins.
        """
        if count > self._free:
            return None
        taken: list[int] = []
        while len(taken) < count:
            page = self._next(owner, after, max(room - len(taken), count - len(taken)))
            self.references[page] = 1
            self._free -= 1
            taken.append(page)
            after = page
        return taken

    def unspare(self, owner: int) -> None:
        """The sequence needs no room any more."""
        self._spared[self._spared == owner] = NOBODY

    def _next(self, owner: int, after: int | None, room: int) -> int:
        if after is not None and after + 1 < self.count and self.references[after + 1] == 0 and self._spared[after + 1] in (NOBODY, owner):
            return after + 1
        open_pages = self.references == 0
        unspared = open_pages & ((self._spared == NOBODY) | (self._spared == owner))
        start, length = _stretch(unspared if unspared.any() else open_pages, room)
        self.unspare(owner)
        self._spared[start : start + min(length, room)] = owner
        return start

    def check_invariants(self) -> None:
        """Raises AssertionError if counts do not add up."""
        assert (self.references >= 0).all(), "a negative reference count"
        assert self._free == int((self.references == 0).sum()), "free pages are miscounted"


def _stretch(open_pages: npt.NDArray[np.bool_], room: int) -> tuple[int, int]:
    """Start and length of the shortest stretch of open pages with `room` pages, or of the longest there is."""
    edges = np.flatnonzero(np.diff(open_pages.astype(np.int8), prepend=0, append=0))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    wide = lengths >= room
    best = int(np.where(wide, lengths, np.iinfo(np.int64).max).argmin()) if wide.any() else int(lengths.argmax())
    return int(starts[best]), int(lengths[best])
