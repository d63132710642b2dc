"""What is already computed: a tree of pages by the tokens they hold, for prompts that begin alike.

Inputs: token ids and page numbers. A node is one block: its tokens follow those of its parent. Full blocks are found by
chained hashes (parent's digest and own tokens), and a hit counts only if the stored token ids and the parent are the same:
a hash alone proves nothing (CVE-2025-25183). The last, partly filled block of a finished sequence is a node too, and a block may be matched
up to any of its tokens. Each tree has a root per *domain* (model, adapter with its load number and scale, tenant salt), so nothing is
ever shared between domains. Idle nodes are evicted leaf by leaf, the least recently used first; pinned ones never.
Where sequences give pages back from the front (windows), an idle page may lie above one in use: it goes when no idle leaf is left, and
what lies below it leaves the tree.
A node has a part for each group of layers (kv_groups.py). The first, of the layers that see farthest, is its life; the second may be
evicted alone: whoever continues a prefix needs it only for the last blocks. Those go in the order in which sequences let go of them.
This module knows nothing of tensors, requests or attention.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_groups import PageGroups, pages_for
from agentkit.engine.pages import PageAllocator
from agentkit.engine.prefix_node import Digest, Node, Part, blake, common_prefix

Entry = tuple[int, int, Node]
"""When, a page so that no two are equal, and a node."""


class PrefixTree:
    """All nodes of one pool; holds one reference to each page of theirs.

    groups: which layers share pages.   enabled: False keeps nothing.   digest: the hash of pages (tests put a bad one in).
    """

    def __init__(self, pages: PageAllocator, groups: PageGroups, *, enabled: bool = True, digest: Digest = blake) -> None:
        self._pages = pages
        self._groups = groups.groups
        self._digest = digest
        self.enabled = enabled
        self._roots: dict[bytes, Node] = {}
        self._found: dict[bytes, Node] = {}  # full blocks by digest
        self._nodes: dict[int, Node] = {}  # by the first page of the first part
        self._parts: dict[int, tuple[Node, int]] = {}  # nodes and groups by the first page of any part
        self._held = np.zeros(pages.count, np.bool_)  # pages that are nodes
        self._pins = np.zeros(pages.count, np.int32)  # how many handles protect a page
        self._handles: dict[Node, tuple[int, list[int]]] = {}  # how many pins end at a node, and the pages they protect
        self._idle: list[Entry] = []  # heap of (used, page, node), leaves; stale entries are skipped
        self._idle_parts: list[Entry] = []  # the same of (let_go, page, node), second parts
        self._clock = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    @property
    def evictable(self) -> int:
        """Pages that only this tree holds and no pin protects; all of them can be freed."""
        return int((self._held & (self._pins == 0) & (self._pages.references == 1)).sum())

    @property
    def pinned(self) -> int:
        """Pages that pins hold."""
        return int((self._pins > 0).sum())

    def at(self, page: int) -> tuple[Node, int] | None:
        """The node, and the group of layers, of a part that begins with `page`."""
        return self._parts.get(page)

    def is_pinned(self, node: Node, group: int = 0) -> bool:
        """Whether a pin protects this part of a node."""
        part = node.parts[group]
        return bool(part and self._pins[part[0]])

    def is_idle(self, node: Node, group: int = 0) -> bool:
        """Whether only the tree holds this part and it may be evicted (of the first group: after what lies below it)."""
        part = node.parts[group]
        return bool(part and self._pins[part[0]] == 0 and self._pages.references[part[0]] == 1)

    def protected(self, node: Node) -> int:
        """Pages that one more `pin` would protect, of those that one does already."""
        return int((self._pins[self._needed(node)] > 0).sum())

    def unpinned(self, node: Node) -> int:
        """Pages that one more `pin` would protect, of those that no pin does."""
        return int((self._pins[self._needed(node)] == 0).sum())

    # -- finding ------------------------------------------------------------------------------------------------

    def enter(self, key: bytes) -> Node:
        """The root of a domain, for one more live sequence."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Node(None, (), (), self._digest(key))
            root.key = key
        root.users += 1
        return root

    def leave(self, root: Node) -> None:
        """A live sequence of this domain is over."""
        root.users -= 1
        self._drop_root(root)

    def child(self, parent: Node, tokens: tuple[int, ...]) -> Node | None:
        """The node of a full block of these tokens after `parent`, verified."""
        node = self._found.get(self.key(parent, tokens))
        return node if node is not None and node.parent is parent and node.tokens == tokens else None

    def key(self, parent: Node, tokens: Sequence[int]) -> bytes:
        return self._digest(parent.digest + array("q", tokens).tobytes())

    def match(self, parent: Node, tokens: Sequence[int]) -> list[Node]:
        """The full blocks below `parent` that begin `tokens`; parts of them may be evicted."""
        nodes: list[Node] = []
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            node = self.child(parent, tuple(tokens[start : start + PAGE]))
            if node is None:
                break
            nodes.append(node)
            parent = node
        return nodes

    def match_part(self, parent: Node, tokens: Sequence[int], *, whole: bool = True) -> tuple[Node | None, int]:
        """The block below `parent` that shares most tokens with the beginning of `tokens`, and how many. whole: one without evicted parts."""
        best, length, most = None, 0, min(len(tokens), PAGE)
        more = tuple(tokens[:1])  # what a better one begins with
        for node in parent.children.get(tokens[0], ()) if tokens else ():
            if node.tokens[: length + 1] == more and (node.whole or not whole):
                best, length = node, common_prefix(node.tokens, tokens)
                if length == most:
                    break
                more = tuple(tokens[: length + 1])
        return best, length

    def touch(self, nodes: Sequence[Node]) -> None:
        """These were used just now."""
        self._clock += 1
        for node in nodes:
            node.used = self._clock

    # -- changing -----------------------------------------------------------------------------------------------

    def insert(self, parent: Node, tokens: tuple[int, ...], parts: Sequence[Part]) -> Node | None:
        """The node for `tokens` after `parent`: with the given pages, or one that already holds them (and perhaps more).

        One of a full block may lack a part; see `lend`. None where it cannot be kept: the tree is off, the parent is gone, or the digest
        belongs to another block.
        """
        if not self.enabled or not parent.alive:
            return None
        there, shared = self.match_part(parent, tokens, whole=len(tokens) < PAGE)
        if there is not None and shared == len(tokens):
            self.touch([there])
            return there
        if parts[0][0] in self._parts:
            return None
        digest = self.key(parent, tokens)
        node = Node(parent, tokens, [()] * len(parts), digest)
        if node.full:
            if digest in self._found:
                return None
            self._found[digest] = node
        for old in [n for n in parent.children.get(tokens[0], ()) if n.tokens == tokens[: len(n.tokens)] and not self._pins[n.page]]:
            self._remove(old)  # a partly filled block whose tokens the new one holds too
        parent.children.setdefault(tokens[0], []).append(node)
        for group, part in enumerate(parts):
            self.lend(node, group, part)
        self._nodes[node.page] = node
        self.touch([node])
        return node

    def lend(self, node: Node, group: int, part: Part) -> None:
        """A node that lacks a part has it again; () changes nothing."""
        assert not node.parts[group], "a node has this part already"
        if part:
            node.parts[group] = part
            self._parts[part[0]] = node, group
            self._held[list(part)] = True
            for page in part:
                self._pages.retain(page)

    def strip(self, node: Node, group: int) -> None:
        """Takes one part of a node out of the tree, unless pinned; sequences that hold its pages keep them."""
        part = node.parts[group]
        if part and not self._pins[part[0]]:
            node.parts[group] = ()
            del self._parts[part[0]]
            self._held[list(part)] = False
            for page in part:
                self._pages.release(page)

    def forget(self, node: Node) -> None:
        """Takes a node and all below it out of the tree unless pinned; pages that sequences hold stay theirs."""
        if not node.alive or self._pins[node.page]:
            return
        found = [node]  # no recursion: a long text is a thousand nodes deep
        for each in found:
            found.extend(below for nodes in each.children.values() for below in nodes)
        for each in reversed(found):
            self._remove(each)

    def pin(self, node: Node) -> None:
        """Protects the node and all above it; of a group with a window what it takes to go on from any token of the last two blocks."""
        assert node.alive, "a block that is not in the tree cannot be pinned"
        count, pages = self._handles.get(node) or (0, self._needed(node))
        self._handles[node] = count + 1, pages
        self._pins[pages] += 1

    def unpin(self, node: Node) -> None:
        """Takes back one `pin`."""
        count, pages = self._handles.pop(node)
        if count > 1:
            self._handles[node] = count - 1, pages
        self._pins[pages] -= 1
        self.idle(node)
        for each in node.path() if len(self._groups) > 1 else ():
            self.idle(each, 1)

    def pin_size(self, tokens: int) -> int:
        """Pages that a pin of so many tokens protects at most."""
        blocks = pages_for(tokens)
        return sum(len(group.tables) * (blocks - self._first_needed(number, tokens)) for number, group in enumerate(self._groups))

    def _first_needed(self, number: int, tokens: int) -> int:
        """The first block of which a pin of so many tokens protects one group's part."""
        return 0 if number == 0 else max(0, self._groups[number].first_block(tokens) - 1)

    def _needed(self, node: Node) -> list[int]:
        path = node.path()
        end = (len(path) - 1) * PAGE + len(node.tokens)
        kept = [path[self._first_needed(number, end) :] for number in range(len(self._groups))]
        return [page for number, nodes in enumerate(kept) for each in nodes for page in each.parts[number]]

    def idle(self, node: Node, group: int = 0) -> None:
        """The node may have become a leaf that nobody uses, or its second part one: remember it for eviction."""
        if group:
            if self.is_idle(node, group) and node.full:  # others go with their node
                self._clock += 1
                node.let_go = self._clock
                _push(self._idle_parts, (node.let_go, node.page, node), len(self._nodes), self._is_idle_part)
        elif self._may_go(node):
            _push(self._idle, (node.used, node.page, node), len(self._nodes), self._is_idle_leaf)

    def evict(self, count: int) -> int:
        """Frees up to `count` pages or few more, what was used least recently first; returns how many."""
        before = self._pages.free
        while self._pages.free - before < count and (self._evict_next() or self._evict_above()):
            pass
        freed = self._pages.free - before
        self.evicted += freed
        return freed

    def _evict_next(self) -> bool:
        """Evicts a leaf, or a second part that was let go of before; False where there are none."""
        while self._idle_parts and not self._is_idle_part(self._idle_parts[0]):
            heapq.heappop(self._idle_parts)
        while self._idle and not self._is_idle_leaf(self._idle[0]):
            self.idle(heapq.heappop(self._idle)[2])  # it may have been used since it was remembered
        if self._idle_parts and (not self._idle or self._idle_parts[0][0] < self._idle[0][0]):
            self.strip(heapq.heappop(self._idle_parts)[2], 1)
        elif self._idle:
            node = heapq.heappop(self._idle)[2]
            parent = node.parent
            self._remove(node)
            if parent is not None:
                self.idle(parent)
        else:
            return False
        return True

    def _evict_above(self) -> bool:
        """Evicts a node that has others below it, with them; False where there is none."""
        last = self._last_idle()
        if last is None:
            return False
        parent = last.parent
        self.forget(last)
        if parent is not None:
            self.idle(parent)
        return True

    def _is_idle_leaf(self, entry: Entry) -> bool:
        """Whether an entry of `_idle` is not stale."""
        return entry[0] == entry[2].used and self._may_go(entry[2])

    def _is_idle_part(self, entry: Entry) -> bool:
        """Whether an entry of `_idle_parts` is not stale."""
        return entry[2].alive and entry[0] == entry[2].let_go and self.is_idle(entry[2], 1)

    def _last_idle(self) -> Node | None:
        """Of the idle nodes without an idle one right below them the least recently used; the pages below it are in use."""
        idle = [node for node in self._nodes.values() if self.is_idle(node)]
        above = {id(node.parent) for node in idle}
        return min((node for node in idle if id(node) not in above), key=lambda node: (node.used, node.page), default=None)

    def clear(self) -> None:
        """Evicts all that can be evicted."""
        self.evict(self._pages.count)

    def _may_go(self, node: Node) -> bool:
        return node.alive and node.parent is not None and not node.children and self.is_idle(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert not node.children, "a node with others below it cannot go"
        siblings = parent.children[node.tokens[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.tokens[0]]
        if node.full:
            del self._found[node.digest]
        del self._nodes[node.page]
        node.alive = False
        for group in range(len(node.parts)):
            self.strip(node, group)
        self._drop_root(parent)

    def _drop_root(self, root: Node) -> None:
        """Roots without pages and sequences go, so that salts do not add up."""
        if root.parent is None and not root.users and not root.children and root.alive:
            root.alive = False
            del self._roots[root.key]

    def check_invariants(self) -> None:
        """Raises AssertionError if the tree, its index and the pages disagree."""
        assert len(self._found) == sum(n.full for n in self._nodes.values()), "index and tree disagree"
        pages: list[int] = []
        for page, node in self._nodes.items():
            assert node.alive, "a dead node is in the tree"
            assert node.page == page, "a node under another page's number"
            parent = node.parent
            assert parent is not None, "a root holds a page"
            assert parent.alive, "a node's parent is gone"
            assert node in parent.children[node.tokens[0]], "a node's parent does not know it"
            assert parent.parent is None or parent.full, "a node after a partly filled block"
            assert parent.parent is None or self._pins[parent.page] >= self._pins[page], "a pinned page under an unpinned one"
            assert node.full or node.whole, "a partly filled block lacks a part"
            for group, part in enumerate(node.parts):
                assert not part or self._parts[part[0]] == (node, group), "a part under another page's number"
                pages += part
        assert (self._pages.references[pages] > 0).all(), "a page is in the tree and free"
        assert sorted(pages) == np.flatnonzero(self._held).tolist(), "pages of the tree are marked wrongly"
        assert len(self._parts) == sum(bool(part) for node in self._nodes.values() for part in node.parts), "a part that no node has"
        assert not self._pins[~self._held].any(), "a page outside the tree is pinned"


def _push(heap: list[Entry], entry: Entry, count: int, valid: Callable[[Entry], bool]) -> None:
    """Onto a heap, which stale entries leave where they are many more than `count`."""
    heapq.heappush(heap, entry)
    if len(heap) > 4 * count + 64:
        heap[:] = [each for each in heap if valid(each)]
        heapq.heapify(heap)
