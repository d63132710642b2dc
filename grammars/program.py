"""Programs: grammars as integers, and how the nodes of a Builder become one.

Input: nodes as tuples (expr.py builds them); output: a `Program`, independent of any vocabulary, model or process and
addressed by its content. Nodes that many builders begin with are encoded once (`Fragment`): each program cuts out of them
what it reaches. Knows nothing of what the operators mean, only where their operands stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from agentkit.errors import GrammarError

OP_EMPTY, OP_EPSILON, OP_CLASS, OP_LITERAL, OP_SEQ, OP_ALT, OP_REPEAT, OP_AND, OP_NOT, OP_CALL = range(10)
OP_SPECIAL, OP_TRIE, OP_MEMBERS, OP_ABSENT, OP_AHEAD, OP_CLOSED, OP_DISTINCT = range(10, 17)

MOST_CUTS = 64  # parts of a fragment that are kept
FORMAT = 5  # raised whenever the meaning of a program's integers changes

Node = int
"""Index of an expression inside its Builder."""
Expression = tuple[Any, ...]
"""An operator and its operands, as a Builder holds them."""


@dataclass(frozen=True)
class Program:
    """A grammar as integers.

    code:   int32, all nodes one after the other in dependency order (children first, CALL excepted); layout by `encoded`
    starts: int32 [nodes], where each node begins in `code`
    blob:   uint8, literal bytes and 32-byte class bitmaps
    rules:  int32 [rules], node of each rule's body
    root:   node of the whole language
    specials: names of the special tokens used; SPECIAL and ABSENT nodes hold an index into it
    """

    code: np.ndarray
    starts: np.ndarray
    blob: np.ndarray
    rules: np.ndarray
    root: Node
    specials: tuple[str, ...] = ()
    digest: bytes = field(default=b"", compare=False)

    def settlers(self) -> list[bytes]:
        """For each AHEAD that the program uses: bytes of which a vocabulary must have one."""
        at = self.starts[self.code[self.starts] == OP_AHEAD]
        return [self.blob[o : o + n].tobytes() for o, n in zip(self.code[at + 3].tolist(), self.code[at + 4].tolist(), strict=True)]

    def resolved(self, names: Container[str]) -> tuple[np.ndarray, list[str | None]]:
        """For a vocabulary with the special tokens `names`: the code without ABSENT, and `specials` with None for those it lacks.

        Raises:
            GrammarError: a special token that the grammar needs is not among `names`.
        """
        if not self.specials:
            return self.code, []
        lacking = [name not in names for name in self.specials]
        ops = self.code[self.starts]
        at, special = self.starts[ops == OP_ABSENT], self.code[self.starts[ops == OP_SPECIAL] + 1]
        either = self.code[at + 1]
        needed = next((self.specials[i] for i in special.tolist() if lacking[i] and i not in either), None)
        if needed is not None:
            raise GrammarError(f"the grammar uses the special token {needed!r}, which this vocabulary does not have; spell it as text, or take Builder.marker")
        code = self.code.copy()
        code[at] = np.where(np.asarray(lacking)[either], OP_EPSILON, OP_EMPTY)
        return code, [None if lacks else name for name, lacks in zip(self.specials, lacking, strict=True)]

    @staticmethod
    def make(
        code: Sequence[int] | np.ndarray,
        starts: Sequence[int] | np.ndarray,
        blob: bytes,
        rules: Sequence[int] | np.ndarray,
        root: Node,
        specials: tuple[str, ...],
    ) -> Program:
        arrays = [np.asarray(x, np.int32) for x in (code, starts, rules)]
        h = hashlib.blake2b(digest_size=16)
        for part in (*(a.tobytes() for a in arrays), blob, repr((FORMAT, root, specials)).encode()):
            h.update(len(part).to_bytes(8, "little"))
            h.update(part)
        return Program(arrays[0], arrays[1], np.frombuffer(blob, np.uint8), arrays[2], root, specials, h.digest())


class Blob:
    """Bytes of literals and classes, each text once."""

    def __init__(self, begun: Blob | None = None) -> None:
        self.data: bytearray = bytearray() if begun is None else begun.data[:]
        self._places: dict[bytes, int] = {} if begun is None else dict(begun._places)

    def place(self, data: bytes) -> int:
        """Where `data` begins."""
        at = self._places.get(data)
        if at is None:
            at = self._places[data] = len(self.data)
            self.data += data
        return at


class Cut(NamedTuple):
    """A part of a fragment under its own numbers."""

    code: np.ndarray  # int32
    starts: list[int]
    numbers: list[int]  # of each node of the fragment; those of nodes left out mean nothing
    rules: list[int]  # the rules called, in order; they are numbered from 0


class Fragment:
    """Nodes that builders begin with, encoded once under their own numbers.

    nodes, rules: all that a Builder holds; the bodies of its rules are among the nodes.
    """

    def __init__(self, nodes: Sequence[Expression], rules: Sequence[Node]) -> None:
        self.size = len(nodes)
        self.blob = Blob()
        numbers, calls = range(len(nodes) + 1), range(len(rules) + 1)
        pieces = [encoded(n, numbers, calls, self.blob) for n in nodes]
        self._code = np.array([x for piece in pieces for x in piece], np.int32)
        self._owner = np.repeat(np.arange(self.size), [len(piece) for piece in pieces])
        # integers that change when nodes (or rules) are numbered otherwise are numbers of nodes (or of rules)
        self._is_node = self._code != [x for n in nodes for x in encoded(n, numbers[1:], calls, self.blob)]
        self._is_rule = self._code != [x for n in nodes for x in encoded(n, numbers, calls[1:], self.blob)]
        self._called = [n[1] if n[0] == OP_CALL else -1 for n in nodes]
        self._reach = _closure([operands(n, rules) for n in nodes])
        self._cuts: dict[int, Cut] = {}

    def cut(self, roots: Iterable[Node]) -> Cut:
        """What some nodes reach. There are few different answers, so they are kept."""
        reached = 0
        for root in roots:
            reached |= self._reach[root]
        found = self._cuts.get(reached)
        if found is None:
            if len(self._cuts) >= MOST_CUTS:
                self._cuts.clear()
            found = self._cuts[reached] = self._cut(reached)
        return found

    def _cut(self, reached: int) -> Cut:
        kept = [node for node in range(self.size) if reached >> node & 1]
        rules = sorted({self._called[node] for node in kept} - {-1})
        keep = np.zeros(self.size, bool)
        keep[kept] = True
        numbers, inside = np.cumsum(keep) - 1, keep[self._owner]
        code, is_node, is_rule = self._code[inside], self._is_node[inside], self._is_rule[inside]
        code[is_node] = numbers[code[is_node]]
        code[is_rule] = np.searchsorted(rules, code[is_rule])
        return Cut(code, np.flatnonzero(np.diff(self._owner[inside], prepend=-1)).tolist(), numbers.tolist(), rules)


def _closure(below: Sequence[Sequence[Node]]) -> list[int]:
    """What each node reaches, itself included, as bits; a fixpoint, since rules lead back."""
    sets = [1 << i for i in range(len(below))]
    changed = True
    while changed:
        changed = False
        for i, parts in enumerate(below):
            union = sets[i]
            for part in parts:
                union |= sets[part]
            changed |= union != sets[i]
            sets[i] = union
    return sets


def operands(n: Expression, rules: Sequence[Node]) -> Sequence[Node]:
    """The nodes that an expression is about; of a call, the body of its rule."""
    op = n[0]
    if op in (OP_SEQ, OP_ALT, OP_AND):
        return n[1:]
    if op in (OP_REPEAT, OP_NOT, OP_CLOSED, OP_DISTINCT):
        return (n[1],)
    if op == OP_AHEAD:
        return n[1:3]
    if op == OP_CALL:
        return (rules[n[1]],)
    if op == OP_MEMBERS:
        return (*(v for _, v, _ in n[1]), *(x for extra in n[2] for x in extra[:2]), *n[6:10])
    return ()


def encoded(n: Expression, numbers: Sequence[int], rules: Sequence[int] | Mapping[int, int], blob: Blob) -> list[int]:
    """An expression as integers (n' = number of an operand, o = offset into the blob):

    EMPTY, EPSILON [op]              CLASS [op, o]             LITERAL [op, o, length]
    SEQ, ALT, AND  [op, n, n'...]    REPEAT [op, n', lo, hi]   NOT, CLOSED [op, n']   CALL [op, rule']   SPECIAL, ABSENT [op, index]
    AHEAD   [op, settled', ends', o, length]                   DISTINCT [op, n', least]
    TRIE    [op, n, (o, length)...]                            texts sorted by their bytes
    MEMBERS [op, fields, extras, order, min, max, colon', comma', close', tail',
             (o, length, value', required) per field in declared order, (key', value', asked) per extra,
             field numbers sorted by key]
    """
    op = n[0]
    if op == OP_LITERAL:
        return [op, blob.place(n[1]), len(n[1])]
    if op in (OP_SEQ, OP_ALT, OP_AND):
        return [op, len(n) - 1, *[numbers[c] for c in n[1:]]]
    if op == OP_CLASS:
        return [op, blob.place(n[1])]
    if op == OP_REPEAT:
        return [op, numbers[n[1]], n[2], n[3]]
    if op in (OP_NOT, OP_CLOSED):
        return [op, numbers[n[1]]]
    if op == OP_AHEAD:
        return [op, numbers[n[1]], numbers[n[2]], blob.place(n[3]), len(n[3])]
    if op == OP_CALL:
        return [op, rules[n[1]]]
    if op == OP_DISTINCT:
        return [op, numbers[n[1]], n[2]]
    if op in (OP_SPECIAL, OP_ABSENT):
        return [op, n[1]]
    if op == OP_TRIE:
        return [op, len(n) - 1, *(x for text in n[1:] for x in (blob.place(text), len(text)))]
    return _members(n, numbers, blob) if op == OP_MEMBERS else [op]


def _members(n: Expression, numbers: Sequence[int], blob: Blob) -> list[int]:
    op, fields, extras, order, lo, hi, *separators = n
    code = [op, len(fields), len(extras), order, lo, hi, *[numbers[s] for s in separators]]
    for key, value, required in fields:
        code += (blob.place(key), len(key), numbers[value], int(required))
    for key, value, asked in extras:
        code += (numbers[key], numbers[value], int(asked))
    return code + sorted(range(len(fields)), key=lambda i: fields[i][0])


def assemble(nodes: Sequence[Expression], rules: Sequence[Node], root: Node, specials: tuple[str, ...], common: Fragment) -> Program:
    """What `root` reaches, as a Program. The first nodes are those of `common`; every node comes after its operands, calls excepted."""
    own, base, called = _reachable(nodes, rules, root, common.size)
    head = common.cut(base)
    kept_rules = [*head.rules, *sorted(called.difference(head.rules))]
    rule_numbers = {rule: i for i, rule in enumerate(kept_rules)}
    numbers = [*head.numbers, *[-1] * (len(nodes) - common.size)]
    for i, node in enumerate(own, len(head.starts)):
        numbers[node] = i
    blob = Blob(common.blob)
    code: list[int] = []
    starts: list[int] = []
    for node in own:
        starts.append(len(head.code) + len(code))
        code += encoded(nodes[node], numbers, rule_numbers, blob)
    bodies = [numbers[rules[rule]] for rule in kept_rules]
    return Program.make(np.concatenate([head.code, np.array(code, np.int32)]), head.starts + starts, bytes(blob.data), bodies, numbers[root], specials)


def _reachable(nodes: Sequence[Expression], rules: Sequence[Node], root: Node, common: int) -> tuple[list[Node], list[Node], set[int]]:
    """The nodes from `common` on that `root` reaches, in order; those before it that are met, in no order; the rules called."""
    seen: set[Node] = set()
    called: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node >= common:
            n = nodes[node]
            if n[0] == OP_CALL:
                called.add(n[1])
            stack += operands(n, rules)
    return sorted(n for n in seen if n >= common), [n for n in seen if n < common], called
