"""Syntax trees of regular expressions, and what can be read off them without an automaton.

A tree denotes a set of texts over code points; how a character is spelled in bytes is decided later (chars.Alphabet).
Constructors simplify (a repeat of a repeat, a sequence of one part), so that `((a*)*)*` is `a*`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agentkit.grammars.frontends.chars import EVERY, SCALARS, CharSet


class Tree:
    """Base of all syntax trees: immutable, compared by content; what is read off a tree is worked out once."""

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and hash(self) == hash(other) and self._fields() == other._fields())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), *self._fields()))

    @cached_property
    def conditions(self) -> bool:
        """Does the tree hold anchors, boundaries or look-around?"""
        return isinstance(self, (Beside, Look)) or any(part.conditions for part in self._inner())

    @cached_property
    def looks(self) -> bool:
        """Does the tree hold look-around?"""
        return isinstance(self, Look) or any(part.looks for part in self._inner())

    @cached_property
    def widths(self) -> tuple[int, int | None]:
        """Least and greatest number of characters (None: no greatest). Conditions count as empty."""
        return _widths(self)

    @cached_property
    def inhabited(self) -> bool:
        """Surely some text is a member: no conditions, and no part that nothing matches."""
        return _inhabited(self)

    def _inner(self) -> tuple[Tree, ...]:
        return self.parts if isinstance(self, (Seq, Alt)) else (self.body,) if isinstance(self, Repeat) else ()


@dataclass(frozen=True, eq=False)
class Chars(Tree):
    """One character of a set."""

    set: CharSet


@dataclass(frozen=True, eq=False)
class Seq(Tree):
    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True, eq=False)
class Alt(Tree):
    parts: tuple[Tree, ...] = ()


@dataclass(frozen=True, eq=False)
class Repeat(Tree):
    body: Tree
    lo: int
    hi: int | None


@dataclass(frozen=True, eq=False)
class Beside(Tree):
    """A condition on the two characters beside a position, consuming nothing: `^`, `$`, `\\b` are made of these.

    before, after: which characters may stand there; before_edge, after_edge: may the text begin (end) there?
    """

    before: CharSet = EVERY
    before_edge: bool = True
    after: CharSet = EVERY
    after_edge: bool = True


@dataclass(frozen=True, eq=False)
class Look(Tree):
    """(?=body), (?!body), (?<=body), (?<!body); position: where it stands in the pattern, for messages."""

    body: Tree
    ahead: bool
    negative: bool
    position: int


NEVER = Alt()
EMPTY_TEXT = Seq()
ANY_TEXT = Repeat(Chars(SCALARS), 0, None)
TEXT_START = Beside(before=CharSet())
TEXT_END = Beside(after=CharSet())


def seq(*parts: Tree) -> Tree:
    flat: list[Tree] = []
    for p in parts:
        if p == NEVER:
            return NEVER
        flat.extend(p.parts if isinstance(p, Seq) else (p,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*parts: Tree) -> Tree:
    flat: dict[Tree, None] = {}
    chars = CharSet()
    singles = 0
    for p in parts:
        for q in p.parts if isinstance(p, Alt) else (p,):
            if isinstance(q, Chars):
                chars, singles = chars | q.set, singles + 1
            else:
                flat[q] = None
    if singles:
        flat[Chars(chars)] = None
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(body: Tree, lo: int, hi: int | None) -> Tree:
    if body == NEVER:
        return EMPTY_TEXT if lo == 0 else NEVER
    if hi == 0 or body == EMPTY_TEXT:
        return EMPTY_TEXT
    if (lo, hi) == (1, 1):
        return body
    if isinstance(body, Beside | Look) or (isinstance(body, Alt | Seq) and all(isinstance(p, Beside | Look) for p in body.parts)):
        return body if lo else EMPTY_TEXT  # conditions alone: once is as good as often
    if isinstance(body, Repeat) and body.lo <= 1 and body.hi is None and hi is None:
        return Repeat(body.body, min(lo, 1) * body.lo if lo <= 1 else body.lo * lo, None)
    if isinstance(body, Repeat) and (body.lo, body.hi) == (0, 1):
        return Repeat(body.body, 0, hi)
    return Repeat(body, lo, hi)


def _inhabited(tree: Tree) -> bool:
    if isinstance(tree, Chars):
        return bool(tree.set & SCALARS)
    if isinstance(tree, Seq):
        return all(part.inhabited for part in tree.parts)
    if isinstance(tree, Alt):
        return any(part.inhabited for part in tree.parts) and not tree.conditions
    return isinstance(tree, Repeat) and (tree.body.inhabited or (tree.lo == 0 and not tree.body.conditions))


def nullable(tree: Tree) -> bool:
    """Is the empty text a member? For trees without conditions."""
    if isinstance(tree, Seq):
        return all(map(nullable, tree.parts))
    if isinstance(tree, Alt):
        return any(map(nullable, tree.parts))
    return isinstance(tree, Repeat) and (tree.lo == 0 or nullable(tree.body))


def without_empty(tree: Tree) -> Tree:
    """The same texts less the empty one. For trees without conditions."""
    if not nullable(tree):
        return tree
    if isinstance(tree, Alt):
        return alt(*(without_empty(p) for p in tree.parts))
    if isinstance(tree, Repeat):
        return repeat(without_empty(tree.body), 1, tree.hi)
    if isinstance(tree, Seq):
        return alt(*(seq(without_empty(p), *tree.parts[i + 1 :]) for i, p in enumerate(tree.parts)))
    raise TypeError(f"{tree!r} is not nullable")


def _widths(tree: Tree) -> tuple[int, int | None]:
    if isinstance(tree, Chars):
        return 1, 1
    if isinstance(tree, (Seq, Alt)):
        each = [part.widths for part in tree.parts]
        if isinstance(tree, Seq):
            return sum(lo for lo, _ in each), _total([hi for _, hi in each])
        highs = [hi for _, hi in each]
        return min((lo for lo, _ in each), default=0), None if None in highs else max((h for h in highs if h is not None), default=0)
    if isinstance(tree, Repeat):
        lo, hi = tree.body.widths
        return lo * tree.lo, 0 if hi == 0 else None if hi is None or tree.hi is None else hi * tree.hi
    return 0, 0


def _total(highs: list[int | None]) -> int | None:
    total = 0
    for h in highs:
        if h is None:
            return None
        total += h
    return total


def fixed_text(tree: Tree) -> str | None:
    """The only text of the tree, if it is a run of single characters."""
    if isinstance(tree, Chars):
        return tree.set.single()
    if isinstance(tree, Seq) and all(isinstance(p, Chars) and p.set.single() for p in tree.parts):
        return "".join(p.set.single() or "" for p in tree.parts if isinstance(p, Chars))
    return None
