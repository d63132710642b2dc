"""Grammar expressions as a flat program of integers.

A front end (JSON Schema, regex, turns ...) describes a language over bytes with a `Builder`; the result is a
`Program`: an int32 array plus a byte blob, independent of any vocabulary, model or process. Programs are
hash-consed while they are built (equal parts are one node), content-addressed by `Program.digest`, and lowered
in one compiled call into the arena that steps them (see arena.py). This module knows nothing of tokens.

The algebra (semantics are sets of byte strings; one extra symbol per special token):

    EMPTY        nothing                       SEQ(x, y, ...)   concatenation
    EPSILON      the empty text                ALT(x, y, ...)   choice
    CLASS        one byte of a set             REPEAT(x, lo, hi) lo to hi times; hi None: no upper bound
    LITERAL      a run of bytes                AND, NOT         intersection, complement (regular operands only)
    TRIE         one of many literals          CALL(rule)       a named, possibly recursive, rule
    SPECIAL      one special token             ABSENT           the empty text where the vocabulary lacks a special token
    MEMBERS      the inside of a JSON object, from the first key to the closing brace
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentkit.errors import GrammarError, GrammarTooComplex
from agentkit.grammars.effort import checkpoint

OP_EMPTY, OP_EPSILON, OP_CLASS, OP_LITERAL, OP_SEQ, OP_ALT, OP_REPEAT, OP_AND, OP_NOT, OP_CALL, OP_SPECIAL, OP_TRIE, OP_MEMBERS, OP_ABSENT = range(14)

MOST = 1 << 30  # repetitions that are counted
UNBOUNDED = -1  # hi of a repeat, max_properties of an object
FORMAT = 3  # raised whenever the meaning of a program's integers changes
DECLARED, ANY = 0, 1  # key orders of MEMBERS

Node = int
"""Index of an expression inside its Builder."""


@dataclass(frozen=True)
class Field:
    """A declared key of an object.

    key: the key as it is spelled between the quotes (UTF-8, already JSON-escaped, without the quotes).
    value: language of the value; EMPTY means the name is known but may not be used.
    """

    key: bytes
    value: Node
    required: bool = False


@dataclass(frozen=True)
class Extra:
    """A family of undeclared keys: `key` is the language between the quotes, `value` that of their values.

    Declared names never match an extra, and no undeclared key is ever produced twice.
    The spelling of keys must be one-to-one (one text per name), or names could be repeated under another spelling.
    asked: at least one member of the families that are marked so has to be there; their names must not run out.
    """

    key: Node
    value: Node
    asked: bool = False


@dataclass(frozen=True)
class Program:
    """A grammar as integers.

    code:   int32, all nodes one after the other in dependency order (children first, CALL excepted); layout by `_encode`
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


