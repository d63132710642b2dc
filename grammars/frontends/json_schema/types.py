"""Boolean formulas over the schemas of a document: what a value at some place has to satisfy.

A `Type` is an atom (one schema of the document, or one constant), TRUE, FALSE, or a combination by and, or and not.
`Types` hands out one object per formula, so that a recursive schema meets the same formula again and its expansion
ends. This module knows nothing of keywords: what an atom means is found by the expander (expand.py).
"""

from __future__ import annotations

from typing import Any

from agentkit.errors import GrammarTooComplex, InvalidGrammar
from agentkit.grammars.effort import checkpoint

MAX_TYPES = 50_000

ATOM, BOTH, EITHER, NOT, CONSTANT = range(5)


class InPlaceCycle(InvalidGrammar):
    """References that lead back to themselves without a container between."""


class Type:
    """A formula. Compared by identity; made by `Types` only, except TRUE and FALSE.

    op:     ATOM, BOTH, EITHER, NOT or CONSTANT (TRUE and FALSE are constants)
    parts:  operands of BOTH, EITHER, NOT
    source: of an ATOM, the Location of a schema, or a `Value`
    """

    __slots__ = ("busy", "final", "mask", "op", "opposite", "parts", "shapes", "source", "tracked")

    def __init__(self, op: int, parts: tuple[Type, ...] = (), source: Any = None, mask: int = 0) -> None:
        self.op = op
        self.parts = parts
        self.source = source
        self.mask = mask
        self.opposite: Type | None = None
        self.shapes: tuple[Any, ...] | None = None
        self.tracked: tuple[Any, ...] | None = None
        self.busy = False
        self.final: tuple[Any, ...] | None = None


class Value:
    """A constant JSON value and the pointer where it stands."""

    __slots__ = ("pointer", "value")

    def __init__(self, value: Any, pointer: str) -> None:
        self.value = value
        self.pointer = pointer


TRUE = Type(CONSTANT)
FALSE = Type(CONSTANT)
TRUE.opposite, FALSE.opposite = FALSE, TRUE


class Types:
    """The formulas of one compilation. Raises GrammarTooComplex past MAX_TYPES."""

    def __init__(self) -> None:
        self._atoms: dict[tuple[int, int], Type] = {}
        self._combined: dict[tuple[int, frozenset[Type]], Type] = {}
        self._count = 0

    def atom(self, source: Any, key: tuple[int, int], mask: int = 0) -> Type:
        """The atom for a schema or value. `key`: its identity; the source must stay alive as long as this object."""
        found = self._atoms.get(key)
        if found is None:
            found = self._atoms[key] = self._new(Type(ATOM, source=source, mask=mask))
        return found

    def _new(self, made: Type) -> Type:
        checkpoint()
        self._count += 1
        if self._count > MAX_TYPES:
            raise GrammarTooComplex("types", f"combining the parts gives more than {MAX_TYPES} different conditions; use fewer overlapping branches")
        return made

    def both(self, *parts: Type) -> Type:
        """Conjunction; the order of the first operands is kept (it decides the order of declared keys)."""
        return self._combine(BOTH, parts, TRUE, FALSE)

    def either(self, *parts: Type) -> Type:
        return self._combine(EITHER, parts, FALSE, TRUE)

    def _combine(self, op: int, parts: tuple[Type, ...], neutral: Type, absorbing: Type) -> Type:
        flat: dict[Type, None] = {}
        for part in parts:
            for p in part.parts if part.op == op else (part,):
                if p is absorbing or p.opposite in flat:
                    return absorbing
                if p is not neutral:
                    flat[p] = None
        if len(flat) < 2:
            return next(iter(flat), neutral)
        key = (op, frozenset(flat))
        found = self._combined.get(key)
        if found is None:
            found = self._combined[key] = self._new(Type(op, tuple(flat)))
        return found

    def negate(self, t: Type) -> Type:
        """Complement, by De Morgan down to the atoms."""
        if t.opposite is None:
            if t.op == ATOM:
                made = self._new(Type(NOT, (t,)))
            else:
                parts = [self.negate(p) for p in t.parts]
                made = self.either(*parts) if t.op == BOTH else self.both(*parts)
            t.opposite = made
            if made.opposite is None:
                made.opposite = t
        return t.opposite
