"""Lookahead: its n-grams are the model's own; a text with a habit is guessed from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentkit.engine.speculation.lookahead import PER_TOKEN, POOL, LookaheadProposer, NgramPool
from agentkit.engine.speculation.tree import ROOT
from tests.engine.speculation.test_ngram import Asked


def decode(model: Callable[[list[int]], int], start: list[int], count: int, proposer: LookaheadProposer, limit: int = 64) -> tuple[list[int], int]:
    """Greedy decoding with drafts by a model given as a function; returns the tokens and the forwards they took."""
    asked, forwards = Asked(list(start)), 0
    while len(asked.tokens) < len(start) + count:
        tree = proposer.propose(asked, limit)
        texts = [asked.tokens + [tree.tokens[n] for n in tree.path(node)] for node in range(len(tree))]
        chosen = [model(asked.tokens), *map(model, texts)]
        forwards += 1
        node = ROOT
        while True:
            asked.tokens.append(chosen[node + 1])
            following = tree.child(node, chosen[node + 1])
            if following is None:
                break
            node = following
        proposer.observe(asked, tree, chosen)
    return asked.tokens[len(start) : len(start) + count], forwards


@pytest.mark.parametrize("model", [lambda t: (t[-1] + 1) % 7, lambda t: (t[-1] * 5 + t[-2]) % 11, lambda t: hash((t[-1], len(t) % 3)) % 13])
def test_texts_are_those_of_the_model(model: Callable[[list[int]], int]) -> None:
    plain = [1, 2]
    for _ in range(60):
        plain.append(model(plain))
    assert decode(model, [1, 2], 60, LookaheadProposer())[0] == plain[2:]


def test_a_habit_is_picked_up() -> None:
    tokens, forwards = decode(lambda t: (t[-1] + 1) % 7, [3], 70, LookaheadProposer())
    assert tokens[:7] == [4, 5, 6, 0, 1, 2, 3]
    assert forwards < 35


def test_the_window_needs_its_place() -> None:
    asked, proposer = Asked([1, 2, 3, 4]), LookaheadProposer(window=4)
    assert len(proposer.propose(asked, 3)) == 0
    assert len(proposer.propose(asked, 4)) == 4


def test_the_pool_is_bounded() -> None:
    pool = NgramPool()
    for first in range(POOL + 10):
        for tail in range(PER_TOKEN + 3):
            pool.add(first, (tail,))
    assert pool.after(0) == []
    assert pool.after(POOL + 9) == [(6,), (5,), (4,), (3,)]
