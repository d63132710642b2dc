"""Failure cases of subkind numeric."""

from __future__ import annotations

import pytest
import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.layout import PAGE
from agentkit.errors import NumericalError
from tests.engine.cases.support import case
from tests.engine.slots import Sequence, Slots
from tests.engine.test_attention import reference
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


@case("eng-kv-quant-accuracy")
def test_one_large_channel_of_keys_costs_little(case_id: str) -> None:
    """Normal keys, one channel of them times 60. Half precision, whole numbers of 8 bits, and e4m3 with its three bits of mantissa."""
    length, kv, heads, dim = 256, 2, 4, 128
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(length, n, dim, generator=generator) for n in (heads, kv, kv))
    k[:, :, 5] *= 60
    q *= dim**-0.5 / 0.3  # the reference multiplies by 0.3
    wanted = reference(q, k, v, 0, None, None)
    for dtype, most in ((torch.float16, 0.01), (torch.int8, 0.02), (torch.uint8, 0.04)):
        pool, sequence = Slots(1, kv, dim, pages=length // PAGE, dtype=dtype), Sequence(list(range(length // PAGE)))
        out = BatchAttention(pool, [(sequence, 0, length)])(0, q, k, v, window=None, scale=0.3)
        assert (out - wanted).norm() < most * wanted.norm(), dtype


@case("eng-kv-quant-accuracy")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_greedy_texts_stay_the_same_in_eight_bits(case_id: str, dtype: torch.dtype) -> None:
    model = TinyDecoder()
    done = Bench(model, kv=dtype).complete([1, 2, 3], max_tokens=64)
    assert done.outcome is not None
    assert list(done.outcome.token_ids) == greedy_without_cache(model, [1, 2, 3], 64)


@case("eng-kv-quant-accuracy")
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_pages_in_eight_bits_serve_the_next_turn_as_well(case_id: str, dtype: torch.dtype) -> None:
    """A second turn over the pages of the first one is what it is when all of it is computed anew."""
    turns, answers = Bench(TinyDecoder(), kv=dtype), []
    first = turns.complete(list(range(100)), max_tokens=30)
    second = [*first.tokens, 7, 8, 9]
    for bench in (turns, Bench(TinyDecoder(), kv=dtype)):
        done = bench.complete(second, max_tokens=40)
        assert (done.cached > 120) == (bench is turns)
        answers.append(done.tokens)
    assert answers[0] == answers[1]