class Builder:
    """Builds one Program. Methods return node numbers; equal expressions get equal numbers.

    Rules: `rule()` reserves one, `call(rule)` refers to it (also before it is defined), `define(rule, body)` sets it.
    Left recursion is the front end's to remove. AND and NOT take regular operands only: no recursive CALL below them.
    """

    EMPTY: Node = 0
    EPSILON: Node = 1

    def __init__(self) -> None:
        self._nodes: list[tuple[Any, ...]] = [(OP_EMPTY,), (OP_EPSILON,)]
        self._index: dict[tuple[Any, ...], Node] = {n: i for i, n in enumerate(self._nodes)}
        self._rules: list[Node | None] = []
        self._specials: dict[str, int] = {}

    def _add(self, *key: object) -> Node:
        node = self._index.get(key)
        if node is None:
            checkpoint()
            node = self._index[key] = len(self._nodes)
            self._nodes.append(key)
        return node

    def literal(self, data: bytes) -> Node:
        return self._add(OP_LITERAL, bytes(data)) if data else self.EPSILON

    def byte_class(self, members: Iterable[int] | int) -> Node:
        """One byte. `members`: the byte values, or an int whose bit b says whether byte b belongs."""
        if isinstance(members, int):
            bits = members
        else:
            bits = 0
            for member in members:
                bits |= 1 << member
        if bits == 0:
            return self.EMPTY
        if bits & (bits - 1) == 0:
            return self.literal(bytes([bits.bit_length() - 1]))
        return self._add(OP_CLASS, bits.to_bytes(32, "little"))

    def seq(self, *parts: Node) -> Node:
        flat: list[Node] = []
        for p in parts:
            if p == self.EMPTY:
                return self.EMPTY
            for q in self._nodes[p][1:] if self._nodes[p][0] == OP_SEQ else (p,):
                last, this = (self._nodes[flat[-1]] if flat else (None,)), self._nodes[q]
                if q == self.EPSILON:
                    continue
                if last[0] == OP_LITERAL and this[0] == OP_LITERAL:
                    flat[-1] = self.literal(last[1] + this[1])
                else:
                    flat.append(q)
        if not flat:
            return self.EPSILON
        return flat[0] if len(flat) == 1 else self._add(OP_SEQ, *flat)

    def alt(self, *choices: Node) -> Node:
        """Choice. Bytes and classes among the choices are merged into one class."""
        flat: dict[Node, None] = {}
        bits = singles = 0
        for c in choices:
            for q in self._nodes[c][1:] if self._nodes[c][0] == OP_ALT else (c,):
                n = self._nodes[q]
                if n[0] == OP_CLASS:
                    bits |= int.from_bytes(n[1], "little")
                    singles += 1
                elif n[0] == OP_LITERAL and len(n[1]) == 1:
                    bits |= 1 << n[1][0]
                    singles += 1
                elif q != self.EMPTY:
                    flat[q] = None
        if singles:
            flat[self.byte_class(bits)] = None
        if not flat:
            return self.EMPTY
        return next(iter(flat)) if len(flat) == 1 else self._add(OP_ALT, *sorted(flat))

    def optional(self, x: Node) -> Node:
        return self.alt(self.EPSILON, x)

    def repeat(self, x: Node, lo: int = 0, hi: int | None = None) -> Node:
        """`x` at least `lo` and at most `hi` times (None: no bound). Counts are counters, never unrolled.

        No text is as long as MOST: a higher `hi` is none. Raises GrammarTooComplex for a higher `lo`.
        """
        hi = _counted(lo, hi)
        if lo < 0 or (hi is not None and hi < lo):
            raise ValueError(f"repeat {{{lo},{hi}}}: bounds out of order")
        if hi == 0 or x == self.EPSILON:
            return self.EPSILON
        if x == self.EMPTY:
            return self.EPSILON if lo == 0 else self.EMPTY
        if (lo, hi) == (1, 1):
            return x
        return self._add(OP_REPEAT, x, lo, UNBOUNDED if hi is None else hi)

    def both(self, *parts: Node) -> Node:
        """Intersection of regular languages."""
        flat = sorted({q for p in parts for q in (self._nodes[p][1:] if self._nodes[p][0] == OP_AND else (p,))})
        if self.EMPTY in flat:
            return self.EMPTY
        return flat[0] if len(flat) == 1 else self._add(OP_AND, *flat)

    def complement(self, x: Node) -> Node:
        """All byte strings (valid UTF-8 or not) that are not in the regular language `x`; intersect it with a universe."""
        n = self._nodes[x]
        return n[1] if n[0] == OP_NOT else self._add(OP_NOT, x)

    def trie(self, texts: Iterable[bytes]) -> Node:
        """One of many literals; as cheap to step with 100,000 of them as with two. Duplicates are merged."""
        members = sorted(set(texts))
        if len(members) < 2:
            return self.literal(members[0]) if members else self.EMPTY
        return self._add(OP_TRIE, *members)

    def special(self, name: str) -> Node:
        """The special token spelled `name`; only this matches it, never text that looks alike. A vocabulary without it refuses the grammar."""
        return self._add(OP_SPECIAL, self._specials.setdefault(name, len(self._specials)))

    def absent(self, name: str) -> Node:
        """The empty text for a vocabulary without the special token `name`, nothing for one that has it."""
        return self._add(OP_ABSENT, self._specials.setdefault(name, len(self._specials)))

    def marker(self, name: str) -> Node:
        """The special token `name` where the vocabulary has it, else its text: some families spell their markers either way."""
        return self.alt(self.special(name), self.seq(self.absent(name), self.literal(name.encode())))

    def rule(self) -> int:
        self._rules.append(None)
        return len(self._rules) - 1

    def call(self, rule: int) -> Node:
        return self._add(OP_CALL, rule)

    def define(self, rule: int, body: Node) -> None:
        self._rules[rule] = body

    def members(
        self,
        fields: Sequence[Field],
        extras: Sequence[Extra] = (),
        *,
        order: int = DECLARED,
        min_properties: int = 0,
        max_properties: int | None = None,
        colon: Node | None = None,
        comma: Node | None = None,
        tail: Node = 1,
        close: Node | None = None,
    ) -> Node:
        """The inside of a JSON object: everything after `{` (and the white space that follows it), the closing brace included.

        order: DECLARED: declared keys in their order, extras only once no required key is left to come;
               ANY: every order. Either way each key at most once and every required key.
        colon, comma, close: the separators with the white space that belongs to them (default: bare `:` `,` `}`).
        tail: white space after a value, before `,` or `}`.
        Callers guarantee that something can match (a required field is not EMPTY, the bounds can be met).
        """
        spec = tuple((f.key, f.value, f.required) for f in fields)
        more = tuple((e.key, e.value, e.asked) for e in extras if self.EMPTY not in (e.key, e.value))
        if any(e.asked for e in extras) and not any(asked for _, _, asked in more):
            return self.EMPTY
        punctuation = tuple(self.literal(t) if n is None else n for t, n in ((b":", colon), (b",", comma), (b"}", close)))
        max_properties = _counted(min_properties, max_properties)
        top = UNBOUNDED if max_properties is None else max_properties
        return self._add(OP_MEMBERS, spec, more, order, min_properties, top, *punctuation, tail)

    def program(self, root: Node) -> Program:
        """Everything reachable from `root`, renumbered, as a Program."""
        missing = [i for i, body in enumerate(self._rules) if body is None]
        if missing:
            raise ValueError(f"rules {missing} were reserved but never defined")
        return _encode(self._nodes, [b for b in self._rules if b is not None], root, tuple(self._specials))


