"""The keywords that combine schemas about the same value: allOf, anyOf, oneOf, not, if/then/else and dependencies.

Input: a schema's place and the shapes of its other keywords; output: the shapes that meet both. Exactly-one is made
by cutting from each branch of oneOf the branches that can hold with it. Knows nothing of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentkit.errors import InvalidGrammar
from agentkit.grammars.effort import checkpoint
from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.json_schema.algebra import MAX_SHAPES, intersect, limit_shapes, product
from agentkit.grammars.frontends.json_schema.document import Location, escape
from agentkit.grammars.frontends.json_schema.scalars import Numbers, Strings
from agentkit.grammars.frontends.json_schema.shapes import ANYTHING, OBJECT, Array, Booleans, Object, Shape
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, InPlaceCycle, Type

if TYPE_CHECKING:
    from agentkit.grammars.frontends.json_schema.expand import Expander

LOOK_AHEAD = 4  # levels of members that the test for disjoint branches descends into


def apply_logic(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    """The shapes that also meet the combining keywords of the schema at `at`."""
    schema, scope = at.schema, x.scope
    for keyword in schema:
        rule = _RULES.get(keyword)
        if rule is not None and keyword in scope:
            shapes = rule(x, at, shapes)
    return shapes


def _branches(x: Expander, at: Location, keyword: str) -> list[Type]:
    listed = kw.subschemas(at.schema[keyword], keyword, at.pointer)
    return [x.place(at, s, f"/{keyword}/{i}") for i, s in enumerate(listed)]


def _all_of(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    for t in _branches(x, at, "allOf"):
        shapes = x.narrow(shapes, t)
    return shapes


def _any_of(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    branches = _branches(x, at, "anyOf")
    if x.tracking:
        return _any_combination(x, branches, shapes)
    if TRUE in branches:
        return shapes
    union = list(dict.fromkeys(s for t in branches for s in x.expand(t)))
    return product(shapes, union, x.types)


def _any_combination(x: Expander, branches: list[Type], shapes: Sequence[Shape]) -> Sequence[Shape]:
    """anyOf while evaluated members are tracked: every combination of branches that can hold together."""
    taken: list[Shape] = []
    for t in branches:
        mine = x.expand(t)
        taken += alive(x, [*product(taken, mine, x.types), *product(shapes, mine, x.types)])
        limit_shapes(len(taken))
    return list(dict.fromkeys(taken))


def _not(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    t = x.place(at, kw.subschema(at.schema["not"], "not", at.pointer), "/not")
    return product(shapes, x.expand(x.types.negate(t)), x.types)


def _one_of(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    branches = _branches(x, at, "oneOf")
    made = [product(shapes, x.expand(t), x.types) for t in branches]
    rivals = _overlaps(x, made)
    out: list[Shape] = []
    for i, mine in enumerate(made):
        left: Sequence[Shape] = mine
        for j in rivals[i]:
            left = _without(x, left, made[j], branches[j])
        out += left
        limit_shapes(len(out), max(MAX_SHAPES, sum(map(len, made))))
    return list(dict.fromkeys(out))


def _without(x: Expander, left: Sequence[Shape], rival: Sequence[Shape], branch: Type) -> list[Shape]:
    """`left` less a rival branch; what cannot meet the rival stays as it is, so that cuts do not multiply."""
    apart: list[Shape] = []
    touching: list[Shape] = []
    for s in left:
        meets = any(s.kind == r.kind and _meet(x, s, r) for r in rival)
        (touching if meets else apart).append(s)
    return apart + alive(x, product(touching, x.expand(x.types.negate(branch)), x.types))


def _overlaps(x: Expander, made: Sequence[Sequence[Shape]]) -> list[list[int]]:
    """For each branch, the others that may hold together with it."""
    n = len(made)
    rivals: list[list[int]] = [[] for _ in range(n)]
    if n > 1 and (_distinct_values(made) or _tagged(x, made)):
        return rivals
    for i in range(n):
        for j in range(i):
            checkpoint()
            if any(a.kind == b.kind and _meet(x, a, b) for a in made[i] for b in made[j]):
                rivals[i].append(j)
                rivals[j].append(i)
    return rivals


def _meet(x: Expander, a: Shape, b: Shape) -> bool:
    both = intersect(a, b, x.types)
    return both is not None and not is_dead(x, both, LOOK_AHEAD)


def _distinct_values(made: Sequence[Sequence[Shape]]) -> bool:
    """Whether the branches are finite sets of scalars without a value in common."""
    seen: set[object] = set()
    total = 0
    for s in (s for shapes in made for s in shapes):
        if not isinstance(s, (Numbers, Strings)) or s.only is None:
            return False
        total += len(s.only)
        seen |= s.only
    return total == len(seen)


def _tagged(x: Expander, made: Sequence[Sequence[Shape]]) -> bool:
    """Whether some required property has a different constant in each branch (a discriminated union)."""
    first = made[0][0] if made[0] else None
    if not isinstance(first, Object) or any(not isinstance(s, Object) for shapes in made for s in shapes):
        return False
    for name in first.required:
        seen: set[tuple[str, object]] = set()
        total = 0
        for shapes in made:
            mine: set[tuple[str, object]] = set()
            for s in shapes:
                values = _constants(x, s, name)
                if values is None:
                    break
                mine |= values
            else:
                total += len(mine)
                seen |= mine
                continue
            break
        else:
            if total == len(seen):
                return True
    return False


def _constants(x: Expander, s: Shape, name: str) -> set[tuple[str, object]] | None:
    """The values of a required property, if they are few strings, numbers or booleans."""
    if not isinstance(s, Object) or name not in s.required:
        return None
    t = s.fields[name]
    if t.busy:
        return None
    out: set[tuple[str, object]] = set()
    for value in x.expand(t):
        values = value.only if isinstance(value, (Strings, Numbers)) else value.values if isinstance(value, Booleans) else None
        if values is None:
            return None
        out.update((value.kind, v) for v in values)
    return out


def is_dead(x: Expander, s: Shape, depth: int) -> bool:
    """True only if nothing is in the shape; looks `depth` levels down and takes the rest to be possible."""
    if isinstance(s, (Numbers, Strings)):
        return s.is_empty()
    if depth == 0:
        return False
    if isinstance(s, Object):
        return any(_empty(x, s.fields[n], depth) for n in s.required)
    if isinstance(s, Array):
        if s.lo == 0:
            return False
        needed = s.prefix[: s.lo] + ((s.rest,) if s.lo > len(s.prefix) else ())
        return any(_empty(x, t, depth) for t in needed)
    return False


def _empty(x: Expander, t: Type, depth: int) -> bool:
    if t is FALSE:
        return True
    try:
        return all(is_dead(x, s, depth - 1) for s in x.expand(t))
    except InPlaceCycle:  # still being worked out further up: not known to be empty; a real circle is told when its place is expanded
        return False


def alive(x: Expander, shapes: Sequence[Shape]) -> list[Shape]:
    """Without the shapes that plainly hold nothing."""
    return [s for s in shapes if not is_dead(x, s, 2)]


def _conditional(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    schema, pointer = at.schema, at.pointer
    condition, *results = (x.place(at, kw.subschema(schema.get(k, True), k, pointer), "/" + k) for k in ("if", "then", "else"))
    if results[0] is TRUE and results[1] is TRUE:
        return [*product(shapes, x.expand(condition), x.types), *shapes] if x.tracking else shapes
    held = x.types.both(condition, results[0])
    failed = x.types.both(x.types.negate(condition), results[1])
    out = [*product(shapes, x.expand(held), x.types), *product(shapes, x.expand(failed), x.types)]
    return alive(x, out)


def _depends(x: Expander, shapes: Sequence[Shape], name: str, then: Sequence[Shape]) -> Sequence[Shape]:
    """Objects with the property `name` must be in `then`.

    Without it they may be in `then` too: alternatives that overlap are often parts of each other, and then one of them is dropped, so that
    many dependencies on one property stay as few as its values. What was evaluated is told by disjoint ones only.
    """
    others = [s for s in ANYTHING if s.kind != OBJECT]
    if not x.tracking:
        return x.met(shapes, [*others, Object({name: FALSE}), *(s for s in then if s.kind == OBJECT)])
    present: list[Shape] = [Object({name: TRUE}, frozenset((name,)))]
    return product(shapes, [*others, Object({name: FALSE}), *product(present, then, x.types)], x.types)


def _dependent_required(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    return _dependencies(x, at, shapes, "dependentRequired")


def _dependent_schemas(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    return _dependencies(x, at, shapes, "dependentSchemas")


def _old_dependencies(x: Expander, at: Location, shapes: Sequence[Shape]) -> Sequence[Shape]:
    return _dependencies(x, at, shapes, "dependencies")


def _dependencies(x: Expander, at: Location, shapes: Sequence[Shape], keyword: str) -> Sequence[Shape]:
    table: Any = at.schema[keyword]
    if not isinstance(table, dict):
        raise kw.malformed(at.pointer, keyword, table, "an object")
    for name, wanted in table.items():
        where = f"{keyword}/{escape(name)}"
        if isinstance(wanted, str) and keyword == "dependencies":
            raise InvalidGrammar(f"{at.pointer}/{where}: must be a list of names or a schema, not a string", pointer=f"{at.pointer}/{where}")
        if keyword == "dependentRequired" or (keyword == "dependencies" and isinstance(wanted, list)):
            others = dict.fromkeys(n for n in kw.names(wanted, where, at.pointer) if n != name)
            if others:
                shapes = _depends(x, shapes, name, [Object(dict.fromkeys(others, TRUE), frozenset(others))])
        else:
            t = x.place(at, kw.subschema(wanted, where, at.pointer), "/" + where)
            if t is not TRUE:
                shapes = _depends(x, shapes, name, x.expand(t))
    return shapes


_RULES = {
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _conditional,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _old_dependencies,
}
