"""Attention over pages against plain products: one run or many, several spans, offsets, windows and grouped heads."""

from __future__ import annotations

import pytest
import torch

from agentkit.engine.attention import BatchAttention
from tests.engine.slots import Sequence, Slots
from tests.engine.tiny import attend_explicit


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offset: int, window: int | None, softcap: float | None, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Row by row in float64, from all keys so far."""
    group = q.shape[1] // k.shape[1]
    rows = []
    for t in range(q.shape[0]):
        end = offset + t + 1
        first = 0 if window is None else max(0, end - window)
        keys, values = (x[first:end].double().repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("hd,shd->hs", q[t].double(), keys) * 0.3
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if sinks is not None:  # a key whose value is zero
            scores, values = torch.cat((sinks.double().unsqueeze(1), scores), 1), torch.cat((torch.zeros_like(values[:1]), values))
        rows.append(torch.einsum("hs,shd->hd", scores.softmax(-1), values))
    return torch.stack(rows)


def test_explicit_takes_any_mask() -> None:
    q, k, v = torch.randn(2, 2, 8), torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    mask = torch.tensor([[0.0, -torch.inf, -torch.inf], [-torch.inf, 0.0, -torch.inf]])
    assert torch.allclose(attend_explicit(q, k, v, mask, 1.0), v[0, :2].unsqueeze(1).expand(2, 2, 8))


PAGES = {"one run": [4, 5, 6, 7, 8], "scattered": [9, 2, 7, 3, 0], "two runs": [6, 7, 1, 2, 3]}


@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_batches_over_pages_equal_the_reference(pages: list[int], window: int | None, softcap: float | None, dtype: torch.dtype) -> None:
    """Two sequences grow side by side by spans that end within, at and beyond page boundaries; slots not yet written hold NaN."""
    h, kv, dim = 6, 2, 16
    generator = torch.Generator().manual_seed(1)
    pool = Slots(2, kv, dim, pages=20, dtype=dtype)
    sequences = [Sequence(pages), Sequence([p + 10 for p in pages])]
    data = [[torch.randn(150, n, dim, generator=generator).to(dtype).float() for n in (h, kv, kv)] for _ in sequences]
    at = [0, 0]
    for counts in ((33, 1), (1, 31), (30, 1), (1, 64), (17, 1)):
        spans = [(s, a, c) for s, a, c in zip(sequences, at, counts, strict=True)]
        attend = BatchAttention(pool, spans)
        new = [[x[a : a + c] for x in d] for d, a, c in zip(data, at, counts, strict=True)]
        q, k, v = (torch.cat(parts) for parts in zip(*new, strict=True))
        for layer in range(2):
            out = attend(layer, q, k, v, window=window, scale=0.3, softcap=softcap)
            wanted = torch.cat([reference(n[0], d[1], d[2], a, window, softcap) for n, d, a in zip(new, data, at, strict=True)])
            assert (out.double() - wanted).abs().max() < 1e-5
        at = [a + c for a, c in zip(at, counts, strict=True)]


@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("window", [None, 40])
def test_sinks_take_part_in_the_softmax(pages: list[int], window: int | None) -> None:
    h, kv, dim = 6, 2, 16
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(110, n, dim, generator=generator) for n in (h, kv, kv))
    sinks = torch.randn(h, generator=generator) * 3
    pool, sequence = Slots(2, kv, dim, pages=10), Sequence(pages)
    for first, last in ((0, 70), (70, 71), (71, 110)):
        attend = BatchAttention(pool, [(sequence, first, last - first)])
        out = attend(1, q[first:last], k[first:last], v[first:last], window=window, scale=0.3, sinks=sinks)
        assert torch.allclose(out, reference(q[first:last], k, v, first, window, None, sinks).float(), atol=1e-5)
