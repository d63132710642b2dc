"""Arenas: what is shared is what was computed, nothing has two owners, and the budget holds."""

from __future__ import annotations

import random

import pytest
import torch

from agentkit.engine.kv import KVPool, KVSequence, KVShape, common_prefix

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4)
ROW = SHAPE.bytes_per_token


def fill(sequence: KVSequence, tokens: list[int]) -> None:
    """Computes `tokens`: keys and values that tell token, position, layer and side."""
    start = sequence.length
    for layer in range(2):
        base = torch.tensor([t * 1000 + start + i + layer * 0.25 for i, t in enumerate(tokens)])
        rows = base.view(-1, 1, 1).expand(-1, 2, 4)
        sequence.write(layer, start, rows, -rows)
    sequence.commit(tokens)


def check(sequence: KVSequence) -> None:
    for layer in range(2):
        keys, values = sequence.view(layer, 0, sequence.length)
        wanted = torch.tensor([t * 1000 + i + layer * 0.25 for i, t in enumerate(sequence.tokens)])
        assert torch.equal(keys, wanted.view(1, -1, 1).expand(2, -1, 4))
        assert torch.equal(values, -keys)


def test_common_prefix() -> None:
    rng = random.Random(1)
    for _ in range(300):
        a, b = ([rng.randrange(2) for _ in range(rng.randrange(12))] for _ in range(2))
        n = common_prefix(a, b)
        assert a[:n] == b[:n]
        assert n in (len(a), len(b)) or a[n] != b[n]


def test_a_finished_sequence_is_taken_over_without_a_copy() -> None:
    pool = KVPool(SHAPE, 1 << 20, 2)
    first = pool.acquire([1, 2, 3], 100)
    fill(first, [1, 2, 3])
    pool.release(first)
    second = pool.acquire([1, 2, 3, 4], 100)
    assert second is first
    assert second.tokens == [1, 2, 3]
    check(second)
    pool.check_invariants()


def test_a_shared_beginning_is_copied_and_the_original_kept() -> None:
    pool = KVPool(SHAPE, 1 << 20, 4)
    prefix = list(range(1, 60))
    first = pool.acquire([*prefix, 7, 7], 100)
    fill(first, [*prefix, *[7] * 20])
    pool.release(first)
    second = pool.acquire([*prefix, 8, 8], 100)
    assert second.tokens == prefix
    assert second is not first
    assert pool.kept_sequences == 1
    fill(second, [8, 8])
    check(first)
    check(second)
    pool.check_invariants()


def test_running_sequences_share_too_and_fork() -> None:
    pool = KVPool(SHAPE, 1 << 20, 0)
    first = pool.acquire([1, 2, 3], 50)
    fill(first, [1, 2, 3])
    second = pool.acquire([1, 2, 9], 50)
    third = pool.fork(first, 1, 50)
    assert (second.tokens, third.tokens) == ([1, 2], [1])
    fill(third, [5])
    for sequence in (first, second, third):
        check(sequence)
    assert first.tokens == [1, 2, 3]
    pool.check_invariants()


def test_the_last_token_is_always_left_to_compute() -> None:
    pool = KVPool(SHAPE, 1 << 20, 2)
    first = pool.acquire([1, 2, 3], 10)
    fill(first, [1, 2, 3])
    pool.release(first)
    assert pool.acquire([1, 2, 3], 10).tokens == [1, 2]


def test_a_taken_over_sequence_grows() -> None:
    pool = KVPool(SHAPE, 1 << 20, 2)
    tokens = list(range(200))
    first = pool.acquire(tokens, 256)
    fill(first, tokens)
    pool.release(first)
    second = pool.acquire([*tokens, 1, 2], 1000)
    assert second.length == 200
    assert second.capacity >= 1000
    fill(second, [5] * 700)
    check(second)
    pool.check_invariants()


def test_truncate_and_bounds() -> None:
    sequence = KVPool(SHAPE, 1 << 20, 0).acquire([1], 64)
    fill(sequence, [1, 2, 3])
    sequence.truncate(1)
    fill(sequence, [9])
    assert sequence.tokens == [1, 9]
    check(sequence)
    for bad in (-1, 3):
        with pytest.raises(IndexError):
            sequence.truncate(bad)
    with pytest.raises(IndexError, match="do not fit"):
        sequence.write(0, sequence.capacity, torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
    with pytest.raises(IndexError, match="do not fit"):
        sequence.commit([0] * sequence.capacity)


def test_kept_sequences_give_way_to_live_ones() -> None:
    pool = KVPool(SHAPE, ROW * 256, 8)
    for i in range(4):
        sequence = pool.acquire([i, i], 60)
        fill(sequence, [i] * 50)
        pool.release(sequence)
        pool.check_invariants()
    big = pool.acquire([9, 9], 250)
    pool.check_invariants()
    assert pool.kept_sequences == 0
    assert not pool.can_hold(1)
    with pytest.raises(MemoryError):
        pool.acquire([1], 1)
    pool.release(big, keep=False)
    assert pool.can_hold(256)


@pytest.mark.parametrize("seed", range(6))
def test_random_use_keeps_contents_and_invariants(seed: int) -> None:
    rng = random.Random(seed)
    pool = KVPool(SHAPE, ROW * rng.choice([300, 700, 3000]), rng.choice([0, 1, 4]))
    live: list[KVSequence] = []
    for _ in range(250):
        action = rng.random()
        if action < 0.5:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 120))]
            capacity = len(tokens) + rng.randrange(60)
            if pool.can_hold(capacity):
                sequence = pool.acquire(tokens, capacity)
                check(sequence)
                assert sequence.length < len(tokens)
                assert sequence.tokens == tokens[: sequence.length]
                fill(sequence, tokens[sequence.length :])
                live.append(sequence)
        elif live and action < 0.6:
            sequence = rng.choice(live)
            sequence.truncate(rng.randrange(sequence.length + 1))
        elif live:
            pool.release(live.pop(rng.randrange(len(live))), keep=rng.random() < 0.7)
        for sequence in live:
            check(sequence)
        pool.check_invariants()
    for sequence in live:
        pool.release(sequence, keep=False)
    pool.clear()
    assert pool.used_bytes == 0
