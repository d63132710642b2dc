"""Families of property names: disjoint sets of strings that together cover all, each with the type of its values.

Input: patterns for names with types; output: families. A family that is finite becomes declared names. Knows nothing of
keywords or of what types mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from agentkit.errors import GrammarTooComplex
from agentkit.grammars.frontends.json_schema.scalars import ANY_STRING, Strings
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type
from agentkit.grammars.frontends.strings import beginning

MAX_FAMILIES = 64


class Family(NamedTuple):
    """The undeclared names within `names`, whose values have one type.

    asked: a property of one of the families that are marked so has to be there. Only these share their names with another family.
    """

    names: Strings
    type: Type
    asked: bool = False


EVERYTHING = (Family(ANY_STRING, TRUE),)
NOTHING = (Family(ANY_STRING, FALSE),)


def family_of(name: str, extras: Iterable[Family]) -> Type:
    for family in extras:
        if family.names is ANY_STRING or family.names.contains(name):
            return family.type
    return FALSE


def refine(families: Iterable[tuple[Strings, Type]], fields: dict[str, Type]) -> tuple[Family, ...]:
    """Families without the empty ones; those that are finite become declared names in `fields`."""
    kept: list[Family] = []
    for names, kind in families:
        if names.only is not None:
            for name in sorted(names.only):
                fields.setdefault(name, kind)
        elif kind is FALSE or not names.is_empty():
            kept.append(Family(names, kind))
    if len(kept) > MAX_FAMILIES:
        raise GrammarTooComplex("key families", f"the patterns for property names overlap in more than {MAX_FAMILIES} ways")
    return tuple(kept)


def cut(patterns: Sequence[tuple[Strings, Type]], pointer: str, join: Callable[[Type, Type], Type]) -> list[tuple[Strings, Type | None]]:
    """All strings in disjoint families, each with the types of the patterns it is under joined (None: it is under none)."""
    pieces: list[tuple[Strings, Type]] = []
    rest: list[Strings] = [ANY_STRING]
    for names, t in patterns:
        parts: list[tuple[Strings, Type]] = []
        shared = False
        for piece, under in pieces:
            inside = None if apart(piece, names) else piece.intersect(names)
            if inside is None or inside.is_empty():
                parts.append((piece, under))
                continue
            shared = True
            parts.append((inside, join(under, t)))
            parts += [(p, under) for p in minus(piece, names, pointer) if not p.is_empty()]
        fresh = [names] if not shared else [r for r in (piece.intersect(names) for piece in rest) if r is not None and not r.is_empty()]
        parts += [(r, t) for r in fresh]
        rest = [r for piece in rest for r in minus(piece, names, pointer)]
        if len(parts) > MAX_FAMILIES:
            raise GrammarTooComplex("key families", f"{pointer}/patternProperties: these patterns overlap in more than {MAX_FAMILIES} ways")
        pieces = parts
    return [*pieces, *((r, None) for r in rest if not r.is_empty())]


def apart(a: Strings, b: Strings) -> bool:
    """Whether two sets plainly have nothing in common: their texts begin differently. False where that takes a search."""
    one, two = _beginning(a), _beginning(b)
    n = min(len(one), len(two))
    return one[:n] != two[:n]


def _beginning(s: Strings) -> str:
    return beginning(next(iter(s.facets.patterns))) if s.only is None and len(s.facets.patterns) == 1 else ""


def minus(piece: Strings, names: Strings, pointer: str, keyword: str = "patternProperties") -> list[Strings]:
    """`piece` without `names`. propertyNames forbids what is left."""
    rest = [piece.intersect(other) for other in names.outside(pointer, keyword, forbidden=keyword == "propertyNames")]
    return [r for r in rest if r is not None]
