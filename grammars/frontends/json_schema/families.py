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

MAX_FAMILIES = 64


class Family(NamedTuple):
    """The undeclared names within `names`, whose values have one type."""

    names: Strings
    type: Type


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
        elif not names.is_empty():
            kept.append(Family(names, kind))
    if len(kept) > MAX_FAMILIES:
        raise GrammarTooComplex("key families", f"the patterns for property names overlap in more than {MAX_FAMILIES} ways")
    return tuple(kept)


def cut(patterns: Sequence[tuple[Strings, Type]], pointer: str, join: Callable[[Type, Type], Type]) -> list[tuple[Strings, Type | None]]:
    """All strings in disjoint families, each with the types of the patterns it is under joined (None: it is under none)."""
    pieces: list[tuple[Strings, Type | None]] = [(ANY_STRING, None)]
    for names, t in patterns:
        parts: list[tuple[Strings, Type | None]] = []
        for piece, under in pieces:
            inside = piece.intersect(names)
            if inside is not None and not inside.is_empty():
                parts.append((inside, t if under is None else join(under, t)))
            parts += [(p, under) for p in minus(piece, names, pointer) if not p.is_empty()]
        if len(parts) > MAX_FAMILIES:
            raise GrammarTooComplex("key families", f"{pointer}/patternProperties: these patterns overlap in more than {MAX_FAMILIES} ways")
        pieces = parts
    return pieces


def minus(piece: Strings, names: Strings, pointer: str) -> list[Strings]:
    rest = [piece.intersect(other) for other in names.outside(pointer, "patternProperties")]
    return [r for r in rest if r is not None]
