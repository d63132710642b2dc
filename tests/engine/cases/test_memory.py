"""Failure cases of subkind memory: free, cached and held pages add up after every step."""

from __future__ import annotations

import random

from agentkit.engine.scheduler import Limits
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, TinyDecoder


@case("eng-pool-accounting")
def test_memory_adds_up_over_random_traffic(case_id: str) -> None:
    rng = random.Random(1)
    bench = Bench(TinyDecoder(), pages=37, limits=Limits(max_running=6))
    prefixes = [[rng.randrange(250) for _ in range(60)] for _ in range(3)]
    requests = []
    for i in range(200):
        prompt = rng.choice(prefixes)[: rng.randrange(1, 61)] + [rng.randrange(250) for _ in range(rng.randrange(1, 10))]
        requests.append(bench.submit(prompt, max_tokens=rng.randrange(1, 12), temperature=1.0, seed=i))
        if rng.random() < 0.15:
            rng.choice(requests[-5:]).cancel()
        bench.step()  # checks the pool and that running requests hold exactly the live pages
    bench.run(*requests)
    assert bench.pool.live_pages == 0
    assert bench.pool.live_sequences == 0
    bench.pool.tree.clear()
    assert bench.pool.free_pages == bench.pool.page_count
