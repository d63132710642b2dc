"""A draft model: guesses that follow it, keys and values kept in step, outputs unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.runner import TorchRunner
from agentkit.engine.speculation.draft_model import DraftModelProposer
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.speculator import Speculator
from tests.engine.speculation.test_speculator import TEXTS, Eager
from tests.engine.tiny import STOP, TOKENS, Bench, TextsMatcher, TinyDecoder, tokenize


def drafting(target: TinyDecoder, draft: TinyDecoder, *, pages: int = 64, **options: Any) -> tuple[Bench, KVPool]:
    shape = KVShape(draft.layers, draft.kv, draft.dim)
    pool = KVPool(shape, pages * shape.bytes_per_page)
    proposer = DraftModelProposer(TorchRunner(draft, pool), pool, len(TOKENS), [STOP])
    return Bench(target, speculator=Speculator(proposer, Eager(StepCosts()), most=6), **options), pool


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}, {"repetition_penalty": 1.2}], ids=["greedy", "sampled", "penalty"])
@pytest.mark.parametrize("other", [False, True], ids=["same model", "other model"])
def test_outputs_are_those_of_plain_decoding(options: dict[str, Any], other: bool) -> None:
    prompts = [b"hello", b"AB" * 40, b"x" * 37]
    plain = Bench(TinyDecoder(3))
    expected = [plain.complete(p, max_tokens=40, **options) for p in prompts]
    bench, pool = drafting(TinyDecoder(3), TinyDecoder(9 if other else 3))
    requests = [bench.submit(p, max_tokens=40, **options) for p in prompts]
    bench.run(*requests)
    assert [r.tokens for r in requests] == [r.tokens for r in expected]
    assert pool.live_sequences == 0
    pool.check_invariants()
    if not other and "repetition_penalty" not in options:  # a model knows itself
        assert all(r.accepted > 0.9 * r.drafted for r in requests)
        assert all(r.forwards < 0.5 * e.forwards for r, e in zip(requests, expected, strict=True))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 2}], ids=["greedy", "sampled"])
def test_it_guesses_under_the_grammar(options: dict[str, Any]) -> None:
    prompt = tokenize(b"call")
    wanted = Bench(TinyDecoder(3)).complete(prompt, TextsMatcher(TEXTS), max_tokens=40, **options)
    bench, _ = drafting(TinyDecoder(3), TinyDecoder(3))
    request = bench.complete(prompt, TextsMatcher(TEXTS), max_tokens=40, **options)
    assert request.tokens == wanted.tokens
    assert request.accepted == request.drafted
    assert request.forwards <= wanted.forwards


def test_without_memory_for_the_draft_model_decoding_goes_on_plainly() -> None:
    wanted = Bench(TinyDecoder(3)).complete(b"x" * 100, max_tokens=20)
    bench, pool = drafting(TinyDecoder(3), TinyDecoder(3), pages=2)
    request = bench.complete(b"x" * 100, max_tokens=20)
    assert request.tokens == wanted.tokens
    assert request.drafted == 0
    assert pool.live_sequences == 0
