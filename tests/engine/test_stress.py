"""Many requests of every kind through a tiny memory: nothing is lost, everything adds up, and outputs are those of lone runs.

To the last token: the model is in blocks, whose kernels keep one order of sums whatever runs beside. The same over a model in float32 by
torch, which has no such order, may differ where rounding decides.
"""

from __future__ import annotations

import random

import pytest

from agentkit.engine.kernels.library import supported
from agentkit.engine.request import Request
from agentkit.engine.sampling import uniform
from agentkit.engine.scheduler import Limits
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.errors import AgentKitError
from tests.engine.kernels.models import decoder, quantised
from tests.engine.tiny import WIDTH, Bench, TextsMatcher, TinyDecoder, logits_without_cache

TEXTS = [b'{"ok":true}', b'{"ok":false}', b'{"no":[1,2,3]}', b"ababab"]


def run(model: TinyDecoder | PackedDecoder, count: int, pages: int, seed: int) -> list[tuple[Request, Request]]:
    """`count` requests at once. Returns those that differ from their lone runs, with these."""
    rng = random.Random(seed)
    limits = Limits(max_running=rng.choice([3, 6, 12]), max_queue=count, step_tokens=rng.choice([32, 96, 256]), mixed_step_tokens=rng.choice([16, 64]))
    bench = Bench(model, pages=pages, limits=limits)
    bases = [[rng.randrange(250) for _ in range(70)] for _ in range(3)]
    requests: list[Request] = []
    options: list[dict[str, float | int | str | None]] = []
    while len(requests) < count or any(not (r.outcome or r.error) for r in requests):
        for _ in range(rng.randrange(4) if len(requests) < count else 0):
            tail = [rng.randrange(250) for _ in range(rng.randrange(1, 12))]
            chosen = {
                "max_tokens": rng.randrange(14, 40), "temperature": rng.choice([0.0, 1.0]), "seed": len(requests), "priority": rng.choice([0, 0, 0, 1, -1]),
                "cache_salt": rng.choice([None, None, "a"]),
            }  # fmt: skip
            matcher = TextsMatcher(TEXTS) if rng.random() < 0.2 else None
            request = bench.request([*rng.choice(bases)[: rng.randrange(70)], *tail], matcher, **chosen)
            if chosen["temperature"] and matcher is None and rng.random() < 0.2:
                request.siblings = [bench.request(request.prompt, **{**chosen, "seed": 10_000 + len(requests) + i}) for i in range(2)]
            group = [request, *request.siblings]
            bench.scheduler.submit(request)
            requests += group
            options += [{**chosen, "grammar": matcher is not None, "seed": r.seed} for r in group]
        if requests and rng.random() < 0.08:
            rng.choice(requests[-20:]).cancel()
        bench.step()  # checks every invariant
    assert bench.pool.live_pages == 0
    assert bench.pool.free_pages + bench.pool.tree.evictable == bench.pool.page_count
    assert sum(r.preemptions for r in requests) > 0
    different = []
    for request, chosen in zip(requests, options, strict=True):
        ends = [e for e in bench.heard(request) if not hasattr(e, "forced")]
        assert len(ends) == 1
        if request.error is not None:
            assert request.cancelled
            assert isinstance(request.error, AgentKitError)
            continue
        grammar = chosen.pop("grammar")
        alone = Bench(model, pages=64).complete(request.prompt, TextsMatcher(TEXTS) if grammar else None, **chosen)
        if alone.tokens != request.tokens:
            different.append((request, alone))
    return different


def is_tie(model: TinyDecoder, request: Request, alone: Request) -> bool:
    """Whether the first difference is one that rounding decides: logits come out in other last digits beside other requests.

    Greedy: the two logits are equal to 1e-3. Sampled: the random number lies on the border between the two tokens.
    """
    at = next(i for i, (a, b) in enumerate(zip(request.tokens, alone.tokens, strict=False)) if a != b)
    low, high = sorted((request.tokens[at], alone.tokens[at]))
    logits = logits_without_cache(model, request.tokens[:at]).double()
    if request.params.greedy:
        return abs(float(logits[low] - logits[high])) < 1e-3
    reached = logits.softmax(-1).cumsum(-1)
    u = uniform(request.seed, at - len(request.prompt))
    return request.matcher is None and max(abs(float(reached[low]) - u), abs(float(reached[high - 1]) - u)) < 1e-4


def test_a_few_dozen_requests_in_float32() -> None:
    model = TinyDecoder()
    different = run(model, 60, 9, 1)
    assert len(different) <= 1
    assert all(is_tie(model, request, alone) for request, alone in different)


@pytest.fixture(scope="module")
def packed() -> PackedDecoder:
    if not supported():
        pytest.skip("this processor does not run the kernels that keep one order of sums")
    plain = decoder(layers=2, heads=4, dim=16, vocabulary=WIDTH)
    plain.head.weight.mul_(3)  # choices, not repetition
    return quantised(plain)[0]


def test_a_few_dozen_requests(packed: PackedDecoder) -> None:
    assert run(packed, 60, 9, 2) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_two_thousand_requests(packed: PackedDecoder, seed: int) -> None:
    assert run(packed, 500, [8, 10, 14, 24][seed], 10 + seed) == []
