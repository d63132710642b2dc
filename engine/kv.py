"""Keys and values of all requests: one tensor of slots, handed out in pages of 32 positions.

Inputs: the model's KV shape, a budget in bytes, token ids. A sequence is a list of pages; it grows page by page, is never
gathered or copied per step, and shares pages with others that begin with the same tokens: those of finished requests
(prefix.py), of running ones, and of the sequence it was forked from. A page with two holders is never written: whoever
needs to write into it gets a copy up to the slot in question. Where tokens see a window only (see kv_policy.Reach), a sequence gives pages
back as they fall out of it; the prefix tree may still hold them, as long as nobody needs the room. So a prefix is found again as far as none
of its pages has been evicted, and then it is exactly what would be computed. This module knows nothing of models, requests or attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_groups import together
from agentkit.engine.kv_policy import STEP, Reach
from agentkit.engine.kv_sequence import CHUNK, GONE, KVSequence, KVShape, most_pages, pages_for
from agentkit.engine.pages import PageAllocator
from agentkit.engine.prefix import Digest, Node, PrefixTree, blake
from agentkit.errors import EngineError

__all__ = ["CHUNK", "PAGE", "KVPool", "KVSequence", "KVShape", "most_pages", "pages_for"]


LOADER = 1
"""Number of whoever puts pages there that no sequence computed."""


class KVPool:
    """All pages of one engine; used by the engine thread only.

    reach: what tokens see of what is before them; None: everything.
    budget: bytes for keys and values; the pool takes as many whole pages as fit, at least one.   prefix_caching: False shares
    nothing between requests (forks still do).   digest: the hash of pages in the prefix tree.   Raises EngineError without memory.

    data: [L, 2, KV, S, row], S = pages * PAGE slots; keys at 0, values at 1. row: head_dim, in 8 bits with the scale behind it.
    sums: [S] attention that each slot has received since it was written; None where nothing is chosen by it.
    """

    def __init__(self, shape: KVShape, budget: int, *, prefix_caching: bool = True, digest: Digest = blake, reach: Reach | None = None) -> None:
        self.shape = shape
        self.reach = reach or Reach()
        self.groups = together(shape.layers, self.reach)
        self.page_count = max(1, budget // shape.bytes_per_page)
        slots = self.page_count * PAGE  # untouched memory is not taken from the machine
        try:
            self.data = torch.empty(shape.layers, 2, shape.kv_heads, slots, shape.row, dtype=shape.dtype, device=shape.device)
        except RuntimeError as error:  # what torch raises where memory cannot be had, also on a GPU
            raise EngineError(f"{slots * shape.bytes_per_token} bytes for keys and values cannot be had on {shape.device}; lower kv_memory") from error
        self.sums = None if self.reach.budget is None else torch.zeros(slots, device=shape.device)
        self._pages = PageAllocator(self.page_count)
        self.tree = PrefixTree(self._pages, enabled=prefix_caching, digest=digest)
        self._live: dict[int, KVSequence] = {}
        self._numbers = itertools.count(LOADER + 1)

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
        """Tokens that fit in all."""
        return self.page_count * PAGE

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens fits where nothing is pinned."""
        return self.peak(tokens) <= self.page_count

    def peak(self, tokens: int) -> int:
        """Pages that a sequence of so many tokens holds at most at any time."""
        return most_pages(self.reach, tokens)

    # -- a sequence's life --------------------------------------------------------------------------------------

    def can_start(self, token_ids: Sequence[int], key: bytes = b"", spare: int = 0) -> bool:
        """Whether all of `token_ids` and `spare` pages more could be held now, counting what is shared and can be evicted."""
        root = self.tree.enter(key)
        nodes = self.tree.match(root, token_ids[:-1])
        self.tree.leave(root)
        idle = sum(self.tree.is_idle(node) for node in nodes)  # those are not there for others any more
        return max(0, self.peak(len(token_ids)) - len(nodes)) + spare <= self.available_pages - idle

    def start(self, token_ids: Sequence[int], key: bytes = b"", room: int = 0) -> KVSequence:
        """A live sequence whose `tokens` are the longest computed beginning of `token_ids` in the domain `key`.

        At least the last of `token_ids` is left to compute, so that it yields logits.   room: tokens it may have in the end.
        """
        sequence = KVSequence(next(self._numbers), self.tree.enter(key), max(room, len(token_ids)))
        self._live[sequence.number] = sequence
        self._take(sequence, self.tree.match(sequence.root, token_ids[:-1]))
        rest = token_ids[sequence.length : -1]
        node, shared = self.tree.match_part(sequence.last_node, rest)
        if node is not None:
            self._pages.retain(node.page)  # eviction must not reach it while we look for a page
            copy = self._copy_page(sequence, node.page, shared)
            self._give_back(node.page)
            if copy is not None:
                sequence.pages.append(copy)
                sequence.tokens.extend(rest[:shared])
                self.tree.touch([node])
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
        found = self.tree.match(sequence.last_node, token_ids[start:-1])
        if not found:
            return 0
        self._cut(sequence, len(sequence.nodes))
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
        shared = at % PAGE != 0 and self._pages.references[sequence.pages[at // PAGE]] > 1
        missing = max(0, pages_for(length) - len(sequence.pages))
        if missing + shared > self._pages.free:
            self.tree.evict(missing + shared - self._pages.free)
            if missing + shared > self._pages.free:
                return False
        if shared:
            old = sequence.pages[at // PAGE]
            copy = self._copy_page(sequence, old, at % PAGE)
            assert copy is not None
            sequence.pages[at // PAGE] = copy
            self._give_back(old)
        if missing:
            sequence.pages.extend(self._allocate(sequence, missing) or ())
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
            node = self.tree.insert(sequence.last_node, tuple(sequence.tokens[index * PAGE : (index + 1) * PAGE]), sequence.pages[index])
            if node is None:
                break
            self._swap(sequence, index, node)
        self._drop(sequence)

    def keep(self, sequence: KVSequence, nodes: Sequence[int], token_ids: Sequence[int]) -> None:
        """Of a draft written to the slots behind the sequence, node i in the i-th of them, `nodes` (ascending) are its next positions."""
        end = sequence.length + (max(nodes) + 1 if nodes else 0)
        slots = [slot for first, last in sequence.slots(sequence.length, end) for slot in range(first, last)]
        moved = [(slots[node], slots[place]) for place, node in enumerate(nodes) if node != place]
        if moved:
            sources, targets = zip(*moved, strict=True)
            self.data[:, :, :, list(targets)] = self.data[:, :, :, list(sources)]
        self.commit(sequence, token_ids)

    def truncate(self, sequence: KVSequence, length: int) -> None:
        """Forgets everything from position `length` on; whole pages behind it are given back."""
        if not sequence.dropped <= length <= sequence.length:
            raise IndexError(f"cannot truncate a sequence of {sequence.length} tokens to {length}")
        if self.reach.lowest(length) < sequence.first_page * PAGE:
            raise IndexError(f"cannot truncate to {length} tokens: pages up to position {sequence.first_page * PAGE} are gone")
        del sequence.tokens[length:]
        del sequence.nodes[length // PAGE :]
        self._cut(sequence, pages_for(length))

    def fork(self, sequence: KVSequence) -> KVSequence:
        """A second sequence with the same tokens; it shares all pages until one of the two writes."""
        sequence.root.users += 1
        copy = KVSequence(next(self._numbers), sequence.root, sequence.room)
        copy.tokens, copy.nodes = list(sequence.tokens), list(sequence.nodes)
        copy.pages, copy.first_page = sequence.pages[: pages_for(sequence.length)], sequence.first_page
        for page in copy.held:
            self._pages.retain(page)
        self._live[copy.number] = copy
        return copy

    def release(self, sequence: KVSequence, *, keep: bool = True) -> Node | None:
        """Ends a live sequence. `keep`: prompts to come may use what it computed, as long as memory lasts.

        Returns the node that holds its last token, where all of it is kept (for `PrefixTree.pin`).
        """
        del self._live[sequence.number]
        self._pages.unspare(sequence.number)
        last = None
        if keep:
            self.tree.touch(sequence.nodes)
            last = self._keep_rest(sequence)
        else:
            for node in sequence.made:
                self.tree.forget(node)
        self._cut(sequence, 0)
        self.tree.leave(sequence.root)
        return last

    def put(self, parent: Node, tokens: tuple[int, ...], data: torch.Tensor) -> Node | None:
        """A page with given contents [L, 2, KV, len(tokens), row] in the tree after `parent`, held until `let_go`; None without room."""
        there, shared = self.tree.match_part(parent, tokens)
        if there is not None and shared == len(tokens):
            self._pages.retain(there.page)
            return there
        if self._pages.free == 0:
            self.tree.evict(1)
        taken = self._pages.allocate(1, LOADER, parent.page if parent.page >= 0 else None, 1)
        if taken is None:
            return None
        slot = taken[0] * PAGE
        self.data[:, :, :, slot : slot + len(tokens)].copy_(data)
        node = self.tree.insert(parent, tokens, taken[0])
        if node is None:
            self._pages.release(taken[0])
        return node

    def let_go(self, node: Node) -> None:
        """Ends the hold of `put`."""
        self._give_back(node.page)

    def check_invariants(self) -> None:
        """Raises AssertionError if references do not add up, a page is in two places, or contents and index disagree."""
        self._pages.check_invariants()
        self.tree.check_invariants()
        wanted = [0] * self.page_count
        for sequence in self._live.values():
            assert sequence.place <= sequence.capacity, f"{sequence.place} tokens in {sequence.capacity} slots"
            assert self.reach.budget is None or sequence.place < self.reach.budget, "more positions than the budget"
            gone = range(pages_for(self.reach.sinks), sequence.first_page)
            assert len(sequence.held) == len(sequence.pages) - len(gone), "a sequence holds a page twice, or lacks one"
            assert all((page == GONE) == (index in gone) for index, page in enumerate(sequence.pages)), "a page is gone that is still seen"
            assert sequence.first_page * PAGE <= self.reach.lowest(sequence.length), "a page is gone that is still seen"
            for page in sequence.held:
                wanted[page] += 1
            for index, node in enumerate(sequence.nodes):
                assert node.tokens == tuple(sequence.tokens[index * PAGE : (index + 1) * PAGE]), "a node of other tokens"
                assert sequence.pages[index] in (node.page, GONE), "a sequence and its node lie in different pages"
        for node in self.tree:
            wanted[node.page] += 1
        assert wanted == self._pages.references.tolist(), "references do not match the holders"
        held = int((self._pages.references > 0).sum()) - self.tree.evictable
        assert self.free_pages + self.tree.evictable + held == self.page_count

    # -- inside -------------------------------------------------------------------------------------------------

    def _take(self, sequence: KVSequence, nodes: Sequence[Node]) -> None:
        """Appends shared pages to a sequence that ends at a page's edge."""
        for node in nodes:
            self._pages.retain(node.page)
            sequence.pages.append(node.page)
            sequence.tokens.extend(node.tokens)
        sequence.nodes.extend(nodes)
        self.tree.touch(nodes)

    def _allocate(self, sequence: KVSequence, count: int) -> list[int] | None:
        after = sequence.pages[-1] if sequence.pages else None
        if count > self._pages.free:
            self.tree.evict(count - self._pages.free)
        after = None if after == GONE else after
        return self._pages.allocate(count, sequence.number, after, self.peak(sequence.room) - len(sequence.held))

    def _copy_page(self, sequence: KVSequence, source: int, length: int) -> int | None:
        """A page of the sequence's own with the first `length` slots of `source`; None if there is none."""
        taken = self._allocate(sequence, 1)
        if taken is None:
            return None
        old, new = source * PAGE, taken[0] * PAGE
        self.data[:, :, :, new : new + length].copy_(self.data[:, :, :, old : old + length])
        return taken[0]

    def _give_back(self, page: int) -> None:
        self._pages.release(page)
        node = self.tree.at(page)
        if node is not None:
            self.tree.idle(node)

    def _cut(self, sequence: KVSequence, count: int) -> None:
        """Keeps only the first `count` pages."""
        for page in sequence.pages[count:]:
            if page != GONE:
                self._give_back(page)
        del sequence.pages[count:]

    def _drop(self, sequence: KVSequence) -> None:
        """Gives back the pages that no token to come can see."""
        if self.sums is not None and sequence.place == self.reach.budget:
            self._thin(sequence, self.sums)
        until = self.reach.lowest(sequence.length) // PAGE
        for index in range(max(sequence.first_page, pages_for(self.reach.sinks)), until):
            self._give_back(sequence.pages[index])
            sequence.pages[index] = GONE
        sequence.first_page = max(sequence.first_page, until)

    def _thin(self, sequence: KVSequence, sums: torch.Tensor) -> None:
        """Drops the STEP places with least attention, the recent ones apart; the others move together, in order."""
        slots = torch.tensor([slot for first, last in sequence.slots(0, sequence.place) for slot in range(first, last)], device=sums.device)
        older = len(slots) - self.reach.recent
        heavy = sums[slots[:older]].topk(older - STEP).indices.sort().values
        kept = torch.cat((slots[heavy], slots[older:]))
        self.data[:, :, :, slots[: len(kept)]] = self.data[:, :, :, kept]
        sums[slots[: len(kept)]] = sums[kept]
        sequence.dropped += STEP
        self._cut(sequence, pages_for(sequence.place))

    def _swap(self, sequence: KVSequence, index: int, node: Node) -> None:
        """The page's contents are in the tree: if in another page, that one is used from now on."""
        own = sequence.pages[index]
        if node.page != own:
            self._pages.retain(node.page)
            sequence.pages[index] = node.page
            self._give_back(own)
        else:
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
        return self.tree.insert(sequence.last_node, rest, sequence.pages[full])
