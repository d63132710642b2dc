"""Questions about sets of texts that a front end asks while it compiles: is this text a member? is the set empty? how many?

Input: trees of regex_ast, wanted or unwanted, as an intersection; output: plain answers. Works on derivatives over the few
classes of characters that the trees can tell apart, each written as one byte (two, beyond 255 classes). Knows nothing of
schemas or spellings; stepping a grammar while a model writes is the compiled core's work, not this module's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from agentkit.grammars import expr
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.chars import SCALARS, Alphabet, CharSet
from agentkit.grammars.frontends.regex import lower
from agentkit.grammars.frontends.regex_ast import Alt, Beside, Chars, Look, Repeat, Seq, Tree
from agentkit.grammars.frontends.regex_contexts import atoms

MAX_STATES = 3_000  # searched before a set is taken for non-empty


@dataclass(frozen=True)
class _Classes(Alphabet):
    """Characters by class: the alphabet of a TextSet."""

    classes: tuple[CharSet, ...] = field(default=(), compare=False)
    known: dict[str, bytes] = field(default_factory=dict, compare=False)
    codes_of: dict[CharSet, list[int]] = field(default_factory=dict, compare=False)

    def codes(self, chars: CharSet) -> list[int]:
        """Numbers of the classes that make up a set: each lies in it as a whole, or not at all."""
        found = self.codes_of.get(chars)
        if found is None:
            found = self.codes_of[chars] = [i for i, c in enumerate(self.classes) if c.ranges[0][0] in chars]
        return found

    def chars(self, builder: Builder, chars: CharSet) -> Node:
        codes = self.codes(chars)
        if len(self.classes) <= 256:
            return builder.byte_class(codes)
        pages: dict[int, list[int]] = {}
        for code in codes:
            pages.setdefault(code >> 8, []).append(code & 255)
        return builder.alt(*(builder.seq(builder.byte_class([page]), builder.byte_class(low)) for page, low in pages.items()))

    def spelled(self, text: str) -> bytes:
        out = bytearray()
        for char in text:
            code = self.known.get(char)
            if code is None:
                number = next(i for i, c in enumerate(self.classes) if char in c)
                code = self.known[char] = bytes([number]) if len(self.classes) <= 256 else bytes([number >> 8, number & 255])
            out += code
        return bytes(out)


class _Readable(Builder):
    """A Builder whose nodes can be read back."""

    def node(self, number: Node) -> tuple[Any, ...]:
        return self._nodes[number]


class TextSet:
    """The texts that are in every tree of `wanted`, in no tree of `unwanted`, and of `lo` to `hi` characters."""

    def __init__(self, wanted: Iterable[Tree], unwanted: Iterable[Tree] = (), lo: int = 0, hi: int | None = None) -> None:
        wanted, unwanted = tuple(wanted), tuple(unwanted)
        sets = {s for tree in (*wanted, *unwanted) for s in _sets(tree)}
        self.alphabet = _Classes("classes", tuple(atoms(sets)))
        self.b = b = _Readable()
        parts = [b.repeat(self.alphabet.chars(b, SCALARS), lo, hi)] if (hi is None or lo <= hi) else [b.EMPTY]
        parts += [lower(b, tree, self.alphabet) for tree in wanted]
        parts += [b.complement(lower(b, tree, self.alphabet)) for tree in unwanted]
        self.root = b.both(*parts)
        self._nullable: dict[Node, bool] = {}
        self._derived: dict[tuple[Node, int], Node] = {}
        self._alive: dict[Node, bool] = {self.b.EMPTY: False}
        self._booleans: dict[Node, bool] = {}
        self._lengths: dict[Node, int] = {}

    def __contains__(self, text: str) -> bool:
        if any("\ud800" <= c <= "\udfff" for c in text):
            return False
        node = self.root
        for byte in self.alphabet.spelled(text):
            node = self.derive(node, byte)
            if node == self.b.EMPTY:
                return False
        return self.nullable(node)

    def is_empty(self) -> bool:
        """Nothing is in the set. A set whose search passes MAX_STATES counts as non-empty."""
        return not self.alive(self.root)

    def count_up_to(self, limit: int) -> int:
        """How many texts are in the set, but at most `limit`."""
        found = 0
        level = [("", self.root)] if self.alive(self.root) else []
        while level and found + len(level) < limit:  # each live beginning has at least one text of its own
            found += sum(self.nullable(node) for _, node in level)
            level = self._longer(level, limit)
        return min(limit, found + len(level))

    def shortest(self) -> str | None:
        """A shortest text of the set; None if it is empty or the search passes MAX_STATES."""
        level, seen = [("", self.root)], {self.root}
        while level and len(seen) < MAX_STATES:
            following = []
            for text, node in level:
                if self.nullable(node):
                    return text
                for code, chars in enumerate(self.alphabet.classes):
                    after = self.step(node, code)
                    if after not in seen and after != self.b.EMPTY:
                        seen.add(after)
                        following.append((text + chr(chars.ranges[0][0]), after))
            level = following
        return None

    def _longer(self, level: list[tuple[str, Node]], limit: int) -> list[tuple[str, Node]]:
        """Live beginnings one character longer, at most `limit` of them."""
        out: list[tuple[str, Node]] = []
        for text, node in level:
            for code, chars in enumerate(self.alphabet.classes):
                after = self.step(node, code)
                if self.alive(after):
                    out += [(text + chr(c), after) for lo, hi in chars.ranges for c in range(lo, min(hi, lo + limit) + 1)]
                if len(out) >= limit:
                    return out[:limit]
        return out

    # -- derivatives --------------------------------------------------------------------------------------------

    def step(self, node: Node, code: int) -> Node:
        if len(self.alphabet.classes) <= 256:
            return self.derive(node, code)
        return self.derive(self.derive(node, code >> 8), code & 255)

    def alive(self, node: Node) -> bool:
        """Can a member be reached from here?"""
        if node not in self._alive:
            self._alive[node] = self._search(node) if self._boolean(node) else node != self.b.EMPTY
        return self._alive[node]

    def _search(self, node: Node) -> bool:
        """What seems nearest to an end is looked at first: where there is a member, a short one is found without a detour."""
        seen, todo = {node}, [(self._least(node), node)]
        while todo:
            at = heappop(todo)[1]
            if self.nullable(at) or self._alive.get(at, False) or len(seen) > MAX_STATES:
                return True
            for code in range(len(self.alphabet.classes)):
                after = self.step(at, code)
                if after not in seen and self._alive.get(after, True):
                    seen.add(after)
                    heappush(todo, (self._least(after), after))
        self._alive.update(dict.fromkeys(seen, False))
        return False

    def _least(self, node: Node) -> int:
        """Bytes that a member has at least."""
        known = self._lengths.get(node)
        if known is None:
            n = self.b.node(node)
            op, below = n[0], [self._least(x) for x in n[1:]] if n[0] in (expr.OP_SEQ, expr.OP_ALT, expr.OP_AND) else []
            if op == expr.OP_SEQ:
                known = sum(below)
            elif op in (expr.OP_ALT, expr.OP_AND):
                known = min(below) if op == expr.OP_ALT else max(below)
            elif op == expr.OP_REPEAT:
                known = n[2] * self._least(n[1])
            elif op == expr.OP_TRIE:
                known = min(map(len, n[1:]))
            else:
                known = len(n[1]) if op == expr.OP_LITERAL else int(op == expr.OP_CLASS)
            self._lengths[node] = known
        return known

    def _boolean(self, node: Node) -> bool:
        """Does an intersection or complement occur below? Without one, every node but EMPTY has a member."""
        if node not in self._booleans:
            n = self.b.node(node)
            below = n[1:] if n[0] in (expr.OP_SEQ, expr.OP_ALT) else n[1:2] if n[0] == expr.OP_REPEAT else ()
            self._booleans[node] = n[0] in (expr.OP_AND, expr.OP_NOT) or any(map(self._boolean, below))
        return self._booleans[node]

    def nullable(self, node: Node) -> bool:
        if node not in self._nullable:
            self._nullable[node] = self._is_nullable(self.b.node(node))
        return self._nullable[node]

    def _is_nullable(self, n: tuple[Any, ...]) -> bool:
        op = n[0]
        if op in (expr.OP_SEQ, expr.OP_AND):
            return all(map(self.nullable, n[1:]))
        if op == expr.OP_ALT:
            return any(map(self.nullable, n[1:]))
        if op == expr.OP_REPEAT:
            return bool(n[2] == 0 or self.nullable(n[1]))
        if op == expr.OP_NOT:
            return not self.nullable(n[1])
        return bool(op == expr.OP_EPSILON or (op == expr.OP_TRIE and n[1] == b""))

    def derive(self, node: Node, byte: int) -> Node:
        key = (node, byte)
        if key not in self._derived:
            self._derived[key] = self._derive(self.b.node(node), byte)
        return self._derived[key]

    def _derive(self, n: tuple[Any, ...], byte: int) -> Node:
        b, op = self.b, n[0]
        if op == expr.OP_CLASS:
            return b.EPSILON if int.from_bytes(n[1], "little") >> byte & 1 else b.EMPTY
        if op == expr.OP_LITERAL:
            return b.literal(n[1][1:]) if n[1][0] == byte else b.EMPTY
        if op == expr.OP_TRIE:
            return b.trie(t[1:] for t in n[1:] if t[:1] == bytes([byte]))
        if op == expr.OP_ALT:
            return b.alt(*(self.derive(x, byte) for x in n[1:]))
        if op == expr.OP_AND:
            return b.both(*(self.derive(x, byte) for x in n[1:]))
        if op == expr.OP_NOT:
            return b.complement(self.derive(n[1], byte))
        if op == expr.OP_REPEAT:
            lo, hi = max(n[2] - 1, 0), None if n[3] == expr.UNBOUNDED else n[3] - 1
            return b.seq(self.derive(n[1], byte), b.repeat(n[1], lo, hi))
        if op == expr.OP_SEQ:
            out = []
            for i, x in enumerate(n[1:], 1):
                out.append(b.seq(self.derive(x, byte), *n[i + 1 :]))
                if not self.nullable(x):
                    break
            return b.alt(*out)
        return b.EMPTY


def _sets(tree: Tree) -> Iterator[CharSet]:
    todo = [tree]
    while todo:
        t = todo.pop()
        if isinstance(t, Chars):
            yield t.set
        elif isinstance(t, Beside):
            yield from (t.before, t.after)
        elif isinstance(t, Seq | Alt):
            todo.extend(t.parts)
        elif isinstance(t, Repeat | Look):
            todo.append(t.body)
