"""Requests that share too little memory, or have no time: who goes first, who waits, and that nothing changes an output."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentkit.engine.scheduler import Limits
from agentkit.errors import EngineError
from tests.engine.tiny import Bench, TinyDecoder, greedy_without_cache


def test_pages_are_taken_as_a_sequence_grows() -> None:
    bench = Bench(TinyDecoder(), pages=8)
    requests = [bench.submit([i, i], max_tokens=100) for i in range(1, 5)]  # up to four pages each
    bench.step()
    assert len(bench.scheduler.running) == 4
    bench.run(*requests)
    assert sum(r.preemptions for r in requests) > 0
    assert requests[0].preemptions == 0
    for r in requests:
        assert r.outcome is not None
        assert list(r.outcome.token_ids) == greedy_without_cache(bench.model, r.prompt, 100)


def test_the_youngest_gives_way_and_the_eldest_gets_on() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    first, second = bench.submit([1], max_tokens=120), bench.submit([2], max_tokens=120)
    bench.run(first)
    assert first.preemptions == 0
    assert second.preemptions > 0
    bench.run(second)
    assert second.outcome is not None


@pytest.mark.parametrize("limits", [Limits(max_running=1), Limits(max_running=8)])
def test_a_higher_priority_takes_the_place_of_a_lower_one(limits: Limits) -> None:
    bench = Bench(TinyDecoder(), pages=5, limits=limits)
    low = bench.submit([1], max_tokens=150)
    for _ in range(70):
        bench.step()
    high = bench.submit([2], max_tokens=100, priority=5)
    bench.run(high)
    assert low.outcome is None
    assert low.preemptions > 0
    assert high.preemptions == 0
    bench.run(low)
    for r in (low, high):
        assert r.outcome is not None
        assert list(r.outcome.token_ids) == greedy_without_cache(bench.model, r.prompt, r.params.max_tokens)


def test_the_queue_is_in_order_of_priority() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1))
    running = bench.submit([1], max_tokens=3)
    bench.step()
    waiting = [bench.submit([2 + i], max_tokens=3, priority=p) for i, p in enumerate((-1, 0, -1, 0))]
    order: list[Any] = []
    while len(order) < 4:
        bench.step()
        order += [r for r in waiting if r.outcome and r not in order]
    assert order == [waiting[1], waiting[3], waiting[0], waiting[2]]
    assert running.preemptions == 0


def test_a_prompt_that_others_compute_is_computed_once() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(step_tokens=64, mixed_step_tokens=64))
    prefix = [t % 250 for t in range(400)]
    requests = [bench.submit([*prefix, 5 + i, 9], max_tokens=4) for i in range(6)]
    bench.run(*requests)
    assert sum(bench.model.calls) < 400 + 6 * (32 + 2 + 4)
    assert [r.cached for r in requests] == [0] + [384] * 5
    for r in requests:
        assert r.outcome is not None
        assert list(r.outcome.token_ids) == greedy_without_cache(bench.model, r.prompt, 4)


def test_what_does_not_fit_beside_pins_is_refused() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    bench.complete([7] * 60, max_tokens=2)
    node = bench.pool.release(bench.pool.start([7] * 60))
    assert node is not None
    bench.pool.tree.pin(node)
    doomed = bench.submit([1] * 80, max_tokens=2)
    bench.run(doomed)
    assert isinstance(doomed.error, EngineError)
    assert "2 of them pinned" in str(doomed.error)
    assert bench.complete([7] * 60, max_tokens=2).cached == 59


def test_the_deadline_ends_running_and_waiting_requests() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1))
    running, waiting = bench.submit([1], max_tokens=500, timeout=0.02), bench.submit([2], max_tokens=500, timeout=0.02)
    bench.step()
    time.sleep(0.03)
    bench.step()
    for request in (running, waiting):
        assert request.outcome is not None
        assert (request.outcome.finish_reason, request.outcome.complete) == ("timeout", False)
    assert len(running.outcome.token_ids) > 0  # type: ignore[union-attr]
    assert bench.pool.live_pages == 0
