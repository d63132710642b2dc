"""Pages: what is shared is what was computed, nobody writes what another one holds, and references add up."""

from __future__ import annotations

import random

import pytest
import torch

from agentkit.engine.kv import PAGE, KVPool, KVSequence, KVShape
from agentkit.engine.kv_policy import Reach
from agentkit.engine.pages import PageAllocator
from agentkit.errors import EngineError

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=4)


def make(pages: int = 64, **options: bool) -> KVPool:
    return KVPool(SHAPE, pages * SHAPE.bytes_per_page, **options)


def fill(pool: KVPool, sequence: KVSequence, tokens: list[int]) -> None:
    """Computes `tokens`: keys and values that tell token, position, layer and side."""
    start = sequence.length
    assert pool.reserve(sequence, start + len(tokens))
    for layer in range(2):
        at = 0
        for first, last in sequence.slots(start, start + len(tokens)):
            rows = torch.tensor([tokens[i] * 1000 + start + i + layer * 0.25 for i in range(at, at + last - first)]).view(1, -1, 1).expand(2, -1, 4)
            pool.data[layer, 0, :, first:last] = rows
            pool.data[layer, 1, :, first:last] = -rows
            at += last - first
    pool.commit(sequence, tokens)


def check(pool: KVPool, sequence: KVSequence) -> None:
    at = 0
    for first, last in sequence.slots(0, sequence.length):
        part = sequence.tokens[at : at + last - first]
        for layer in range(2):
            wanted = torch.tensor([t * 1000 + at + i + layer * 0.25 for i, t in enumerate(part)]).view(1, -1, 1).expand(2, -1, 4)
            assert torch.equal(pool.data[layer, 0, :, first:last], wanted)
            assert torch.equal(pool.data[layer, 1, :, first:last], -wanted)
        at += last - first
    assert at == sequence.length


def finished(pool: KVPool, tokens: list[int]) -> None:
    """Runs a request of these tokens to its end."""
    sequence = pool.start(tokens)
    fill(pool, sequence, tokens[sequence.length :])
    pool.release(sequence)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 100])
@pytest.mark.parametrize("asked", [1, 2, 31, 32, 33, 63, 64, 65, 66, 101])
def test_a_finished_sequence_is_found_to_the_exact_token(length: int, asked: int) -> None:
    """The last token is always left to compute, whatever lies at a page's edge."""
    pool = make()
    tokens = list(range(200))
    finished(pool, tokens[:length])
    second = pool.start(tokens[:asked])
    assert second.length == min(length, asked - 1)
    check(pool, second)
    fill(pool, second, tokens[second.length : 150])
    check(pool, second)
    third = pool.start(tokens[:asked])
    check(pool, third)
    pool.check_invariants()


def test_full_pages_are_shared_and_not_copied() -> None:
    pool = make()
    tokens = list(range(100))
    finished(pool, tokens)
    first, second = pool.start([*tokens[:80], 7, 7]), pool.start([*tokens[:80], 8, 8])
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]
    for sequence, extra in ((first, 7), (second, 8)):
        fill(pool, sequence, [extra] * 20)
    check(pool, first)
    check(pool, second)
    assert pool.start([*tokens, 1]).length == 100  # the original is as it was
    pool.check_invariants()


def test_running_sequences_share_full_pages() -> None:
    pool = make()
    first = pool.start(list(range(70)))
    fill(pool, first, list(range(70)))
    second = pool.start([*range(66), 9, 9])
    assert second.length == 64
    assert second.pages == first.pages[:2]


def test_equal_pages_computed_twice_are_held_once() -> None:
    pool = make()
    tokens = list(range(40))
    first, second = pool.start(tokens), pool.start(tokens)
    fill(pool, first, tokens)
    fill(pool, second, tokens)
    assert first.pages[0] == second.pages[0]
    assert pool.live_pages == 3
    pool.check_invariants()


