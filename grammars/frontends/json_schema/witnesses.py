"""Conditions that some member must meet (`contains`, and what complements leave) as plain shapes and item automata.

Input: shapes that carry `Contains` or `Exists`; output: shapes without. Knows nothing of emptiness by recursion or of
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from agentkit.errors import GrammarTooComplex, UnsupportedSchema
from agentkit.grammars.frontends.json_schema.algebra import intersect
from agentkit.grammars.frontends.json_schema.families import Family
from agentkit.grammars.frontends.json_schema.scalars import ANY_STRING
from agentkit.grammars.frontends.json_schema.shapes import ARRAY, Array, Exists, Object
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type, Types

MAX_STATES = 4096
MAX_OPTIONAL = 6  # optional properties among which "some undeclared property" is counted out

State = tuple[int, ...]


class Steps:
    """Arrays as an automaton over items: `moves[s]` are (type of the item, next state), `accepting[s]` whether the array may end.

    State 0 is the start; a state's moves lead to itself or to later states only.
    """

    __slots__ = ("accepting", "moves")
    kind = ARRAY

    def __init__(self, moves: list[tuple[tuple[Type, int], ...]], accepting: list[bool]) -> None:
        self.moves = moves
        self.accepting = accepting


def steps_of(a: Array, types: Types) -> Steps:
    """The automaton of an array with `Contains` conditions. States are (position, matches counted for each condition)."""
    far = max(len(a.prefix), a.lo, a.hi or 0, *(c.start for c in a.some))
    index: dict[State, int] = {}
    states = sorted(_reach(a, far, types), key=lambda s: s[0])
    order = sorted(states, key=lambda s: (s[0][0], sum(s[0][1:]), s[0]))
    for s in order:
        index[s[0]] = len(index)
    moves = [tuple((t, index[to]) for t, to in out) for _, out in order]
    accepting = [s[0] >= a.lo and all(n >= c.lo for n, c in zip(s[1:], a.some, strict=True)) for s, _ in order]
    return Steps(moves, accepting)


def _reach(a: Array, far: int, types: Types) -> list[tuple[State, list[tuple[Type, State]]]]:
    start: State = (0,) * (len(a.some) + 1)
    seen = {start}
    queue = [start]
    found: list[tuple[State, list[tuple[Type, State]]]] = []
    for state in queue:
        out = [] if a.hi is not None and state[0] >= a.hi else list(_moves(a, state, far, types))
        found.append((state, out))
        for _, to in out:
            if to not in seen:
                seen.add(to)
                queue.append(to)
        if len(seen) > MAX_STATES:
            raise GrammarTooComplex("array states", f"contains with the bounds on items and matches needs more than {MAX_STATES} states; use smaller bounds")
    return found


def _moves(a: Array, state: State, far: int, types: Types) -> Iterator[tuple[Type, State]]:
    """One more item: for each condition it counts, or it does not (or need not) count."""
    i = state[0]
    open_moves: list[tuple[Type, tuple[int, ...]]] = [(a.item(i), ())]
    for c, n in zip(a.some, state[1:], strict=True):
        grown: list[tuple[Type, tuple[int, ...]]] = []
        for t, counts in open_moves:
            if i < c.start or (c.hi is None and n >= c.lo):
                grown.append((t, (*counts, n)))
                continue
            grown.append((t if c.hi is None else types.both(t, types.negate(c.type)), (*counts, n)))
            if c.hi is None or n < c.hi:
                grown.append((types.both(t, c.type), (*counts, n + 1)))
        open_moves = grown
    for t, counts in open_moves:
        if t is not FALSE:
            yield t, (min(i + 1, far), *counts)


def settle(o: Object, types: Types) -> list[Object]:
    """An object with `Exists` conditions as a union of objects without."""
    done: list[Object] = []
    waiting = [o]
    while waiting:
        current = waiting.pop()
        left = [e for e in current.some if not _met(current, e, types)]
        if not left:
            done.append(Object(current.fields, current.required, current.extras, current.lo, current.hi))
            continue
        first = min(left, key=lambda e: sum(n not in e.but for n in current.fields))
        plain = Object(current.fields, current.required, current.extras, current.lo, current.hi, tuple(e for e in left if e is not first))
        waiting += _with_declared(plain, first, types)
        waiting += _with_undeclared(plain, first, types)
        if len(waiting) + len(done) > MAX_STATES:
            raise GrammarTooComplex("alternatives", f"complements of objects give more than {MAX_STATES} alternatives")
    return done


def _met(o: Object, e: Exists, types: Types) -> bool:
    """Whether a required property meets the condition already."""
    return any(n not in e.but and e.names.contains(n) and types.both(o.fields[n], e.type) is o.fields[n] for n in o.required)


def _with_declared(o: Object, e: Exists, types: Types) -> list[Object]:
    """A declared name carries the value asked for."""
    out: list[Object] = []
    for name, t in o.fields.items():
        if name in e.but or t is FALSE or not e.names.contains(name):
            continue
        both = types.both(t, e.type)
        if both is not FALSE:
            made = intersect(o, Object({name: both}, frozenset((name,))), types)
            if isinstance(made, Object):
                out.append(made)
    return out


def _with_undeclared(o: Object, e: Exists, types: Types) -> list[Object]:
    """An undeclared name carries it: only where every undeclared name would do, so that counting properties decides."""
    matching: list[Family] = []
    for family in o.extras:
        names = family.names if e.names is ANY_STRING else family.names.intersect(e.names)
        if family.type is not FALSE and names is not None and not names.is_empty() and types.both(family.type, e.type) is not FALSE:
            matching.append(family)
    if not matching:
        return []
    o = Object({**o.fields, **{n: o.member(n) for n in sorted(e.but) if n not in o.fields}}, o.required, o.extras, o.lo, o.hi, o.some)
    usable = [f for f in o.extras if f.type is not FALSE]
    optional = [n for n, t in o.fields.items() if n not in o.required and t is not FALSE]
    whole = e.names is ANY_STRING or all(f.names is e.names for f in usable)
    serves = all(f.type is e.type or e.type is TRUE for f in usable)
    if not (whole and serves and len(optional) <= MAX_OPTIONAL):
        raise UnsupportedSchema("#", "not", "it asks for some undeclared property with a value of a certain kind")
    out: list[Object] = []
    for n in range(len(optional) + 1):
        for used in combinations(optional, n):
            present = o.required | frozenset(used)
            fields = {name: (FALSE if name in optional and name not in used else t) for name, t in o.fields.items()}
            lo = max(o.lo, len(present) + 1)
            if o.hi is None or lo <= o.hi:
                out.append(Object(fields, present, o.extras, lo, o.hi, o.some))
    return out
