"""Paged attention on a device: the Triton kernel and its reference in torch against sums in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.kernels.gpu import reference
from agentkit.engine.kernels.gpu.attention import attend, attend_shared, attend_streaming
from agentkit.engine.kernels.gpu.plan import Launch, Prefix
from agentkit.engine.kernels.layout import PAGE
from tests.engine.gpu.paged import DEVICE, batch_of, oracle, queries, random_layer, spans_of, visible

PREFILL = [(0, 3), (PAGE + 3, 5), (0, 1)]
DECODE = [(0, 1), (70, 1), (PAGE, 1)]
SMALL = Launch(16, 16)
SPLIT = Launch(16, 16, splits=2)


def check(
    sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch | None, *, trees: tuple[int, ...] = (), dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None, error: float = 2e-5, **rules: Any,
) -> None:  # fmt: skip
    spans = spans_of(sizes, trees)
    batch, layer = batch_of(spans, padding=3), random_layer(spans, kv, dim, stored or dtype)
    q, scale = queries(batch, heads, dim, dtype), dim**-0.5 * 2
    want, want_lse = oracle(q, layer, spans, scale, **rules)
    for name, function, options in (("triton", attend, {"launch": launch}), ("reference", reference.attend, {})):
        lse = torch.full(q.shape[:2], torch.nan, device=DEVICE)
        out = function(q, layer, batch, scale=scale, lse=lse, **rules, **options)
        assert out.dtype == dtype
        np.testing.assert_allclose(out[: len(want)].double().cpu().numpy(), want, atol=error, err_msg=name)
        np.testing.assert_allclose(lse[: len(want)].double().cpu().numpy(), want_lse, atol=error, err_msg=name)


@pytest.mark.parametrize("launch", [None, SPLIT], ids=["rule", "split"])
@pytest.mark.parametrize("sizes", [PREFILL, DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize(("heads", "kv", "dim"), [(2, 2, 16), (7, 1, 24)])
def test_ragged_requests(sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch | None) -> None:
    check(sizes, heads, kv, dim, launch)


@pytest.mark.slow
@pytest.mark.parametrize("launch", [Launch(16, 16), Launch(64, 32, 4), Launch(32, 64, 2)], ids=str)
@pytest.mark.parametrize("sizes", [PREFILL, DECODE, [(0, 130)], [(0, 40), (500, 3), (7, 33), (0, 1)]], ids=str)
@pytest.mark.parametrize(("heads", "kv", "dim"), [(9, 3, 64), (7, 1, 128), (2, 1, 256), (8, 8, 16)])
def test_many_shapes(sizes: list[tuple[int, int]], heads: int, kv: int, dim: int, launch: Launch) -> None:
    check(sizes, heads, kv, dim, launch)
    check(sizes, heads, kv, dim, launch, window=19, softcap=3.0)


@pytest.mark.parametrize("window", [1, 7, 500])
def test_a_token_sees_its_window(window: int) -> None:
    check(PREFILL, 2, 1, 16, SPLIT, window=window)


@pytest.mark.parametrize("launch", [SMALL, SPLIT], ids=["small", "split"])
def test_sinks_and_capped_scores(launch: Launch) -> None:
    sinks = torch.tensor([0.5, -3.0], device=DEVICE)
    check(PREFILL, 2, 1, 16, launch, softcap=1.5, sinks=sinks)
    check(DECODE, 2, 1, 16, launch, window=5, sinks=sinks)


@pytest.mark.parametrize(("window", "launch"), [(None, SMALL), (3, SPLIT), (PAGE, SMALL)])
def test_guesses_see_their_own_branch(window: int | None, launch: Launch) -> None:
    check([(PAGE - 4, 9), (0, 3), (20, 6), (20, 1)], 2, 1, 16, launch, trees=(7, 0, 6, 0), window=window)


def test_a_tree_as_large_as_a_path_has_bits() -> None:
    check([(3, 64)], 2, 1, 16, Launch(64, 32), trees=(63,))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 3e-3), pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.gpu)])
def test_half_precision(dtype: torch.dtype, error: float) -> None:
    """bfloat16 on a GPU alone: the interpreter multiplies its bits as if they were integers."""
    check(PREFILL, 4, 2, 16, SMALL, dtype=dtype, error=error)


@pytest.mark.parametrize("stored", [torch.int8, torch.uint8])
def test_quantised_keys_and_values(stored: torch.dtype) -> None:
    check(PREFILL, 2, 1, 16, SPLIT, stored=stored)
    check(DECODE, 4, 2, 16, SMALL, dtype=torch.float16, stored=stored, error=1e-2)


def test_scores_far_apart_do_not_overflow() -> None:
    spans = spans_of(PREFILL)
    batch, layer = batch_of(spans), random_layer(spans, 1, 16)
    q = queries(batch, 2, 16) * 1e4
    want, _ = oracle(q, layer, spans, 1.0)
    np.testing.assert_allclose(attend(q, layer, batch, scale=1.0, launch=SPLIT).double().cpu().numpy(), want, atol=1e-2)


def test_heads_that_do_not_divide_are_refused() -> None:
    spans = spans_of(DECODE)
    batch = batch_of(spans)
    with pytest.raises(ValueError, match="5 query heads over 2 key heads"):
        attend(queries(batch, 5, 16), random_layer(spans, 2, 16), batch, scale=1.0, launch=SMALL)


def test_a_shared_beginning_is_attended_to_once_for_all() -> None:
    """Two requests share two pages, the next one nothing, and two more one page; equal to each attending to all its keys by itself."""
    own = spans_of([(2 * PAGE + 3, 2), (2 * PAGE, 1), (5, 3), (PAGE + 1, 1), (PAGE, 4)])
    second, last = [*own[0].pages[:2], own[1].pages[2]], [own[3].pages[0], own[4].pages[1]]
    spans = [own[0], replace(own[1], tables=[second]), own[2], own[3], replace(own[4], tables=[last])]
    batch, layer = batch_of(spans, padding=2), random_layer(spans, 2, 16)
    tables = [[0, 3, 6, 11], [2 * PAGE, 0, PAGE], [[own[0].pages[:2], [0, 0], [own[3].pages[0], 0]]], [2 * PAGE, 2 * PAGE, 0, PAGE, PAGE, 0, 0]]
    prefix = Prefix(*(torch.tensor(table, dtype=torch.int32, device=DEVICE) for table in tables), queries=5)
    q, sinks, scale = queries(batch, 4, 16), torch.tensor([0.5, -3.0, 2.0, 0.0], device=DEVICE), 0.5
    want, want_lse = oracle(q, layer, spans, scale, softcap=4.0, sinks=sinks)
    for name, function, options in (("triton", attend_shared, {"launches": (SPLIT, SMALL)}), ("reference", reference.attend_shared, {})):
        lse = torch.empty(q.shape[:2], device=DEVICE)
        out = function(q, layer, batch, prefix, scale=scale, softcap=4.0, sinks=sinks, lse=lse, **options)  # type: ignore[operator]
        np.testing.assert_allclose(out[: len(want)].double().cpu().numpy(), want, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(lse[: len(want)].double().cpu().numpy(), want_lse, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("launch", [SMALL, SPLIT], ids=["small", "split"])
def test_sinks_stay_in_sight_when_the_window_has_left_them(launch: Launch) -> None:
    """As one attention over the keys that are seen, the sinks met by the other query; a tree of guesses at the end of one request."""
    window, sink_keys, scale = 9, 3, 0.5
    spans = spans_of([(0, 15), (40, 6), (8, 4), (60, 1)], trees=(0, 5, 0, 0))
    batch, layer = batch_of(spans, padding=1), random_layer(spans, 1, 16)
    q, back = queries(batch, 2, 16), queries(batch, 2, 16).flip(0)
    keys, values = (x[0].double().cpu() for x in layer.read(torch.arange(layer.keys.shape[1], device=DEVICE)))
    want, row = torch.zeros(q.shape, dtype=torch.float64), 0
    for span in spans:
        known = span.length - len(span.parents)
        for index in range(span.offset, span.length):
            place = int(batch.positions[row])
            left = place >= window + sink_keys
            seen = visible(span, index, known, window if left else None)
            slots = [span.pages[j // PAGE] * PAGE + j % PAGE for j in [*(range(sink_keys) if left else ()), *seen]]
            for head in range(2):
                scores = keys[slots] @ q[row, head].double().cpu() * scale
                if left:
                    scores[:sink_keys] = keys[slots[:sink_keys]] @ back[row, head].double().cpu() * scale
                want[row, head] = scores.softmax(0) @ values[slots]
            row += 1
    options = {"scale": scale, "window": window, "sink_keys": sink_keys}
    for out in (attend_streaming(q, back, layer, batch, launch=launch, **options), reference.attend_streaming(q, back, layer, batch, **options)):  # type: ignore[arg-type]
        np.testing.assert_allclose(out[:row].double().cpu().numpy(), want[:row].numpy(), atol=2e-5)
