"""One sequence's place among the pages of keys and values, and how large pages are.

Inputs: a model's sizes and a policy's reach. Knows nothing of who else holds a page.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.kv_policy import Reach
from agentkit.engine.prefix import Node

GONE = -1
"""Stands in a sequence's list for a page that it has given back."""
CHUNK = 512
"""Tokens that a sequence may be given room for at once, beside what it keeps."""


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
        return self.layers * 2 * self.kv_heads * self.row * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        return self.bytes_per_token * PAGE


def pages_for(tokens: int) -> int:
    """Pages that `tokens` positions take."""
    return -(-tokens // PAGE)


def most_pages(reach: Reach, tokens: int) -> int:
    """Pages that a sequence of so many tokens holds at most at any time."""
    if reach.budget is not None:
        return pages_for(min(tokens, reach.budget))
    if reach.kept is None:
        return pages_for(tokens)
    return min(pages_for(tokens), pages_for(reach.sinks) + pages_for(reach.kept + CHUNK) + 1)


class KVSequence:
    """Keys and values of the tokens `tokens`, positions 0, 1, ...; made by KVPool only.

    Position p lies in slot pages[p // PAGE] * PAGE + p % PAGE. `pages` may reach beyond `length`: room that `reserve` made.
    `nodes`: those of `pages`, from the first on, that are in the prefix tree. Pages from the sinks up to `first_page` are GONE.
    Where positions are chosen by attention (H2O), what is left lies without gaps in the first `length - dropped` slots.
    """

    def __init__(self, number: int, root: Node, room: int) -> None:
        self.number = number
        self.root = root
        self.room = room  # tokens it may have in all, as far as known: where to look for space
        self.pages: list[int] = []
        self.tokens: list[int] = []
        self.nodes: list[Node] = []
        self.made: list[Node] = []  # of the nodes, those this sequence put into the tree
        self.first_page = 0
        self.dropped = 0

    @property
    def length(self) -> int:
        """Tokens whose keys and values are complete in every layer."""
        return len(self.tokens)

    @property
    def tables(self) -> list[list[int]]:
        return [self.pages]

    @property
    def place(self) -> int:
        """Slots that are filled; where the next token's keys and values go."""
        return len(self.tokens) - self.dropped

    @property
    def capacity(self) -> int:
        """Positions there are pages for."""
        return len(self.pages) * PAGE

    @property
    def last_node(self) -> Node:
        return self.nodes[-1] if self.nodes else self.root

    @property
    def held(self) -> set[int]:
        """Pages that it holds."""
        return {page for page in self.pages if page != GONE}

    def slots(self, start: int, end: int) -> list[tuple[int, int]]:
        """Runs [first, last) of neighbouring slots that hold positions start .. end, in order."""
        runs: list[tuple[int, int]] = []
        at = start
        while at < end:
            first = self.pages[at // PAGE] * PAGE + at % PAGE
            until = min(end, (at // PAGE + 1) * PAGE)
            last = first + until - at
            if runs and runs[-1][1] == first:
                runs[-1] = (runs[-1][0], last)
            else:
                runs.append((first, last))
            at = until
        return runs
