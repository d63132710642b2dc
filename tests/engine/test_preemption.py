"""Requests that share too little memory, or have no time: who goes first, who waits, and that nothing changes an output."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import Reach
from agentkit.engine.prefix_node import Node
from agentkit.engine.scheduler import Limits
from agentkit.errors import ContextTooLong
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


def pinned(bench: Bench, tokens: list[int]) -> Node:
    bench.complete(tokens, max_tokens=2, priority=9)
    node = bench.pool.release(bench.pool.start(tokens))
    assert node is not None
    bench.pool.tree.pin(node)
    return node


def test_what_will_not_fit_beside_pins_ends_before_it_starts() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    pinned(bench, [7] * 64)
    doomed = bench.submit([1] * 60, max_tokens=20)
    bench.run(doomed)
    assert isinstance(doomed.error, ContextTooLong)
    assert "beside pins, which hold 2 of 4 pages" in str(doomed.error)
    assert (doomed.error.tokens, doomed.error.limit, doomed.forwards) == (80, 64, 0)
    assert bench.complete([1] * 60, max_tokens=4).outcome is not None
    shared = bench.complete([7] * 100, max_tokens=20)  # the pin holds its beginning
    assert shared.outcome is not None
    assert shared.cached == 64


def test_what_fits_beside_pins_waits_for_others() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    node = pinned(bench, [7] * 60)
    first, second = (bench.submit([i] * 40, max_tokens=10) for i in (1, 2))
    bench.step()
    assert bench.scheduler.running == [first]
    bench.run(first, second)
    assert first.outcome
    assert second.outcome
    bench.pool.tree.unpin(node)
    assert bench.complete([1] * 60, max_tokens=60).outcome is not None


def test_pins_that_come_later_end_what_no_longer_fits() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    running = bench.submit([1], max_tokens=120)
    bench.step()
    waiting = bench.submit([2], max_tokens=100)
    pinned(bench, [7] * 60)
    bench.run(running, waiting)
    for request in (running, waiting):
        assert isinstance(request.error, ContextTooLong)
    assert running.forwards > waiting.forwards == 0


def test_what_fits_beside_pins_is_computed_in_smaller_steps_where_pages_are_short() -> None:
    """A pin keeps a window at its end only, so the layers with a window are computed anew from the start, and all others with them."""
    reach = Reach(windows=(40, None))
    bench = Bench(TinyDecoder(windows=reach.windows), pages=23, reach=reach, groups=by_window(reach, 2, 4096))  # 46 pages of one layer
    prompt = [t % 251 for t in range(812)]
    pinned(bench, prompt)
    bench.pool.tree.clear()
    fitting = bench.complete([*prompt[:400], 5, 6], max_tokens=4)
    assert fitting.cached == 0
    assert fitting.outcome is not None
    assert list(fitting.outcome.token_ids) == Bench(bench.model, reach=reach).complete(fitting.prompt, max_tokens=4).tokens[402:]


def test_steps_may_be_longer_than_what_fits_at_once() -> None:
    reach = Reach(windows=(40, 40))
    bench = Bench(TinyDecoder(windows=reach.windows), pages=20, limits=Limits(step_tokens=4096), reach=reach)
    long = bench.complete([t % 251 for t in range(3000)], max_tokens=4)
    assert long.outcome is not None


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
