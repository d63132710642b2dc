"""Failure cases of subkind error."""

from __future__ import annotations

from agentkit.errors import GrammarViolation
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, ScriptedDecoder, TextsMatcher, TinyDecoder, tokenize


@case("eng-grammar-failure-ends-stream")
def test_the_client_hears_of_it_and_others_go_on(case_id: str) -> None:
    bench = Bench(ScriptedDecoder(tokenize(b"xyzxyz")))
    doomed = bench.submit([1], TextsMatcher([b"xyzxyz"], forced=False, fail_at=3))
    spared = bench.submit([1], TextsMatcher([b"xyzxyz"], forced=False))
    bench.run(doomed, spared, steps=20)
    last = bench.heard(doomed)[-1]
    assert isinstance(last, GrammarViolation)
    assert bench.deltas(doomed) == ["x", "y"]
    assert spared.outcome is not None
    assert spared.outcome.text == "xyzxyz"
    assert bench.pool.live_pages == 0


@case("eng-grammar-failure-ends-stream")
def test_a_grammar_that_fails_before_the_first_token(case_id: str) -> None:
    bench = Bench(TinyDecoder())
    doomed = bench.submit([1], TextsMatcher([b"abc"], fail_at=1))
    bench.run(doomed, steps=3)
    assert isinstance(doomed.error, GrammarViolation)
    assert bench.pool.live_pages == 0
