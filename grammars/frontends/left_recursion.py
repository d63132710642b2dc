"""Left recursion of context-free rules, solved exactly.

Input: a Cfg, its expressions by what they begin with, and the cycles of rules that call each other first; the rules of the
cycles are defined anew. Knows nothing of how grammars are written down.

For the rules of one cycle, A = S_A | B . R(B, A) | ..., where S_A begins with something else. The non-empty texts are
A+ = S_B . T(B, A) | ..., with T(B, A) = the texts that lead from B to A: nothing (if B is A), or R+(B, C) . T(C, A). Tails that match
the empty text are unit edges; they are closed over first, so that T never begins with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentkit.errors import GrammarTooComplex

if TYPE_CHECKING:
    from agentkit.grammars.frontends.cfg import Cfg, Expr, Name, _Heads

MAX_SOLVED = 6  # rules of a cycle that are solved into one expression; larger ones become rules
MAX_CYCLE = 150  # rules of a cycle: their number is squared


def solve_linear(cfg: Cfg, names: Sequence[int], step: dict[tuple[int, int], Expr], end: dict[int, Expr]) -> dict[int, Expr]:
    """The least solution of X_i = end_i | step_ij . X_j ..., by elimination (Arden 1961). Steps must not match the empty text."""
    step, end, left = dict(step), dict(end), list(names)
    solved: list[tuple[int, Expr, dict[int, Expr], Expr]] = []
    while left:
        left.sort(key=lambda n: -sum((n, m) in step for m in left) * sum((m, n) in step for m in left))
        n = left.pop()
        loop = cfg.repeat(step.pop((n, n), cfg.EMPTY))
        out = {m: step.pop((n, m)) for m in left if (n, m) in step}
        stop = end.get(n, cfg.EMPTY)
        for m in left:
            into = step.pop((m, n), None)
            if into is None:
                continue
            end[m] = cfg.alt(end.get(m, cfg.EMPTY), cfg.seq(into, loop, stop))
            for k, further in out.items():
                step[m, k] = cfg.alt(step.get((m, k), cfg.EMPTY), cfg.seq(into, loop, further))
        solved.append((n, loop, out, stop))
    value: dict[int, Expr] = {}
    for n, loop, out, stop in reversed(solved):
        value[n] = cfg.seq(loop, cfg.alt(stop, *(cfg.seq(further, value[m]) for m, further in out.items())))
    return value


class Solver:
    """Rewrites the rules of the cycles in place.

    Raises GrammarTooComplex("left recursion") for a cycle of more than MAX_CYCLE rules.
    """

    def __init__(self, cfg: Cfg, heads: _Heads, cycles: list[list[Name]]) -> None:
        self.cfg, self.heads, self.cycles = cfg, heads, cycles
        self.cycle_of = {name: number for number, cycle in enumerate(cycles) for name in cycle}
        self.bodies = dict(cfg.rules)
        self.todo: list[Callable[[], None]] = []
        self.nonempty_rules: set[Name] = set()

    def solve(self) -> None:
        for cycle in self.cycles:
            if len(cycle) > MAX_CYCLE:
                shown = ", ".join(map(str, cycle[:5]))
                raise GrammarTooComplex("left recursion", f"{len(cycle)} rules ({shown}, ...) call each other first; at most {MAX_CYCLE} may")
        for cycle in self.cycles:
            self._solve_cycle(cycle)
        while self.todo:
            self.todo.pop()()

    def nonempty(self, name: Name) -> Expr:
        """The non-empty texts of a rule, as a call."""
        cfg = self.cfg
        if not self.heads.nullable(self.bodies[name]):
            return cfg.call(name)
        plus = ("non-empty", name)
        if name not in self.cycle_of and name not in self.nonempty_rules:
            self.nonempty_rules.add(name)
            cfg.define(plus, cfg.EMPTY)
            self.todo.append(lambda: cfg.define(plus, self.nonempty_texts(self.bodies[name])))
        return cfg.call(plus)

    def nonempty_texts(self, expr: Expr) -> Expr:
        if not self.heads.nullable(expr):
            return expr
        return self.cfg.alt(*(self.cfg.seq(self._head(head), *tail) for head, tails in self.heads.of(expr).items() for tail in ((t,) for t in tails)))

    def _head(self, head: Expr) -> Expr:
        node = self.cfg.nodes[head]
        return self.nonempty(node[1]) if node[0] == "call" else head

    def _solve_cycle(self, cycle: list[Name]) -> None:
        cfg, number = self.cfg, {name: i for i, name in enumerate(cycle)}
        starts: list[Expr] = []
        edges: dict[tuple[int, int], Expr] = {}
        for name in cycle:
            first = cfg.EMPTY
            for head, tails in self.heads.of(self.bodies[name]).items():
                node, tail = cfg.nodes[head], cfg.alt(*tails)
                if node[0] == "call" and node[1] in number:
                    edges[number[node[1]], number[name]] = tail
                else:
                    first = cfg.alt(first, cfg.seq(self._head(head), tail))
            starts.append(first)
        units = self._unit_closure(len(cycle), edges)
        step: dict[tuple[int, int], Expr] = {}
        for (b, c), tail in edges.items():
            texts = self.nonempty_texts(tail)
            for before in range(len(cycle)):
                if b in units[before] and texts != cfg.EMPTY:
                    step[before, c] = cfg.alt(step.get((before, c), cfg.EMPTY), texts)
        for a, name in enumerate(cycle):
            ways = self._ways(cycle, step, {b: cfg.EPSILON for b in range(len(cycle)) if a in units[b]}, a)
            texts = cfg.alt(*(cfg.seq(starts[b], ways[b]) for b in range(len(cycle))))
            if self.heads.nullable(self.bodies[name]):
                cfg.define(("non-empty", name), texts)
                cfg.define(name, cfg.optional(cfg.call(("non-empty", name))))
            else:
                cfg.define(name, texts)

    def _unit_closure(self, count: int, edges: dict[tuple[int, int], Expr]) -> list[set[int]]:
        out: list[set[int]] = []
        for b in range(count):
            reached, todo = {b}, [b]
            while todo:
                at = todo.pop()
                for c in range(count):
                    if (at, c) in edges and c not in reached and self.heads.nullable(edges[at, c]):
                        reached.add(c)
                        todo.append(c)
            out.append(reached)
        return out

    def _ways(self, cycle: list[Name], step: dict[tuple[int, int], Expr], end: dict[int, Expr], a: int) -> dict[int, Expr]:
        """T(B, a) for every B."""
        cfg, names = self.cfg, range(len(cycle))
        if len(cycle) <= MAX_SOLVED:
            return solve_linear(cfg, names, step, end)
        calls = {b: cfg.call(("from", cycle[b], "to", cycle[a])) for b in names}
        for b in names:
            texts = [cfg.seq(step[b, c], calls[c]) for c in names if (b, c) in step]
            cfg.define(("from", cycle[b], "to", cycle[a]), cfg.alt(end.get(b, cfg.EMPTY), *texts))
        return calls
