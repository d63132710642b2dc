"""What keys receive of attention on a device: the Triton kernel and its reference in torch against sums in float64, forward after forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.kernels.gpu import reference, triton_set
from agentkit.engine.kernels.gpu.batch import NOWHERE, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Launch
from agentkit.engine.kernels.gpu.weigh import weigh
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.received import Received
from tests.engine.gpu.paged import DEVICE, batch_of, oracle, queries, random_layer, spans_of

RAGGED = [(0, 3), (PAGE + 3, 5), (0, 1), (PAGE - 1, 2)]
DECODE = [(0, 1), (70, 1), (PAGE, 1)]
SMALL = Launch(16, 16)
SETS = pytest.mark.parametrize("kernels", [triton_set, reference], ids=["triton", "reference"])


def slots_of(span: BatchSpan) -> torch.Tensor:
    key = torch.arange(span.length)
    return (torch.tensor(span.pages)[key // PAGE] * PAGE + key % PAGE).to(DEVICE)


def exact(q: torch.Tensor, layer: KVLayer, spans: Sequence[BatchSpan], scale: float, softcap: float | None, sinks: torch.Tensor | None) -> list[np.ndarray]:
    """For each span [KV, S]: what its keys receive."""
    _, lse = oracle(q, layer, spans, scale, softcap=softcap, sinks=sinks)
    numbers, group, row, found = q.double().cpu().numpy(), q.shape[1] // layer.kv_heads, 0, []
    for span in spans:
        keys = layer.read(slots_of(span))[0].double().cpu().numpy()
        received = np.zeros((layer.kv_heads, span.length))
        for seen in range(span.offset + 1, span.length + 1):
            for head in range(q.shape[1]):
                scores = keys[head // group, :seen] @ numbers[row, head] * scale
                scores = scores if softcap is None else np.tanh(scores / softcap) * softcap
                received[head // group, :seen] += np.exp(scores - lse[row, head])
            row += 1
        found.append(received)
    return found


def check(
    sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch | None = None, *, dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None, error: float = 1e-5, softcap: float | None = None, sinks: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Two layers of a forward, with the log-sum-exp that each set's own attention gives."""
    spans, scale = spans_of(sizes), dim**-0.5 * 2
    batch, layers = batch_of(spans, padding=3), [random_layer(spans, kv, dim, stored or dtype, seed) for seed in (0, 1)]
    q = queries(batch, heads, dim, dtype)
    parts = [exact(q, layer, spans, scale, softcap, sinks) for layer in layers]
    for name, kernels, options in (("triton", triton_set, {"launch": launch}), ("reference", reference, {})):
        received = Received.empty(kv, layers[0].keys.shape[1], DEVICE)
        for part in (received.sums, received.fresh, received.ends):
            part.fill_(77)  # of whoever had the slots before
        for begin, layer in zip((True, False), layers, strict=True):
            lse = torch.full(q.shape[:2], torch.nan, device=DEVICE)
            kernels.attend(q, layer, batch, scale=scale, lse=lse, softcap=softcap, sinks=sinks)  # type: ignore[attr-defined]
            kernels.weigh(q, layer, batch, lse, received, begin=begin, scale=scale, softcap=softcap, **options)  # type: ignore[attr-defined]
        for span, *wanted in zip(spans, *parts, strict=True):
            got = received.heads_at(slots_of(span), span.length)
            want = sum(wanted) + np.where(np.arange(span.length) < span.offset, 77, 0)  # keys that are new have received nothing
            np.testing.assert_allclose(got.double().cpu().numpy(), want, atol=error, err_msg=name)
        touched = torch.zeros(received.sums.shape[1], dtype=torch.bool, device=DEVICE)
        touched[torch.cat([slots_of(span) for span in spans])] = True
        assert all(bool((part[:, ~touched] == 77).all()) for part in (received.sums, received.fresh, received.ends)), name


@pytest.mark.parametrize("sizes", [RAGGED, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize(("heads", "kv", "dim", "launch"), [(2, 2, 16, None), (7, 1, 24, SMALL), (4, 2, 16, Launch(16, 64))])
def test_ragged_requests(sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch | None) -> None:
    check(sizes, heads, kv, dim, launch)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [None, SMALL, Launch(64, 32), Launch(32, 64)], ids=str)
@pytest.mark.parametrize("sizes", [RAGGED, DECODE, [(0, 130)], [(0, 40), (300, 3), (7, 33), (0, 1)]], ids=str)
@pytest.mark.parametrize(("heads", "kv", "dim"), [(9, 3, 64), (7, 1, 128), (2, 1, 256), (8, 8, 16)])
def test_many_shapes(sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch | None) -> None:
    check(sizes, heads, kv, dim, launch, softcap=3.0)


def test_sinks_take_their_share_and_scores_are_capped() -> None:
    check(RAGGED, 2, 1, 16, SMALL, softcap=1.5, sinks=torch.tensor([0.5, -3.0], device=DEVICE))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 1e-2), pytest.param(torch.bfloat16, 1e-1, marks=pytest.mark.gpu)])
