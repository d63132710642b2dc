"""Texts written at random under masks, as a model without any idea would write them."""

from __future__ import annotations

import numpy as np

from agentkit.grammars import Grammar, Vocabulary


def random_text(grammar: Grammar, vocabulary: Vocabulary, rng: np.random.Generator, budget: int) -> str:
    """Uniform picks among the tokens that the mask and the budget guard allow, at most `budget` of them or what the shortest text takes."""
    matcher = grammar.matcher(vocabulary)
    text = b""
    for left in range(max(budget, matcher.completion_tokens()), 0, -1):
        token = _pick(matcher.mask(left), rng)
        if not matcher.fits(token, left):
            token = _pick(matcher.guarded_mask(left), rng)
        matcher.accept(token)
        if matcher.is_finished:
            break
        text += vocabulary.tokens[token] or b""
    assert matcher.is_accepting or matcher.is_finished, text
    return text.decode()


def _pick(row: np.ndarray, rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))))
