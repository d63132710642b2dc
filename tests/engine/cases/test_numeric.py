"""Failure cases of subkind numeric."""

from __future__ import annotations

import torch

from agentkit.errors import NumericalError
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, ScriptedDecoder, TinyDecoder, greedy_without_cache, tokenize


@case("eng-fp16-overflow")
def test_intermediates_beyond_half_precision_stay_finite(case_id: str) -> None:
    model = TinyDecoder()

    def scaled(layer: int) -> list[torch.Tensor]:
        wq, wk, wv, wo = model.weights[layer]
        return [wq, wk, wv * 1e6, wo]

    model.weights = [scaled(i) for i in range(2)]
    bench = Bench(model)
    done = bench.complete([1, 2, 3], max_tokens=8)
    (first, last), *_ = bench.pool.start([1, 2, 3]).slots(0, 2)
    assert float(bench.pool.data[0, 1, :, first:last].abs().max()) > 65504
    assert done.outcome is not None
    assert list(done.outcome.token_ids) == greedy_without_cache(model, [1, 2, 3], 8)


@case("eng-fp16-overflow")
def test_a_nan_row_fails_its_request_only(case_id: str) -> None:
    bench = Bench(ScriptedDecoder([*tokenize(b"abc"), None], prompt=2))
    doomed = bench.submit([1, 2], max_tokens=20)
    spared = bench.submit([1, 2], max_tokens=2)
    bench.run(doomed, spared)
    assert isinstance(doomed.error, NumericalError)
    assert "NaN" in str(doomed.error)
    assert spared.outcome is not None
    assert bench.pool.live_pages == 0
    assert all(len(node.tokens) < 6 for node in bench.pool.tree)  # keys and values of the failed request are not kept for others
