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
    AHEAD        the empty text, where what follows is right       CLOSED(x)  x, in which AHEAD does not see what follows x
    DISTINCT(x, least)  x, the inside of a JSON array, without the texts in which two items are equal
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentkit.errors import GrammarTooComplex
from agentkit.grammars.effort import checkpoint
from agentkit.grammars.program import (
    OP_ABSENT,
    OP_AHEAD,
    OP_ALT,
    OP_AND,
    OP_CALL,
    OP_CLASS,
    OP_CLOSED,
    OP_DISTINCT,
    OP_EMPTY,
    OP_EPSILON,
    OP_LITERAL,
    OP_MEMBERS,
    OP_NOT,
    OP_REPEAT,
    OP_SEQ,
    OP_SPECIAL,
    OP_TRIE,
    Expression,
    Fragment,
    Node,
    Program,
    assemble,
)

__all__ = [
    "ANY",
    "DECLARED",
    "MOST",
    "OP_ABSENT",
    "OP_AHEAD",
    "OP_ALT",
    "OP_AND",
    "OP_CALL",
    "OP_CLASS",
    "OP_CLOSED",
    "OP_DISTINCT",
    "OP_EMPTY",
    "OP_EPSILON",
    "OP_LITERAL",
    "OP_MEMBERS",
    "OP_NOT",
    "OP_REPEAT",
    "OP_SEQ",
    "OP_SPECIAL",
    "OP_TRIE",
    "UNBOUNDED",
    "Builder",
    "Extra",
    "Field",
    "Node",
    "Program",
]

MOST = 1 << 30  # repetitions that are counted
UNBOUNDED = -1  # hi of a repeat, max_properties of an object
DECLARED, ANY = 0, 1  # key orders of MEMBERS


class Field(NamedTuple):
    """A declared key of an object.

    key: the key as it is spelled between the quotes (UTF-8, already JSON-escaped, without the quotes).
    value: language of the value; EMPTY means the name is known but may not be used.
    """

    key: bytes
    value: Node
    required: bool = False


class Extra(NamedTuple):
    """A family of undeclared keys: `key` is the language between the quotes, `value` that of their values.

    Declared names never match an extra, and no undeclared key is ever produced twice.
    The spelling of keys must be one-to-one (one text per name), or names could be repeated under another spelling.
    asked: at least one member of the families that are marked so has to be there; their names must not run out.
    """

    key: Node
    value: Node
    asked: bool = False


@dataclass(frozen=True, eq=False)
class Beginning:
    """Nodes that a Builder has from the start, so that they are made and encoded once for many programs."""

    nodes: tuple[Expression, ...]
    index: dict[Expression, Node]
    rules: tuple[Node, ...]
    named: dict[Hashable, Node]
    fragment: Fragment


class Builder:
    """Builds one Program. Methods return node numbers; equal expressions get equal numbers.

    Rules: `rule()` reserves one, `call(rule)` refers to it (also before it is defined), `define(rule, body)` sets it.
    Left recursion is the front end's to remove. AND and NOT take regular operands only: no recursive CALL below them.
    """

    EMPTY: Node = 0
    EPSILON: Node = 1

    def __init__(self, begun: Beginning | None = None) -> None:
        begun = _BARE if begun is None else begun
        self._common = begun.fragment
        self._nodes: list[Expression] = list(begun.nodes)
        self._index: dict[Expression, Node] = dict(begun.index)
        self._rules: list[Node | None] = list(begun.rules)
        self._named: dict[Hashable, Node] = dict(begun.named)
        self._specials: dict[str, int] = {}

    def beginning(self) -> Beginning:
        """All nodes so far, for other builders to begin with. Every rule must be defined, and no special token used."""
        return Beginning(tuple(self._nodes), dict(self._index), tuple(self._bodies()), dict(self._named), Fragment(self._nodes, self._bodies()))

    def named(self, key: Hashable, make: Callable[[], Node]) -> Node:
        """The node that `make` builds, made once per Builder and key."""
        node = self._named.get(key)
        if node is None:
            node = self._named[key] = make()
        return node

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
        nodes = self._nodes
        flat: list[Node] = []
        text = b""  # of the literals since the last part of another kind
        for p in parts:
            n = nodes[p]
            for q in n[1:] if n[0] == OP_SEQ else (p,):
                if q == self.EMPTY:
                    return self.EMPTY
                n = nodes[q]
                if n[0] == OP_LITERAL:
                    if text:
                        flat.pop()
                    text += n[1]
                    flat.append(q if text == n[1] else self.literal(text))
                elif q != self.EPSILON:
                    text = b""
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

    def ahead(self, settled: Node, ends: Node, settlers: bytes) -> Node:
        """The empty text, where what follows begins with a text of `settled`, or is a text of `ends` and then the end of it all.

        Regular languages without a text that begins another of `settled`; the end right here must be among `ends`. Callers guarantee
        that each of `settlers` is a text of `settled` which may follow wherever this stands, without changing what may come after it.
        """
        return self._add(OP_AHEAD, settled, ends, bytes(settlers))

    def closed(self, x: Node) -> Node:
        """`x`, as if it were all of the text: to be put around what holds `ahead` before it becomes a part of something larger."""
        return x if x in (self.EMPTY, self.EPSILON) or self._nodes[x][0] == OP_CLOSED else self._add(OP_CLOSED, x)

    def distinct(self, x: Node, least: int = 0) -> Node:
        """`x`, the inside of a JSON array from behind `[` to the closing bracket, where no two items are equal JSON values.

        least: items that `x` asks for, all of one language; 0 where those that are asked for can never equal each other. Callers guarantee
        that whatever items have been written, as many as are still asked for can follow, and that a value has finitely many spellings.
        """
        return x if x in (self.EMPTY, self.EPSILON) else self._add(OP_DISTINCT, x, least)

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
        spec = tuple(fields)
        more = tuple(e for e in extras if self.EMPTY not in (e.key, e.value))
        if any(e.asked for e in extras) and not any(e.asked for e in more):
            return self.EMPTY
        punctuation = tuple(self.literal(t) if n is None else n for t, n in ((b":", colon), (b",", comma), (b"}", close)))
        max_properties = _counted(min_properties, max_properties)
        top = UNBOUNDED if max_properties is None else max_properties
        return self._add(OP_MEMBERS, spec, more, order, min_properties, top, *punctuation, tail)

    def program(self, root: Node) -> Program:
        """Everything reachable from `root`, renumbered, as a Program."""
        return assemble(self._nodes, self._bodies(), root, tuple(self._specials), self._common)

    def _bodies(self) -> list[Node]:
        missing = [i for i, body in enumerate(self._rules) if body is None]
        if missing:
            raise ValueError(f"rules {missing} were reserved but never defined")
        return [b for b in self._rules if b is not None]


_NOTHING = ((OP_EMPTY,), (OP_EPSILON,))
_BARE = Beginning(_NOTHING, {n: i for i, n in enumerate(_NOTHING)}, (), {}, Fragment(_NOTHING, ()))


def _counted(lo: int, hi: int | None) -> int | None:
    """`hi` as far as it can matter."""
    if lo > MOST:
        raise GrammarTooComplex("count", f"something is asked for at least {lo} times, more than {MOST}")
    return None if hi is not None and hi > MOST else hi
