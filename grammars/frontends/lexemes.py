"""What a terminal takes at a place, and what must not follow it.

Input: patterns in Python's syntax; output: automata over classes of characters. Knows nothing of grammars or spelling in bytes.

`re.match` takes one text at a place, not any: NAME does not end in the middle of a word. So a text that a terminal matches
leaves a *demand* on what follows it ("no more letters"). Demands are states of an automaton; equivalent ones are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from agentkit.errors import GrammarTooComplex, UnsupportedSchema
from agentkit.grammars.frontends import lexeme_program as lp
from agentkit.grammars.frontends import unicode_sets as us
from agentkit.grammars.frontends.chars import LAST, SURROGATES, CharSet

END = -1  # "no character follows"
FREE, BROKEN = -2, -3  # a demand that is met whatever follows | one that is not met
MAX_STATES = 20_000

Thread = tuple[int, frozenset[int]]
"""A place in the program, and the places from which nothing may match any more (negative look-ahead)."""
Memory = tuple[bool, ...] | None
"""For each condition that looks back: does the last character meet it? None at the beginning of a terminal."""


@dataclass(frozen=True)
class State:
    """Threads in order of preference before the next character is known."""

    terminal: int
    threads: tuple[Thread, ...]
    memory: Memory


@dataclass(frozen=True)
class Avoid:
    """A demand past its first character: none of these places may lead to a match."""

    terminal: int
    places: frozenset[int]
    memory: Memory


class Lexemes:
    """The terminals of one grammar.

    classes: sets of characters that no terminal can tell apart; they partition all characters that text may hold.
    start[t]: state of terminal t before its first character.
    """

    def __init__(self, patterns: dict[str, str]) -> None:
        self.names = list(patterns)
        self.program = lp.Program()
        begins: list[int] = []
        spans: list[range] = []
        for name, pattern in patterns.items():
            first = len(self.program.code)
            begins.append(self.program.compile(name, pattern))
            spans.append(range(first, len(self.program.code)))
        self._backs = [self._looking_back(span) for span in spans]
        sets = {s for instruction in self.program.code for s in _sets_of(instruction)}
        self.classes, self._class_sets = partition(sets)
        self.start = [State(t, ((begin, frozenset()),), None) for t, begin in enumerate(begins)]
        self._steps: dict[State, list[State | None]] = {}

    def _looking_back(self, span: range) -> list[CharSet]:
        found: dict[CharSet, None] = {}
        for at in span:
            instruction = self.program.code[at]
            if instruction[0] == lp.BESIDE:
                condition = instruction[1]
                if condition.word is not None:
                    found[us.python_class("w")] = None
                elif condition.before is not None:
                    found[condition.before] = None
        return list(found)

    def _has(self, chars: CharSet, klass: int) -> bool:
        return klass != END and klass in self._class_sets[chars]

    def _remember(self, terminal: int, klass: int) -> Memory:
        return tuple(self._has(chars, klass) for chars in self._backs[terminal])

    def refuse(self, terminal: int, construct: str, why: str) -> UnsupportedSchema:
        return UnsupportedSchema(f"terminal {self.names[terminal]}", construct, why)

    def _holds(self, condition: lp.Beside, terminal: int, memory: Memory, klass: int) -> bool:
        """A condition between the remembered character and the next one."""
        ahead = condition.after is None or (condition.at_end if klass == END else self._has(condition.after, klass))
        chars = us.python_class("w") if condition.word is not None else condition.before
        if chars is None:
            return ahead
        if memory is None:
            raise self.refuse(terminal, "look-behind, ^ or \\b at the beginning", "it depends on the text before the terminal; leave it out")
        behind = memory[self._backs[terminal].index(chars)]
        if condition.word is not None:
            return (behind != self._has(chars, klass)) == condition.word
        return behind and ahead

    def _closure(self, threads: Iterable[Thread], terminal: int, memory: Memory, klass: int) -> list[Thread]:
        """Threads at a CHAR or MATCH, in order, given the next character."""
        out: list[Thread] = []
        seen: set[Thread] = set()
        code = self.program.code
        stack = list(threads)[::-1]
        while stack:
            thread = stack.pop()
            if thread in seen:
                continue
            seen.add(thread)
            at, banned = thread
            instruction = code[at]
            kind = instruction[0]
            if kind in (lp.CHAR, lp.MATCH):
                out.append(thread)
            elif kind == lp.SPLIT:
                stack += [(instruction[2], banned), (instruction[1], banned)]
            elif kind == lp.JUMP:
                stack.append((instruction[1], banned))
            elif kind == lp.NOT_AHEAD:
                stack.append((instruction[2], banned | {instruction[1]}))
            elif self._holds(instruction[1], terminal, memory, klass):
                stack.append((instruction[2], banned))
        return out

    def _avoided(self, places: frozenset[int], terminal: int, memory: Memory, klass: int) -> frozenset[int] | None:
        """Places that must not match, one character later; None if one of them matches here."""
        closed = self._closure([(p, frozenset()) for p in sorted(places)], terminal, memory, klass)
        code = self.program.code
        if any(banned for _, banned in closed):
            raise self.refuse(terminal, "(?!...)", "it stands in a part that may go on beyond a match; put it first")
        if any(code[p][0] == lp.MATCH for p, _ in closed):
            return None
        return frozenset(code[p][2] for p, _ in closed if self._has(code[p][1], klass))

    def _advance(self, threads: list[Thread], state: State | Avoid, klass: int) -> list[Thread]:
        out: dict[Thread, None] = {}
        for at, banned in threads:
            instruction = self.program.code[at]
            if instruction[0] == lp.CHAR and self._has(instruction[1], klass):
                left = self._avoided(banned, state.terminal, state.memory, klass) if banned else banned
                if left is not None:
                    out[instruction[2], left] = None
        return list(out)

    def _split(self, state: State, klass: int) -> tuple[list[Thread], Thread | None]:
        """Threads above the first that matches here, and that one."""
        closed = self._closure(state.threads, state.terminal, state.memory, klass)
        at = next((i for i, (p, _) in enumerate(closed) if self.program.code[p][0] == lp.MATCH), len(closed))
        if at == len(closed):
            return closed, None
        if any(not closed[at][1] <= banned for _, banned in closed[at + 1 :]):
            raise self.refuse(state.terminal, "(?!...)", "which alternative wins depends on text beyond the terminal; put the look-ahead first")
        return closed[:at], closed[at]

    def step(self, state: State) -> list[State | None]:
        """The state after each class of characters (None: no match any more)."""
        known = self._steps.get(state)
        if known is None:
            if len(self._steps) >= MAX_STATES:
                raise GrammarTooComplex("terminals", f"the terminals need more than {MAX_STATES} states; use smaller repeats or simpler patterns")
            known = self._steps[state] = [self._step(state, klass) for klass in range(len(self.classes))]
        return known

    def _step(self, state: State, klass: int) -> State | None:
        threads = self._advance(self._split(state, klass)[0], state, klass)
        return State(state.terminal, tuple(threads), self._remember(state.terminal, klass)) if threads else None

    def may_end(self, state: State) -> bool:
        """Could the terminal end here, whatever follows being right? (State.demand says what must follow.)"""
        return any(self.program.code[p][0] == lp.MATCH for p, _ in self._reachable(state))

    def _reachable(self, state: State) -> list[Thread]:
        out, stack, seen = [], list(state.threads), set()
        while stack:
            thread = stack.pop()
            if thread in seen:
                continue
            seen.add(thread)
            at, banned = thread
            instruction = self.program.code[at]
            if instruction[0] == lp.SPLIT:
                stack += [(instruction[1], banned), (instruction[2], banned)]
            elif instruction[0] in (lp.JUMP, lp.BESIDE, lp.NOT_AHEAD):
                stack.append((instruction[-1], banned))
            else:
                out.append(thread)
        return out

    def demand_step(self, demand: State | Avoid, klass: int) -> Avoid | int:
        """A demand after its next character: another one, FREE or BROKEN. A State as a demand: the terminal ended in it."""
        terminal, memory = demand.terminal, demand.memory
        if isinstance(demand, Avoid):
            places = self._avoided(demand.places, terminal, memory, klass)
        else:
            above, match = self._split(demand, klass)
            if match is None:
                return BROKEN
            banned = self._avoided(match[1], terminal, memory, klass)
            if banned is None:
                return BROKEN
            rivals = self._advance(above, demand, klass)
            if any(not left <= banned for _, left in rivals):
                raise self.refuse(terminal, "(?!...)", "whether the terminal goes on depends on text beyond it; put the look-ahead first")
            places = banned | {p for p, _ in rivals}
        if places is None:
            return BROKEN
        return Avoid(terminal, places, self._remember(terminal, klass)) if places else FREE

    def demand_at_end(self, demand: State | Avoid) -> bool:
        """Is it met if the text ends here?"""
        if isinstance(demand, Avoid):
            return self._avoided(demand.places, demand.terminal, demand.memory, END) is not None
        match = self._split(demand, END)[1]
        return match is not None and self._avoided(match[1], demand.terminal, demand.memory, END) is not None

    @cached_property
    def demands(self) -> Demands:
        return Demands(self)


class Demands:
    """The demands that terminals may leave, equivalent ones made one.

    of[state]: number of the demand that a terminal leaves when it ends in `state`; FREE: none; BROKEN: it cannot end there.
    step[d][class]: what becomes of demand d; at_end[d]: is it met at the end of the text?
    """

    def __init__(self, lexemes: Lexemes) -> None:
        every: dict[State | Avoid, list[Any]] = {}
        todo: list[State | Avoid] = [s for s in self._states(lexemes) if lexemes.may_end(s)]
        exits = list(todo)
        while todo:
            demand = todo.pop()
            if demand in every:
                continue
            if len(every) >= MAX_STATES:
                raise GrammarTooComplex("terminals", f"what may follow a terminal takes more than {MAX_STATES} states to know; use simpler patterns")
            row = every[demand] = [lexemes.demand_step(demand, klass) for klass in range(len(lexemes.classes))]
            todo += [d for d in row if isinstance(d, Avoid)]
        at_end = {d: lexemes.demand_at_end(d) for d in every}
        breakable = _reaching(every, {d for d, row in every.items() if not at_end[d] or BROKEN in row})
        meetable = _reaching(every, {d for d, row in every.items() if at_end[d] or FREE in row})
        known = {d: FREE if d not in breakable else BROKEN for d in every if d not in breakable or d not in meetable}
        rows = {d: [known.get(x, x) for x in row] for d, row in every.items() if d not in known}
        number = known | _coarsest(rows, at_end)
        self.of = {s: number[s] for s in exits if isinstance(s, State)}
        self.step = {number[d]: [x if isinstance(x, int) else number[x] for x in row] for d, row in rows.items()}
        self.at_end = {number[d]: at_end[d] for d in rows}

    @staticmethod
    def _states(lexemes: Lexemes) -> list[State]:
        """Every state after at least one character."""
        seen: dict[State, None] = {}
        todo = list(lexemes.start)
        while todo:
            for following in lexemes.step(todo.pop()):
                if following is not None and following not in seen:
                    seen[following] = None
                    todo.append(following)
        return list(seen)


def _reaching(rows: dict[Any, list[Any]], goal: set[Any]) -> set[Any]:
    """Demands that may come to one of `goal`."""
    before: dict[Any, list[Any]] = {}
    for d, row in rows.items():
        for x in row:
            if not isinstance(x, int):
                before.setdefault(x, []).append(d)
    found, todo = set(goal), list(goal)
    while todo:
        for d in before.get(todo.pop(), ()):
            if d not in found:
                found.add(d)
                todo.append(d)
    return found


def _coarsest(rows: dict[Any, list[Any]], mark: dict[Any, bool]) -> dict[Any, int]:
    """Numbers of the classes of equivalent states (Moore 1956). Integers in a row are outcomes, not states."""
    group = {d: int(mark[d]) for d in rows}
    count = 0
    while len(set(group.values())) > count:
        count = len(set(group.values()))
        ids: dict[tuple[Any, ...], int] = {}
        group = {d: ids.setdefault((group[d], *(x if isinstance(x, int) else (group[x],) for x in row)), len(ids)) for d, row in rows.items()}
    return group


def _sets_of(instruction: tuple[Any, ...]) -> list[CharSet]:
    if instruction[0] == lp.CHAR:
        return [instruction[1]]
    if instruction[0] == lp.BESIDE:
        condition = instruction[1]
        return [us.python_class("w")] if condition.word is not None else [s for s in (condition.before, condition.after) if s is not None]
    return []


def partition(sets: Iterable[CharSet]) -> tuple[list[CharSet], dict[CharSet, frozenset[int]]]:
    """The coarsest classes of characters of which every set is a union, and each set's classes. Surrogates are in no class."""
    sets = list(sets)
    edges: dict[int, list[int]] = {0: [], LAST + 1: []}
    for i, chars in enumerate([*sets, SURROGATES]):
        for lo, hi in chars.ranges:
            edges.setdefault(lo, []).append(i)
            edges.setdefault(hi + 1, []).append(i)
    inside: set[int] = set()
    ranges: dict[frozenset[int], list[tuple[int, int]]] = {}
    points = sorted(edges)
    for at, following in pairwise(points):
        inside.symmetric_difference_update(edges[at])
        if len(sets) not in inside:
            ranges.setdefault(frozenset(inside), []).append((at, following - 1))
    classes = [CharSet.from_ranges(r) for r in ranges.values()]
    members: list[set[int]] = [set() for _ in sets]
    for klass, which in enumerate(ranges):
        for i in which:
            members[i].add(klass)
    return classes, {chars: frozenset(m) for chars, m in zip(sets, members, strict=True)}
