"""Adapters mixed in one batch: the Triton kernels and their references against each token taken by itself in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine.kernels.gpu import lora, reference
from agentkit.engine.kernels.gpu.lora import NO_ADAPTER
from tests.engine.gpu.paged import DEVICE, batch_of, spans_of


@pytest.mark.parametrize("kernels", [lora, reference], ids=["triton", "reference"])
@pytest.mark.parametrize("sizes", [[(0, 20), (5, 1), (9, 3), (0, 2)], [(4, 1), (7, 1), (0, 1), (2, 1)]], ids=["prefill", "decode"])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.float16, 2e-2)])
def test_each_request_has_its_own(kernels: Any, sizes: list[tuple[int, int]], dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "LEAST_COLUMNS", 40)
    monkeypatch.setattr(lora, "processors_of", lambda device: 8)
    batch = batch_of(spans_of(sizes), padding=2)
    which = [2, NO_ADAPTER, 0, 2]
    adapters = torch.tensor([*which, NO_ADAPTER, NO_ADAPTER], dtype=torch.int32, device=DEVICE)
    generator, tokens, columns, wide, rank = torch.Generator().manual_seed(0), batch.shape.tokens, 100, 70, 5

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    x, down, up, out = random(tokens, columns + 3)[:, :columns], random(3, 2 * rank, columns), random(3, wide, rank), random(tokens, wide + 9)
    scales, before = torch.tensor([0.5, 3.0, -2.0, 1.25, 9.0, 9.0], device=DEVICE), out.clone()  # of each request
    h = kernels.shrink(x, down, batch, adapters)
    kernels.expand(h[..., rank:], up, scales, out[:, 4 : 4 + wide], batch, adapters)

    want, row = before.double(), 0
    for (_, count), adapter, scale in zip(sizes, which, scales.tolist(), strict=False):
        if adapter != NO_ADAPTER:
            low = x[row : row + count].double() @ down[adapter, rank:].double().T
            want[row : row + count, 4 : 4 + wide] += scale * low @ up[adapter].double().T
        row += count
    torch.testing.assert_close(out.double(), want, atol=error * 20, rtol=error)
    assert torch.equal(out[row:], before[row:])
    if kernels is lora:
        assert h.shape[0] == 2
