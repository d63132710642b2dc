"""Random small programs over every operator, and texts near their languages: differential tests of the compiled core.

All choices come from one `random.Random`, so a seed names a case. Languages are never empty by construction of
objects (required values match something), but AND and NOT may make a part empty: callers check.
"""

from __future__ import annotations

import random

from agentkit.grammars.expr import ANY, DECLARED, Builder, Extra, Field, Node, Program

LETTERS = b"abc"


def random_regular(b: Builder, rng: random.Random, depth: int = 3, *, booleans: bool = True) -> Node:
    """A regular language over the letters a, b, c."""
    kinds = ["literal", "class", "epsilon"]
    if depth:
        kinds += ["seq", "seq", "alt", "alt", "repeat", "repeat", "trie"] + (["and", "not"] if booleans else [])
    kind = rng.choice(kinds)

    def child() -> Node:
        return random_regular(b, rng, depth - 1, booleans=booleans)

    if kind == "literal":
        return b.literal(bytes(rng.choices(LETTERS, k=rng.randint(1, 3))))
    if kind == "class":
        return b.byte_class(rng.sample(LETTERS, rng.randint(1, 3)))
    if kind == "epsilon":
        return b.EPSILON
    if kind == "seq":
        return b.seq(*(child() for _ in range(rng.randint(2, 3))))
    if kind == "alt":
        return b.alt(*(child() for _ in range(rng.randint(2, 3))))
    if kind == "repeat":
        lo = rng.randint(0, 2)
        return b.repeat(child(), lo, rng.choice([None, lo, lo + 1, lo + 3]))
    if kind == "trie":
        return b.trie(bytes(rng.choices(LETTERS, k=rng.randint(0, 4))) for _ in range(rng.randint(1, 5)))
    if kind == "and":
        return b.both(child(), child())
    return b.both(b.repeat(b.byte_class(LETTERS), 0, rng.choice([None, 4])), b.complement(child()))


def random_object(b: Builder, rng: random.Random, value: Node) -> Node:
    """`{` and members with short values; bounds can be met because values match and an extra key is unbounded."""
    digit = b.alt(b.byte_class(b"12"), value)
    names = rng.sample([b"a", b"b", b"ab", b"abc", b"c"], rng.randint(0, 4))
    fields = []
    for name in names:
        required = rng.random() < 0.4
        fields.append(Field(name, b.EMPTY if not required and rng.random() < 0.2 else digit, required))
    extras = []
    if rng.random() < 0.6:
        extras.append(Extra(b.repeat(b.byte_class(LETTERS), rng.randint(0, 1)), b.literal(b"9"), rng.random() < 0.3))
    if rng.random() < 0.2:
        extras.append(Extra(b.seq(b.literal(b"a"), b.repeat(b.byte_class(LETTERS), 0, 2)), b.literal(b"8"), rng.random() < 0.5))
    required_count = sum(f.required for f in fields) + any(e.asked for e in extras)
    supply = len([f for f in fields if f.value != b.EMPTY]) + (3 if extras and extras[0].value else 0)
    low = rng.randint(0, min(supply, 2)) if rng.random() < 0.4 else 0
    high = rng.choice([None, None, max(low, required_count), max(low, required_count) + 1])
    blank = b.optional(b.literal(b" "))
    spaced = rng.random() < 0.3
    inside = b.members(
        fields,
        extras,
        order=rng.choice([ANY, DECLARED]),
        min_properties=low,
        max_properties=high,
        comma=b.seq(b.literal(b","), blank) if spaced else None,
        colon=b.seq(b.literal(b":"), blank) if spaced else None,
        tail=blank if spaced else b.EPSILON,
    )
    return b.seq(b.literal(b"{"), inside)


def random_program(rng: random.Random) -> Program:
    """Regular parts, objects, a recursive rule and a special token, put together at random."""
    b = Builder()
    kind = rng.choice(["regular", "regular", "object", "recursive", "mixed", "special"])
    if kind == "regular":
        return b.program(random_regular(b, rng, 4))
    if kind == "object":
        return b.program(random_object(b, rng, random_object(b, rng, b.EMPTY) if rng.random() < 0.3 else b.EMPTY))
    if kind == "special":
        return b.program(b.seq(random_regular(b, rng, 2), b.special("<end>"), random_regular(b, rng, 2)))
    rule = b.rule()
    nested = b.seq(b.literal(b"("), b.repeat(b.call(rule), 0, rng.choice([None, 2])), b.literal(b")"))
    leaf = random_object(b, rng, b.call(rule)) if kind == "mixed" else random_regular(b, rng, 2, booleans=False)
    b.define(rule, b.alt(nested, b.seq(b.literal(b"x"), leaf)))
    return b.program(b.seq(b.call(rule), random_regular(b, rng, 2)))


def random_text(rng: random.Random, size: int = 12) -> bytes:
    """A text over the alphabet that the programs use; most are not members."""
    return bytes(rng.choices(b'abcx(){}":,129 ', k=rng.randint(0, size)))
