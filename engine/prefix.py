"""What is already computed: a tree of pages by the tokens they hold, for prompts that begin alike.

Inputs: token ids and page numbers. A node is one page: its tokens follow those of its parent. Full pages are found by
chained hashes (parent's digest and own tokens), and a hit counts only if the stored token ids and the parent are the same:
a hash alone proves nothing (CVE-2025-25183). The last, partly filled page of a finished sequence is a node too, and a page may be matched
up to any of its tokens. Each tree has a root per *domain* (model, adapter and its load number, tenant salt), so nothing is
ever shared between domains. Idle nodes are evicted leaf by leaf, the least recently used first; pinned ones never.
Where sequences give pages back from the front (windows), an idle page may lie above one in use: it goes when no idle leaf is left, and
what lies below it leaves the tree.
This module knows nothing of tensors, requests or attention.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.pages import PageAllocator

Digest = Callable[[bytes], bytes]


def domain(*, adapter: str | None = None, load_number: int = 0, salt: str | None = None) -> bytes:
    """The key of what may be shared: tagged and length-prefixed, so that no adapter's name can pose as a salt."""
    parts = [(b"adapter", adapter), (b"load", None if adapter is None else str(load_number)), (b"salt", salt)]
    given = [(tag, value.encode("utf-8", "surrogatepass")) for tag, value in parts if value is not None]
    return b"".join(len(part).to_bytes(8, "little") + part for pair in given for part in pair)


def blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Node:
    """One page in the tree, or the root of a domain (page -1, no parent). users: live sequences of a root."""

    __slots__ = ("alive", "children", "digest", "key", "page", "parent", "tokens", "used", "users")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], page: int, digest: bytes) -> None:
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.digest = digest
        self.key = b""  # of a root: its domain
        self.children: dict[int, list[Node]] = {}  # by first token
        self.used = 0
        self.users = 0
        self.alive = True

    @property
    def full(self) -> bool:
        return len(self.tokens) == PAGE

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixTree:
    """All nodes of one pool; holds one reference to the page of each.

    enabled: False keeps nothing.   digest: the hash of pages (tests put a bad one in).
    """

    def __init__(self, pages: PageAllocator, *, enabled: bool = True, digest: Digest = blake) -> None:
        self._pages = pages
        self._digest = digest
        self.enabled = enabled
        self._roots: dict[bytes, Node] = {}
        self._found: dict[bytes, Node] = {}  # full pages by digest
        self._nodes: dict[int, Node] = {}  # by page
        self._held = np.zeros(pages.count, np.bool_)  # pages that are nodes
        self._pins = np.zeros(pages.count, np.int32)  # how many handles protect a page
        self._idle: list[tuple[int, int, Node]] = []  # heap of (used, page, node); stale entries are skipped
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

    def at(self, page: int) -> Node | None:
        """The node of a page."""
        return self._nodes.get(page)

    def is_pinned(self, node: Node) -> bool:
        return bool(self._pins[node.page])

    def is_idle(self, node: Node) -> bool:
        """Whether only the tree holds this page and it may be evicted (after what lies below it)."""
        return bool(self._pins[node.page] == 0 and self._pages.references[node.page] == 1)

    # -- finding ------------------------------------------------------------------------------------------------

    def enter(self, key: bytes) -> Node:
        """The root of a domain, for one more live sequence."""
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Node(None, (), -1, self._digest(key))
            root.key = key
        root.users += 1
        return root

    def leave(self, root: Node) -> None:
        """A live sequence of this domain is over."""
        root.users -= 1
        self._drop_root(root)

    def child(self, parent: Node, tokens: tuple[int, ...]) -> Node | None:
        """The node of a full page of these tokens after `parent`, verified."""
        node = self._found.get(self.key(parent, tokens))
        return node if node is not None and node.parent is parent and node.tokens == tokens else None

    def key(self, parent: Node, tokens: Sequence[int]) -> bytes:
        return self._digest(parent.digest + array("q", tokens).tobytes())

    def match(self, parent: Node, tokens: Sequence[int]) -> list[Node]:
        """The full pages below `parent` that begin `tokens`."""
        nodes: list[Node] = []
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            node = self.child(parent, tuple(tokens[start : start + PAGE]))
            if node is None:
                break
            nodes.append(node)
            parent = node
        return nodes

    def match_part(self, parent: Node, tokens: Sequence[int]) -> tuple[Node | None, int]:
        """The page below `parent` that shares most tokens with the beginning of `tokens`, and how many."""
        best, length, most = None, 0, min(len(tokens), PAGE)
        more = tuple(tokens[:1])  # what a better one begins with
        for node in parent.children.get(tokens[0], ()) if tokens else ():
            if node.tokens[: length + 1] == more:
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

    def insert(self, parent: Node, tokens: tuple[int, ...], page: int) -> Node | None:
        """The node for `tokens` after `parent`: the given page, or one that already holds them (and perhaps more).

        None where it cannot be kept: the tree is off, the parent is gone, or the digest belongs to another page.
        """
        if not self.enabled or not parent.alive:
            return None
        there, shared = self.match_part(parent, tokens)
        if there is not None and shared == len(tokens):
            self.touch([there])
            return there
        if page in self._nodes:
            return None
        digest = self.key(parent, tokens)
        node = Node(parent, tokens, page, digest)
        if node.full:
            if digest in self._found:
                return None
            self._found[digest] = node
        for old in [n for n in parent.children.get(tokens[0], ()) if n.tokens == tokens[: len(n.tokens)] and not self._pins[n.page]]:
            self._remove(old)  # a partly filled page whose tokens the new one holds too
        parent.children.setdefault(tokens[0], []).append(node)
        self._nodes[page] = node
        self._held[page] = True
        self._pages.retain(page)
        self.touch([node])
        return node

    def forget(self, node: Node) -> None:
        """Takes a node and all below it out of the tree unless pinned; pages that sequences hold stay theirs."""
        if not node.alive or self._pins[node.page]:
            return
        for below in [n for nodes in node.children.values() for n in nodes]:
            self.forget(below)
        self._remove(node)

    def pin(self, node: Node) -> None:
        """Protects the node and all above it."""
        assert node.alive, "a page that is not in the tree cannot be pinned"
        self._pins[[each.page for each in node.path()]] += 1

    def unpin(self, node: Node) -> None:
        """Takes back one `pin`."""
        self._pins[[each.page for each in node.path()]] -= 1
        self.idle(node)

    def idle(self, node: Node) -> None:
        """The node may have become a leaf that nobody uses: remember it for eviction."""
        if self._may_go(node):
            heapq.heappush(self._idle, (node.used, node.page, node))
            if len(self._idle) > 4 * len(self._nodes) + 64:
                self._idle = [entry for entry in self._idle if entry[0] == entry[2].used and self._may_go(entry[2])]
                heapq.heapify(self._idle)

    def evict(self, count: int) -> int:
        """Frees up to `count` pages, the least recently used leaves first; returns how many."""
        freed = self._evict_leaves(count)
        while freed < count and (last := self._last_idle()) is not None:
            parent = last.parent
            self.forget(last)
            if parent is not None:
                self.idle(parent)
            freed += 1 + self._evict_leaves(count - freed - 1)
        self.evicted += freed
        return freed

    def _last_idle(self) -> Node | None:
        """Of the idle nodes without an idle one right below them the least recently used; the pages below it are in use."""
        idle = [node for node in self._nodes.values() if self.is_idle(node)]
        above = {id(node.parent) for node in idle}
        return min((node for node in idle if id(node) not in above), key=lambda node: (node.used, node.page), default=None)

    def _evict_leaves(self, count: int) -> int:
        freed = 0
        while freed < count and self._idle:
            used, _, node = heapq.heappop(self._idle)
            if not self._may_go(node):
                continue
            if node.used != used:  # used since it was remembered
                self.idle(node)
                continue
            parent = node.parent
            self._remove(node)
            freed += 1
            if parent is not None:
                self.idle(parent)
        return freed

    def clear(self) -> None:
        """Evicts all that can be evicted."""
        self.evict(len(self._nodes))

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
        self._held[node.page] = False
        node.alive = False
        self._pages.release(node.page)
        self._drop_root(parent)

    def _drop_root(self, root: Node) -> None:
        """Roots without pages and sequences go, so that salts do not add up."""
        if root.parent is None and not root.users and not root.children and root.alive:
            root.alive = False
            del self._roots[root.key]

    def check_invariants(self) -> None:
        """Raises AssertionError if the tree, its index and the pages disagree."""
        assert len(self._found) == sum(n.full for n in self._nodes.values()), "index and tree disagree"
        for page, node in self._nodes.items():
            assert node.alive, "a dead node is in the tree"
            assert node.page == page, "a node under another page's number"
            assert self._pages.references[page] > 0, f"page {page} is in the tree and free"
            parent = node.parent
            assert parent is not None, "a root holds a page"
            assert parent.alive, "a node's parent is gone"
            assert node in parent.children[node.tokens[0]], "a node's parent does not know it"
            assert parent.parent is None or parent.full, "a node after a partly filled page"
            assert parent.parent is None or self._pins[parent.page] >= self._pins[page], "a pinned page under an unpinned one"
        assert sorted(self._nodes) == np.flatnonzero(self._held).tolist(), "pages of the tree are marked wrongly"
        assert not self._pins[~self._held].any(), "a page outside the tree is pinned"


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
