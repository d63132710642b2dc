"""Keys and values of all requests: one tensor of slots, handed out in pages of 32 positions.

Inputs: the model's KV shape, which of its layers share pages (kv_groups.py), a budget in bytes, token ids. A sequence is a page table for each
few layers; it grows page by page, is never gathered or copied per step, and shares pages with others that begin with the same tokens: those of
finished requests (prefix.py), of running ones, and of the sequence it was forked from. A page with two holders is never written: whoever
needs to write into it gets a copy up to the slot in question. Where tokens see a window only, a sequence gives pages back as they fall out of
it, each group of layers its own; the prefix tree may still hold them, as long as nobody needs the room. So a prefix is found again as far as
the pages are there that the next token sees, and then it is exactly what would be computed. This module knows nothing of models, requests or
attention.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_groups import PageGroups, pages_for, together
from agentkit.engine.kv_memory import LOADER, KVMemory
from agentkit.engine.kv_policy import Reach
from agentkit.engine.kv_sequence import GONE, KVSequence, KVShape
from agentkit.engine.kv_store import KVStore
from agentkit.engine.pages import PageAllocator
from agentkit.engine.prefix import PrefixTree
from agentkit.engine.prefix_node import Digest, Node, blake
from agentkit.engine.received import Received

__all__ = ["PAGE", "KVPool", "KVSequence", "KVShape", "pages_for"]


class KVPool:
    """All pages of one engine; used by the engine thread only.

    reach: what tokens see of what is before them; None: everything.   groups: which layers share pages; None: all.
    budget: bytes for keys and values; the pool takes as many whole pages as fit, at least one.   prefix_caching: False shares
    nothing between requests (forks still do).   digest: the hash of pages in the prefix tree.   Raises EngineError without memory.

    data: see KVStore.
    received: attention that each slot has received since it was written; None where nothing is chosen by it.
    """

    def __init__(
        self,
        shape: KVShape,
        budget: int,
        *,
        prefix_caching: bool = True,
        digest: Digest = blake,
        reach: Reach | None = None,
        groups: PageGroups | None = None,
    ) -> None:
        self.shape = shape
        self.reach = reach or Reach()
        self.groups = groups or together(shape.layers, self.reach)
        store = KVStore(shape, self.groups, budget)
        self.page_bytes, self.page_count, self.data = store.page_bytes, store.page_count, store.data
        self.received = None if self.reach.budget is None else Received.empty(shape.kv_heads, self.data.shape[3], shape.device)
        self._pages = PageAllocator(self.page_count)
        self.tree = PrefixTree(self._pages, self.groups, enabled=prefix_caching, digest=digest)
        self.memory = KVMemory(store, self.groups, self._pages, self.tree)
        self._live: dict[int, KVSequence] = {}
        self._numbers = itertools.count(LOADER + 1)

    @property
    def sums(self) -> torch.Tensor | None:
        """[S]: where a CPU's kernels add up what is received by all heads."""
        return None if self.received is None else self.received.sums[0]

    # -- how full it is -----------------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        """Pages that hold nothing."""
        return self._pages.free

    @property
    def available_pages(self) -> int:
        """Pages that are free or can be made so by evicting."""
        return self._pages.free + self.tree.evictable

    @property
    def live_pages(self) -> int:
        """Pages that running sequences hold."""
        return len(set().union(*(sequence.held for sequence in self._live.values())))

    @property
    def live_sequences(self) -> int:
        return len(self._live)

    @property
    def capacity(self) -> int:
        """Tokens of the longest sequence that fits where nothing is pinned, if not all do."""
        return self.longest(self.page_count, [0] * len(self.groups.groups))

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens fits where nothing is pinned."""
        return self.peak(tokens) <= self.page_count

    def peak(self, tokens: int) -> int:
        """Pages that a sequence of so many tokens holds at most at any time."""
        return self.groups.most_pages(tokens)

    def pinned_blocks(self, token_ids: Sequence[int], key: bytes) -> list[int]:
        """How many full blocks that `token_ids` begin with have a pinned part, by group."""
        root = self.tree.enter(key)
        nodes = self.tree.match(root, token_ids)
        self.tree.leave(root)
        return [sum(self.tree.is_pinned(node, number) for node in nodes) for number in range(len(self.groups.groups))]

    def peak_beside(self, tokens: int, shared: Sequence[int]) -> int:
        """Pages that a sequence needs at most at any time beside `shared` blocks (by group) that others keep for it."""
        groups = zip(self.groups.groups, shared, strict=True)
        return sum(len(group.tables) * min(group.most_blocks(tokens), pages_for(tokens) - blocks) for group, blocks in groups)

    def longest(self, pages: int, shared: Sequence[int]) -> int:
        """Tokens of the longest sequence that gets on with so many pages beside `shared` blocks, if not all do."""
        most = range(1, pages + max(shared) + 1)
        return PAGE * bisect_right(most, pages, key=lambda blocks: self.peak_beside(blocks * PAGE, shared))

    # -- a sequence's life --------------------------------------------------------------------------------------

    def can_start(self, token_ids: Sequence[int], key: bytes = b"", spare: int = 0) -> bool:
        """Whether all of `token_ids` and `spare` blocks more could be held now, counting what is shared and can be evicted."""
        root = self.tree.enter(key)
        nodes = self._usable(self.tree.match(root, token_ids[:-1]))
        self.tree.leave(root)
        needed = spare * self.groups.tables
        for number, group in enumerate(self.groups.groups):
            kept = nodes[max(group.first_block(len(nodes) * PAGE), pages_for(group.sinks)) :] + nodes[: pages_for(group.sinks)]
            idle = sum(self.tree.is_idle(node, number) for node in kept)  # those are not there for others any more
            needed += len(group.tables) * (max(0, group.most_blocks(len(token_ids)) - len(kept)) + idle)
        return needed <= self.available_pages

    def start(self, token_ids: Sequence[int], key: bytes = b"", room: int = 0) -> KVSequence:
        """A live sequence whose `tokens` are the longest computed beginning of `token_ids` in the domain `key`.

        At least the last of `token_ids` is left to compute, so that it yields logits.   room: tokens it may have in the end.
        """
        sequence = KVSequence(next(self._numbers), self.tree.enter(key), max(room, len(token_ids)), self.groups)
        self._live[sequence.number] = sequence
        self._take(sequence, self._usable(self.tree.match(sequence.root, token_ids[:-1])))
        rest = token_ids[sequence.length : -1]
        node, shared = self.tree.match_part(sequence.last_node, rest)
        if node is not None:
            source = [page for part in node.parts for page in part]
            self.memory.retain(source)  # eviction must not reach them while we look for pages
            if self.memory.copy_block(sequence, source, shared):
                sequence.tokens.extend(rest[:shared])
                self.tree.touch([node])
            self.memory.give_back(source)
        self._drop(sequence)
        return sequence

    def room(self, sequence: KVSequence) -> int | None:
        """How many tokens a forward may append at most; None: any number. Where attention decides what stays, it does so at fixed places."""
        return None if self.reach.budget is None else self.reach.budget - sequence.place

    def adopt(self, sequence: KVSequence, token_ids: Sequence[int]) -> int:
        """Takes over pages of `token_ids` that others have computed since; returns how many tokens that adds."""
        before = sequence.length
        if len(sequence.nodes) != before // PAGE:
            return 0
        start = len(sequence.nodes) * PAGE
        found = self._usable(self.tree.match(sequence.last_node, token_ids[start:-1]), len(sequence.nodes), sequence.first_blocks)
        if not found:
            return 0
        self.memory.cut(sequence, len(sequence.nodes))
        del sequence.tokens[start:]
        self._take(sequence, found)
        self._drop(sequence)
        return sequence.length - before

    def next_key(self, sequence: KVSequence, token_ids: Sequence[int]) -> bytes | None:
        """Digest of the next full page to compute for `token_ids`: two sequences with the same one would do the same work."""
        start = len(sequence.nodes) * PAGE
        if not self.tree.enabled or len(sequence.nodes) != sequence.length // PAGE or len(token_ids) <= start + PAGE:
            return None
        return self.tree.key(sequence.last_node, token_ids[start : start + PAGE])

    def reserve(self, sequence: KVSequence, length: int) -> bool:
        """Makes positions sequence.length .. length writable: pages of its own. False, and nothing done, if there are too few."""
        at, length = sequence.place, length - sequence.dropped
        block = at // PAGE
        shared = at % PAGE != 0 and self._pages.references[sequence.pages[block]] > 1
        missing = max(0, pages_for(length) - sequence.blocks)
        if not missing + shared:
            return True
        if not self.memory.make_room((missing + shared) * self.groups.tables):
            return False
        if shared:
            old = [table[block] for table in sequence.tables]
            ahead = [table[block + 1 :] for table in sequence.tables]
            self.memory.shorten(sequence, block)
            self.memory.copy_block(sequence, old, at % PAGE)  # there is room
            self.memory.give_back(old)
            for table, pages in zip(sequence.tables, ahead, strict=True):
                table.extend(pages)
        if missing:
            self.memory.extend(sequence, missing)
        return True

    def commit(self, sequence: KVSequence, token_ids: Sequence[int]) -> None:
        """The next len(token_ids) positions have been written in every layer, for these tokens; full pages can be shared now."""
        if sequence.place + len(token_ids) > sequence.capacity:
            raise IndexError(f"{len(token_ids)} tokens after {sequence.place} do not fit into {sequence.capacity} slots; reserve them first")
        before = sequence.length // PAGE
        sequence.tokens.extend(token_ids)
        for index in range(before, sequence.length // PAGE):
            if len(sequence.nodes) != index:
                break
            node = self.tree.insert(sequence.last_node, tuple(sequence.tokens[index * PAGE : (index + 1) * PAGE]), sequence.parts(index))
            if node is None:
                break
            self._swap(sequence, index, node)
        self._drop(sequence)

    def keep(self, sequence: KVSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        """Of a draft written to the slots behind the sequence, node i in the i-th of them, `nodes` (ascending) are its next positions."""
        end = sequence.length + (max(nodes) + 1 if nodes else 0)
        moved = [(node, place) for place, node in enumerate(nodes) if node != place]
        if moved:
            tables = [[slot for run in sequence.slots(sequence.length, end, table) for slot in range(*run)] for table in range(self.groups.tables)]
            self.memory.store.move([slots[node] for slots in tables for node, _ in moved], [slots[place] for slots in tables for _, place in moved])
        self.commit(sequence, token_ids)

    def can_truncate(self, sequence: KVSequence, length: int) -> bool:
        """Whether a sequence still has all that it takes to go on after its first `length` tokens."""
        seen = (group.first_block(length) >= first for group, first in zip(self.groups.groups, sequence.first_blocks, strict=True))
        return sequence.dropped <= length <= sequence.length and all(seen)

    def truncate(self, sequence: KVSequence, length: int) -> None:
        """Forgets everything from position `length` on; whole pages behind it are given back. Raises IndexError where that leaves too little."""
        if not self.can_truncate(sequence, length):
            raise IndexError(f"a sequence of {sequence.length} tokens cannot be cut to {length}: it is shorter, or pages that the next token sees are gone")
        del sequence.tokens[length:]
        del sequence.nodes[length // PAGE :]
        self.memory.cut(sequence, pages_for(length))

    def fork(self, sequence: KVSequence) -> KVSequence:
        """A second sequence with the same tokens; it shares all pages until one of the two writes. Not under H2O, which moves what pages hold."""
        assert self.received is None
        sequence.root.users += 1
        copy = KVSequence(next(self._numbers), sequence.root, sequence.room, self.groups)
        copy.tokens, copy.nodes = list(sequence.tokens), list(sequence.nodes)
        copy.tables, copy.first_blocks = [table[: pages_for(sequence.length)] for table in sequence.tables], list(sequence.first_blocks)
        self.memory.retain(copy.held)
        self._live[copy.number] = copy
        return copy

    def release(self, sequence: KVSequence, *, keep: bool = True) -> Node | None:
        """Ends a live sequence. `keep`: prompts to come may use what it computed, as long as memory lasts.

        Returns the node that holds its last token, where all of it is kept (for `PrefixTree.pin`).
        """
        del self._live[sequence.number]
        for table in range(self.groups.tables):
            self._pages.unspare(self.memory.owner(sequence.number, table))
        last = None
        if keep:
            self.tree.touch(sequence.nodes)
            last = self._keep_rest(sequence)
        else:
            for node in sequence.made:
                self.tree.forget(node)
            for node in sequence.lent:
                for group in range(1, len(node.parts)):
                    self.tree.strip(node, group)
        self.memory.cut(sequence, 0)
        self.tree.leave(sequence.root)
        return last

    def check_invariants(self) -> None:
        """Raises AssertionError if references do not add up, a page is in two places, or contents and index disagree."""
        self._pages.check_invariants()
        self.tree.check_invariants()
        wanted = [0] * self.page_count
        for sequence in self._live.values():
            self._check(sequence)
            for page in sequence.held:
                wanted[page] += 1
        for node in self.tree:
            for page in itertools.chain(*node.parts):
                wanted[page] += 1
        assert wanted == self._pages.references.tolist(), "references do not match the holders"
        held = int((self._pages.references > 0).sum()) - self.tree.evictable
        assert self.free_pages + self.tree.evictable + held == self.page_count

    def _check(self, sequence: KVSequence) -> None:
        assert sequence.place <= sequence.capacity, f"{sequence.place} tokens in {sequence.capacity} slots"
        assert self.reach.budget is None or sequence.place < self.reach.budget, "more positions than the budget"
        assert len(sequence.held) == sum(page != GONE for table in sequence.tables for page in table), "a sequence holds a page twice"
        for number, group in enumerate(self.groups.groups):
            gone = sequence.gone(number)
            assert sequence.first_blocks[number] <= group.first_block(sequence.length), "a page is gone that is still seen"
            for table in group.tables:
                assert len(sequence.tables[table]) == sequence.blocks, "tables of different lengths"
                assert all((page == GONE) == (block in gone) for block, page in enumerate(sequence.tables[table])), "a page is gone that is still seen"
        for block, node in enumerate(sequence.nodes):
            assert node.tokens == tuple(sequence.tokens[block * PAGE : (block + 1) * PAGE]), "a node of other tokens"
            for own, part in zip(sequence.parts(block), node.parts, strict=True):
                assert GONE in own or not part or own == part, "a sequence and its node lie in different pages"

    # -- inside -------------------------------------------------------------------------------------------------

    def _usable(self, nodes: Sequence[Node], start: int = 0, first_blocks: Sequence[int] = ()) -> list[Node]:
        """Of nodes for the blocks from `start` on the longest beginning with which a sequence can go on: all is there that its next token sees.

        first_blocks: those before `start` that are there, by group.
        """
        count, missing = 0, [first - 1 for first in first_blocks] or [-1] * len(self.groups.groups)
        for block, node in enumerate(nodes, start):
            missing = [last if part else block for last, part in zip(missing, node.parts, strict=True)]
            if all(last < group.first_block((block + 1) * PAGE) for last, group in zip(missing, self.groups.groups, strict=True)):
                count = block + 1 - start
        return list(nodes[:count])

    def _take(self, sequence: KVSequence, nodes: Sequence[Node]) -> None:
        """Appends shared pages to a sequence that ends at a block's edge: those that its next token sees, and of the first group all."""
        end = sequence.blocks + len(nodes)
        sequence.changes.append(sequence.blocks)
        for block, node in enumerate(nodes, sequence.blocks):
            for number, group in enumerate(self.groups.groups):
                seen = number == 0 or block >= group.first_block(end * PAGE)
                for table, page in zip(group.tables, node.parts[number] if seen else [GONE] * len(group.tables), strict=True):
                    sequence.tables[table].append(page)
                if seen:
                    self.memory.retain(node.parts[number])
            sequence.tokens.extend(node.tokens)
        if nodes:
            for number, group in enumerate(self.groups.groups[1:], 1):
                self.memory.leave_behind(sequence, number, min(group.first_block(end * PAGE), end - len(nodes)))
                sequence.first_blocks[number] = max(sequence.first_blocks[number], group.first_block(end * PAGE))
        sequence.nodes.extend(nodes)
        self.tree.touch(nodes)

    def _drop(self, sequence: KVSequence) -> None:
        """Gives back the pages that no token to come can see."""
        if self.received is not None and sequence.place == self.reach.budget:
            self.memory.thin(sequence, self.received, self.reach.recent)
        for number, group in enumerate(self.groups.groups):
            until = group.first_block(sequence.length)
            if until > sequence.first_blocks[number]:
                self.memory.leave_behind(sequence, number, until)

    def _swap(self, sequence: KVSequence, block: int, node: Node) -> None:
        """The block's contents are in the tree: what is in other pages is used from there from now on, and what it lacks is lent to it."""
        for group, own in enumerate(sequence.parts(block)):
            part = node.parts[group]
            if not part:
                self.tree.lend(node, group, own)
                sequence.lent.append(node)
            elif part != own:
                self.memory.retain(part)
                sequence.put(group, block, part)
                self.memory.give_back(own)
            elif group == 0:
                sequence.made.append(node)
        sequence.nodes.append(node)

    def _keep_rest(self, sequence: KVSequence) -> Node | None:
        """Puts the last, partly filled page into the tree."""
        full = sequence.length // PAGE
        if len(sequence.nodes) != full:
            return None
        rest = tuple(sequence.tokens[full * PAGE :])
        if not rest:
            return sequence.nodes[-1] if sequence.nodes and sequence.nodes[-1].alive else None
        return self.tree.insert(sequence.last_node, rest, sequence.parts(full))