def _counted(lo: int, hi: int | None) -> int | None:
    """`hi` as far as it can matter."""
    if lo > MOST:
        raise GrammarTooComplex("count", f"something is asked for at least {lo} times, more than {MOST}")
    return None if hi is not None and hi > MOST else hi


def _children(n: tuple[Any, ...]) -> tuple[Node, ...]:
    op = n[0]
    if op in (OP_SEQ, OP_ALT, OP_AND):
        return n[1:]
    if op in (OP_REPEAT, OP_NOT):
        return (n[1],)
    if op == OP_MEMBERS:
        return (*(v for _, v, _ in n[1]), *(x for extra in n[2] for x in extra[:2]), *n[6:10])
    return ()


def _reachable(nodes: list[tuple[Any, ...]], rules: list[Node], root: Node) -> tuple[list[Node], list[int]]:
    """Nodes in dependency order and the rules they call, found without recursion (grammars may be deep)."""
    order: list[Node] = []
    seen: set[Node] = set()
    called: dict[int, None] = {}
    roots = [root]
    while roots:
        stack = [(roots.pop(), False)]
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
                continue
            if node in seen:
                continue
            seen.add(node)
            stack.append((node, True))
            n = nodes[node]
            if n[0] == OP_CALL and n[1] not in called:
                called[n[1]] = None
                roots.append(rules[n[1]])
            stack.extend((c, False) for c in _children(n) if c not in seen)
    return order, list(called)


def _encode(nodes: list[tuple[Any, ...]], rules: list[Node], root: Node, specials: tuple[str, ...]) -> Program:
    """Layout of a node in `code` (n' = renumbered node, o = offset into `blob`):

    EMPTY, EPSILON [op]              CLASS [op, o]             LITERAL [op, o, length]
    SEQ, ALT, AND  [op, n, n'...]    REPEAT [op, n', lo, hi]   NOT [op, n']     CALL [op, rule']    SPECIAL, ABSENT [op, index]
    TRIE    [op, n, (o, length)...]                            texts sorted by their bytes
    MEMBERS [op, fields, extras, order, min, max, colon', comma', close', tail',
             (o, length, value', required) per field in declared order, (key', value', asked) per extra,
             field numbers sorted by key]
    """
    order, called = _reachable(nodes, rules, root)
    new = {old: i for i, old in enumerate(order)}
    new_rule = {old: i for i, old in enumerate(called)}
    code: list[int] = []
    starts: list[int] = []
    blob = bytearray()
    places: dict[bytes, int] = {}

    def place(data: bytes) -> int:
        if data not in places:
            places[data] = len(blob)
            blob.extend(data)
        return places[data]

    for old in order:
        n = nodes[old]
        op = n[0]
        starts.append(len(code))
        code.append(op)
        if op == OP_CLASS:
            code.append(place(n[1]))
        elif op == OP_LITERAL:
            code += [place(n[1]), len(n[1])]
        elif op in (OP_SEQ, OP_ALT, OP_AND):
            code += [len(n) - 1, *(new[c] for c in n[1:])]
        elif op == OP_REPEAT:
            code += [new[n[1]], n[2], n[3]]
        elif op == OP_NOT:
            code.append(new[n[1]])
        elif op == OP_CALL:
            code.append(new_rule[n[1]])
        elif op in (OP_SPECIAL, OP_ABSENT):
            code.append(n[1])
        elif op == OP_TRIE:
            code.append(len(n) - 1)
            for text in n[1:]:
                code += [place(text), len(text)]
        elif op == OP_MEMBERS:
            _, fields, extras, key_order, lo, hi, *separators = n
            code += [len(fields), len(extras), key_order, lo, hi, *(new[s] for s in separators)]
            for key, value, required in fields:
                code += [place(key), len(key), new[value], int(required)]
            for key, value, asked in extras:
                code += [new[key], new[value], int(asked)]
            code += sorted(range(len(fields)), key=lambda i: fields[i][0])
    return Program.make(code, starts, bytes(blob), [new[rules[r]] for r in called], new[root], specials)
