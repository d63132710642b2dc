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
