"""Failure cases of subkind prefix that concern the reuse of finished requests' keys and values."""

from __future__ import annotations

from tests.engine.cases.support import case
from tests.engine.tiny import Bench, TinyDecoder


@case("eng-prefix-hash-collision")
def test_reuse_compares_token_ids(case_id: str) -> None:
    """No hash is involved: a prompt of equal length and equal ends but one other token shares only what comes before it."""
    first = list(range(50, 110))
    other = [*first[:30], 7, *first[31:]]
    bench = Bench(TinyDecoder())
    bench.complete(first, max_tokens=8)
    warm = bench.complete(other, max_tokens=8)
    assert warm.cached == 30
    assert warm.tokens == Bench(TinyDecoder()).complete(other, max_tokens=8).tokens


@case("eng-prefix-stale-hash-after-evict")
def test_evicted_contents_are_never_found_again(case_id: str) -> None:
    per_token = TinyDecoder().layers * 2 * 2 * 8 * 4
    bench = Bench(TinyDecoder(), budget=6 * 64 * per_token)
    small, large = list(range(20, 150)), list(range(60, 240)) * 2
    first = bench.complete(small, max_tokens=8)
    bench.complete(large[:340], max_tokens=8)
    third = bench.complete(small, max_tokens=8)
    assert third.cached == 0
    assert third.tokens == first.tokens
