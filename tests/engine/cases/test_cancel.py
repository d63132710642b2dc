"""Failure cases of subkind cancel, on the inner engine; through the public API in tests/engine/test_engine.py."""

from __future__ import annotations

from agentkit.engine.scheduler import Limits
from agentkit.errors import EngineError
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, TinyDecoder, greedy_without_cache


@case("eng-cancel-frees-blocks")
def test_cancelling_stops_within_a_step_and_frees(case_id: str) -> None:
    bench = Bench(TinyDecoder())
    doomed = bench.submit([1, 2, 3], max_tokens=1000)
    neighbour = bench.submit([4, 5], max_tokens=12)
    for _ in range(5):
        bench.step()
    held = bench.pool.live_pages
    doomed.cancel()
    bench.step()
    assert isinstance(doomed.error, EngineError)
    assert "cancelled" in str(doomed.error)
    assert doomed.sequence is None
    assert bench.pool.live_pages < held
    bench.run(neighbour)
    assert neighbour.outcome is not None
    assert list(neighbour.outcome.token_ids) == greedy_without_cache(bench.model, [4, 5], 12)
    assert bench.pool.live_pages == 0


@case("eng-cancel-frees-blocks")
def test_cancelling_while_waiting_and_while_prefilling(case_id: str) -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1, step_tokens=64))
    prefilling = bench.submit([1] * 1000, max_tokens=5)
    waiting = bench.submit([2], max_tokens=5)
    bench.step()
    waiting.cancel()
    prefilling.cancel()
    bench.step()
    assert waiting.error is not None
    assert prefilling.error is not None
    assert not bench.scheduler.has_work
    assert bench.pool.live_pages == 0
