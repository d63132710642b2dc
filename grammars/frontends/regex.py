"""Regular expressions to nodes: exact, anchors and look-around included.

Input: a pattern (or its tree) and an Alphabet; output: a node of the texts it matches, in full or anywhere (`search`).
Knows nothing of schemas. Trees without conditions are lowered directly. Otherwise:

- Conditions on neighbouring characters (`^ $ \\b \\B`, look-around of one character) are solved by context: characters are
  divided into the few classes the conditions can tell apart, and each part of the pattern is lowered once per class of the
  character before it, after it, and its own first and last one (see regex_contexts.py). A condition then holds or fails outright.
- Look-ahead is the intersection of what follows with `body . any*` (its complement when negative), along the spine of the
  pattern (see `_Spine`); look-behind likewise with what came before, from the beginning of the text.
"""

from __future__ import annotations

import re

from agentkit.errors import InvalidGrammar, UnsupportedSchema
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends import regex_ast as ast
from agentkit.grammars.frontends.chars import EVERY, SCALARS, UTF8, Alphabet, CharSet
from agentkit.grammars.frontends.regex_ast import Alt, Beside, Chars, Look, Repeat, Seq, Tree
from agentkit.grammars.frontends.regex_contexts import EDGE, MAX_UNROLLED, Contexts, Words, plain
from agentkit.grammars.frontends.regex_parser import PYTHON_END, Dialect, parse
from agentkit.grammars.frontends.unicode_sets import NEWLINE


def compile_regex(
    builder: Builder,
    pattern: str,
    *,
    dialect: Dialect = "ecma",
    search: bool = False,
    alphabet: Alphabet = UTF8,
    flags: str = "",
    pointer: str | None = None,
) -> Node:
    """The texts that a pattern matches; EMPTY if there are none.

    search: the pattern may match anywhere (JSON Schema's `pattern`); otherwise the whole text (re.fullmatch).
    alphabet: how characters are spelled: chars.UTF8 for plain text, chars.JSON for the inside of a JSON string.
    pointer: where in a schema the pattern stands; errors name it.
    Raises InvalidGrammar (with the offset), UnsupportedSchema (naming the construct), GrammarTooComplex.
    """
    key = ("regex", pattern, dialect, search, alphabet, flags)
    return builder.named(key, lambda: lower(builder, whole_text(parse(pattern, dialect, flags=flags, pointer=pointer), search), alphabet, pointer))


_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x", re.ASCII: "a"}


def regex_node(builder: Builder, pattern: str, *, flags: int | re.RegexFlag = 0, dialect: Dialect = "python") -> Node:
    """The texts that a pattern matches as a whole, in UTF-8; EMPTY if there are none. `flags`: those of `re`, in either dialect.

    Raises InvalidGrammar (with the offset), UnsupportedSchema (naming the construct), GrammarTooComplex.
    """
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    unknown = re.RegexFlag(flags & ~sum(_FLAGS) & ~re.UNICODE)
    if unknown:
        raise UnsupportedSchema("flags", str(unknown), "it changes no language of texts; leave it out")
    if dialect not in ("python", "ecma"):
        raise InvalidGrammar(f"the dialect {dialect!r} is not known; it is 'python' or 'ecma'")
    return compile_regex(builder, pattern, dialect=dialect, flags=letters)


def whole_text(tree: Tree, search: bool) -> Tree:
    """A tree of the whole texts: anchors at the edges are dropped, and `any*` stands at the sides left open by a search."""
    branches = tree.parts if isinstance(tree, Alt) else (tree,)
    whole = [_whole_branch(b, search) for b in branches]
    return ast.ANY_TEXT if ast.ANY_TEXT in whole else ast.alt(*whole)


def _whole_branch(branch: Tree, search: bool) -> Tree:
    parts = list(branch.parts) if isinstance(branch, Seq) else [branch]
    left = right = search
    while parts and parts[0] == ast.TEXT_START:
        left = False
        parts.pop(0)
    tail: list[Tree] = []
    while parts and parts[-1] in (ast.TEXT_END, PYTHON_END):
        if parts.pop() == PYTHON_END and right:
            tail = [Repeat(Chars(NEWLINE), 0, 1)]
        else:
            tail = []
        right = False
    if left and right and all(not p.conditions and ast.nullable(p) for p in parts):
        return ast.ANY_TEXT
    if left and parts:
        parts[0] = _least(parts[0])
    if right and parts:
        parts[-1] = _least(parts[-1])
    return ast.seq(*([ast.ANY_TEXT] if left else []), *parts, *([ast.ANY_TEXT] if right else []), *tail)


