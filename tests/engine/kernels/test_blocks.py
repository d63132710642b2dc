"""Blocks of 8 and 4 bits: what rounding loses, GGUF's own formats, and the layout that kernels read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from agentkit.engine.kernels.library import supported
from agentkit.engine.weights.blocks import KINDS, Blocks, eight_bits, four_bits, widened
from agentkit.engine.weights.packed import PackedDecoder, Part
from agentkit.errors import EngineError
from tests.engine.kernels.models import decoder


@pytest.mark.parametrize(("rounded", "steps"), [(eight_bits, 254), (four_bits, 15)])
def test_rounding_stays_within_half_a_step(rounded: Any, steps: int) -> None:
    weight = np.random.default_rng(0).normal(size=(7, 70)).astype(np.float32) * np.logspace(-4, 3, 7, dtype=np.float32)[:, None]
    weight[3] = 0
    back = widened(rounded(weight))
    padded = np.pad(weight, ((0, 0), (0, 26))).reshape(7, 3, 32)
    span = 2 * np.abs(padded).max(-1) if steps == 254 else padded.max(-1) - padded.min(-1)
    allowed = np.repeat(span / steps * 0.51 + np.abs(padded).max(-1) * 2e-3, 32, -1)[:, :70]  # half a step, and scales in half precision
    assert back.shape == weight.shape
    assert (np.abs(back - weight) <= allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_formats_are_those_of_gguf(kind: str) -> None:
    weight = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    raw = quantize(weight, GGMLQuantizationType[kind])
    assert np.array_equal(widened(Blocks(KINDS[kind], raw, 96)), dequantize(raw, GGMLQuantizationType[kind]))


def test_what_cannot_be_rounded_is_refused() -> None:
    weight = np.ones((2, 32), np.float32)
    for bad in (1e7, np.nan, np.inf):
        weight[1, 3] = bad
        for rounded in (eight_bits, four_bits):
            with pytest.raises(EngineError, match="fp32"):
                rounded(weight)


@pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
@pytest.mark.parametrize("kind", KINDS)
def test_matrices_of_a_file_are_taken_as_they_are(kind: str) -> None:
    """Several sources stacked, their rows in another order, in all three formats; scales down to the smallest and a negative one."""
    plain = decoder(layers=1)
    rng = np.random.default_rng(2)
    order = rng.permutation(96)

    def part(layer: int, name: str) -> Part:
        linear: Any = plain.head if layer < 0 else getattr(plain.layers[0], name)
        if name != "qkv":
            return Part([eight_bits(linear.weight.numpy())], [None])
        raws = [quantize(w.numpy() * scale, GGMLQuantizationType[kind]) for w, scale in zip(linear.weight.split([96, 32, 32]), (1, -1e-5, 1e-7), strict=True)]
        return Part([Blocks(KINDS[kind], raw, 64) for raw in raws], [order, None, None])

    packed = PackedDecoder(plain, part)
    wanted = [widened(source) for source in part(0, "qkv").sources]
    stacked = np.concatenate((np.empty_like(wanted[0]), *wanted[1:]))
    stacked[order] = wanted[0]
    got = packed.layers[0].qkv(torch.eye(64)).T.numpy()
    assert np.array_equal(got, stacked)


@pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
def test_parts_of_one_matrix_must_be_alike() -> None:
    plain = decoder(layers=1)

    def part(layer: int, name: str) -> Part:
        linear: Any = plain.head if layer < 0 else getattr(plain.layers[0], name)
        weight = linear.weight.numpy()
        return Part([eight_bits(weight[:32]), four_bits(weight[32:])], [None, None])

    with pytest.raises(EngineError, match="differ"):
        PackedDecoder(plain, part)
