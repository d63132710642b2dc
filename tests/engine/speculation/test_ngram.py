"""Prompt lookup: the index equals brute force; what it proposes is what followed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentkit.engine.speculation.ngram import NgramProposer, SuffixIndex


@dataclass
class Asked:
    """The part of a request that proposers see."""

    tokens: list[int] = field(default_factory=list)
    draft_state: Any = None
    features: Any = None


def longest_repeated_ending(tokens: list[int]) -> int:
    """Length of the longest ending that also occurs further left (overlaps count), by brute force."""
    n = len(tokens)
    for size in range(n - 1, 0, -1):
        if any(tokens[end - size : end] == tokens[n - size :] for end in range(size, n)):
            return size
    return 0


@pytest.mark.parametrize("letters", [1, 2, 3, 10])
def test_the_index_finds_the_longest_repeated_ending(letters: int) -> None:
    rng = random.Random(letters)
    for _ in range(20):
        index = SuffixIndex()
        for _ in range(60):
            index.extend([rng.randrange(letters)])
            text, matches = index.tokens, index.matches()
            assert (matches[0][1] if matches else 0) == longest_repeated_ending(text)
            for end, size in matches:
                assert text[end - size : end] == text[len(text) - size :]
                assert end < len(text)
            assert [size for _, size in matches] == sorted({size for _, size in matches}, reverse=True)


def test_the_latest_occurrence_wins_where_it_was_asked_for() -> None:
    asked = Asked([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    index = SuffixIndex()
    for token in asked.tokens:
        index.extend([token])
    assert index.matches()[0] == (6, 3)  # 9 1 2 came before 4, and the two before it count


def test_proposals_go_on_as_the_text_did() -> None:
    text = [7, 1, 2, 3, 4, 5, 6, 8, 1, 2, 3]
    asked = Asked(text)
    proposer = NgramProposer()
    assert proposer.propose(asked, 3).tokens == [4, 5, 6]
    asked.tokens = [*text, 4]
    assert proposer.propose(asked, 8).tokens[:7] == [5, 6, 8, 1, 2, 3, 4]
    asked.tokens = [*text[:-1], 99]  # rewound, and another token came instead
    assert len(proposer.propose(asked, 8)) == 0
    proposer.release(asked)
    assert asked.draft_state is None


def test_a_second_branch_follows_a_shorter_match() -> None:
    asked = Asked([1, 2, 3, 4, 0, 2, 3, 5, 0, 9, 1, 2, 3])
    proposer = NgramProposer()
    for size in range(1, len(asked.tokens)):  # as it is used: asked after every token
        proposer.propose(Asked(asked.tokens[:size]), 4)
    tree = proposer.propose(asked, 6)
    assert 4 in tree.tokens[:1]
    assert len(tree) <= 6


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_limits_are_kept(size: int) -> None:
    asked = Asked([1, 2, 3] * 10)
    assert len(NgramProposer().propose(asked, size)) <= size


def test_the_index_costs_the_same_for_each_token() -> None:
    index = SuffixIndex()
    index.extend([0] * 3000)  # the worst text for anything quadratic
    index.extend(range(3000))
    assert len(index._length) <= 2 * 6000
