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
            text, found = index.tokens, index.match()
            end, size = found or (0, 0)
            assert size == longest_repeated_ending(text)
            assert text[end - size : end] == text[len(text) - size :]
            assert found is None or end < len(text)


def followed_otherwise(text: list[int], end: list[int], token: int) -> bool:
    return any(text[i - len(end) : i] == end and text[i] != token for i in range(len(end), len(text)))


@pytest.mark.parametrize("letters", [2, 3, 6])
def test_guesses_tell_how_long_they_match_and_how_long_it_was_otherwise(letters: int) -> None:
    rng = random.Random(letters)
    for _ in range(60):
        text = [rng.randrange(letters) for _ in range(rng.randrange(2, 30))]
        index = SuffixIndex()
        index.extend(text)
        match, longer = longest_repeated_ending(text), list(text)
        guesses = index.following(6)
        assert bool(guesses) == (match > 0)
        for token, length, doubtful in guesses:
            assert length == match
            ending = longer[len(longer) - length :]
            others = [n for n in range(1, length + 1) if followed_otherwise(text, ending[length - n :], token)]
            assert doubtful == max(others, default=0)
            longer.append(token)
            match += 1


def test_the_latest_occurrence_wins_where_it_was_asked_for() -> None:
    asked = Asked([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    index = SuffixIndex()
    for token in asked.tokens:
        index.extend([token])
    assert index.match() == (6, 3)  # 9 1 2 came before 4, and the two before it count


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


def test_what_runs_into_the_end_begins_anew() -> None:
    asked = Asked([9, 1, 2, 3, 1, 2, 3])
    assert NgramProposer().propose(asked, 8).tokens == [1, 2, 3, 1, 2, 3, 1, 2]


def test_surer_guesses_are_of_another_kind() -> None:
    """After 5 and 6 came 7 at all times, after 6 alone something else, too."""
    sure = NgramProposer().propose(Asked([5, 6, 7, 1, 5, 6, 7, 2, 5, 6]), 1)
    doubtful = NgramProposer().propose(Asked([5, 6, 7, 1, 9, 6, 8, 2, 5, 6]), 1)
    assert sure.tokens == doubtful.tokens == [7]
    assert sure.kinds != doubtful.kinds


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_limits_are_kept(size: int) -> None:
    asked = Asked([1, 2, 3] * 10)
    assert len(NgramProposer().propose(asked, size)) <= size


def test_the_index_costs_the_same_for_each_token() -> None:
    index = SuffixIndex()
    index.extend([0] * 3000)  # the worst text for anything quadratic
    index.extend(range(3000))
    assert len(index._length) <= 2 * 6000
