"""Failure cases of subkind numeric."""

from __future__ import annotations

import torch

from agentkit.errors import NumericalError
from tests.engine.cases.support import case
from tests.engine.tiny import Bench, ScriptedDecoder, TinyDecoder, greedy_without_cache, tokenize


@case("eng-fp16-overflow")
def test_intermediates_beyond_half_precision_stay_finite(case_id: str) -> None:
    model = TinyDecoder()
    biggest = 0.0

    def scaled(layer: int) -> list[torch.Tensor]:
        wq, wk, wv, wo = model.weights[layer]
        return [wq, wk, wv * 1e6, wo]

    model.weights = [scaled(i) for i in range(2)]
    bench = Bench(model)
    done = bench.complete([1, 2, 3], max_tokens=8)
    kept, _ = bench.pool.acquire([1, 2, 3], 8).view(0, 0, 2), None
    biggest = float(kept[1].abs().max())
    assert biggest > 65504
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
    assert bench.pool.live_bytes == 0
    assert all(seq.length < 6 for seq in bench.pool._kept)  # keys and values of the failed request are not kept for others