def _least(tree: Tree) -> Tree:
    """Beside `any*`, a repeat need not go beyond its lower bound."""
    if isinstance(tree, Repeat) and not tree.conditions:
        return ast.repeat(tree.body, tree.lo, tree.lo)
    return tree


def lower(builder: Builder, tree: Tree, alphabet: Alphabet = UTF8, pointer: str | None = None) -> Node:
    """Node of the whole texts of a tree."""
    tree = _simplify(tree)
    if not tree.conditions:
        return plain(builder, tree, alphabet)
    spine = _Spine(Contexts(builder, tree, alphabet), pointer)
    empty, words = spine.texts((tree,), EDGE, True)
    return builder.alt(builder.EPSILON if empty else builder.EMPTY, *words.values())


def _simplify(tree: Tree) -> Tree:
    """Look-around of at most one character becomes a condition on the neighbour."""
    if isinstance(tree, Seq):
        return ast.seq(*map(_simplify, tree.parts))
    if isinstance(tree, Alt):
        return ast.alt(*map(_simplify, tree.parts))
    if isinstance(tree, Repeat):
        return ast.repeat(_simplify(tree.body), tree.lo, tree.hi)
    if isinstance(tree, Look):
        body = _simplify(tree.body)
        return _neighbour(body, tree) or Look(body, tree.ahead, tree.negative, tree.position)
    return tree


def _neighbour(body: Tree, look: Look) -> Tree | None:
    """The condition on one neighbour that equals a look-around, or None."""
    chars, edge = CharSet(), False
    only_edge = ast.TEXT_END if look.ahead else ast.TEXT_START
    for part in body.parts if isinstance(body, Alt) else (body,):
        if isinstance(part, Chars):
            chars = chars | part.set
        elif part == only_edge:
            edge = True
        elif not part.conditions and ast.nullable(part):
            chars, edge = EVERY, True
        else:
            return None
    if look.negative:
        chars, edge = ~chars, not edge
    return Beside(after=chars, after_edge=edge) if look.ahead else Beside(before=chars, before_edge=edge)


