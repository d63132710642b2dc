"""Lark grammars to context-free grammars, exactly as lark's Earley parser with its dynamic lexer reads them.

Input: the text of a grammar, loaded by lark itself; output: a node of a Builder. Knows nothing of tokens or masks.

The dynamic lexer tries, at each place, every terminal that the rules expect there; each takes what `re.match` takes. So a
terminal leaves demands on what follows (lexemes.py), and what `%ignore` names may stand before any terminal and at the end. Where
an ignored character settles every demand, terminals look ahead and rules are taken as they are (lookahead.py). Elsewhere rules
carry *contexts*: the demands that are open. A rule is split by the context in which it begins and the one in which it ends;
contexts that make no difference are one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping
from typing import Any

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars.compose import beginnings, include
from agentkit.grammars.expr import Builder, Node, Program
from agentkit.grammars.frontends.cfg import Cfg, Expr
from agentkit.grammars.frontends.chars import LAST, CharSet, utf8_class
from agentkit.grammars.frontends.components import components
from agentkit.grammars.frontends.left_recursion import solve_linear
from agentkit.grammars.frontends.lexemes import BROKEN, FREE, Lexemes, State
from agentkit.grammars.frontends.lookahead import Lookahead

Context = frozenset[int]
"""Demands on what follows, by number."""
NOTHING: Context = frozenset()

MAX_CONTEXTS = 400
MAX_SOLVED = 12  # states of a terminal that lead to each other and are solved into one expression


def compile_lark(builder: Builder, text: str, start: str = "start", given: Mapping[str, Program] | None = None) -> Node:
    """The texts that the grammar matches from rule `start`, in UTF-8; EMPTY if there are none.

    given: languages of terminals that the text declares without a pattern.
    Raises InvalidGrammar (lark's own words, with the position), UnsupportedSchema (naming the construct), GrammarTooComplex.
    """
    loaded = _load(text, start)
    patterns = {str(t.name): str(t.pattern.to_regexp()) for t in loaded.terminals}
    embedded = {name: Embedded(builder, name, program) for name, program in (given or {}).items()}
    clash = next((name for name in embedded if name in patterns), None)
    if clash is not None:
        raise InvalidGrammar(f"the terminal {clash} is given a grammar, but the text defines it as well; declare it with %declare instead")
    expansions: dict[str, list[list[tuple[bool, str]]]] = {}
    for rule in loaded.rules:
        symbols = [(bool(s.is_term), str(s.name)) for s in rule.expansion]
        missing = next((name for is_term, name in symbols if is_term and name not in patterns and name not in embedded), None)
        if missing is not None:
            raise UnsupportedSchema(f"terminal {missing}", "%declare", "a declared terminal has no pattern; define it, or give its grammar in `terminals`")
        expansions.setdefault(str(rule.origin.name), []).append(symbols)
    ignored = [str(name) for name in loaded.ignore_tokens]
    declared = next((name for name in ignored if name not in patterns), None)
    if declared is not None:
        raise UnsupportedSchema(f"terminal {declared}", "%ignore", "what is ignored needs a pattern; a declared terminal has none")
    cfg = Cfg(builder)
    terminals = Terminals(cfg, patterns, ignored, embedded)
    looking = Lookahead(terminals, dict.fromkeys(name for rules in expansions.values() for rule in rules for is_term, name in rule if is_term))
    if looking.possible:
        _define_whole(cfg, expansions, looking, start)
        return builder.closed(cfg.compile("the text"))
    _Rules(cfg, expansions, terminals).define(start)
    return cfg.compile("the text")


def _define_whole(cfg: Cfg, expansions: dict[str, list[list[tuple[bool, str]]]], looking: Lookahead, start: str) -> None:
    """Defines the rules as they are, and the rule "the text"."""
    for name, rules in expansions.items():
        cfg.define(name, cfg.alt(*(cfg.seq(*(looking.token(part) if is_term else cfg.call(part) for is_term, part in rule)) for rule in rules)))
    cfg.define("the text", cfg.seq(looking.gap, cfg.call(start)))


def _load(text: str, start: str) -> Any:
    import lark

    found = re.search(r"^[ \t]*%import[ \t]+\.", text, re.MULTILINE)
    if found:
        raise UnsupportedSchema(f"position {found.start()}", "%import .", "files are not read; copy what you need into the grammar")
    try:
        return lark.Lark(text, start=start, parser="earley", lexer="dynamic")
    except lark.exceptions.UnexpectedInput as error:
        raise InvalidGrammar(f"the grammar is not Lark: {error}", position=error.pos_in_stream) from error
    except _load_errors() as error:
        raise InvalidGrammar(f"lark refuses the grammar: {error}", position=_place(text, str(error))) from error
    except RecursionError:
        raise GrammarTooComplex("nesting", "the grammar's groups are nested too deep for lark; give inner parts rules of their own") from None


def _load_errors() -> tuple[type[Exception], ...]:
    """What lark raises, and what it lets through for a malformed pattern: it asks the regex package as well, where there is one."""
    import lark

    known = (lark.exceptions.LarkError, OSError, ValueError, re.error)
    other = sys.modules.get("regex")
    return known if other is None else (*known, other.error)


def _place(text: str, message: str) -> int | None:
    """The offset that lark's message speaks of, if it does."""
    found = re.search(r"at line (\d+) column (\d+)", message)
    return sum(map(len, text.splitlines(keepends=True)[: int(found[1]) - 1])) + int(found[2]) - 1 if found else None


class Embedded:
    """A finished grammar in place of a terminal.

    first: the characters that may begin it (possibly more). Raises InvalidGrammar if it matches the empty text: no terminal may.
    """

    def __init__(self, builder: Builder, name: str, program: Program) -> None:
        self.name, self.node = name, include(builder, program)
        begins, empty = beginnings(program)
        if empty:
            raise InvalidGrammar(f"the grammar given for the terminal {name} matches the empty text, which no terminal may; make {name} optional in the rules")
        leads = {0xC0: (0x80, 0x7FF), 0xE0: (0x800, 0xFFFF), 0xF0: (0x10000, LAST)}
        ranges = [(byte, byte) for byte in begins if byte < 0x80] + [leads[0xC0 if byte < 0xE0 else min(byte, 0xF0) & 0xF0] for byte in begins if byte >= 0x80]
        self.first = CharSet.from_ranges(ranges)


class Terminals:
    """What terminals take, context by context, as expressions of a Cfg."""

    def __init__(self, cfg: Cfg, patterns: dict[str, str], ignored: list[str], embedded: Mapping[str, Embedded]) -> None:
        self.cfg, self.embedded = cfg, embedded
        self.lexemes = Lexemes(patterns)
        self.number = {name: t for t, name in enumerate(self.lexemes.names)}
        self.ignored = [self.number[name] for name in ignored]
        self._bare: dict[tuple[Context, int], dict[Context, Expr]] = {}
        self._gaps: dict[Context, dict[Context, Expr]] = {}
        self._tokens: dict[tuple[Context, str], dict[Context, Expr]] = {}
        self._texts: dict[CharSet, Expr] = {}

    def after(self, context: Context, klass: int) -> Context | None:
        """A context after one character; None if it forbids it."""
        step = self.lexemes.demands.step
        out = {step[d][klass] for d in context}
        return None if BROKEN in out else frozenset(out - {FREE})

    def token(self, context: Context, name: str) -> dict[Context, Expr]:
        """Ignored texts and then the terminal: expressions by the context they leave."""
        key = (context, name)
        if key not in self._tokens:
            cfg, by_text = self.cfg, dict[tuple[Context, Expr], list[Expr]]()
            for middle, gap in self.gap(context).items():
                texts = self.given(middle, self.embedded[name]) if name in self.embedded else self.bare(middle, self.number[name])
                for left, text in texts.items():
                    by_text.setdefault((left, text), []).append(gap)
            out: dict[Context, Expr] = {}
            for (left, text), gaps in by_text.items():
                out[left] = cfg.alt(out.get(left, cfg.EMPTY), cfg.seq(cfg.alt(*gaps), text))
            self._tokens[key] = out
        return self._tokens[key]

    def token_alone(self, name: str) -> dict[Context, Expr]:
        """The terminal after no demand: expressions by the context it leaves, of one demand at most."""
        return self.given(NOTHING, self.embedded[name]) if name in self.embedded else self.bare(NOTHING, self.number[name])

    def regular(self, expr: Expr) -> Node:
        """A terminal's expression as a node of the Builder."""
        self.cfg.define(("terminal alone", expr), expr)
        return self.cfg.compile(("terminal alone", expr))

    def start(self, name: str) -> State | CharSet:
        """The state in which a terminal begins; of an embedded grammar the characters that may begin it."""
        return self.embedded[name].first if name in self.embedded else self.lexemes.start[self.number[name]]

    def first_classes(self, name: str) -> list[int]:
        """Classes of characters with which a terminal may begin."""
        if name in self.embedded:
            return [k for k, chars in enumerate(self.lexemes.classes) if chars & self.embedded[name].first]
        return [k for k, state in enumerate(self.lexemes.step(self.lexemes.start[self.number[name]])) if state is not None]

    def end(self, context: Context) -> Expr:
        """Ignored texts up to the end of the whole."""
        at_end = self.lexemes.demands.at_end
        return self.cfg.alt(*(gap for left, gap in self.gap(context).items() if all(at_end[d] for d in left)))

    def gap(self, context: Context) -> dict[Context, Expr]:
        """Any number of ignored texts, by the context they leave."""
        if context not in self._gaps:
            order = [context]
            steps: dict[tuple[int, int], Expr] = {}
            for i, here in enumerate(order):  # grows
                for t in self.ignored:
                    for left, text in self.bare(here, t).items():
                        if left not in order:
                            if len(order) >= MAX_CONTEXTS:
                                raise GrammarTooComplex("contexts", f"what %ignore names leaves more than {MAX_CONTEXTS} demands on what follows")
                            order.append(left)
                        key = (i, order.index(left))
                        steps[key] = self.cfg.alt(steps.get(key, self.cfg.EMPTY), text)
            ways = {j: solve_linear(self.cfg, range(len(order)), steps, {j: self.cfg.EPSILON})[0] for j in range(len(order))}
            self._gaps[context] = {order[j]: way for j, way in ways.items()}
        return self._gaps[context]

    def given(self, context: Context, part: Embedded) -> dict[Context, Expr]:
        """An embedded grammar: it makes no demands, and its first character must settle those that are open."""
        classes = [k for k, chars in enumerate(self.lexemes.classes) if chars & part.first]
        outcomes = {self.after(context, klass) for klass in classes} if context else {NOTHING}
        if outcomes <= {None}:
            return {}
        if outcomes != {NOTHING}:
            why = "whether it may follow the terminal before depends on how it begins; put a sign between them"
            raise UnsupportedSchema(f"terminal {part.name}", "%declare", why)
        return {NOTHING: self.cfg.text(part.node)}

    def bare(self, context: Context, terminal: int) -> dict[Context, Expr]:
        """The terminal alone: expressions by the context it leaves."""
        key = (context, terminal)
        if key not in self._bare:
            known = self._as_without_context(context, terminal)
            self._bare[key] = self._product(context, terminal) if known is None else known
        return self._bare[key]

    def _as_without_context(self, context: Context, terminal: int) -> dict[Context, Expr] | None:
        """The outcome if the first character settles every demand in the same way."""
        if not context:
            return None
        first = self.lexemes.step(self.lexemes.start[terminal])
        outcomes = {self.after(context, klass) for klass, following in enumerate(first) if following is not None}
        if outcomes <= {None}:
            return {}
        return self.bare(NOTHING, terminal) if outcomes == {NOTHING} else None

    def _product(self, context: Context, terminal: int) -> dict[Context, Expr]:
        """The terminal's automaton beside that of the context."""
        of = self.lexemes.demands.of
        places: dict[tuple[Context, State], int] = {(context, self.lexemes.start[terminal]): 0}
        edges: dict[tuple[int, int], list[int]] = {}
        ends: dict[Context, dict[int, Expr]] = {}
        todo = list(places)
        while todo:
            here = todo.pop()
            for klass, following in enumerate(self.lexemes.step(here[1])):
                left = self.after(here[0], klass) if following is not None else None
                if following is None or left is None:
                    continue
                there = (left, following)
                if there not in places:
                    places[there] = len(places)
                    todo.append(there)
                    demand = of.get(following, BROKEN)
                    if demand != BROKEN:
                        ends.setdefault(left | ({demand} - {FREE}), {})[places[there]] = self.cfg.EPSILON
                edges.setdefault((places[here], places[there]), []).append(klass)
        steps = {key: self._text(CharSet.from_ranges(r for k in klasses for r in self.lexemes.classes[k].ranges)) for key, klasses in edges.items()}
        return {left: _expression(self.cfg, len(places), steps, end, ("terminal", terminal, context, left)) for left, end in ends.items()}

    def _text(self, chars: CharSet) -> Expr:
        if chars not in self._texts:
            self._texts[chars] = self.cfg.text(utf8_class(self.cfg.builder, chars))
        return self._texts[chars]


def _expression(cfg: Cfg, count: int, steps: dict[tuple[int, int], Expr], end: dict[int, Expr], name: Hashable) -> Expr:
    """The texts that lead an automaton from state 0 to an end. Large loops become rules of the Cfg."""
    following: dict[int, list[int]] = {}
    for i, j in steps:
        following.setdefault(i, []).append(j)
    value: dict[int, Expr] = {}
    for part in components(range(count), lambda i: following.get(i, ())):
        inside = set(part)
        stop = {i: cfg.alt(end.get(i, cfg.EMPTY), *(cfg.seq(steps[i, j], value[j]) for j in following.get(i, ()) if j not in inside)) for i in part}
        loops = {(i, j): steps[i, j] for i in part for j in following.get(i, ()) if j in inside}
        if len(part) <= MAX_SOLVED:
            value |= solve_linear(cfg, part, loops, stop)
            continue
        value |= {i: cfg.call((name, i)) for i in part}
        for i in part:
            cfg.define((name, i), cfg.alt(stop[i], *(cfg.seq(loops[i, j], value[j]) for j in part if (i, j) in loops)))
    return value[0]


class _Rules:
    """Rules split by the contexts in which they begin and end."""

    def __init__(self, cfg: Cfg, expansions: dict[str, list[list[tuple[bool, str]]]], terminals: Terminals) -> None:
        self.cfg, self.expansions, self.terminals = cfg, expansions, terminals
        self.used = list(dict.fromkeys(name for rules in expansions.values() for rule in rules for is_term, name in rule if is_term))
        self.ends: dict[tuple[str, Context], set[Context]] = {}
        self.same = self._equivalent()

    def _equivalent(self) -> dict[Context, Context]:
        """Each context -> one that stands for all that allow the same from there on (Moore 1956)."""
        terminals, found = self.terminals, [NOTHING]
        known = {NOTHING}
        for context in found:  # grows
            for name in self.used:
                for left in terminals.token(context, name):
                    if left not in known:
                        known.add(left)
                        found.append(left)
            if len(found) > MAX_CONTEXTS:
                raise GrammarTooComplex("contexts", f"terminals leave more than {MAX_CONTEXTS} different demands on what follows; use simpler terminals")
        group = {context: terminals.end(context) for context in found}
        count = 0
        while len(set(group.values())) > count:
            count = len(set(group.values()))
            ids: dict[tuple[Any, ...], int] = {}
            group = {c: ids.setdefault((group[c], *(self._row(c, name, group) for name in self.used)), len(ids)) for c in found}
        first: dict[int, Context] = {}
        return {c: first.setdefault(group[c], c) for c in found}

    def _row(self, context: Context, name: str, group: dict[Context, int]) -> tuple[tuple[int, Expr], ...]:
        out: dict[int, Expr] = {}
        for left, text in self.terminals.token(context, name).items():
            out[group[left]] = self.cfg.alt(out.get(group[left], self.cfg.EMPTY), text)
        return tuple(sorted(out.items()))

    def token(self, context: Context, name: str) -> dict[Context, Expr]:
        out: dict[Context, Expr] = {}
        for left, text in self.terminals.token(context, name).items():
            out[self.same[left]] = self.cfg.alt(out.get(self.same[left], self.cfg.EMPTY), text)
        return out

    def define(self, start: str) -> None:
        """Defines the rule "the text"."""
        cfg, begin = self.cfg, self.same[NOTHING]
        self.ends[start, begin] = set()
        self._find_ends()
        for name, context in self.ends:
            ways: dict[Context, list[Expr]] = {}
            for expansion in self.expansions[name]:
                for left, text in self._sequence(context, expansion).items():
                    ways.setdefault(left, []).append(text)
            for left, texts in ways.items():
                cfg.define((name, context, left), cfg.alt(*texts))
        whole = [cfg.seq(cfg.call((start, begin, left)), self.terminals.end(left)) for left in self.ends[start, begin]]
        cfg.define("the text", cfg.alt(*whole))

    def _sequence(self, context: Context, expansion: list[tuple[bool, str]]) -> dict[Context, Expr]:
        ways = {context: self.cfg.EPSILON}
        for is_term, name in expansion:
            longer: dict[Context, list[Expr]] = {}
            for here, text in ways.items():
                if is_term:
                    steps = self.token(here, name)
                else:
                    steps = {left: self.cfg.call((name, here, left)) for left in self.ends[name, here]}
                for left, more in steps.items():
                    longer.setdefault(left, []).append(self.cfg.seq(text, more))
            ways = {left: self.cfg.alt(*texts) for left, texts in longer.items()}
        return ways

    def _find_ends(self) -> None:
        """In which contexts each rule may end, by where it begins: a least fixpoint over what is reached from the start."""
        changed = True
        while changed:
            changed = False
            for key in list(self.ends):
                for expansion in self.expansions[key[0]]:
                    before = len(self.ends), len(self.ends[key])
                    self.ends[key] |= self._reached(key[1], expansion)
                    changed = changed or before != (len(self.ends), len(self.ends[key]))

    def _reached(self, context: Context, expansion: list[tuple[bool, str]]) -> set[Context]:
        here = {context}
        for is_term, name in expansion:
            if is_term:
                here = {left for c in here for left in self.token(c, name)}
            else:
                here = {left for c in here for left in self.ends.setdefault((name, c), set())}
        return here
