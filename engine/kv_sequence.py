"""One sequence's place among the pages of keys and values, and how large pages are.

Inputs: a model's sizes, and which of its layers share pages. Knows nothing of who else holds a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.kv_groups import PageGroups, pages_for
from agentkit.engine.prefix_node import Node

GONE = -1
"""Stands in a sequence's list for a page that it has given back."""


@dataclass(frozen=True)
class KVShape:
    """layers, kv_heads, head_dim of the model; dtype and device of keys and values. dtype: see kv_format.py."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def row(self) -> int:
        """Stored numbers of one position and head."""
        return row_size(self.dtype, self.head_dim, self.device)

    @property
    def bytes_per_token(self) -> int:
        """Of all layers."""
        return self.layers * 2 * self.kv_heads * self.row * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        """Of pages that hold all layers."""
        return self.bytes_per_token * PAGE

    def page_bytes(self, groups: PageGroups) -> int:
        """Of a page that holds the layers of one table."""
        return self.bytes_per_page // self.layers * groups.width


class KVSequence:
    """Keys and values of the tokens `tokens`, positions 0, 1, ...; made by KVPool only.

    By each of its page tables, position p lies in slot table[p // PAGE] * PAGE + p % PAGE. A block is PAGE positions: the pages at one place of all
    tables. Tables may reach beyond `length`: room that `reserve` made.   nodes: those of its blocks, from the first on, that are in the prefix tree.
    first_blocks: of each group of layers the first block whose pages it still has; those before it, up to the sinks, are GONE.
    changes: where other or further pages came into its tables, the first block of each time: whoever has a copy knows what to renew.
    Where positions are chosen by attention (H2O), what is left lies without gaps in the first `length - dropped` slots.
    """

    def __init__(self, number: int, root: Node, room: int, groups: PageGroups) -> None:
        self.number = number
        self.root = root
        self.room = room  # tokens it may have in all, as far as known: where to look for space
        self.groups = groups
        self.tables: list[list[int]] = [[] for _ in range(groups.tables)]
        self.first_blocks = [0] * len(groups.groups)
        self.changes: list[int] = []
        self.tokens: list[int] = []
        self.nodes: list[Node] = []
        self.made: list[Node] = []  # of the nodes, those this sequence put into the tree
        self.lent: list[Node] = []  # and those of others that had lost pages and got this one's
        self.dropped = 0

    @property
    def length(self) -> int:
        """Tokens whose keys and values are complete in every layer."""
        return len(self.tokens)

    @property
    def place(self) -> int:
        """Slots that are filled; where the next token's keys and values go."""
        return len(self.tokens) - self.dropped

    @property
    def pages(self) -> list[int]:
        """The first table: that of the layers which see farthest."""
        return self.tables[0]

    @property
    def blocks(self) -> int:
        """Blocks there are pages for, those that are gone among them."""
        return len(self.tables[0])

    @property
    def capacity(self) -> int:
        """Positions there are pages for."""
        return self.blocks * PAGE

    @property
    def last_node(self) -> Node:
        return self.nodes[-1] if self.nodes else self.root

    @property
    def held(self) -> set[int]:
        """Pages that it holds."""
        return {page for table in self.tables for page in table if page != GONE}

    def gone(self, group: int) -> range:
        """Blocks of whose pages those of a group have been given back."""
        return range(pages_for(self.groups.groups[group].sinks), self.first_blocks[group])

    def part(self, group: int, block: int) -> tuple[int, ...]:
        """Pages of a block, those of one group."""
        return tuple(self.tables[table][block] for table in self.groups.groups[group].tables)

    def parts(self, block: int) -> list[tuple[int, ...]]:
        """Pages of a block, group by group."""
        return [self.part(group, block) for group in range(len(self.groups.groups))]

    def put(self, group: int, block: int, part: Sequence[int]) -> None:
        """Other pages for a block, those of one group."""
        for table, page in zip(self.groups.groups[group].tables, part, strict=True):
            self.tables[table][block] = page
        self.changes.append(block)

    def leave(self, group: int, block: int) -> None:
        """The pages of a block, those of one group, are given back: no token to come sees them."""
        for table in self.groups.groups[group].tables:
            self.tables[table][block] = GONE

    def slots(self, start: int, end: int, table: int = 0) -> list[tuple[int, int]]:
        """Runs [first, last) of neighbouring slots that hold positions start .. end by one table, in order."""
        pages, at = self.tables[table], start
        runs: list[tuple[int, int]] = []
        while at < end:
            first = pages[at // PAGE] * PAGE + at % PAGE
            until = min(end, (at // PAGE + 1) * PAGE)
            last = first + until - at
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((first, last))
            at = until
        return runs
