"""From solved shapes to Builder nodes: the texts of a language of JSON values.

Input: a `Solver` that has solved the root; output: one node. A type becomes a rule only where it contains itself;
everything else is shared by hash-consing. White space and key order are settled here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from agentkit.grammars.expr import ANY, DECLARED, Builder, Extra, Field, Node
from agentkit.grammars.frontends.json_schema.scalars import ANY_NUMBER, ANY_STRING, INTEGERS, Numbers, Strings, spell_key
from agentkit.grammars.frontends.json_schema.shapes import ANY_BOOLEAN, ANY_NULL, Array, Booleans, Null, Object
from agentkit.grammars.frontends.json_schema.solve import Final, Solver
from agentkit.grammars.frontends.json_schema.types import FALSE, TRUE, Type
from agentkit.grammars.frontends.json_schema.unique import AllDiffer, Distinct
from agentkit.grammars.frontends.json_schema.witnesses import Steps
from agentkit.grammars.frontends.strings import spellable

Whitespace = Literal["compact", "flexible"]
KeyOrder = Literal["declared", "any"]

MAX_BLANKS = 40
_CONSTANTS = {id(s): f"any {i}" for i, s in enumerate((ANY_STRING, ANY_NUMBER, INTEGERS, ANY_BOOLEAN, ANY_NULL))}


@dataclass(frozen=True)
class Style:
    """How values are written down."""

    whitespace: Whitespace = "compact"
    key_order: KeyOrder = "declared"
    plain_integers: bool = False

    def __post_init__(self) -> None:
        if self.whitespace not in ("compact", "flexible"):
            raise ValueError(f"whitespace must be 'compact' or 'flexible', not {self.whitespace!r}")
        if self.key_order not in ("declared", "any"):
            raise ValueError(f"key_order must be 'declared' or 'any', not {self.key_order!r}")


class Emitter:
    """Builds the nodes of one language in `builder`."""

    def __init__(self, builder: Builder, solver: Solver, style: Style) -> None:
        self.b = builder
        self.solver = solver
        self.style = style
        self.order = DECLARED if style.key_order == "declared" else ANY
        self._nodes: dict[Type, Node] = {FALSE: builder.EMPTY}
        self._rules: dict[Type, int] = {}
        self.gap = builder.named(("gap", style.whitespace), self._gap)  # between tokens
        self.comma = self._mark("item", lambda b: b.seq(self.gap, b.literal(b","), self.gap))
        self.between = self._mark("member", lambda b: b.seq(b.literal(b","), self.gap))  # white space after a value is the object's own
        self.colon = self._mark("colon", lambda b: b.seq(self.gap, b.literal(b":"), self.gap))
        self.brace = self._mark("object", lambda b: b.seq(b.literal(b"{"), self.gap))
        self.bracket = self._mark("array", lambda b: b.seq(b.literal(b"["), self.gap))

    def _mark(self, name: str, make: Callable[[Builder], Node]) -> Node:
        """Punctuation with the white space that belongs to it."""
        return self.b.named((name, self.style.whitespace), lambda: make(self.b))

    def _gap(self) -> Node:
        """Nothing, or at most one line break with at most 40 blanks before and 40 after it."""
        b = self.b
        if self.style.whitespace == "compact":
            return b.EPSILON
        blanks = b.repeat(b.byte_class(b" \t"), 0, MAX_BLANKS)
        newline = b.alt(b.literal(b"\n"), b.literal(b"\r\n"))
        return b.seq(blanks, b.optional(b.seq(newline, blanks)))

    # ------------------------------------------------------------------ types
    def node(self, root: Type) -> Node:
        """The node of a type that the solver has found to hold some value."""
        return self._any_value() if root is TRUE else self._tree(root)

    def _any_value(self) -> Node:
        return self.b.named(("any value", self.style), lambda: self._tree(TRUE))

    def _tree(self, root: Type) -> Node:
        """The node of a type, its members first; a type met again inside itself becomes a rule."""
        nodes, alive = self._nodes, self.solver.alive
        open_types: set[Type] = set()
        stack: list[tuple[Type, bool]] = [(root, False)]
        while stack:
            t, ready = stack.pop()
            if ready:
                open_types.discard(t)
                nodes[t] = self._close(t)
            elif t not in nodes and t not in open_types:
                if t is TRUE and root is not TRUE:
                    nodes[t] = self._any_value()
                    continue
                if t not in alive:
                    nodes[t] = self.b.EMPTY
                    continue
                open_types.add(t)
                stack.append((t, True))
                for child in self.solver.below[t]:
                    if child in open_types:
                        self._rules.setdefault(child, -1)
                    elif child not in nodes:
                        stack.append((child, False))
        return nodes[root]

    def _close(self, t: Type) -> Node:
        shapes = [self._shape(s) for s in self.solver.finals(t) if self.solver.holds(s)]
        body = shapes[0] if len(shapes) == 1 else self.b.alt(*shapes)
        rule = self._rules.get(t)
        if rule is None:
            return body
        if rule < 0:
            rule = self._rules[t] = self.b.rule()
        self.b.define(rule, body)
        return self.b.call(rule)

    def _member(self, t: Type) -> Node:
        """A member's node; a call where the member is a type still being built."""
        node = self._nodes.get(t)
        if node is not None:
            return node
        if self._rules.get(t, -1) < 0:
            self._rules[t] = self.b.rule()
        return self.b.call(self._rules[t])

    # ------------------------------------------------------------------ shapes
    def _shape(self, s: Final) -> Node:
        if id(s) in _CONSTANTS:  # of every compilation, so their nodes are those of every schema in this builder
            return self.b.named((_CONSTANTS[id(s)], self.style), lambda: self._made(s))
        return self._made(s)

    def _made(self, s: Final) -> Node:
        if isinstance(s, Object):
            return self._object(s)
        if isinstance(s, Strings):
            return s.node(self.b)
        if isinstance(s, Numbers):
            return (replace(s, whole=True) if self.style.plain_integers and s.integral else s).node(self.b)
        if isinstance(s, Array):
            return self.b.seq(self.bracket, self._items(s))
        if isinstance(s, Steps):
            return self.b.seq(self.bracket, self._steps(s))
        if isinstance(s, AllDiffer):
            return self.b.seq(self.bracket, self.b.distinct(self._items(s.inside), 0 if s.inside.prefix else s.inside.lo))
        if isinstance(s, Distinct):
            return self._distinct(s)
        if isinstance(s, Booleans):
            return self.b.trie(b"true" if v else b"false" for v in s.values)
        assert isinstance(s, Null)
        return self.b.literal(b"null")

    def _object(self, s: Object) -> Node:
        b = self.b
        fields = [Field(spell_key(name), self._member(t), name in s.required) for name, t in s.fields.items() if spellable(name)]
        extras = [Extra(f.names.key_node(b), self._member(f.type), f.asked) for f in s.extras if f.type in self.solver.alive]
        inside = b.members(
            fields,
            extras,
            order=self.order,
            min_properties=s.lo,
            max_properties=s.hi,
            colon=self.colon,
            comma=self.between,
            tail=self.gap,
        )
        return b.seq(self.brace, inside)

    def _items(self, s: Array) -> Node:
        """What follows the opening bracket: the prefix, optional from the least length on, a counted run of the rest, and the bracket."""
        b, alive = self.b, self.solver.alive
        hi = s.hi
        prefix = s.prefix if hi is None else s.prefix[:hi]
        dead = next((i for i, t in enumerate(prefix) if t not in alive), None)
        if dead is not None:
            prefix, hi = prefix[:dead], dead
        elif s.rest not in alive:
            hi = len(prefix)
        if hi == 0:
            return self._closed(b.EMPTY, True)
        item = self._member(prefix[0] if prefix else s.rest)
        n = max(len(prefix), 1)
        tail = b.EPSILON
        if hi is None or hi > n:
            tail = b.repeat(b.seq(self.comma, self._member(s.rest)), max(s.lo - n, 0), None if hi is None else hi - n)
        for i in range(len(prefix) - 1, 0, -1):
            tail = b.seq(self.comma, self._member(prefix[i]), tail)
            if i >= s.lo:
                tail = b.optional(tail)
        return self._closed(b.seq(item, tail), s.lo == 0)

    def _closed(self, items: Node, empty: bool) -> Node:
        """`items]` with the white space that belongs between; `]` too if there may be none."""
        b = self.b
        end = b.literal(b"]")
        full = b.seq(items, self.gap, end)
        return b.alt(end, full) if empty else full

    def _distinct(self, s: Distinct) -> Node:
        """Different strings: the inside of an object that has keys only, closed by a bracket."""
        b = self.b
        names = [Field(spell_key(name), b.EPSILON) for name in s.names() if spellable(name)]
        others = b.alt(*(x.key_node(b) for x in s.sets if x.only is None))
        inside = b.members(
            names,
            [Extra(others, b.EPSILON)],
            order=ANY,
            min_properties=s.lo,
            max_properties=s.hi,
            colon=b.EPSILON,
            comma=self.between,
            tail=self.gap,
            close=b.literal(b"]"),
        )
        return b.seq(self.bracket, inside)

    def _steps(self, s: Steps) -> Node:
        """An item automaton, from its last state to its first; loops are repeats."""
        b = self.b
        later: list[Node] = [b.EMPTY] * len(s.moves)  # after at least one item
        for i in range(len(s.moves) - 1, -1, -1):
            loops = [self._member(t) for t, to in s.moves[i] if to == i]
            onward = [b.seq(self.comma, self._member(t), later[to]) for t, to in s.moves[i] if to != i]
            end = b.EPSILON if s.accepting[i] else b.EMPTY
            later[i] = b.seq(b.repeat(b.seq(self.comma, b.alt(*loops))), b.alt(end, *onward))
        first = b.alt(*(b.seq(self._member(t), later[to]) for t, to in s.moves[0]))
        return self._closed(first, s.accepting[0])
