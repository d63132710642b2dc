"""Requests with the same beginning: found, put side by side, and attended to once, with the logits that each has by itself."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from agentkit.engine.device import runner
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.gpu import sharing
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.sharing import LEAST_PAGES, Arrangement, arranged
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.runner import Logits, Runner, Span, TorchRunner
from tests.engine.kernels.models import decoder, tokens

CPU = torch.device("cpu")


def span(pages: list[int], offset: int, count: int = 1) -> BatchSpan:
    return BatchSpan([pages], offset, [0] * count)


def test_groups_are_found_and_lie_side_by_side() -> None:
    common, other, enough = list(range(LEAST_PAGES + 2)), list(range(500, 500 + LEAST_PAGES)), LEAST_PAGES * PAGE
    spans = [
        span([*common, 90], enough + 70),
        span([*other, 91], enough),
        span([*common[:-1], 92, 93], enough + 66, 2),  # parts after one page less
        span([94, 95], 40, 7),
        span([*other, 96], enough, 3),
        span([*common, 97], enough + 64),
    ]
    arrangement = arranged(spans, CPU)
    assert arrangement.order == [0, 2, 5, 1, 4, 3]
    assert arrangement.few == 0
    prefix = arrangement.prefix
    assert prefix is not None
    assert prefix.query_starts.tolist() == [0, 4, 8, 15]
    assert prefix.lengths.tolist() == [enough + PAGE, enough, 0]
    assert prefix.pages.tolist() == [[common[:-1], [*other, 0], [0] * (LEAST_PAGES + 1)]]
    assert prefix.first_keys.tolist() == [enough + PAGE] * 3 + [enough] * 2 + [0]
    assert prefix.queries == 7


@pytest.mark.parametrize("case", ["one", "short", "other pages", "not yet computed"])
def test_what_is_not_worth_it_stays_as_it_is(case: str) -> None:
    common, enough = list(range(LEAST_PAGES)), LEAST_PAGES * PAGE
    spans = [span([*common, 90], enough), span([*common, 91], enough)]
    if case == "one":
        spans = spans[:1]
    if case == "short":
        spans = [span([*common[:-1], 90], enough - PAGE), span([*common[:-1], 91], enough - PAGE)]
    if case == "other pages":
        spans[1] = span([*common[:-1], 70, 91], enough)
    if case == "not yet computed":
        spans[1] = span(common, enough - 1)
    assert arranged(spans, CPU) == Arrangement(list(range(len(spans))))


def test_requests_of_few_tokens_come_before_long_prompts() -> None:
    spans = [span([0, 1], 0, 40), span([2], 3, 1), span([3, 4], 2, 50), span([5], 4, 16)]
    assert arranged(spans, CPU) == Arrangement([1, 3, 0, 2], few=2)
    ordered = [spans[number] for number in (1, 3, 0, 2)]
    few, many = Batch.of(ordered, CPU).divided(ordered, 2)
    assert (few.shape.tokens, few.shape.queries, many.shape.tokens, many.shape.requests) == (17, 16, 90, 2)
    for part, own in ((few, ordered[:2]), (many, ordered[2:])):
        alone = Batch.of(own, CPU)
        for name in ("token_ids", "positions", "slots", "paths", "query_starts", "lengths", "tree_starts"):
            assert torch.equal(getattr(part, name), getattr(alone, name)), name
        assert torch.equal(part.pages[..., : alone.shape.pages], alone.pages)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
@pytest.mark.parametrize("kernels", ["reference", pytest.param("triton", marks=pytest.mark.slow)])
def test_logits_are_those_without_sharing(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LEAST_PAGES", 1)
    found: list[Arrangement] = []
    monkeypatch.setattr(runner, "arranged", lambda *rest: found.append(arranged(*rest)) or found[-1])  # type: ignore[func-returns-value]
    model = decoder(layers=2, windows=(None, 20), rope_of_layer=(0, 0))

    def run(make: partial[Runner]) -> list[Logits]:
        shape = KVShape(2, 2, 16)
        pool = KVPool(shape, 20 * shape.bytes_per_page)
        runs, beginning = make(pool=pool), tokens(PAGE + 2, 128, 1)
        first = pool.start(beginning)
        assert pool.reserve(first, PAGE + 8)
        runs.execute([Span(first, tuple(beginning))])
        others = [pool.start([*beginning, i]) for i in range(3)]
        alone = pool.start([5, 6, 7])
        assert all(pool.reserve(s, s.length + 4) for s in (*others, alone))
        spans = [Span(others[0], (1,)), Span(alone, (5, 6), rows=2), Span(others[1], (2, 3), rows=1), Span(first, (4,)), Span(others[2], (9,))]
        return runs.execute(spans)

    want, got = run(partial(TorchRunner, model)), run(partial(DeviceRunner, model, kernels=kernels))
    assert [each.prefix is not None for each in found] == [False, True]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
