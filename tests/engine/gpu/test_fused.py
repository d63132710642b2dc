"""Norms, rotation and gates on a device: the Triton kernels and their references in torch against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from agentkit.engine.kernels.gpu import gate, norm, reference, rotary
from agentkit.engine.kernels.gpu.batch import NOWHERE
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kv_format import mixed
from tests.engine.gpu.paged import DEVICE

DTYPES = [(torch.float32, 2e-6), (torch.float16, 2e-3), pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.gpu)]  # the interpreter cuts bfloat16 off


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("module", [norm, reference], ids=["triton", "reference"])
@pytest.mark.parametrize(("dtype", "error"), DTYPES)
@pytest.mark.parametrize("width", [16, 37])
def test_norm_of_a_sum(module: Any, dtype: torch.dtype, error: float, width: int) -> None:
    x, residual = random(5, width + 3, dtype=dtype)[:, :width], random(5, width, dtype=dtype, seed=1)
    weight, before, eps = random(width, seed=2), random(width, seed=3), 1e-3
    torch.testing.assert_close(module.norm(x, weight, eps).double(), normed(x, weight, eps), atol=error, rtol=error)
    for outer in (None, before):
        kept = residual.clone()
        out = module.add_norm(x, kept, weight, eps, outer)
        added = x.double() if outer is None else normed(x, outer, eps)
        torch.testing.assert_close(kept.double(), residual.double() + added, atol=2 * error, rtol=error)
        torch.testing.assert_close(out.double(), normed(kept, weight, eps), atol=error, rtol=error)
        assert out.dtype == kept.dtype == dtype


@pytest.mark.parametrize("kernel", [gate.gated, reference.gated], ids=["triton", "reference"])
@pytest.mark.parametrize(("dtype", "error"), DTYPES)
@pytest.mark.parametrize("kind", gate.KINDS)
def test_gates(kernel: Callable[..., torch.Tensor], dtype: torch.dtype, error: float, kind: str) -> None:
    gate_up = random(3, 2 * 1030, dtype=dtype) * 4
    first, up = gate_up.double().chunk(2, -1)
    want = up * (F.silu(first) if kind == "silu" else F.gelu(first, approximate="tanh" if kind == "gelu_tanh" else "none"))
    torch.testing.assert_close(kernel(gate_up, kind).double(), want, atol=3 * error, rtol=error)


def test_an_unknown_gate_is_refused() -> None:
    with pytest.raises(ValueError, match="'relu'"):
        gate.gated(random(1, 4), "relu")


@pytest.mark.parametrize("kernel", [rotary.rotate_and_write, reference.rotate_and_write], ids=["triton", "reference"])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("heads", "kv", "dim"), [(3, 1, 24), (4, 2, 16)])
@pytest.mark.parametrize("stored", [torch.float32, torch.int8])
def test_heads_are_normed_and_turned_and_keys_and_values_kept(
    kernel: Callable[..., torch.Tensor], with_norm: bool, heads: int, kv: int, dim: int, stored: torch.dtype
) -> None:
    tokens, eps = 3, 1e-3
    qkv = random(tokens, heads + 2 * kv, dim)
    weight = random(heads + kv, dim, seed=1) if with_norm else None
    angles = torch.arange(tokens, device=DEVICE)[:, None] * (random(dim // 2, seed=2).abs() + 0.1)
    layer, slots = KVLayer.empty(kv, 8, dim, stored, DEVICE), torch.tensor([5, NOWHERE, 2], dtype=torch.int32, device=DEVICE)
    q = kernel(qkv, angles.cos(), angles.sin(), layer, slots, weight, eps)

    qk = qkv[:, : heads + kv].double()
    qk = qk if weight is None else normed(qk, weight, eps)
    pairs = torch.complex(*qk.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    want = torch.cat((pairs.real, pairs.imag), -1)
    want = mixed(want) if stored == torch.int8 else want
    torch.testing.assert_close(q.double(), want[:, :heads], atol=1e-5, rtol=1e-5)
    kept = torch.tensor([5, 2], device=DEVICE)
    for got, full in zip(layer.read(kept), (want[::2, heads:], qkv[::2, heads + kv :].double()), strict=True):
        full = full.transpose(0, 1)
        error = full.abs().amax(-1, keepdim=True) / 254 * 1.02 if stored == torch.int8 else torch.full_like(full, 1e-5)
        assert ((got.double() - full).abs() <= error).all()
    assert layer.keys.ne(0).any(-1).sum() == 2 * kv
