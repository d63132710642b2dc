"""From schemas to shapes: what each keyword contributes, and how they combine.

Input: a `Document`; output: for any `Type` the union of shapes that it describes (`Expander.expand`). Keywords that
act on the same value (allOf, $ref, anyOf ...) are worked out here and now; members of arrays and objects stay types
and are expanded when asked for, so recursion through a container ends. Knows nothing of bytes or emptiness by
recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentkit.errors import GrammarTooComplex
from agentkit.grammars.frontends.json_schema import keywords as kw
from agentkit.grammars.frontends.json_schema.algebra import FEW, complement, product
from agentkit.grammars.frontends.json_schema.document import Document, Location, escape
from agentkit.grammars.frontends.json_schema.enums import shapes_of_values
from agentkit.grammars.frontends.json_schema.evaluated import enforce_unevaluated
from agentkit.grammars.frontends.json_schema.logic import alive, apply_logic
from agentkit.grammars.frontends.json_schema.members import array_shape, object_shape
from agentkit.grammars.frontends.json_schema.scalars import ANY_NUMBER, ANY_STRING, INTEGERS, WHOLE, numbers_from, strings_from
from agentkit.grammars.frontends.json_schema.shapes import ANY_ARRAY, ANY_BOOLEAN, ANY_NULL, ANY_OBJECT, ANYTHING, Shape
from agentkit.grammars.frontends.json_schema.types import ATOM, BOTH, EITHER, FALSE, TRUE, InPlaceCycle, Type, Types, Value
from agentkit.grammars.report import Report

MAX_IN_PLACE = 64  # allOf/anyOf/$ref within each other without a container between

_PLAIN: dict[str, tuple[Shape, ...]] = {
    "null": (ANY_NULL,),
    "boolean": (ANY_BOOLEAN,),
    "number": (ANY_NUMBER,),
    "integer": (INTEGERS,),
    "string": (ANY_STRING,),
    "array": (ANY_ARRAY,),
    "object": (ANY_OBJECT,),
}


class Expander:
    """Works out types of one document. `report` collects what was read; `formats`: are formats enforced, or annotations?"""

    def __init__(self, document: Document, *, formats: bool = True) -> None:
        self.document = document
        self.draft = document.draft
        self.scope = kw.scope(document.draft, document.declared)
        self.formats = formats
        self.types = Types()
        self.report = Report(self.scope, kw.ANNOTATIONS)
        self.tracking = False  # shapes record which members were evaluated (for unevaluated*)
        self._depth = 0
        self.whole = document.declared and document.draft == kw.DRAFT_4  # its integers have no fraction, 1.0 is none
        self._shapes = {**_PLAIN, "integer": (WHOLE,)} if self.whole else _PLAIN
        self._plain: dict[str, Type] = {}

    def _plain_type(self, name: str) -> Type:
        """The type of all values of one JSON type."""
        made = self._plain.get(name)
        if made is None:
            shapes = self._shapes[name]
            made = self._plain[name] = self.types.atom(None, (id(shapes), -1))
            made.shapes = made.tracked = shapes
        return made

    # ------------------------------------------------------------------ places
    def place(self, at: Location, schema: Any, path: str) -> Type:
        """The type of the subschema at `path` below `at` (checked to be an object or boolean by the caller)."""
        if schema is True:
            return TRUE
        if schema is False:
            return FALSE
        return self.type_at(self.document.child(at, schema, path))

    def type_at(self, at: Location) -> Type:
        """The type of a schema; plain references are followed to their target."""
        seen: set[tuple[int, int]] = set()
        while True:
            schema = at.schema
            if schema is True or schema is False:
                return TRUE if schema else FALSE
            mask = 0
            for keyword in schema:
                mask |= self.scope.get(keyword, 0)
            self.report.visit(at.pointer, schema)
            if mask & kw.REFERENCE and self.document.declared and self.draft <= kw.DRAFT_7:
                mask = kw.REFERENCE
                self.report.beside_reference(at.pointer)
            if mask == 0:
                return TRUE
            if mask == kw.TYPE and isinstance(schema["type"], str) and schema["type"] in self._shapes:
                return self._plain_type(schema["type"])
            if mask != kw.REFERENCE:
                return self.types.atom(at, at.key, mask)
            if at.key in seen:
                raise InPlaceCycle(f"{at.pointer}: this reference leads back to itself with nothing in between", pointer=at.pointer)
            seen.add(at.key)
            targets = self.references(at)
            if len(targets) > 1:
                return self.types.atom(at, at.key, mask)
            at = targets[0]

    def references(self, at: Location) -> list[Location]:
        """Targets of the reference keywords of a schema."""
        found = [k for k in ("$ref", "$dynamicRef", "$recursiveRef") if k in at.schema and k in self.scope]
        return [self.document.resolve(at.schema[k], at, k) for k in found]

    # ------------------------------------------------------------------ types to shapes
    def expand(self, t: Type) -> tuple[Shape, ...]:
        """The union of shapes a type stands for, empty ones not yet found out.

        Raises:
            InvalidGrammar: malformed keywords, dangling references, references in a circle.
            UnsupportedSchema: a keyword that cannot be enforced exactly.
            GrammarTooComplex: too many alternatives, or in-place nesting too deep.
        """
        known = t.tracked if self.tracking else t.shapes
        if known is not None:
            return known
        if t is TRUE:
            return ANYTHING
        if t is FALSE:
            return ()
        if t.busy:
            where = pointer_of(t)
            raise InPlaceCycle(f"{where}: this schema refers back to itself with no array or object in between", pointer=where)
        self._enter(t)
        try:
            shapes = tuple(self._work_out(t))
        finally:
            self._leave(t)
        if self.tracking:
            t.tracked = shapes
        else:
            t.shapes = shapes
        return shapes

    def _enter(self, t: Type) -> None:
        """A type is being worked out: until `_leave` it may not be met again in place, nor nest too deep."""
        if self._depth >= MAX_IN_PLACE:
            where = pointer_of(t)
            raise GrammarTooComplex("nesting", f"{where}: allOf, anyOf, oneOf, not and $ref without a container between nest more than {MAX_IN_PLACE} deep")
        t.busy = True
        self._depth += 1

    def _leave(self, t: Type) -> None:
        t.busy = False
        self._depth -= 1

    def narrow(self, shapes: Sequence[Shape], t: Type) -> Sequence[Shape]:
        """`shapes` intersected with a type. A oneOf in it is worked out within `shapes`, where its branches may be plainly disjoint."""
        if t.op != ATOM or t.busy or t.source is None or isinstance(t.source, Value) or t.mask & kw.UNEVALUATED or "oneOf" not in t.source.schema:
            return self.met(shapes, self.expand(t))
        self._enter(t)
        try:
            return self._schema(t.source, t.mask, shapes)
        finally:
            self._leave(t)

    def met(self, left: Sequence[Shape], right: Sequence[Shape]) -> Sequence[Shape]:
        """Intersection of two unions; where it has more members than either, those that plainly hold nothing are dropped before the next one."""
        made = product(left, right, self.types)
        return alive(self, made) if len(made) > max(len(left), len(right), FEW) else made

    def _work_out(self, t: Type) -> Sequence[Shape]:
        if t.op == BOTH:
            shapes: Sequence[Shape] = ANYTHING
            for part in t.parts:
                shapes = self.met(shapes, self.expand(part))
            return shapes
        if t.op == EITHER:
            return list(dict.fromkeys(s for part in t.parts for s in self.expand(part)))
        if t.op == ATOM:
            if isinstance(t.source, Value):
                return shapes_of_values([t.source.value], t.source.pointer, self)
            return self._tracked(t.source, t.mask) if t.mask & kw.UNEVALUATED else self._schema(t.source, t.mask)
        inner = t.parts[0]
        return complement(self.expand(inner), self.types, pointer_of(inner), "not")

    def _tracked(self, at: Location, mask: int) -> Sequence[Shape]:
        before, self.tracking = self.tracking, True
        try:
            return enforce_unevaluated(self, at, list(self._schema(at, mask)))
        finally:
            self.tracking = before

    def _schema(self, at: Location, mask: int, within: Sequence[Shape] = ANYTHING) -> Sequence[Shape]:
        """All keywords of a schema together, for values in `within`."""
        schema, pointer = at.schema, at.pointer
        shapes: Sequence[Shape] = product(within, self._typed(at, mask), self.types)
        if mask & kw.VALUES:
            for keyword in ("enum", "const"):
                if keyword in schema and keyword in self.scope:
                    shapes = product(shapes, self._values(schema[keyword], keyword, pointer), self.types)
        if mask & kw.REFERENCE:
            for target in self.references(at):
                shapes = self.narrow(shapes, self.type_at(target))
        if mask & kw.LOGIC:
            shapes = apply_logic(self, at, shapes)
        return shapes

    def _values(self, value: Any, keyword: str, pointer: str) -> Sequence[Shape]:
        where = f"{pointer}/{keyword}"
        if keyword == "const":
            return shapes_of_values([value], where, self)
        if not isinstance(value, list):
            raise kw.malformed(pointer, keyword, value, "a list of values")
        return shapes_of_values(value, where, self)

    def _typed(self, at: Location, mask: int) -> Sequence[Shape]:
        """`type` and the keywords that apply to one type each; without `type`, the other types stay free."""
        schema = at.schema
        listed = kw.type_names(schema["type"], at.pointer) if mask & kw.TYPE else kw.TYPES
        groups = mask & (kw.NUMBER | kw.STRING | kw.ARRAY | kw.OBJECT)
        if not groups:
            if not mask & kw.TYPE:
                return ANYTHING
            return [s for name in dict.fromkeys(listed) if not (name == "integer" and "number" in listed) for s in self._shapes[name]]
        if len(listed) == 1:
            group, build = _BUILDERS.get(listed[0], (0, None))
            if build is not None and groups == group:
                only = build(self, at, listed[0])
                return () if only is None else (only,)
        made: list[Shape | None] = []
        for name in dict.fromkeys(listed):
            group, build = _BUILDERS.get(name, (0, None))
            if name == "integer" and "number" in listed:
                continue
            if build is None or not groups & group:
                made.append(self._shapes[name][0])
            else:
                made.append(build(self, at, name))
        self._check_unused(at, groups, listed)
        return [s for s in made if s is not None]

    def _check_unused(self, at: Location, groups: int, listed: Sequence[str]) -> None:
        """Keywords of types that `type` leaves out cannot bind, but malformed ones are told all the same."""
        for name in kw.TYPES:
            group, build = _BUILDERS.get(name, (0, None))
            if build is not None and groups & group and name not in listed and not (name == "number" and "integer" in listed):
                build(self, at, name)


def pointer_of(t: Type) -> str:
    """Where the first schema of a formula stands."""
    while t.op != ATOM and t.parts:
        t = t.parts[0]
    return str(t.source.pointer) if t.source is not None else "#"


_Build = Callable[[Expander, Location, str], Shape | None]


def _numbers(x: Expander, at: Location, name: str) -> Shape | None:
    return numbers_from(at.schema, at.pointer, integer=name == "integer", whole=x.whole)


def _strings(x: Expander, at: Location, name: str) -> Shape | None:
    return strings_from(at.schema, at.pointer, x.report, formats_bind=x.formats)


_BUILDERS: dict[str, tuple[int, _Build]] = {
    "integer": (kw.NUMBER, _numbers),
    "number": (kw.NUMBER, _numbers),
    "string": (kw.STRING, _strings),
    "array": (kw.ARRAY, lambda x, at, name: array_shape(x, at)),
    "object": (kw.OBJECT, lambda x, at, name: object_shape(x, at)),
}

__all__ = ["Expander", "InPlaceCycle", "escape", "pointer_of"]
