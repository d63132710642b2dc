"""Failure cases of subkind attention."""

from __future__ import annotations

from tests.engine.cases.support import case
from tests.engine.tiny import Bench, TextsMatcher, TinyDecoder


@case("eng-left-padding")
def test_rows_of_unequal_length_equal_their_lone_runs(case_id: str) -> None:
    prompts = [[1, 2, 3, 4, 5], [1, 9]]
    alone = [Bench(TinyDecoder()).complete(p, max_tokens=16) for p in prompts]
    bench = Bench(TinyDecoder())
    together = [bench.submit(p, max_tokens=16) for p in prompts]
    bench.run(*together)
    assert [r.tokens for r in together] == [r.tokens for r in alone]


@case("eng-left-padding")
def test_the_mask_stays_in_force_at_every_step(case_id: str) -> None:
    texts = [bytes(a + b for a, b in zip(x, y, strict=True)) for x in ([97] * 8, [98] * 8) for y in (range(8), [0] * 8)]
    bench = Bench(TinyDecoder())
    together = [bench.submit(p, TextsMatcher(texts, forced=False)) for p in ([1, 2, 3, 4, 5], [1, 9])]
    bench.run(*together)
    for request in together:
        assert request.outcome is not None
        assert request.outcome.text.encode() in texts
