"""Conditions that some member must meet (`contains`, and what complements leave) as plain shapes and item automata.

Input: shapes that carry `Contains` or `Exists`; output: shapes without. Knows nothing of emptiness by recursion or of
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentkit.errors import GrammarTooComplex, UnsupportedSchema
from agentkit.grammars.frontends.json_schema.algebra import intersect
from agentkit.grammars.frontends.json_schema.families import Family, minus
from agentkit.grammars.frontends.json_schema.scalars import ANY_STRING, Strings
from agentkit.grammars.frontends.json_schema.shapes import ARRAY, Array, Exists, Object
from agentkit.grammars.frontends.json_schema.types import FALSE, Type, Types

MAX_STATES = 4096
MANY_NAMES = 1000  # names enough not to run out while properties of other values are written

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
    """An object with `Exists` conditions as a union of objects without; in some of them a family of names is `asked` for."""
    done: list[Object] = []
    names = sorted({n for e in o.some for n in e.but if n not in o.fields})
    o = Object({**o.fields, **{n: o.member(n) for n in names}}, o.required, o.extras, o.lo, o.hi, o.some)
    waiting: list[tuple[Object, Exists | None]] = [(o, None)]
    while waiting:
        current, asked = waiting.pop()
        left = [e for e in current.some if not _met(current, e, types)]
        if not left:
            made = current if asked is None else _asking(current, asked, types)
            done.append(Object(made.fields, made.required, made.extras, made.lo, made.hi))
            continue
        first = min(left, key=lambda e: sum(n not in e.but for n in current.fields))
        plain = Object(current.fields, current.required, current.extras, current.lo, current.hi, tuple(e for e in left if e is not first))
        waiting += [(made, asked) for made in _with_declared(plain, first, types)]
        if _some_undeclared(plain, first, types):
            waiting.append((plain, _both_asked(plain, asked, first, types)))
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


def _inside(family: Family, e: Exists) -> Strings | None:
    """The names of a family that a condition is about."""
    return family.names if e.names is ANY_STRING or family.names is e.names else family.names.intersect(e.names)


def _some_undeclared(o: Object, e: Exists, types: Types) -> bool:
    """Whether an undeclared name may carry the value asked for."""
    for family in o.extras:
        if types.both(family.type, e.type) is not FALSE:
            names = _inside(family, e)
            if names is not None and not names.is_empty():
                return True
    return False


def _serves(o: Object, e: Exists, types: Types) -> bool:
    """Whether every undeclared name does."""
    usable = [f for f in o.extras if f.type is not FALSE]
    return all(_inside(f, e) is f.names and types.both(f.type, e.type) is f.type for f in usable)


def _both_asked(o: Object, asked: Exists | None, e: Exists, types: Types) -> Exists:
    """One condition on undeclared names in place of two."""
    if asked is None or _serves(o, asked, types):
        return e
    if not _serves(o, e, types) and (asked.names is not e.names or asked.type is not e.type):
        raise UnsupportedSchema("#", "not", "it asks for several undeclared properties with values of certain kinds")
    return asked


def _asking(o: Object, e: Exists, types: Types) -> Object:
    """`o` with its families of undeclared names cut into what meets the condition, and is asked for, and the rest."""
    extras: list[Family] = []
    for family in o.extras:
        inside = _inside(family, e)
        yes = types.both(family.type, e.type)
        if yes is FALSE or inside is None or inside.is_empty():
            extras.append(family)
            continue
        if inside is not family.names:
            extras += [Family(names, family.type) for names in minus(family.names, e.names, "#", "not")]
        no = FALSE if yes is family.type else types.both(family.type, types.negate(e.type))
        if no is not FALSE:
            extras.append(Family(inside, no))
        enough = len(o.fields) + 1 if no is FALSE else MANY_NAMES
        if inside.only is not None or inside.count_up_to(enough) < enough:
            raise UnsupportedSchema("#", "not", "it asks for some undeclared property of which there are few names")
        extras.append(Family(inside, yes, True))
    return Object(o.fields, o.required, tuple(extras), max(o.lo, len(o.required) + 1), o.hi)
