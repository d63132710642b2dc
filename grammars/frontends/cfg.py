"""Context-free grammars with repeats, and what it takes to step them: no rule may call itself before it has read anything.

Input: rules over regular pieces (nodes of a Builder), sequences, choices and counted repeats; output: a node of the Builder.
Knows nothing of how a grammar is written down. Shared by the Lark and the GBNF front ends.

- Left recursion, direct or through other rules, through empty rules or repeats, is solved exactly: the rules of a cycle are
  equations N = N R + S, whose solution is S R* (Rosenkrantz 1967). `e: e "+" t | t` becomes `t ("+" t)*`. Unit cycles
  (`a: a | "k"`) are edges without text in R and go with it.
- Rules that match nothing are dropped, rules that do not recurse are written out where they are used, the others are calls.
- Expressions are hash-consed and numbered children first, so that every pass is a loop and deep grammars need no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from agentkit.errors import GrammarTooComplex
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.components import components

Expr = int
"""Number of an expression inside its Cfg."""
Name = Hashable

TEXT, CALL, SEQ, ALT, REPEAT = "text", "call", "seq", "alt", "repeat"
MAX_EXPRESSIONS = 400_000
MAX_WRITTEN_OUT = 64  # parts of a rule's body that are copied to where it is used more than once


class Cfg:
    """Rules over regular pieces. Methods return expression numbers; equal expressions get equal numbers.

    Raises GrammarTooComplex("expressions") past MAX_EXPRESSIONS.
    """

    EMPTY: Expr = 0
    EPSILON: Expr = 1

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.nodes: list[tuple[Any, ...]] = [("empty",), ("epsilon",)]
        self._index: dict[tuple[Any, ...], Expr] = {n: i for i, n in enumerate(self.nodes)}
        self.rules: dict[Name, Expr] = {}

    def _add(self, *key: Any) -> Expr:
        found = self._index.get(key)
        if found is None:
            if len(self.nodes) >= MAX_EXPRESSIONS:
                raise GrammarTooComplex("expressions", f"the grammar grows beyond {MAX_EXPRESSIONS} expressions; use fewer or simpler rules")
            found = self._index[key] = len(self.nodes)
            self.nodes.append(key)
        return found

    def text(self, node: Node) -> Expr:
        """A regular piece. `node` must not match the empty text."""
        return self.EMPTY if node == Builder.EMPTY else self._add(TEXT, node)

    def call(self, name: Name) -> Expr:
        return self._add(CALL, name)

    def define(self, name: Name, body: Expr) -> None:
        self.rules[name] = body

    def children(self, expr: Expr) -> tuple[Expr, ...]:
        node = self.nodes[expr]
        if node[0] in (SEQ, ALT):
            return node[1:]
        return (node[1],) if node[0] == REPEAT else ()

    def _counted(self, expr: Expr) -> tuple[Expr, int, int | None]:
        node = self.nodes[expr]
        return node[1:] if node[0] == REPEAT else (expr, 1, 1)

    def seq(self, *parts: Expr) -> Expr:
        """Concatenation. Neighbours that repeat the same expression become one counted repeat."""
        flat: list[Expr] = []
        for part in parts:
            if part == self.EMPTY:
                return self.EMPTY
            if part == self.EPSILON:
                continue
            for q in self.nodes[part][1:] if self.nodes[part][0] == SEQ else (part,):
                joined = self._joined(flat[-1], q) if flat else None
                if joined is None:
                    flat.append(q)
                else:
                    flat[-1] = joined
        if not flat:
            return self.EPSILON
        return flat[0] if len(flat) == 1 else self._add(SEQ, *flat)

    def _joined(self, left: Expr, right: Expr) -> Expr | None:
        (x, lo1, hi1), (y, lo2, hi2) = self._counted(left), self._counted(right)
        if x == y:
            return self.repeat(x, lo1 + lo2, None if hi1 is None or hi2 is None else hi1 + hi2)
        return None

    def alt(self, *choices: Expr) -> Expr:
        """Choice. Repeats of the same expression whose counts touch are merged (the empty text counts as one), shared beginnings factored out."""
        flat: dict[Expr, None] = {}
        for choice in choices:
            for q in self.nodes[choice][1:] if self.nodes[choice][0] == ALT else (choice,):
                if q != self.EMPTY:
                    flat[q] = None
        if len(flat) > 1:
            flat = self._factored(list(self._merged(list(flat))))
        if not flat:
            return self.EMPTY
        return next(iter(flat)) if len(flat) == 1 else self._add(ALT, *sorted(flat))

    def _factored(self, flat: list[Expr]) -> dict[Expr, None]:
        """h x | h y | h is h (x | y)?: parses that begin alike are one for as long as they do."""
        tails: dict[Expr, list[Expr]] = {}
        for q in flat:
            node = self.nodes[q]
            head, tail = (node[1], self.seq(*node[2:])) if node[0] == SEQ else (q, self.EPSILON)
            tails.setdefault(head, []).append(tail)
        if len(tails) == len(flat):
            return dict.fromkeys(flat)
        return dict.fromkeys(self.seq(head, self.alt(*rest)) for head, rest in tails.items())

    def _merged(self, flat: list[Expr]) -> dict[Expr, None]:
        by_item: dict[Expr, list[tuple[int, int | None]]] = {}
        for q in flat:
            if q != self.EPSILON:
                item, lo, hi = self._counted(q)
                by_item.setdefault(item, []).append((lo, hi))
        empty = self.EPSILON in flat
        out: dict[Expr, None] = {}
        for item, spans in by_item.items():
            if empty and any(lo <= 1 for lo, _ in spans) and any(self._counted(q) != (q, 1, 1) for q in flat if self._counted(q)[0] == item):
                spans.append((0, 0))
            spans.sort(key=lambda span: span[0])
            lo, hi = spans[0]
            for lo2, hi2 in spans[1:]:
                if hi is not None and lo2 > hi + 1:
                    out[self.repeat(item, lo, hi)] = None
                    lo, hi = lo2, hi2
                else:
                    hi = None if hi is None or hi2 is None else max(hi, hi2)
            out[self.repeat(item, lo, hi)] = None
        if empty and not any(self.nodes[q][0] == REPEAT and self.nodes[q][2] == 0 for q in out):
            out[self.EPSILON] = None
        return out

    def repeat(self, x: Expr, lo: int = 0, hi: int | None = None) -> Expr:
        """`x` at least `lo` and at most `hi` times (None: no bound)."""
        if hi == 0 or x == self.EPSILON:
            return self.EPSILON
        if x == self.EMPTY:
            return self.EPSILON if lo == 0 else self.EMPTY
        if (lo, hi) == (1, 1):
            return x
        node = self.nodes[x]
        if hi is None and node[0] == ALT:
            kept = self._indispensable(node[1:])
            if len(kept) < len(node) - 1:
                return self.repeat(self.alt(*kept), 0 if self.EPSILON in node[1:] else lo)
        if hi is None and node[0] == REPEAT and node[2] <= 1:
            return self.repeat(node[1], lo * node[2])
        return self._add(REPEAT, x, lo, hi)

    def _indispensable(self, choices: tuple[Expr, ...]) -> list[Expr]:
        """Choices of an unbounded repeat without those that other choices in a row make up: (a | a a | a b | b)* is (a | b)*."""
        kept = [q for q in choices if q != self.EPSILON]
        for q in list(kept):
            parts = self.nodes[q][1:] if self.nodes[q][0] == SEQ else (q,)
            items = [self._counted(part) for part in parts]
            if (len(parts) > 1 or items[0][0] != q) and all(item in kept and low > 0 for item, low, _ in items):
                kept.remove(q)
        return kept

    def optional(self, x: Expr) -> Expr:
        return self.alt(self.EPSILON, x)

    def compile(self, start: Name) -> Node:
        """Node of the rule `start`; Builder.EMPTY if it matches nothing. Every called rule must be defined."""
        _drop_unproductive(self, start)
        _solve_left_recursion(self, start)
        return _to_builder(self, start)


def within(cfg: Cfg, root: Expr) -> list[Expr]:
    """Every expression inside `root`, children first; calls are not followed."""
    seen = {root}
    todo = [root]
    while todo:
        for child in cfg.children(todo.pop()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return sorted(seen)


def _in_order(cfg: Cfg, start: Name) -> tuple[list[Name], dict[Name, list[Expr]]]:
    """The rules within reach, callees first where they do not recurse, and the expressions of each."""
    bodies: dict[Name, list[Expr]] = {}
    calls: dict[Name, list[Name]] = {}
    todo = [start]
    while todo:
        name = todo.pop()
        if name in bodies:
            continue
        bodies[name] = within(cfg, cfg.rules[name])
        calls[name] = [cfg.nodes[e][1] for e in bodies[name] if cfg.nodes[e][0] == CALL]
        todo += calls[name]
    return [name for part in components(bodies, calls.__getitem__) for name in part], bodies


def _fixpoint(cfg: Cfg, order: Sequence[Name], bodies: dict[Name, list[Expr]], holds: Callable[[Cfg, Expr, dict[Expr, bool]], bool]) -> dict[Expr, bool]:
    """The least solution of a property of expressions that is monotone in those they are made of."""
    known: dict[Expr, bool] = {}
    changed = True
    while changed:
        changed = False
        for name in order:
            for e in bodies[name]:
                if not known.get(e, False):
                    known[e] = holds(cfg, e, known)
                    changed = changed or known[e]
    return known


def _is_productive(cfg: Cfg, e: Expr, known: dict[Expr, bool]) -> bool:
    node = cfg.nodes[e]
    if node[0] == CALL:
        return known.get(cfg.rules[node[1]], False)
    if node[0] == SEQ:
        return all(known[c] for c in node[1:])
    if node[0] == ALT:
        return any(known[c] for c in node[1:])
    return bool(node[2] == 0 or known[node[1]]) if node[0] == REPEAT else e != Cfg.EMPTY


def _is_nullable(cfg: Cfg, e: Expr, known: dict[Expr, bool]) -> bool:
    node = cfg.nodes[e]
    if node[0] == CALL:
        return known.get(cfg.rules.get(node[1], Cfg.EMPTY), False)
    if node[0] == SEQ:
        return all(known[c] for c in node[1:])
    if node[0] == ALT:
        return any(known[c] for c in node[1:])
    return bool(node[2] == 0 or known[node[1]]) if node[0] == REPEAT else e == Cfg.EPSILON


def _rebuild(cfg: Cfg, bodies: Iterable[Expr], image: dict[Expr, Expr]) -> None:
    """Completes `image` over `bodies` (children first); calls that it does not hold stay as they are."""
    for e in bodies:
        if e in image:
            continue
        node = cfg.nodes[e]
        if node[0] == SEQ:
            image[e] = cfg.seq(*(image[c] for c in node[1:]))
        elif node[0] == ALT:
            image[e] = cfg.alt(*(image[c] for c in node[1:]))
        elif node[0] == REPEAT:
            image[e] = cfg.repeat(image[node[1]], node[2], node[3])
        else:
            image[e] = e


def _drop_unproductive(cfg: Cfg, start: Name) -> None:
    order, bodies = _in_order(cfg, start)
    productive = _fixpoint(cfg, order, bodies, _is_productive)
    image: dict[Expr, Expr] = {e: cfg.EMPTY for name in order for e in bodies[name] if not productive[e]}
    for name in order:
        _rebuild(cfg, bodies[name], image)
    for name in order:
        cfg.define(name, image[cfg.rules[name]])


class _Heads:
    """Expressions by what they begin with: e = alt(head . tail ...) and the empty text where e matches it.

    A head is a text, or a call that stands for the non-empty texts of its rule.
    """

    def __init__(self, cfg: Cfg, nullable: dict[Expr, bool]) -> None:
        self.cfg, self._nullable = cfg, nullable
        self._known: dict[Expr, dict[Expr, list[Expr]]] = {}

    def nullable(self, expr: Expr) -> bool:
        """Also of expressions made later: their rules are known."""
        if expr not in self._nullable:
            for e in within(self.cfg, expr):
                if e not in self._nullable:
                    self._nullable[e] = _is_nullable(self.cfg, e, self._nullable)
        return self._nullable[expr]

    def of(self, expr: Expr) -> dict[Expr, list[Expr]]:
        """Head -> tails."""
        if expr not in self._known:
            for e in within(self.cfg, expr):
                if e not in self._known:
                    self._known[e] = self._split(e)
        return self._known[expr]

    def _split(self, e: Expr) -> dict[Expr, list[Expr]]:
        cfg, node = self.cfg, self.cfg.nodes[e]
        out: dict[Expr, dict[Expr, None]] = {}
        if node[0] in (TEXT, CALL):
            out[e] = {cfg.EPSILON: None}
        elif node[0] == ALT:
            for c in node[1:]:
                for head, tails in self._known[c].items():
                    out.setdefault(head, {}).update(dict.fromkeys(tails))
        elif node[0] == SEQ:
            for i, c in enumerate(node[1:], 2):
                for head, tails in self._known[c].items():
                    out.setdefault(head, {}).update((cfg.seq(tail, *node[i:]), None) for tail in tails)
                if not self.nullable(c):
                    break
        elif node[0] == REPEAT:
            _, item, lo, hi = node
            rest = cfg.repeat(item, 0 if self.nullable(item) else max(lo - 1, 0), None if hi is None else hi - 1)
            for head, tails in self._known[item].items():
                out.setdefault(head, {}).update((cfg.seq(tail, rest), None) for tail in tails)
        return {head: list(tails) for head, tails in out.items()}


def _solve_left_recursion(cfg: Cfg, start: Name) -> None:
    from agentkit.grammars.frontends.left_recursion import Solver

    order, bodies = _in_order(cfg, start)
    nullable = _fixpoint(cfg, order, bodies, _is_nullable)
    heads = _Heads(cfg, nullable)
    lefts = {name: _leftmost_calls(cfg, bodies[name], heads) for name in order}
    cycles = [part for part in components(order, lefts.__getitem__) if len(part) > 1 or part[0] in lefts[part[0]]]
    if cycles:
        Solver(cfg, heads, cycles).solve()


def _leftmost_calls(cfg: Cfg, body: list[Expr], heads: _Heads) -> list[Name]:
    """Rules that may be called before anything is read. `body`: children first, the whole last."""
    known: dict[Expr, dict[Name, None]] = {}
    for e in body:
        node = cfg.nodes[e]
        found: dict[Name, None] = {}
        if node[0] == CALL:
            found[node[1]] = None
        for c in cfg.children(e):
            found.update(known[c])
            if node[0] == SEQ and not heads.nullable(c):
                break
        known[e] = found
    return list(known[body[-1]])


def _to_builder(cfg: Cfg, start: Name) -> Node:
    order, bodies = _in_order(cfg, start)
    calls = {name: [cfg.nodes[e][1] for e in bodies[name] if cfg.nodes[e][0] == CALL] for name in order}
    uses: dict[Name, int] = {}
    for name in order:
        for called in calls[name]:
            uses[called] = uses.get(called, 0) + 1
    recursive = {name for part in components(order, calls.__getitem__) for name in part if len(part) > 1 or name in calls[name]}
    builder = cfg.builder
    rules = {name: builder.rule() for name in order if name in recursive}
    image: dict[Expr, Node] = {cfg.EMPTY: Builder.EMPTY, cfg.EPSILON: Builder.EPSILON}
    size: dict[Node, int] = {}
    for name, rule in rules.items():
        image[cfg.call(name)] = builder.call(rule)
    for name in order:
        for e in bodies[name]:
            if e not in image:
                image[e] = _node_of(cfg, e, image, size)
        body = image[cfg.rules[name]]
        if name in rules:
            builder.define(rules[name], body)
            continue
        if uses.get(name, 0) > 1 and size.get(body, 1) > MAX_WRITTEN_OUT:
            rule = builder.rule()
            builder.define(rule, body)
            body = builder.call(rule)
        image[cfg.call(name)] = body
    return image[cfg.call(start)]


def _node_of(cfg: Cfg, e: Expr, image: dict[Expr, Node], size: dict[Node, int]) -> Node:
    builder, node = cfg.builder, cfg.nodes[e]
    if node[0] == TEXT:
        return int(node[1])
    parts = [image[c] for c in cfg.children(e)]
    if node[0] == REPEAT:
        return builder.repeat(parts[0], node[2], node[3])
    if node[0] == ALT and Builder.EPSILON in parts:  # as a counter, so that optional parts in a row are one
        made = builder.repeat(builder.alt(*(p for p in parts if p != Builder.EPSILON)), 0, 1)
    else:
        made = builder.seq(*parts) if node[0] == SEQ else builder.alt(*parts)
    size[made] = sum(size.get(p, 1) for p in parts)
    return made