def test_half_precision(dtype: torch.dtype, error: float) -> None:
    """bfloat16 on a GPU alone: the interpreter multiplies its bits as if they were integers."""
    check(RAGGED, 4, 2, 16, SMALL, dtype=dtype, error=error)


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8])
def test_quantised_keys(stored: torch.dtype) -> None:
    check(RAGGED, 2, 1, 16, SMALL, stored=stored)
    check(DECODE, 4, 2, 16, dtype=torch.float16, stored=stored, error=1e-2)


@SETS
def test_what_is_computed_again_counts_once(kernels: Any) -> None:
    """A prompt, nothing, a step, the step again (and with other queries, as after a token that did not count), and the one after it."""
    whole = spans_of([(0, PAGE + 4), (0, 7)])
    layer, received = random_layer(whole, 2, 16), Received.empty(2, 8 * PAGE, DEVICE)

    def forward(sizes: list[tuple[int, int]], factor: float = 1.0, still: bool = False) -> list[np.ndarray]:
        spans = [replace(span, offset=offset, tokens=[1] * count) for span, (offset, count) in zip(whole, sizes, strict=True)]
        batch = batch_of(spans)
        if still:
            batch.slots.fill_(NOWHERE)
        q = queries(batch, 4, 16) * factor
        lse = torch.empty(q.shape[:2], device=DEVICE)
        for begin in (True, False):  # two layers that are alike
            kernels.attend(q, layer, batch, scale=0.5, lse=lse)
            kernels.weigh(q, layer, batch, lse, received, begin=begin, scale=0.5)
        return [2 * rows for rows in exact(q, layer, spans, 0.5, None, None)]

    def add(wanted: list[np.ndarray], found: list[np.ndarray]) -> list[np.ndarray]:
        return [np.pad(a, ((0, 0), (0, b.shape[1] - a.shape[1]))) + b for a, b in zip(wanted, found, strict=True)]

    wanted = forward([(0, PAGE), (0, 3)])
    before = received.sums.clone()
    forward([(PAGE - 1, 1), (2, 1)], factor=2.0, still=True)
    forward([(PAGE, 1), (3, 2)], factor=-1.0)
    forward([(PAGE, 1), (3, 2)], factor=3.0)
    forward([(PAGE, 2), (3, 1)])
    assert not bool((received.sums == before).all()), "the prompt counts since the step after it"
    found = forward([(PAGE, 1), (3, 2)])
    wanted = add(wanted, found)
    for span, want in zip(whole, wanted, strict=True):
        got = received.heads_at(slots_of(span)[: want.shape[1]], want.shape[1])
        np.testing.assert_allclose(got.double().cpu().numpy(), want, atol=1e-4)
    wanted = add(wanted, forward([(PAGE + 1, 3), (5, 2)]))
    for span, want in zip(whole, wanted, strict=True):
        np.testing.assert_allclose(received.heads_at(slots_of(span), span.length).double().cpu().numpy(), want, atol=1e-4)


def test_sums_have_one_order_and_moves_keep_them() -> None:
    """Equal bits in every run, whatever is beside a request; and what is moved has what it had, and nothing set apart."""
    spans = spans_of([(40, 30), (0, 5)])
    layer, found = random_layer(spans, 1, 16), []
    for own in (spans, spans[:1], spans):
        batch = batch_of(own)
        q, lse, received = queries(batch, 2, 16), torch.empty(batch.shape.tokens, 2, device=DEVICE), Received.empty(1, layer.keys.shape[1], DEVICE)
        triton_set.attend(q, layer, batch, scale=0.5, lse=lse, launch=SMALL)
        weigh(q, layer, batch, lse, received, begin=True, scale=0.5, launch=SMALL)
        found.append(received.at(slots_of(spans[0]), 70))
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    slots = slots_of(spans[0])
    received.move(slots[10:], slots[:60], 70)
    for place in (38, 60, 70):
        assert received.at(slots[:60], place).equal(found[0][10:])
