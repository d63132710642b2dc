"""The bank of mask rows: equal masks are one row, and when it is full the rows that nobody needs go first.

Owns the rows and remembers for which states they were asked, and by whom. What stays when room is made: rows that walks of other
masks begin with, then those of grammars that somebody still holds, then the others, in each group the last asked for first.
Input: the arena's array, whose nodes refer to rows; it is told the new numbers. Knows nothing of tokens or grammars.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import numpy as np

from agentkit.grammars.core import kernels, layout
from agentkit.grammars.core.runs import ITEM, R_COUNTS, R_DATA, R_KEY, R_NEXT

__all__ = ["Bank"]

_FIRST = 512  # rows at the beginning
_LEAST = 16  # rows that are held whatever the bound

States = dict[int, None]
"""A set in order."""


class Bank:
    """Mask rows of one arena. bound: bytes that they may take.

    rows: uint32 [capacity, words]. masks: read-only rows by state, for states asked for since room was made last: the short way.
    hits, walks, evicted, sweeps: masks found by the short way, masks that were worked out or looked up, rows that had to go, how often.
    """

    def __init__(self, words: int, bound: int) -> None:
        first = min(_FIRST, _most(words, bound))
        self.rows: np.ndarray = np.empty((first, words), np.uint32)
        self.index = np.full(4 * first, -1, np.int32)
        self.work = np.zeros(words, np.uint32)
        self.masks: dict[int, np.ndarray] = {}
        self.hits = self.walks = self.evicted = self.sweeps = 0
        self._views: dict[int, np.ndarray] = {}
        self._recent: weakref.WeakKeyDictionary[object, States] = weakref.WeakKeyDictionary()
        self._before: weakref.WeakKeyDictionary[object, States] = weakref.WeakKeyDictionary()

    @property
    def capacity(self) -> int:
        return len(self.rows)

    def view(self, row: int) -> np.ndarray:
        """A row, read-only; it stays what it was whatever becomes of the bank."""
        view = self._views.get(row)
        if view is None:
            view = self._views[row] = self.rows[row]
            view.flags.writeable = False
        return view

    def note(self, state: int, owner: object) -> None:
        """`owner` (a grammar) has asked for the mask of `state`."""
        self.walks += 1
        if owner is not None:
            self._recent.setdefault(owner, {})[state] = None

    def forget(self, mem: np.ndarray) -> None:
        """Drop all rows."""
        kernels.forget_masks(mem)
        self._begin(self.capacity)
        self._recent, self._before = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()

    def make_room(self, mem: np.ndarray, bound: int) -> None:
        """Enlarge the bank up to `bound` bytes; where that is reached, keep at most three quarters of it."""
        used, most = int(mem[layout.H_BANK_USED]), _most(self.rows.shape[1], bound)
        if self.capacity < most:
            self._keep(mem, np.arange(used), min(2 * self.capacity, most))
        elif used <= 3 * most // 4:  # what is asked for needs more rows at once than are left after making room
            self._keep(mem, np.arange(used), 2 * self.capacity)
        else:
            self._sweep(mem, used, most)

    def _sweep(self, mem: np.ndarray, used: int, most: int) -> None:
        nodes = _nodes(mem)
        begun = np.array([mem[at] for at in _row_places(mem)], np.int64)
        self.sweeps += 1
        if len(begun) > most // 2:
            self.evicted += used
            self.forget(mem)
            return
        held = (states for table in (self._recent, self._before) for owned in list(table.values()) for states in reversed(owned))
        states = np.array([*held, *reversed(self.masks)], np.int64)
        rows = np.concatenate([begun, nodes[states, layout.N_MASK].astype(np.int64) - 1])
        rows, first = np.unique(rows[rows >= 0], return_index=True)
        kept = np.sort(rows[np.argsort(first)][: 3 * most // 4])
        self.evicted += used - len(kept)
        self._keep(mem, kept, most)
        self._age(nodes)

    def _age(self, nodes: np.ndarray) -> None:
        """What was asked for lately was asked for before, as far as it is still there."""
        both = [*self._before.items(), *self._recent.items()]
        self._recent, self._before = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
        for owner, states in both:
            self._before.setdefault(owner, {}).update(dict.fromkeys(state for state in states if nodes[state, layout.N_MASK]))

    def _keep(self, mem: np.ndarray, kept: np.ndarray, capacity: int) -> None:
        """Begin anew with the rows `kept` (ascending), and tell the arena their numbers."""
        old, used = self.rows, int(mem[layout.H_BANK_USED])
        numbers = np.full(used + 1, -1, np.int32)
        numbers[kept + 1] = np.arange(len(kept))  # by 1 + row, as nodes have it; 0: none
        known = _nodes(mem)[:, layout.N_MASK]
        known[:] = numbers[known] + 1
        for at in _row_places(mem):
            mem[at] = numbers[mem[at] + 1]
        self._begin(capacity)
        self.rows[: len(kept)] = old[kept]
        mem[layout.H_BANK_USED] = len(kept)
        kernels.reindex(self.rows, np.arange(len(kept), dtype=np.int32), self.index)

    def _begin(self, capacity: int) -> None:
        self.rows = np.empty((capacity, self.rows.shape[1]), np.uint32)
        self.index = np.full(4 * capacity, -1, np.int32)
        self._views, self.masks = {}, {}


def _most(words: int, bound: int) -> int:
    """Rows that `bound` bytes hold."""
    return max(bound // (4 * words), _LEAST)


def _nodes(mem: np.ndarray) -> np.ndarray:
    """int32 [nodes, STRIDE], a view."""
    at = mem[layout.H_NODES]
    return mem[at : at + layout.STRIDE * mem[layout.H_NODE_COUNT]].reshape(-1, layout.STRIDE)


def _row_places(mem: np.ndarray) -> Iterator[int]:
    """Places of the array that hold bank rows of runs (core/runs.py)."""
    pool = int(mem[layout.H_POOL])
    records: Iterable[int] = _nodes(mem)[:, layout.N_HEAD]
    for record in [int(r) for r in records if r]:
        while record:
            at = pool + record
            if mem[at + R_KEY] == ITEM:
                for place in range(at + R_DATA + 1, at + R_DATA + 1 + 2 * max(int(mem[at + R_COUNTS]), 0), 2):
                    if mem[place] >= 0:
                        yield place
            record = int(mem[at + R_NEXT])
