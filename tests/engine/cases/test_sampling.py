"""Failure cases of subkind sampling."""

from __future__ import annotations

import numpy as np
import pytest

from agentkit.engine.advance import pack_ids
from agentkit.engine.config import SamplingParams
from agentkit.engine.sampling import penalise, sample
from agentkit.engine.scheduler import Limits
from tests.engine.cases.support import case
from tests.engine.tiny import TOKENS, Bench, TextsMatcher, TinyDecoder

Q = ord("q")


@case("eng-mask-before-top-k")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_legal_token_below_the_top_is_found(case_id: str, temperature: float) -> None:
    logits = np.linspace(9, 10, len(TOKENS), dtype=np.float32)
    logits[Q] = -50.0
    params = SamplingParams(temperature=temperature, top_k=5, top_p=0.1, repetition_penalty=1.3)
    seen = list(range(len(TOKENS)))
    assert {sample(logits, pack_ids([Q]), params, vocab_size=len(TOKENS), position=i, seen=seen) for i in range(20)} == {Q}


@case("eng-mask-before-top-k")
def test_the_whole_engine_produces_it(case_id: str) -> None:
    matcher = TextsMatcher([b"q"], forced=False)
    done = Bench(TinyDecoder()).complete([1, 2, Q], matcher, temperature=1.0, top_k=5, top_p=0.1, repetition_penalty=1.3)
    assert done.outcome is not None
    assert done.outcome.text == "q"


@case("eng-mask-before-top-k")
def test_penalties_lift_nothing_and_make_no_nan(case_id: str) -> None:
    row = np.array([-np.inf, -1.0, 5.0, 0.0], np.float32)
    out = penalise(row, [0, 1, 2, 3], 1.3)
    assert out[0] == -np.inf
    assert not np.isnan(out).any()
    assert (out <= row).all()
    params = SamplingParams(repetition_penalty=1.3)
    assert sample(row, pack_ids([0, 1]), params, vocab_size=4, seen=[1, 2]) == 1


@case("eng-temperature-zero")
@pytest.mark.parametrize("temperature", [0, 1e-9])
def test_ties_go_to_the_lowest_id(case_id: str, temperature: float) -> None:
    row = np.array([2.0, 2.0, 1.0], np.float32)
    params = SamplingParams(temperature=temperature)
    for mask in (None, pack_ids([0, 1, 2])):
        assert {sample(row, mask, params, vocab_size=3, seed=s) for s in range(50)} == {0}
    assert sample(row, pack_ids([1, 2]), params, vocab_size=3) == 1


@case("eng-temperature-zero")
def test_neighbours_of_other_temperatures(case_id: str) -> None:
    alone = [Bench(TinyDecoder()).complete([1, 2, 3], max_tokens=10, temperature=t, seed=5) for t in (0.0, 1.0)]
    bench = Bench(TinyDecoder())
    mixed = [bench.submit([1, 2, 3], max_tokens=10, temperature=t, seed=5) for t in (0.0, 1.0)]
    bench.run(*mixed)
    assert [r.tokens for r in mixed] == [r.tokens for r in alone]
    assert mixed[0].tokens != mixed[1].tokens


@case("eng-seed-per-request")
def test_a_seed_fixes_the_stream_whatever_runs_beside(case_id: str) -> None:
    prompt = list(range(30, 50))
    alone = Bench(TinyDecoder()).complete(prompt, max_tokens=16, temperature=1.0, seed=7)
    bench = Bench(TinyDecoder(), limits=Limits(mixed_step_tokens=16))
    others = [bench.submit([9, i], max_tokens=30, temperature=1.0, seed=i) for i in range(3)]
    bench.step()
    twins = [bench.submit(prompt, max_tokens=16, temperature=1.0, seed=7) for _ in range(2)]
    bench.run(*twins, *others)
    assert [t.tokens for t in twins] == [alone.tokens] * 2
    other = Bench(TinyDecoder()).complete(prompt, max_tokens=16, temperature=1.0, seed=8)
    assert other.tokens != alone.tokens


@case("eng-seed-per-request")
def test_a_seed_fixes_the_stream_through_preemption(case_id: str) -> None:
    prompt = list(range(30, 50))
    alone = Bench(TinyDecoder()).complete(prompt, max_tokens=60, temperature=1.0, seed=7)
    bench = Bench(TinyDecoder(), pages=4)
    elder = bench.submit([1], max_tokens=100, temperature=1.0, seed=1)
    subject = bench.submit(prompt, max_tokens=60, temperature=1.0, seed=7)
    bench.run(elder, subject)
    assert subject.preemptions > 0
    assert subject.tokens == alone.tokens
