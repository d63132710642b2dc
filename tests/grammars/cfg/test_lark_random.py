"""Random context-free grammars against lark's own Earley parser: what it takes is accepted, what the masks let through it takes."""

from __future__ import annotations

import random

import lark
import numpy as np
import pytest

from agentkit.errors import UnsatisfiableSchema
from agentkit.grammars import Grammar
from tests.cases.judge import BYTES, accepts
from tests.grammars.cfg.random_grammars import TEXTS, lark_parser, random_grammar, takes
from tests.grammars.cfg.walks import random_text


def plain_grammar(rng: random.Random) -> tuple[str, lark.Lark]:
    """A random grammar and lark's parser for it."""
    for _ in range(100):
        text = random_grammar(rng)
        parser = lark_parser(text)
        if parser is not None:
            return text, parser
    raise AssertionError("lark refuses every grammar")


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars(seed: int) -> None:
    rng = random.Random(seed)
    text, parser = plain_grammar(rng)
    texts = rng.sample(TEXTS, 12)
    try:
        grammar = Grammar.from_lark(text)
    except UnsatisfiableSchema:
        assert not any(takes(parser, member) for member in texts), text
        return
    for candidate in texts:
        assert accepts(grammar, candidate) == takes(parser, candidate), (text, candidate)
    for walk in range(3):
        written = random_text(grammar, BYTES, np.random.default_rng(1000 * seed + walk), 4)
        assert takes(parser, written), (text, written)


AMBIGUOUS = {
    "each other": 's: t t | "a"\nt: s s | "a" s\n',
    "twice": 's: s s "b"? | "a" | "b"\n',
    "with nothing": 's: "(" s ")" s | s s | "a" |\n',
    "palindromes": 's: "a" s "a" | "b" s "b" | "a" | "b" |\n',
    "a stack that may end": 's: "a" s x | "a"\nx: "b" | "c" x |\n',
}


@pytest.mark.parametrize("rules", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguity_costs_a_polynomial(rules: str) -> None:
    """States made for a text of twice the length: a power of two more, not the square."""
    matcher = Grammar.from_lark(f"start: s\n{rules}").matcher(BYTES)
    made: list[int] = []
    for _ in range(20):
        before = matcher._arena.node_count
        matcher.mask()
        matcher.accept(ord("a"))
        made.append(matcher._arena.node_count - before)
    assert sum(made[10:]) <= 40 * sum(made[:10]) + 400


def test_ambiguity_within_one_byte_costs_a_polynomial() -> None:
    """The grammar of seed 17, whose parses share their beginnings only if choices are multiplied out."""
    text, _ = plain_grammar(random.Random(17))
    matcher = Grammar.from_lark(text).matcher(BYTES)
    rng = np.random.default_rng(0)
    before = matcher._arena.node_count
    for _ in range(24):
        row = matcher.mask()
        choices = [t for t in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() if t < 256]
        if not choices:
            break
        matcher.accept(int(rng.choice(choices)))
    assert matcher._arena.node_count - before < 50_000
