"""Programs put together: included in a new Builder, where they are parts like any other.

Input: programs of finished grammars; output: nodes of a Builder, and answers about whole programs. Knows nothing of front ends
or of any model's vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentkit.errors import UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import expr
from agentkit.grammars.expr import Builder, Extra, Field, Node, Program

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary


def include(builder: Builder, program: Program) -> Node:
    """The program's root as a node of `builder`. A program that is included twice is one node."""
    return builder.named(("program", program.digest), lambda: _Reader(builder, program).root())


class _Reader:
    """Reads a program back; the layout of its integers is that of program.encoded."""

    def __init__(self, builder: Builder, program: Program) -> None:
        self.b, self.program = builder, program
        self.code: list[int] = program.code.tolist()
        self.blob = program.blob.tobytes()
        self.rules = [builder.rule() for _ in program.rules]
        self.nodes: list[Node] = []

    def root(self) -> Node:
        for at in self.program.starts.tolist():
            self.nodes.append(self.read(at))
        for rule, body in zip(self.rules, self.program.rules.tolist(), strict=True):
            self.b.define(rule, self.nodes[body])
        return self.nodes[self.program.root]

    def text(self, at: int) -> bytes:
        return self.blob[self.code[at] : self.code[at] + self.code[at + 1]]

    def listed(self, at: int) -> list[Node]:
        return [self.nodes[n] for n in self.code[at + 2 : at + 2 + self.code[at + 1]]]

    def read(self, at: int) -> Node:
        b, code, op = self.b, self.code, self.code[at]
        if op == expr.OP_CLASS:
            return b.byte_class(int.from_bytes(self.blob[code[at + 1] : code[at + 1] + 32], "little"))
        if op == expr.OP_LITERAL:
            return b.literal(self.text(at + 1))
        if op in (expr.OP_SEQ, expr.OP_ALT, expr.OP_AND):
            return {expr.OP_SEQ: b.seq, expr.OP_ALT: b.alt, expr.OP_AND: b.both}[op](*self.listed(at))
        if op == expr.OP_REPEAT:
            return b.repeat(self.nodes[code[at + 1]], code[at + 2], None if code[at + 3] == expr.UNBOUNDED else code[at + 3])
        if op == expr.OP_NOT:
            return b.complement(self.nodes[code[at + 1]])
        if op == expr.OP_AHEAD:
            return b.ahead(self.nodes[code[at + 1]], self.nodes[code[at + 2]], self.text(at + 3))
        if op == expr.OP_CLOSED:
            return b.closed(self.nodes[code[at + 1]])
        if op == expr.OP_DISTINCT:
            return b.distinct(self.nodes[code[at + 1]], code[at + 2])
        if op == expr.OP_CALL:
            return b.call(self.rules[code[at + 1]])
        if op == expr.OP_SPECIAL:
            return b.special(self.program.specials[code[at + 1]])
        if op == expr.OP_ABSENT:
            return b.absent(self.program.specials[code[at + 1]])
        if op == expr.OP_TRIE:
            return b.trie(self.text(at + 2 + 2 * i) for i in range(code[at + 1]))
        if op == expr.OP_MEMBERS:
            return self.members(at)
        return b.EPSILON if op == expr.OP_EPSILON else b.EMPTY

    def members(self, at: int) -> Node:
        nodes, code = self.nodes, self.code
        count, families, order, least, most, colon, comma, close, tail = code[at + 1 : at + 10]
        table = at + 10
        fields = [Field(self.text(place), nodes[code[place + 2]], bool(code[place + 3])) for place in range(table, table + 4 * count, 4)]
        table += 4 * count
        extras = [Extra(nodes[code[place]], nodes[code[place + 1]], bool(code[place + 2])) for place in range(table, table + 3 * families, 3)]
        return self.b.members(
            fields,
            extras,
            order=order,
            min_properties=least,
            max_properties=None if most == expr.UNBOUNDED else most,
            colon=nodes[colon],
            comma=nodes[comma],
            tail=nodes[tail],
            close=nodes[close],
        )


def check_regular(program: Program, operation: str) -> None:
    """Raises UnsupportedSchema, naming the operation, unless the program is an expression without recursion or JSON objects."""
    ops = {int(program.code[start]) for start in program.starts}
    if expr.OP_MEMBERS in ops or expr.OP_DISTINCT in ops:
        raise UnsupportedSchema("#", operation, "it is for regular languages, and this grammar holds JSON objects or sets; use allOf or not inside the schema")
    if expr.OP_CALL in ops:
        raise UnsupportedSchema("#", operation, "it is for regular languages, and this grammar calls rules; of context-free ones it cannot be decided")


def inhabited(builder: Builder, root: Node, what: str) -> Program:
    """The builder's program. Raises UnsatisfiableSchema, saying what, if no text matches, whatever the vocabulary."""
    program = builder.program(root)
    ops = {int(program.code[start]) for start in program.starts}
    unclear = expr.OP_AND in ops or expr.OP_NOT in ops  # a Builder drops whatever else cannot match
    if root == builder.EMPTY or (unclear and _every_byte(program).arena.root(program) == 0):
        raise UnsatisfiableSchema("#", f"{what} matches no text")
    return program


def beginnings(program: Program) -> tuple[list[int], bool]:
    """The bytes with which texts may begin, and whether the empty text is one of them."""
    arena = _every_byte(program).arena
    root = arena.root(program)
    return [byte for byte in range(256) if arena.advance_bytes(root, bytes([byte]))], arena.is_accepting(root)


def _every_byte(program: Program) -> Vocabulary:
    """A vocabulary that can spell whatever the program asks for."""
    from agentkit.grammars.vocabulary import Vocabulary

    names = {name: 256 + i for i, name in enumerate(program.specials)}
    return Vocabulary([*(bytes([byte]) for byte in range(256)), *(None for _ in names)], special_tokens=names)