class _Spine:
    """Whole rests of texts, where look-around is intersection.

    `texts(items, before, origin)`: what may follow, up to the end of the text, a character of class `before` so that the items
    match one after the other: (is the empty text one?, the others by class of their first character). origin: nothing came before.
    """

    def __init__(self, contexts: Contexts, pointer: str | None) -> None:
        self.c, self.b, self.pointer = contexts, contexts.b, pointer

    def refuse(self, look: Look | None, why: str) -> UnsupportedSchema:
        name = "look-around" if look is None else "look-ahead" if look.ahead else "look-behind"
        if self.pointer is None:
            return UnsupportedSchema(f"offset {look.position if look else 0}", name, why)
        return UnsupportedSchema(self.pointer, "pattern", f"{name} at offset {look.position if look else 0}: {why}")

    def texts(self, items: tuple[Tree, ...], before: int, origin: bool) -> tuple[bool, dict[int, Node]]:
        items = tuple(q for p in items for q in (p.parts if isinstance(p, Seq) else (p,)))
        split = next((i for i, p in enumerate(items) if p.looks), len(items))
        head, rest = ast.seq(*items[:split]), items[split:]
        if not rest:
            return self.last(head, before)
        if isinstance(rest[0], Look) and not rest[0].ahead:
            behind = tuple(p for p in rest if isinstance(p, Look) and not p.ahead)
            count = next((i for i, p in enumerate(rest) if not isinstance(p, Look) or p.ahead), len(rest))
            if not origin:
                raise self.refuse(rest[0], "it may only follow parts without other look-around")
            return self.join(head, behind[:count], rest[count:], before)
        if split:
            return self.join(head, (), rest, before)
        return self.branch(rest[0], rest[1:], before, origin)

    def last(self, tree: Tree, before: int) -> tuple[bool, dict[int, Node]]:
        empty, words = self.c.words(tree, before, EDGE)
        return empty, self.by_first(words)

    def by_first(self, words: Words) -> dict[int, Node]:
        out: dict[int, list[Node]] = {}
        for (f, _), node in words.items():
            out.setdefault(f, []).append(node)
        return {f: self.b.alt(*nodes) for f, nodes in out.items()}

    def join(self, head: Tree, behind: tuple[Look, ...], rest: tuple[Tree, ...], before: int) -> tuple[bool, dict[int, Node]]:
        """A look-free head (which every look of `behind` must accept as what came before), then the rest."""
        b = self.b
        empty_rest, words_rest = self.texts(rest, before, False)
        out: dict[int, list[Node]] = {}
        for f, node in words_rest.items():
            if self.head(head, behind, before, f)[0]:
                out.setdefault(f, []).append(node)
        for after in (EDGE, *range(len(self.c.after))):
            for (f, t), first in self.head(head, behind, before, after)[1].items():
                empty, words = self.texts(rest, t, False)
                if after == EDGE:
                    out.setdefault(f, []).extend([first] if empty else [])
                elif after in words:
                    out.setdefault(f, []).append(b.seq(first, words[after]))
        return empty_rest and self.head(head, behind, before, EDGE)[0], self.clean(out)

    def clean(self, out: dict[int, list[Node]]) -> dict[int, Node]:
        joined = {f: self.b.alt(*nodes) for f, nodes in out.items()}
        return {f: node for f, node in joined.items() if node != self.b.EMPTY}

    def head(self, head: Tree, behind: tuple[Look, ...], before: int, after: int) -> tuple[bool, Words]:
        empty, words = self.c.words(head, before, after)
        for look in behind:
            if look.body.looks:
                raise self.refuse(look, "it holds further look-around")
            seen_empty, seen = self.c.words(ast.seq(ast.ANY_TEXT, look.body), EDGE, after)
            empty = empty and seen_empty != look.negative
            words = {k: self.meet(node, seen.get(k, self.b.EMPTY), look.negative) for k, node in words.items()}
        return empty, {k: node for k, node in words.items() if node != self.b.EMPTY}

    def meet(self, node: Node, seen: Node, negative: bool) -> Node:
        if negative:
            return node if seen == self.b.EMPTY else self.b.both(node, self.b.complement(seen))
        return self.b.both(node, seen)

    def branch(self, item: Tree, rest: tuple[Tree, ...], before: int, origin: bool) -> tuple[bool, dict[int, Node]]:
        """An item that holds look-around, at the front."""
        if isinstance(item, Look):
            empty, words = self.texts(rest, before, origin)
            seen_empty, seen = self.texts((item.body, ast.ANY_TEXT), before, origin)
            met = {f: [self.meet(node, seen.get(f, self.b.EMPTY), item.negative)] for f, node in words.items()}
            return empty and seen_empty != item.negative, self.clean(met)
        if isinstance(item, Alt):
            each = [self.texts((p, *rest), before, origin) for p in item.parts]
            out: dict[int, list[Node]] = {}
            for _, words in each:
                for f, node in words.items():
                    out.setdefault(f, []).append(node)
            return any(empty for empty, _ in each), self.clean(out)
        assert isinstance(item, Repeat), item
        if item.hi is not None and item.hi <= MAX_UNROLLED:
            optional: Tree = ast.EMPTY_TEXT
            for _ in range(item.hi - item.lo):
                optional = ast.alt(ast.EMPTY_TEXT, ast.seq(item.body, optional))
            return self.texts((*([item.body] * item.lo), optional, *rest), before, origin)
        return self.guarded_run(item, rest, before, origin)

    def guarded_run(self, item: Repeat, rest: tuple[Tree, ...], before: int, origin: bool) -> tuple[bool, dict[int, Node]]:
        """((?!body)[chars])* up to the end of the text: no suffix begins with the body."""
        b, parts = self.b, item.body.parts if isinstance(item.body, Seq) else ()
        look = next(p for p in (*parts, Look(ast.EMPTY_TEXT, True, False, 0)) if isinstance(p, Look))
        simple = len(parts) == 2 and parts[0] is look and look.ahead and isinstance(parts[1], Chars) and not look.body.conditions
        if not simple or item.lo > 1 or item.hi is not None:
            raise self.refuse(look, "it stands inside a repetition that goes on around it")
        if any(self.texts(rest, t, False)[1] for t in range(len(self.c.before))):
            raise self.refuse(look, "it stands inside a repetition, and more text may follow that")
        empty, _ = self.texts(rest, before, origin)
        seen = b.seq(plain(b, look.body, self.c.alphabet), self.c.anything)
        if not look.negative:
            seen = b.both(b.seq(self.c.alphabet.chars(b, SCALARS), self.c.anything), b.complement(seen))
        bad = b.complement(b.seq(self.c.anything, seen))
        table: dict[int, list[Node]] = {}
        for (f, t), node in self.c.words(ast.repeat(parts[1], 1, None), before, EDGE)[1].items():
            if self.texts(rest, t, False)[0]:
                table.setdefault(f, []).append(b.both(node, bad))
        return empty and item.lo == 0, self.clean(table)