def test_pages_that_others_computed_are_taken_over() -> None:
    pool = make()
    tokens = list(range(130))
    first, second = pool.start(tokens), pool.start(tokens)
    fill(pool, second, tokens[:10])
    assert pool.next_key(first, tokens) == pool.next_key(second, tokens)
    fill(pool, first, tokens[:70])
    assert pool.adopt(second, tokens) == 54
    assert second.tokens == tokens[:64]
    assert second.pages == first.pages[:2]
    check(pool, second)
    assert pool.adopt(second, tokens) == 0
    pool.check_invariants()


def test_forks_copy_on_write() -> None:
    pool = make(prefix_caching=False)
    first = pool.start([0])
    fill(pool, first, list(range(40)))
    forks = [pool.fork(first) for _ in range(3)]
    assert pool.live_pages == 2
    for i, fork in enumerate(forks):
        fill(pool, fork, [100 + i] * 30)
    fill(pool, first, [7, 7])
    for sequence in (first, *forks):
        check(pool, sequence)
    assert len({s.pages[0] for s in (first, *forks)}) == 1
    assert len({s.pages[1] for s in (first, *forks)}) == 4
    pool.check_invariants()


def test_truncating_never_touches_what_others_hold() -> None:
    pool = make()
    tokens = list(range(90))
    first = pool.start(tokens)
    fill(pool, first, tokens)
    second = pool.start(tokens)
    pool.truncate(second, 40)
    fill(pool, second, [9] * 30)
    check(pool, first)
    check(pool, second)
    pool.truncate(first, 10)
    fill(pool, first, [5] * 60)
    assert pool.start(tokens).length == 64  # found where the tree still has it
    check(pool, second)
    for bad in (-1, first.length + 1):
        with pytest.raises(IndexError):
            pool.truncate(first, bad)
    with pytest.raises(IndexError, match="reserve"):
        pool.commit(first, [0] * 1000)
    pool.check_invariants()


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_hundred_thousand_tokens_in_constant_memory(prefix_caching: bool) -> None:
    """Under a window with sinks, in a pool that holds 2,000 tokens; what falls out of the window is used again."""
    pool = KVPool(KVShape(1, 1, 1), 64 * 32 * 8, reach=Reach(window=508, sinks=4), prefix_caching=prefix_caching)
    ids = [i % 1009 for i in range(100_000)]
    sequence, held = pool.start(ids), []
    while sequence.length < len(ids):
        chunk = ids[sequence.length : sequence.length + 256]
        assert pool.reserve(sequence, sequence.length + len(chunk))
        held.append(len(sequence.held))
        pool.commit(sequence, chunk)
    assert max(held) <= 1 + 16 + 8 + 1  # sinks, the window wherever it begins in a page, the chunk
    assert max(held[-100:]) == max(held[10:110])
    pool.check_invariants()
    pool.release(sequence, keep=False)
    assert pool.available_pages == 64


def test_a_failed_sequence_as_long_as_a_book_leaves_nothing() -> None:
    pool = KVPool(KVShape(1, 1, 1), 2000 * 32 * 8)
    ids = list(range(2000 * 32))
    sequence = pool.start(ids)
    assert pool.reserve(sequence, len(ids))
    pool.commit(sequence, ids)
    pool.release(sequence, keep=False)
    assert pool.free_pages == 2000


def test_a_failed_sequence_leaves_nothing() -> None:
    pool = make()
    finished(pool, list(range(40)))
    sequence = pool.start(list(range(100)))
    fill(pool, sequence, list(range(sequence.length, 100)))
    sharer = pool.start(list(range(100)))
    pool.release(sequence, keep=False)
    assert pool.start(list(range(100))).length == 32  # the full page from before
    check(pool, sharer)
    pool.check_invariants()


