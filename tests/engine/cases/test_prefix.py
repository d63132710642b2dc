"""Failure cases of subkind prefix: what may be found again, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkit.engine import Engine
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.prefix_node import domain
from tests.engine.adapters.native import native
from tests.engine.adapters.peft_files import RandomAdapter
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, TinyDecoder


@case("eng-prefix-hash-collision")
@pytest.mark.parametrize("place", [7, 30, 40])
def test_reuse_compares_token_ids(case_id: str, place: int) -> None:
    """With a hash that is the same for everything, a prompt shares only what has the same token ids."""
    first = list(range(50, 150))
    other = [*first[:place], 7, *first[place + 1 :]]
    bench = Bench(TinyDecoder(), digest=lambda data: b"same")
    bench.complete(first, max_tokens=8)
    warm = bench.complete(other, max_tokens=8)
    assert warm.cached == (place if place < 32 else 32)
    assert warm.tokens == Bench(TinyDecoder()).complete(other, max_tokens=8).tokens


@case("eng-prefix-hash-collision")
def test_the_same_page_after_another_parent_is_another_page(case_id: str) -> None:
    """Keys and values depend on everything before them, so a page is found only below the parent it was computed after."""
    bench = Bench(TinyDecoder(), digest=lambda data: b"same")
    page = list(range(100, 132))
    for head in ([1] * 32, [2] * 32):
        done = bench.complete([*head, *page, 5], max_tokens=6)
        assert done.cached == 0
        assert done.tokens == Bench(TinyDecoder()).complete([*head, *page, 5], max_tokens=6).tokens


@case("eng-prefix-stale-hash-after-evict")
def test_evicted_contents_are_never_found_again(case_id: str) -> None:
    bench = Bench(TinyDecoder(), pages=6)
    small, large = list(range(20, 110)), list(range(60, 240))
    first = bench.complete(small, max_tokens=6)
    bench.complete(large, max_tokens=8)
    third = bench.complete(small, max_tokens=6)
    assert third.cached == 0
    assert third.tokens == first.tokens


@case("eng-prefix-key-domains")
def test_no_hit_between_domains(case_id: str) -> None:
    """An adapter cannot pose as a salt, nor a load of an adapter as another one, nor two parts as one."""
    keys = [
        domain(), domain(adapter="abc"), domain(salt="abc"), domain(adapter="abc", load_number=1), domain(adapter="abc", salt="abc"), domain(adapter="abcabc"),
        domain(adapter="abc", load_number=1, salt="abc"), domain(adapter="abc", load_number=1, scale=0.5),
        domain(adapter=""), domain(salt=""), domain(adapter="salt", salt="adapter"),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    pool = KVPool(KVShape(1, 1, 4), 1 << 20)
    prompt = list(range(100))
    for key in keys:
        sequence = pool.start(prompt, key)
        assert sequence.length == 0
        assert pool.reserve(sequence, 100)
        pool.commit(sequence, prompt)
        pool.release(sequence)
        pool.check_invariants()
    for key in keys:
        assert pool.start(prompt, key).length == 99


@case("eng-prefix-key-domains")
def test_salts_of_requests_are_kept_apart(case_id: str) -> None:
    bench = Bench(TinyDecoder())
    prompt = list(range(40, 120))
    runs = [bench.complete(prompt, max_tokens=4, cache_salt=salt) for salt in (None, "a", "b", "a", None)]
    assert [r.cached for r in runs] == [0, 0, 0, 79, 79]
    assert len({tuple(r.tokens) for r in runs}) == 1


@case("eng-prefix-adapter-scale")
def test_scales_of_an_adapter_share_nothing(case_id: str, tmp_path: Path) -> None:
    """Keys and values depend on the scale. Without prefix_caching the same tokens come out, so nothing wrong was ever found; scale 0 is the base model."""
    loaded = native(tmp_path / "model")
    model: Any = loaded.model
    adapters = {"A": RandomAdapter(model.config).write(tmp_path / "A")}
    jobs: list[dict[str, Any]] = [{}, *({"adapter": "A", "adapter_scale": scale} for scale in (1.0, 0.5, 0.0, 1.0, 0.5))]
    found = []
    for caching in (True, False):
        with Engine(loaded, weights="fp32", threads=1, adapters=adapters, prefix_caching=caching) as engine:
            found.append([engine.generate("true: " * 12, max_tokens=16, **job) for job in jobs])
    warm, cold = ([g.token_ids for g in each] for each in found)
    assert warm == cold
    assert len(set(warm)) == 3
    assert warm[3] == warm[0]
    whole = found[0][0].usage.input_tokens - 1
    assert [g.usage.cached_tokens for g in found[0]] == [0, 0, 0, whole, whole, whole]
