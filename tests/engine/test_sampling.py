"""Sampling: exactness of greedy, order of mask and truncation, the distribution drawn from, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from agentkit.engine.advance import pack_ids
from agentkit.engine.config import SamplingParams
from agentkit.engine.sampling import allowed_ids, penalise, philox, sample, uniform, unpack_mask
from agentkit.errors import NumericalError


def draw(logits: list[float], count: int = 4000, allowed: list[int] | None = None, **options: float) -> np.ndarray:
    """Relative frequencies of the tokens over `count` draws."""
    params = SamplingParams(temperature=options.pop("temperature", 1.0), **options)  # type: ignore[arg-type]
    row = np.array(logits, np.float32)
    mask = None if allowed is None else pack_ids(allowed)
    picks = [sample(row, mask, params, vocab_size=row.size, seed=11, position=i) for i in range(count)]
    return np.bincount(picks, minlength=row.size) / count


def test_philox_gives_the_published_vectors() -> None:
    """Known answers of the Random123 distribution for philox4x32-10."""
    assert philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = (1 << 64) - 1
    assert philox(ones, ones, ones) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    assert philox(0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_uniform_is_flat_and_differs_by_seed_and_position() -> None:
    values = np.array([uniform(5, i) for i in range(20000)])
    assert values.min() >= 0
    assert values.max() < 1
    assert np.abs(np.histogram(values, 10, (0, 1))[0] / 20000 - 0.1).max() < 0.01
    assert len({uniform(s, p) for s in (-1, 0, 1, 1 << 63) for p in range(50)}) == 200


@pytest.mark.parametrize("width", [1, 31, 32, 33, 100, 49152])
def test_unpack_mask(width: int) -> None:
    rng = np.random.default_rng(0)
    ids = np.flatnonzero(rng.random(width) < 0.3)
    assert np.flatnonzero(unpack_mask(pack_ids(ids), width)).tolist() == ids.tolist()
    assert unpack_mask(pack_ids([0]), 4000).sum() == 1  # a row narrower than the logits
    assert unpack_mask(np.full(200, 0xFFFFFFFF, np.uint32), width).sum() == min(width, 6400)


@pytest.mark.parametrize("width", [1, 31, 32, 33, 1000, 49152])
def test_allowed_ids(width: int) -> None:
    rng = np.random.default_rng(0)
    for share in (0.0, 0.001, 0.05, 0.9):
        mask = pack_ids(np.flatnonzero(rng.random(width + 70) < share))
        mask = np.concatenate([mask, np.zeros(2000, np.uint32)])
        for row in (mask, mask[:-2000]):
            assert allowed_ids(row, width).tolist() == np.flatnonzero(unpack_mask(row, width)).tolist()


def test_the_likeliest_of_few_and_of_many_tokens() -> None:
    """Of equals the lowest id; whatever is forbidden does not count, be it -inf or the largest."""
    rng = np.random.default_rng(1)
    for share in (0.0005, 0.3):
        row = rng.integers(0, 9, 49152).astype(np.float32)
        ids = np.flatnonzero(rng.random(row.size) < share)
        token = sample(row, pack_ids(ids), SamplingParams(), vocab_size=row.size)
        assert token == ids[row[ids].argmax()]
        spared = np.full_like(row, -np.inf)
        spared[ids] = row[ids]
        assert sample(spared, pack_ids(ids), SamplingParams(), vocab_size=row.size) == token


def test_frequencies_follow_the_softmax() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        weights = np.exp(np.array(logits) / temperature)
        assert np.abs(draw(logits, temperature=temperature) - weights / weights.sum()).max() < 0.03


def test_masked_frequencies_are_the_renormalised_rest() -> None:
    weights = np.exp([0.0, 0.0, 2.0, -1.0]) * [1, 0, 1, 1]
    assert np.abs(draw([0.0, 9.0, 2.0, -1.0], allowed=[0, 2, 3]) - weights / weights.sum()).max() < 0.03


def test_top_k_keeps_exactly_k_and_the_lower_ids_on_ties() -> None:
    assert np.flatnonzero(draw([1.0, 1.0, 1.0, 0.0], top_k=2)).tolist() == [0, 1]
    assert np.flatnonzero(draw([0.0, 3.0, 1.0, 1.0], top_k=2)).tolist() == [1, 2]


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert np.flatnonzero(draw(logits, top_p=0.45)).tolist() == [0]
    assert np.flatnonzero(draw(logits, top_p=0.79)).tolist() == [0, 1]
    assert np.flatnonzero(draw(logits, top_p=0.81)).tolist() == [0, 1, 2]


def test_top_p_over_a_flat_distribution_looks_at_enough_tokens() -> None:
    flat = [0.0] * 3000
    assert np.flatnonzero(draw(flat, count=3000, top_p=0.5)).max() == 1499
    assert np.flatnonzero(draw(flat, count=300, top_p=0.5, top_k=10)).max() <= 4


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert np.flatnonzero(draw(logits, min_p=0.2)).tolist() == [0, 1, 2]
    assert np.flatnonzero(draw(logits, min_p=1.0)).tolist() == [0]


def test_padding_columns_are_never_chosen() -> None:
    row = np.array([0.0, 1.0, 5.0, 9.0], np.float32)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature)
        assert {sample(row, None, params, vocab_size=2, position=i) for i in range(50)} <= {0, 1}
        assert {sample(row, pack_ids([1, 3]), params, vocab_size=2, position=i) for i in range(50)} == {1}


def test_huge_and_tiny_temperatures_stay_finite() -> None:
    assert np.abs(draw([0.0, 50.0], temperature=1e30) - 0.5).max() < 0.05
    assert draw([0.0, 50.0], count=10, temperature=1e-4).tolist() == [0, 1]
    assert draw([-3e38, 3e38], count=10).tolist() == [0, 1]


def test_penalty_on_both_signs_and_infinities() -> None:
    out = penalise(np.array([2.0, -2.0, -np.inf, 0.0], np.float32), [0, 1, 2, 3, 99], 2.0)
    assert out.tolist() == [1.0, -4.0, -np.inf, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_numbers_raise(bad: float, temperature: float) -> None:
    row = np.array([0.0, bad, 1.0], np.float32)
    for mask in (None, pack_ids([0, 1]), pack_ids([0, 2])):
        with pytest.raises(NumericalError, match=r"NaN|\+inf"):
            sample(row, mask, SamplingParams(temperature=temperature), vocab_size=3)


def test_nothing_left_to_sample_raises() -> None:
    row = np.array([0.0, -np.inf, 1.0], np.float32)
    with pytest.raises(NumericalError, match="leaves no token"):
        sample(row, np.zeros(1, np.uint32), SamplingParams(), vocab_size=3)
    with pytest.raises(NumericalError, match="-inf"):
        sample(row, pack_ids([1]), SamplingParams(), vocab_size=3)
    with pytest.raises(NumericalError, match="every allowed token"):
        sample(np.full(3, -np.inf, np.float32), pack_ids([1]), SamplingParams(), vocab_size=3)
    with pytest.raises(NumericalError, match="only -inf"):
        sample(np.full(3, -np.inf, np.float32), None, SamplingParams(), vocab_size=3)