def test_cached_pages_give_way_and_running_out_is_reported() -> None:
    pool = make(4)
    for i in range(4):
        finished(pool, [i] * 50)
        pool.check_invariants()
    big = pool.start([9])
    assert pool.reserve(big, 128)
    assert len(pool.tree) == 0
    other = pool.start([1])
    assert not pool.reserve(other, 1)
    assert not pool.can_start([1])
    pool.release(big, keep=False)
    assert pool.reserve(other, 128)
    pool.check_invariants()


def test_pinned_pages_stay() -> None:
    pool = make(6)
    sequence = pool.start(list(range(70)))
    fill(pool, sequence, list(range(70)))
    node = pool.release(sequence)
    assert node is not None
    pool.tree.pin(node)
    for i in range(5):
        finished(pool, [100 + i] * 80)
        pool.check_invariants()
    assert pool.start([*range(70), 1]).length == 70
    pool.tree.unpin(node)
    assert pool.tree.pinned == 0


def test_the_least_recently_used_goes_first() -> None:
    pool = make(6)
    for i in range(3):
        finished(pool, [i] * 60)
    pool.release(pool.start([0] * 60))  # used again
    finished(pool, [7] * 60)
    assert [pool.start([i] * 60).length > 0 for i in (0, 1, 2)] == [True, False, True]


def test_sequences_lie_in_one_run_where_there_is_room() -> None:
    pool = make(64)
    sequences = [pool.start([i], room=300) for i in range(6)]
    for _ in range(9):
        for i, sequence in enumerate(sequences):
            fill(pool, sequence, [i] * 32)
    assert [len(s.slots(0, s.length)) for s in sequences] == [1] * 6


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(EngineError, match="lower kv_memory"):
        KVPool(SHAPE, 1 << 50)


def test_the_allocator_fills_every_hole() -> None:
    pages = PageAllocator(10)
    assert pages.allocate(10, 1, None, 10) == list(range(10))
    for page in (1, 4, 5, 8):
        pages.release(page)
    assert pages.allocate(5, 2, None, 5) is None
    taken = pages.allocate(4, 2, None, 4)
    assert taken is not None
    assert sorted(taken) == [1, 4, 5, 8]
    assert taken[:2] == [4, 5]  # the longest hole first
    pages.release(1)
    with pytest.raises(AssertionError, match="twice"):
        pages.release(1)
    pages.check_invariants()


@pytest.mark.parametrize("seed", range(6))
def test_random_use_keeps_contents_and_invariants(seed: int) -> None:
    rng = random.Random(seed)
    pool = make(rng.choice([5, 12, 60]), prefix_caching=seed != 5)
    live: list[KVSequence] = []
    for _ in range(250):
        action = rng.random()
        if action < 0.4:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 120))] if rng.random() < 0.3 else [1] * rng.randrange(1, 90) + [2] * rng.randrange(1, 9)
            if pool.can_start(tokens):
                sequence = pool.start(tokens)
                check(pool, sequence)
                assert sequence.length < len(tokens)
                assert sequence.tokens == tokens[: sequence.length]
                if pool.reserve(sequence, len(tokens)):
                    fill(pool, sequence, tokens[sequence.length :])
                live.append(sequence)
        elif live and action < 0.5:
            sequence = rng.choice(live)
            pool.truncate(sequence, rng.randrange(sequence.length + 1))
        elif live and action < 0.6:
            live.append(pool.fork(rng.choice(live)))
        elif live and action < 0.7:
            sequence = rng.choice(live)
            extra = [rng.randrange(2) for _ in range(rng.randrange(1, 40))]
            if pool.reserve(sequence, sequence.length + len(extra)):
                fill(pool, sequence, extra)
        elif live:
            pool.release(live.pop(rng.randrange(len(live))), keep=rng.random() < 0.7)
        for sequence in live:
            check(pool, sequence)
        pool.check_invariants()
    for sequence in live:
        pool.release(sequence, keep=False)
    pool.tree.clear()
    assert pool.free_pages == pool.page_count
    assert PAGE == 32
