"""Which layers share a page table: those whose tokens see equally far.

Where some layers see everything and others a window (Gemma 3), a page of all layers could never be given back. So layers are put into
two groups, by how far they see, and a page holds as many layers as suits both; each group needs one page table or several, and gives
its pages back on its own. All pages are of one size and come from one store, so no share of it has to be set aside for either group
(vLLM's hybrid memory does the same). Inputs: what the layers see. Knows nothing of tensors, pages in use or requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_policy import Reach

CHUNK = 512
"""Tokens that a sequence may be given room for at once, beside what it keeps, where a step takes no more."""
MOST_TABLES = 8
"""Page tables of a sequence, of all groups together: each costs the host some work for every page."""


def pages_for(tokens: int) -> int:
    """Pages that `tokens` positions take, by one table."""
    return -(-tokens // PAGE)


@dataclass(frozen=True)
class Group:
    """Layers with the same page tables.

    layers: their numbers.   tables: the numbers of their page tables; each has the next `width` of the layers.
    kept: positions that a token sees in any of them, its own included; None: all.   sinks, budget: see kv_policy.Reach.
    chunk: tokens that a sequence is given room for at once, at most.
    """

    layers: tuple[int, ...]
    tables: range
    kept: int | None = None
    sinks: int = 0
    budget: int | None = None
    chunk: int = CHUNK

    def lowest(self, position: int) -> int:
        """The first key, sinks apart, that a token at `position` sees in any of these layers."""
        return 0 if self.kept is None or position < self.kept + self.sinks else position - self.kept + 1

    def first_block(self, length: int) -> int:
        """The first page, by one table and sinks apart, that a sequence of `length` tokens needs to go on."""
        return self.lowest(length) // PAGE

    def most_blocks(self, tokens: int) -> int:
        """Pages, by one table, that a sequence of so many tokens holds at most at any time."""
        if self.budget is not None:
            return pages_for(min(tokens, self.budget))
        if self.kept is None:
            return pages_for(tokens)
        return min(pages_for(tokens), pages_for(self.sinks) + pages_for(self.kept + self.chunk) + 1)


@dataclass(frozen=True)
class PageGroups:
    """width: layers of a page.   groups: the one whose layers see farthest first; it has a page for every stretch of a text that is kept."""

    width: int
    groups: tuple[Group, ...]

    @cached_property
    def tables(self) -> int:
        """Page tables of a sequence; as many pages hold the next PAGE tokens."""
        return sum(len(group.tables) for group in self.groups)

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each layer its page table, and which of the layers of that table's pages it is."""
        found = {layer: (group.tables[i // self.width], i % self.width) for group in self.groups for i, layer in enumerate(group.layers)}
        return tuple(found[layer] for layer in range(len(found)))

    @cached_property
    def lines(self) -> npt.NDArray[np.int64]:
        """The same as a table for kernels [L, 2]."""
        return np.array(self.places, np.int64)

    @property
    def chunk(self) -> int:
        """Tokens that a sequence is given room for at once, at most."""
        return self.groups[0].chunk

    def in_steps_of(self, tokens: int) -> PageGroups:
        """The same groups where a sequence is given room for so many tokens at once, or for CHUNK if that is more."""
        return replace(self, groups=tuple(replace(group, chunk=max(CHUNK, tokens)) for group in self.groups))

    def in_steps_up_to(self, tokens: int, context: int, pages: int) -> PageGroups:
        """The same for as many tokens as there is room for: beside what a text of `context` tokens keeps a quarter of all `pages`, at most."""
        least = self.in_steps_of(CHUNK).most_pages(context)
        while self.in_steps_of(tokens).most_pages(context) - least > pages // 4:
            tokens //= 2
        return self.in_steps_of(tokens)

    def most_pages(self, tokens: int) -> int:
        """Pages that a sequence of so many tokens holds at most at any time, by all tables."""
        return sum(len(group.tables) * group.most_blocks(tokens) for group in self.groups)


def together(layers: int, reach: Reach | None = None) -> PageGroups:
    """One table for all layers."""
    reach = reach or Reach()
    return PageGroups(layers, (Group(tuple(range(layers)), range(1), reach.kept, reach.sinks, reach.budget),))


def by_window(reach: Reach, layers: int, context: int) -> PageGroups:
    """Two groups where that saves memory for a text of `context` tokens, else one."""
    whole = together(layers, reach)
    widest = context if reach.kept is None else min(reach.kept, context)
    near = tuple(i for i, window in enumerate(reach.windows) if window is not None and window < widest)
    far = tuple(i for i in range(layers) if i not in near)
    if not near or not far or reach.sinks or reach.budget is not None:
        return whole
    counts = [(len(far), len(near), width) for width in range(1, min(len(far), len(near)) + 1)]
    fitting = [(-(-a // width), -(-b // width), width) for a, b, width in counts if -(-a // width) + -(-b // width) <= MOST_TABLES]
    if not fitting:
        return whole
    a, b, width = min(fitting, key=lambda each: (sum(each[:2]) * each[2], -each[2]))  # as little padding as can be, then as few tables
    kept = max(window for i in near if (window := reach.windows[i]) is not None)
    apart = PageGroups(width, (Group(far, range(a), reach.kept), Group(near, range(a, a + b), kept)))
    return apart if width * apart.most_pages(context) < layers * whole.most_pages(context) else whole
