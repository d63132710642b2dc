"""Terminals that look ahead, for grammars that ignore white space or its like.

Input: the terminals of a Lark grammar (lark.py); output: one expression for each terminal, the same wherever it stands. Knows nothing of
rules.

What a terminal demands of the text behind it ("no more letters", lexemes.py) is an `ahead` of the Builder, and ignored texts stand behind
each terminal and at the beginning. So rules need not be split by the demands that are open when they begin and end. An `ahead` does
not know what follows, and it must never be a dead end: that is certain where a character that may be ignored settles every demand
(a blank after a name), since it may be written behind every terminal. Where no such character is ignored, rules are split instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.cfg import Cfg, Expr
from agentkit.grammars.frontends.chars import CharSet, utf8_class
from agentkit.grammars.frontends.lexemes import BROKEN, FREE, State

if TYPE_CHECKING:
    from agentkit.grammars.frontends.lark import Context, Terminals


class Lookahead:
    """The terminals `used` by the rules, each with what it demands behind it.

    possible: is there an ignored character for every demand? Otherwise nothing else may be asked.
    """

    def __init__(self, terminals: Terminals, used: Iterable[str]) -> None:
        self.terminals, self.used = terminals, list(used)
        self.builder, self.demands = terminals.cfg.builder, terminals.lexemes.demands
        self._rows: dict[int, list[int]] = {}
        self._texts = {name: self._split(terminals.token_alone(name)) for name in self.used}
        self._gaps = {left: text for left, text in terminals.gap(frozenset()).items() if text != Cfg.EMPTY}
        self._ahead: dict[int, Node] = {}
        self._tokens: dict[str, Expr] = {}

    @cached_property
    def possible(self) -> bool:
        left = {d for texts in self._texts.values() for d in texts if d is not None}
        left |= {d for context in self._gaps for d in context if not self._harmless(d)}
        return all(self.demands.at_end[d] and self._is_finite(self._row(d)) for d in left) and (not left or bool(self._settlers(left)))

    @cached_property
    def gap(self) -> Expr:
        """Any number of ignored texts."""
        cfg = self.terminals.cfg
        return cfg.alt(*(cfg.seq(text, *(cfg.text(self._look(d)) for d in sorted(left) if not self._harmless(d))) for left, text in self._gaps.items()))

    def token(self, name: str) -> Expr:
        """The terminal, what it demands, and ignored texts."""
        if name not in self._tokens:
            cfg, builder = self.terminals.cfg, self.builder
            by_look: dict[Node, list[Node]] = {}
            for d, text in self._texts[name].items():
                by_look.setdefault(self._look(d) if d is not None else Builder.EPSILON, []).append(text)
            whole = builder.alt(*(builder.seq(builder.alt(*texts), look) for look, texts in by_look.items()))
            self._tokens[name] = cfg.seq(cfg.text(whole), self.gap)
        return self._tokens[name]

    def _split(self, ways: dict[Context, Expr]) -> dict[int | None, Node]:
        """Texts by the one demand that they leave."""
        out: dict[int | None, Node] = {}
        for left, text in ways.items():
            demand = next(iter(left), None)
            if demand is None or self.demands.at_end[demand] or any(outcome != BROKEN for outcome in self._row(demand)):
                out[demand] = self.terminals.regular(text)
        return out

    def _row(self, demand: int) -> list[int]:
        """What becomes of a demand that a terminal leaves, by the class of the next character. BROKEN also where it will be, whichever terminal comes."""
        if demand not in self._rows:
            row = self._rows[demand] = list(self.demands.step[demand])
            following = [self.terminals.start(name) for name in self.used] + [self.terminals.lexemes.start[t] for t in self.terminals.ignored]
            for klass, outcome in enumerate(row):
                if outcome != BROKEN and not any(self._survives(outcome, start, klass) for start in following):
                    row[klass] = BROKEN
        return self._rows[demand]

    def _survives(self, demand: int, start: State | CharSet, klass: int) -> bool:
        """Could a terminal that begins with a character of `klass` be read to its end, the demand being what it has become by that one?"""
        lexemes, step = self.terminals.lexemes, self.demands.step
        if isinstance(start, CharSet):
            return bool(lexemes.classes[klass] & start)
        first = lexemes.step(start)[klass]
        seen, todo = {(demand, first)}, [(demand, first)]
        while todo:
            d, state = todo.pop()
            if state is not None and d != BROKEN:
                if self.demands.of.get(state, BROKEN) != BROKEN:
                    return True
                more = {(step[d][k] if d != FREE else FREE, following) for k, following in enumerate(lexemes.step(state))} - seen
                seen |= more
                todo += more
        return False

    def _harmless(self, demand: int) -> bool:
        """Is it met by whatever terminal comes next, and at the end?"""
        step = self._row(demand)
        return self.demands.at_end[demand] and all(step[k] == FREE for name in self.used for k in self.terminals.first_classes(name))

    def _is_finite(self, row: list[int], above: frozenset[int] = frozenset()) -> bool:
        """Is a demand settled after a bounded number of characters?"""
        left = {d for d in row if d not in (FREE, BROKEN)}
        return not left & above and all(self._is_finite(self.demands.step[d], above | {d}) for d in left)

    def _settlers(self, demands: Iterable[int]) -> bytes:
        """Characters (of ASCII) that are ignored by themselves and settle all of `demands`, leaving none that matters."""
        lexemes, out = self.terminals.lexemes, set[int]()
        for t in self.terminals.ignored:
            for klass, state in enumerate(lexemes.step(lexemes.start[t])):
                left = self.demands.of.get(state, BROKEN) if state is not None else BROKEN
                harmless = left == FREE or (left != BROKEN and self._harmless(left))
                if harmless and all(self.demands.step[d][klass] == FREE for d in demands):
                    out.update(c for lo, hi in lexemes.classes[klass].ranges for c in range(lo, min(hi, 0x7F) + 1))
        return bytes(sorted(out))

    def _look(self, demand: int) -> Node:
        if demand not in self._ahead:
            row = self._row(demand)
            self._ahead[demand] = self.builder.ahead(self._settled(row), self._ends(row, self.demands.at_end[demand]), self._settlers([demand]))
        return self._ahead[demand]

    def _by_outcome(self, row: list[int]) -> dict[int, Node]:
        """Characters by what becomes of a demand."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for klass, outcome in enumerate(row):
            ranges.setdefault(outcome, []).extend(self.terminals.lexemes.classes[klass].ranges)
        return {outcome: utf8_class(self.builder, CharSet.from_ranges(r)) for outcome, r in ranges.items() if outcome != BROKEN}

    def _settled(self, row: list[int]) -> Node:
        """The texts that settle a demand of which this is the row."""
        step = self.demands.step
        texts = [text if d == FREE else self.builder.seq(text, self._settled(step[d])) for d, text in self._by_outcome(row).items()]
        return self.builder.alt(*texts)

    def _ends(self, row: list[int], at_end: bool) -> Node:
        """The texts that do not settle it, and break it neither if they are all that follows."""
        step = self.demands.step
        more = [self.builder.seq(text, self._ends(step[d], self.demands.at_end[d])) for d, text in self._by_outcome(row).items() if d != FREE]
        return self.builder.alt(*more, *([Builder.EPSILON] if at_end else []))
