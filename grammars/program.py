"""Programs: grammars as integers, and how the nodes of a Builder become one.

Input: nodes as tuples (expr.py builds them); output: a `Program`, independent of any vocabulary, model or process and
addressed by its content. Nodes that many builders begin with are encoded once (`Fragment`): each program cuts out of them
what it reaches. Knows nothing of what the operators mean, only where their operands stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentkit.errors import GrammarError

OP_EMPTY, OP_EPSILON, OP_CLASS, OP_LITERAL, OP_SEQ, OP_ALT, OP_REPEAT, OP_AND, OP_NOT, OP_CALL, OP_SPECIAL, OP_TRIE, OP_MEMBERS, OP_ABSENT = range(14)

FORMAT = 3  # raised whenever the meaning of a program's integers changes

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
        self._rule = np.array([n[1] if n[0] == OP_CALL else -1 for n in nodes], np.int32)
        self._reach = _closure([operands(n, rules) for n in nodes])

    def reached(self, roots: list[Node]) -> tuple[np.ndarray, list[int]]:
        """What the nodes `roots` reach, bool [size], and the rules that are called there."""
        keep: np.ndarray = np.any(self._reach[roots], axis=0)
        return keep, sorted({rule for rule in self._rule[keep].tolist() if rule >= 0})

    def cut(self, keep: np.ndarray, rules: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The nodes kept as (code, starts, their new numbers, int [size]). rules: new numbers of rules."""
        numbers = np.cumsum(keep) - 1
        inside = keep[self._owner]
        code, is_node, is_rule = self._code[inside], self._is_node[inside], self._is_rule[inside]
        code[is_node] = numbers[code[is_node]]
        code[is_rule] = [rules[rule] for rule in code[is_rule].tolist()]
        return code, np.flatnonzero(np.diff(self._owner[inside], prepend=-1)), numbers


def _closure(below: Sequence[Sequence[Node]]) -> np.ndarray:
    """bool [nodes, nodes]: what each node reaches, itself included; a fixpoint, since rules lead back."""
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
    width = (len(below) + 7) // 8
    packed = np.frombuffer(b"".join(s.to_bytes(width, "little") for s in sets), np.uint8).reshape(len(below), width)
    return np.unpackbits(packed, axis=1, count=len(below), bitorder="little").astype(bool)


def operands(n: Expression, rules: Sequence[Node]) -> Sequence[Node]:
    """The nodes that an expression is about; of a call, the body of its rule."""
    op = n[0]
    if op in (OP_SEQ, OP_ALT, OP_AND):
        return n[1:]
    if op in (OP_REPEAT, OP_NOT):
        return (n[1],)
    if op == OP_CALL:
        return (rules[n[1]],)
    if op == OP_MEMBERS:
        return (*(v for _, v, _ in n[1]), *(x for extra in n[2] for x in extra[:2]), *n[6:10])
    return ()


def encoded(n: Expression, numbers: Sequence[int], rules: Sequence[int], blob: Blob) -> list[int]:
    """An expression as integers (n' = number of an operand, o = offset into the blob):

    EMPTY, EPSILON [op]              CLASS [op, o]             LITERAL [op, o, length]
    SEQ, ALT, AND  [op, n, n'...]    REPEAT [op, n', lo, hi]   NOT [op, n']     CALL [op, rule']    SPECIAL, ABSENT [op, index]
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
    if op == OP_NOT:
        return [op, numbers[n[1]]]
    if op == OP_CALL:
        return [op, rules[n[1]]]
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
    keep, called_there = common.reached(base)
    rule_numbers = [-1] * len(rules)
    kept_rules = sorted({*called, *called_there})
    for i, rule in enumerate(kept_rules):
        rule_numbers[rule] = i
    head, head_starts, head_numbers = common.cut(keep, rule_numbers)
    numbers = [*head_numbers.tolist(), *[-1] * (len(nodes) - common.size)]
    for i, node in enumerate(own, len(head_starts)):
        numbers[node] = i
    blob = Blob(common.blob)
    code: list[int] = []
    starts: list[int] = []
    for node in own:
        starts.append(len(head) + len(code))
        code += encoded(nodes[node], numbers, rule_numbers, blob)
    bodies = [numbers[rules[rule]] for rule in kept_rules]
    return Program.make(np.concatenate([head, np.array(code, np.int32)]), [*head_starts.tolist(), *starts], bytes(blob.data), bodies, numbers[root], specials)


def _reachable(nodes: Sequence[Expression], rules: Sequence[Node], root: Node, common: int) -> tuple[list[Node], list[Node], set[int]]:
    """The nodes from `common` on that `root` reaches, in order; those before it that are met on the way; the rules called on the way."""
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
    return sorted(n for n in seen if n >= common), sorted(n for n in seen if n < common), called
