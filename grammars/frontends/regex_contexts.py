"""Look-free syntax trees by context: what makes anchors and word boundaries exact anywhere in a pattern.

Input: a tree of regex_ast whose conditions look at the two neighbouring characters only; output: nodes of its texts for each
class of character before and after it. Knows nothing of look-around (see regex.py) or of the pattern's text.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from agentkit.errors import GrammarTooComplex
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends import regex_ast as ast
from agentkit.grammars.frontends.chars import SCALARS, Alphabet, CharSet, Range
from agentkit.grammars.frontends.regex_ast import Alt, Beside, Chars, Look, Repeat, Seq, Tree

EDGE = -1  # instead of a class of characters: the text begins or ends here
MAX_UNROLLED = 16  # copies of a repeated part with conditions
MAX_WORK = 50_000  # parts lowered for one pattern

Words = dict[tuple[int, int], Node]  # (class of the first character, class of the last) -> texts


def plain(b: Builder, tree: Tree, alphabet: Alphabet) -> Node:
    """A tree without conditions."""
    if isinstance(tree, Chars):
        return alphabet.chars(b, tree.set)
    if isinstance(tree, Repeat):
        return b.repeat(plain(b, tree.body, alphabet), tree.lo, tree.hi)
    if isinstance(tree, Seq):
        return b.seq(*(plain(b, p, alphabet) for p in tree.parts))
    assert isinstance(tree, Alt)
    texts = [ast.fixed_text(p) for p in tree.parts] if alphabet.one_spelling else []
    fixed = [alphabet.spelled(t) for t in texts if t is not None and not any("\ud800" <= c <= "\udfff" for c in t)]
    if len(fixed) < 3:
        return b.alt(*(plain(b, p, alphabet) for p in tree.parts))
    return b.alt(b.trie(fixed), *(plain(b, p, alphabet) for p, t in zip(tree.parts, texts, strict=True) if t is None))


def atoms(sets: Iterable[CharSet]) -> list[CharSet]:
    """The coarsest partition of all characters that every set is a union of."""
    turns: dict[int, int] = {}  # code point -> the sets (as bits) that begin or end there
    for i, s in enumerate((SCALARS, *sets)):
        for lo, hi in s.ranges:
            turns[lo] = turns.get(lo, 0) ^ 1 << i
            turns[hi + 1] = turns.get(hi + 1, 0) ^ 1 << i
    places = sorted(turns)
    parts: dict[int, list[Range]] = {}  # by the sets that hold them
    inside = 0
    for place, following in pairwise(places):
        inside ^= turns[place]
        if inside & 1:
            parts.setdefault(inside, []).append((place, following - 1))
    return [CharSet.from_ranges(ranges) for ranges in parts.values()]


class Contexts:
    """Look-free trees by context.

    `words(tree, before, after)`: does the tree match the empty text between a character of class `before` and one of class
    `after`, and which non-empty texts does it match there, by the classes of their first and last characters?
    Classes of first and following characters come from the conditions' `after` sets, of last and preceding ones from `before`.
    """

    def __init__(self, builder: Builder, tree: Tree, alphabet: Alphabet) -> None:
        self.b, self.alphabet = builder, alphabet
        besides = list(_besides(tree))
        self.before = atoms({c.before for c in besides})
        self.after = atoms({c.after for c in besides})
        self.single = len(self.before) == len(self.after) == 1
        self.anything = alphabet.anything(builder)
        self.memo: dict[tuple[Tree, int, int], tuple[bool, Words]] = {}
        self.work = 0

    def words(self, tree: Tree, before: int, after: int) -> tuple[bool, Words]:
        if not tree.conditions:
            before = after = 0
        key = (tree, before, after)
        if key not in self.memo:
            self.work += 1
            if self.work > MAX_WORK:
                raise GrammarTooComplex("regular expression size", "the conditions (anchors, boundaries) of this pattern take too many cases")
            self.memo[key] = self._words(tree, before, after)
        return self.memo[key]

    def _words(self, tree: Tree, before: int, after: int) -> tuple[bool, Words]:
        if isinstance(tree, Beside):
            left = tree.before_edge if before == EDGE else not self.before[before] - tree.before
            right = tree.after_edge if after == EDGE else not self.after[after] - tree.after
            return left and right, {}
        if not tree.conditions:
            return ast.nullable(tree), self._split(ast.without_empty(tree))
        if isinstance(tree, Alt):
            each = [self.words(p, before, after) for p in tree.parts]
            return any(empty for empty, _ in each), self.union(*(w for _, w in each))
        if isinstance(tree, Seq):
            return self._sequence(tree.parts[0], ast.seq(*tree.parts[1:]), before, after)
        assert isinstance(tree, Repeat), tree
        return self._repeat(tree, before, after)

    def union(self, *tables: Words) -> Words:
        out: dict[tuple[int, int], list[Node]] = {}
        for table in tables:
            for key, node in table.items():
                out.setdefault(key, []).append(node)
        joined = {key: self.b.alt(*nodes) for key, nodes in out.items()}
        return {key: node for key, node in joined.items() if node != self.b.EMPTY}

    def _split(self, tree: Tree) -> Words:
        """Non-empty texts of a tree without conditions, by first and last character."""
        b, chars = self.b, self.alphabet.chars
        if tree in (ast.NEVER, ast.EMPTY_TEXT):
            return {}
        if self.single:
            return self.union({(0, 0): plain(b, tree, self.alphabet)})
        out: Words = {}
        run = tree if isinstance(tree, Repeat) else Repeat(tree, 1, 1)
        for f, first in enumerate(self.after):
            for t, last in enumerate(self.before):
                if isinstance(run.body, Chars):
                    s = run.body.set
                    one = chars(b, s & first & last) if run.lo <= 1 else b.EMPTY
                    middle = b.EMPTY if run.hi == 1 else b.repeat(chars(b, s), max(run.lo - 2, 0), None if run.hi is None else run.hi - 2)
                    out[f, t] = b.alt(one, b.seq(chars(b, s & first), middle, chars(b, s & last)))
                else:
                    begins, ends = b.seq(chars(b, first), self.anything), b.seq(self.anything, chars(b, last))
                    limits = [x for x, all_ in ((begins, len(self.after) == 1), (ends, len(self.before) == 1)) if not all_]
                    out[f, t] = b.both(plain(b, tree, self.alphabet), *limits)
        return self.union(out)

    def _sequence(self, head: Tree, rest: Tree, before: int, after: int) -> tuple[bool, Words]:
        b = self.b
        tables: list[Words] = []
        empty_head, words_head = self.words(head, before, after)
        empty_rest, words_rest = self.words(rest, before, after)
        tables += [{k: node} for k, node in words_rest.items() if self.words(head, before, k[0])[0]]
        tables += [{k: node} for k, node in words_head.items() if self.words(rest, k[1], after)[0]]
        for middle in range(len(self.after)):
            for (f, t), first in self.words(head, before, middle)[1].items():
                for (f2, t2), second in self.words(rest, t, after)[1].items():
                    if f2 == middle:
                        tables.append({(f, t2): b.seq(first, second)})
        return empty_head and empty_rest, self.union(*tables)

    def _repeat(self, tree: Repeat, before: int, after: int) -> tuple[bool, Words]:
        body, lo, hi = tree.body, tree.lo, tree.hi
        if self.single and (lo > 1 or hi not in (1, None)):
            return self._counted(tree, before, after)
        if lo > MAX_UNROLLED or (hi is not None and hi > MAX_UNROLLED):
            raise GrammarTooComplex("repeat of conditions", f"a part with boundaries is repeated more than {MAX_UNROLLED} times")
        if lo:
            more = ast.repeat(body, 0, None if hi is None else hi - lo)
            return self.words(ast.seq(*([body] * lo), more), before, after)
        if hi is not None:
            once = self.words(body, before, after)[1]
            longer = self.words(ast.seq(body, ast.repeat(body, 0, hi - 1)), before, after)[1] if hi > 1 else {}
            return True, self.union(once, longer)
        return True, self._star(body, before, after)

    def _counted(self, tree: Repeat, before: int, after: int) -> tuple[bool, Words]:
        """With one class of characters a repeat stays a counter: its first and last rounds stand apart."""
        b, lo, hi = self.b, tree.lo, tree.hi

        def round_(left: int, right: int) -> Node:
            return self.words(tree.body, left, right)[1].get((0, 0), b.EMPTY)

        def empty(left: int, right: int) -> bool:
            return self.words(tree.body, left, right)[0]

        least = 0 if empty(before, 0) or empty(0, after) else lo
        once = round_(before, after) if least <= 1 else b.EMPTY
        inner = round_(0, 0)
        least_inner = 0 if empty(0, 0) else max(least - 2, 0)
        more = b.EMPTY if hi is not None and hi < 2 else b.repeat(inner, least_inner, None if hi is None else hi - 2)
        node = b.alt(once, b.seq(round_(before, 0), more, round_(0, after)))
        return lo == 0 or empty(before, after), self.union({(0, 0): node})

    def _star(self, body: Tree, before: int, after: int) -> Words:
        """Kleene closure over the junctions between rounds: (class of the last character, class of the next one)."""
        b = self.b
        junctions = [(t, f) for t in range(len(self.before)) for f in range(len(self.after))]
        steps = {(j, k): self.words(body, j[0], k[1])[1].get((j[1], k[0]), b.EMPTY) for j in junctions for k in junctions}
        for via in junctions:
            loop = b.repeat(steps[via, via])
            steps = {(j, k): b.alt(node, b.seq(steps[j, via], loop, steps[via, k])) for (j, k), node in steps.items()}
        tables = [self.words(body, before, after)[1]]
        for j in junctions:
            for (f, t), first in self.words(body, before, j[1])[1].items():
                if t != j[0]:
                    continue
                for k in junctions:
                    between = b.alt(steps[j, k], b.EPSILON if j == k else b.EMPTY)
                    for (f2, t2), last in self.words(body, k[0], after)[1].items():
                        if f2 == k[1]:
                            tables.append({(f, t2): b.seq(first, between, last)})
        return self.union(*tables)


def _besides(tree: Tree) -> list[Beside]:
    out, todo = [], [tree]
    while todo:
        t = todo.pop()
        if isinstance(t, Beside):
            out.append(t)
        elif isinstance(t, Seq | Alt):
            todo.extend(t.parts)
        elif isinstance(t, Repeat | Look):
            todo.append(t.body)
    return out
