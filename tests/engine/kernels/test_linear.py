"""Products in whole numbers: how activations are rounded, and what comes out, against the same numbers in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from agentkit.engine.kernels.integers import GROUP_WORDS, round8, round16
from agentkit.engine.kernels.library import supported
from agentkit.engine.weights.blocks import eight_bits, four_bits, widened
from agentkit.engine.weights.packed import PackedDecoder, Part
from tests.engine.kernels.models import decoder

pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
Array = np.ndarray[Any, np.dtype[Any]]
ORDERS = {8: (0, 2, 4, 6, 1, 3, 5, 7), 16: (0, 4, 1, 5, 2, 6, 3, 7)}  # of the codes of eight numbers in memory


@njit
def _round(x, groups, out, bits):  # type: ignore[no-untyped-def]
    if bits == 8:
        round8(x, 0, groups, out, 0)
    else:
        round16(x, 0, groups, out, 0)


def rounded(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """Scales, sums and codes [groups, 32] of x, in its own order."""
    groups = x.size // 32
    out = np.zeros((groups, GROUP_WORDS), np.float32)
    _round(x, groups, out.ravel(), bits)
    codes = np.ascontiguousarray(out[:, 2 : 2 + bits]).view(np.int8 if bits == 8 else np.int16).reshape(groups, 4, 8)
    ordered = np.empty_like(codes)
    ordered[..., ORDERS[bits]] = codes
    return out[:, 0], out[:, 1], ordered.reshape(groups, 32)


@pytest.mark.parametrize(("bits", "error"), [(16, 2.0**-15), (8, 1 / 253)])
def test_rounding(bits: int, error: float) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(40, 32)) * np.logspace(-20, 20, 40)[:, None]).astype(np.float32)
    x[3], x[4, 1:], x[5] = 0, 0, -1.0
    x[6, 7] = np.float32(2**20) - np.float32(0.0625)  # just below a power of two, where 16 bits would overflow
    x[7, 7] = -x[6, 7]
    scales, sums, codes = rounded(x.ravel(), bits)
    back = codes * scales[:, None].astype(np.float64)
    assert (np.abs(back - x) <= error * np.abs(x).max(-1, keepdims=True)).all()
    assert np.allclose(sums, back.sum(-1), rtol=1e-5, atol=1e-30)
    assert np.abs(codes.astype(int)).max() <= (127 if bits == 8 else 32768)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(bits: int, bad: float) -> None:
    x = np.ones(96, np.float32)
    x[40] = bad
    scales, sums, _ = rounded(x, bits)
    assert np.isnan(scales).tolist() == np.isnan(sums).tolist() == [False, True, False]


@pytest.mark.parametrize(("rounding", "narrow", "bits"), [(four_bits, True, 8), (four_bits, False, 16), (eight_bits, False, 16)])
def test_products_are_those_of_the_rounded_numbers(rounding: Any, narrow: bool, bits: int) -> None:
    """The largest codes on both sides included, for sums that would leave their type if they could."""
    plain = decoder(layers=1, hidden=160)
    weight = plain.layers[0].qkv.weight.numpy()  # type: ignore[attr-defined]
    weight[:, :32] = np.where(np.arange(32) % 2, 1.0, -1.0) * 3
    weight[1, :32] = 5
    weight[1, 0] = -4

    def part(layer: int, name: str) -> Part:
        linear: Any = plain.head if layer < 0 else getattr(plain.layers[0], name)
        return Part([(eight_bits if layer < 0 else rounding)(linear.weight.numpy())], [None])

    packed = PackedDecoder(plain, part, narrow=narrow)
    x = np.random.default_rng(1).normal(size=(7, 160)).astype(np.float32)
    x[0], x[1], x[2, :32] = 1.0, -1.0, np.where(np.arange(32) % 2, 1.0, -1.0)
    scales, _, codes = rounded(x.ravel(), bits)
    seen = (codes * scales[:, None].astype(np.float64)).reshape(x.shape)
    wanted = seen @ widened(part(0, "qkv").sources[0]).astype(np.float64).T
    got = packed.layers[0].qkv(torch.from_numpy(x)).numpy()
    assert np.abs(got - wanted).max() < 3e-6 * np.abs(wanted).max()
