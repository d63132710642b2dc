"""Pages with what is in them and who holds them: what sequences and the prefix tree of a pool are made of.

Inputs: a store of slots, a count of holders, the tree. A block is the pages of all tables for the same PAGE positions; a part of it are those of
one group of layers. Everything here keeps the three in step; KVPool decides what is to happen. Knows nothing of models or requests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_groups import PageGroups, pages_for
from agentkit.engine.kv_policy import STEP
from agentkit.engine.kv_sequence import GONE, KVSequence
from agentkit.engine.kv_store import KVStore
from agentkit.engine.pages import PageAllocator
from agentkit.engine.prefix import PrefixTree
from agentkit.engine.prefix_node import Node
from agentkit.engine.received import Received

LOADER = 1
"""Number of whoever puts pages there that no sequence computed."""


class KVMemory:
    """See the module. pages: how many holders each page has; tree: one of them."""

    def __init__(self, store: KVStore, groups: PageGroups, pages: PageAllocator, tree: PrefixTree) -> None:
        self.store = store
        self.groups = groups
        self.pages = pages
        self.tree = tree

    def read(self, node: Node) -> list[torch.Tensor | None]:
        """The contents of a block by groups of layers [layers of the group, 2, KV, tokens, row]; None where they are evicted."""
        return [self.store.read(group, part, len(node.tokens)) if part else None for group, part in enumerate(node.parts)]

    def put(self, parent: Node, tokens: tuple[int, ...], contents: Sequence[torch.Tensor | None], held: list[int]) -> Node | None:
        """A block with contents as `read` gives them in the tree after `parent`; None without room.

        A partly filled one must be whole: nothing can be lent to it.   held: gets its pages, for the caller to `give_back`; the node may
        have left the tree by then, for a longer one.
        """
        if len(tokens) < PAGE and any(rows is None for rows in contents):
            return None
        there, shared = self.tree.match_part(parent, tokens, whole=len(tokens) < PAGE)
        node = there if shared == len(tokens) else None
        new = [rows if node is None or not node.parts[group] else None for group, rows in enumerate(contents)]
        there_already = [] if node is None else list(itertools.chain(*node.parts))
        self.retain(there_already)
        held += there_already
        parts = self._filled(parent, new)
        if parts is None:
            return None
        held += itertools.chain(*parts)
        if node is None:
            return self.tree.insert(parent, tokens, parts)
        for group, part in enumerate(parts):
            if part:
                self.tree.lend(node, group, part)
        return node

    def _filled(self, parent: Node, contents: Sequence[torch.Tensor | None]) -> list[tuple[int, ...]] | None:
        """Pages with these contents, each with one holder; None without room for all."""
        wanted = [0 if rows is None else len(group.tables) for group, rows in zip(self.groups.groups, contents, strict=True)]
        if not self.make_room(sum(wanted)):
            return None
        after = parent.parts[0][-1] if parent.parts else None
        taken = self.pages.allocate(sum(wanted), self.owner(LOADER, 0), after, sum(wanted))
        assert taken is not None
        pages = iter(taken)
        parts = [tuple(itertools.islice(pages, count)) for count in wanted]
        for part, rows in zip(parts, contents, strict=True):
            if rows is not None:
                self.store.write(part, rows)
        return parts

    def make_room(self, pages: int) -> bool:
        """Whether so many pages are free, if need be after evicting."""
        if pages > self.pages.free:
            self.tree.evict(pages - self.pages.free)
        return pages <= self.pages.free

    def extend(self, sequence: KVSequence, count: int) -> None:
        """New blocks, for which there is room."""
        blocks = sequence.blocks
        for number, group in enumerate(self.groups.groups):
            wanted = group.most_blocks(sequence.room) - (blocks - len(sequence.gone(number)))
            for table in group.tables:
                pages = sequence.tables[table]
                after = pages[-1] if pages and pages[-1] != GONE else None
                taken = self.pages.allocate(count, self.owner(sequence.number, table), after, wanted)
                assert taken is not None
                pages.extend(taken)
        sequence.changes.append(blocks)

    def copy_block(self, sequence: KVSequence, source: Sequence[int], length: int) -> bool:
        """A new block behind the sequence's others, with the first `length` slots of `source`, a page for each table; False without room."""
        if not self.make_room(self.groups.tables):
            return False
        self.extend(sequence, 1)
        self.store.copy(source, [table[-1] for table in sequence.tables], length)
        return True

    def cut(self, sequence: KVSequence, count: int) -> None:
        """Keeps only the first `count` blocks."""
        pages = [page for table in sequence.tables for page in table[count:] if page != GONE]
        self.shorten(sequence, count)
        self.give_back(pages)

    def shorten(self, sequence: KVSequence, count: int) -> None:
        """The same, but the pages behind them stay held."""
        for table in sequence.tables:
            del table[count:]

    def leave_behind(self, sequence: KVSequence, number: int, until: int) -> None:
        """Of the blocks before `until` and behind the sinks, one group's pages."""
        group = self.groups.groups[number]
        for block in range(max(sequence.first_blocks[number], pages_for(group.sinks)), until):
            self.give_back(sequence.part(number, block))
            sequence.leave(number, block)
        sequence.first_blocks[number] = max(sequence.first_blocks[number], until)

    def thin(self, sequence: KVSequence, received: Received, recent: int) -> None:
        """Drops the STEP places with least attention, the last `recent` apart; the others move together, in order. The host does not wait for a device."""
        place, data = sequence.place, self.store.data
        slots = torch.tensor([slot for first, last in sequence.slots(0, place) for slot in range(first, last)])
        slots = slots.pin_memory().to(data.device, non_blocking=True) if data.is_cuda else slots
        older = place - recent
        heavy = received.at(slots[:older], place).topk(older - STEP).indices.sort().values
        kept = torch.cat((slots[heavy], slots[older:]))
        self.store.move(kept, slots[: len(kept)])
        received.move(kept, slots[: len(kept)], place)
        sequence.dropped += STEP
        self.cut(sequence, pages_for(sequence.place))

    def retain(self, pages: Iterable[int]) -> None:
        """One more holder for each."""
        for page in pages:
            self.pages.retain(page)

    def give_back(self, pages: Sequence[int]) -> None:
        """One holder less for each; what only the tree holds then may be evicted."""
        for page in pages:
            self.pages.release(page)
        for page in pages:
            found = self.tree.at(page)
            if found is not None:
                self.tree.idle(*found)

    def owner(self, number: int, table: int) -> int:
        """For the allocator every table is a sequence."""
        return number * self.groups.tables + table
