"""Packed half-precision matrices against plain ones that were rounded the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.rope import Rope
from agentkit.engine.weights.half import half_precision
from agentkit.errors import EngineError

HAS_FBGEMM = "fbgemm" in torch.backends.quantized.supported_engines
HIDDEN, INNER, VOCAB, LAYERS = 32, 48, 100, 2


def decoder(convert: torch.dtype = torch.float32) -> Decoder:
    """A random Llama with biases, its matrices rounded through `convert`."""
    generator = torch.Generator().manual_seed(4)

    def dense(rows: int, columns: int, bias: bool = False) -> Dense:
        weight = (torch.randn(rows, columns, generator=generator) * 0.3).to(convert).float()
        return Dense(weight, torch.randn(rows, generator=generator) if bias else None)

    ones = torch.ones(HIDDEN)
    layers = [Layer(ones, dense(HIDDEN * 2, HIDDEN, True), dense(HIDDEN, HIDDEN), ones, dense(2 * INNER, HIDDEN), dense(HIDDEN, INNER)) for _ in range(LAYERS)]
    config = ModelConfig(
        architecture="llama", vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=INNER, num_layers=LAYERS, num_heads=4, num_kv_heads=2, head_dim=8,
        max_position=64, norm_eps=1e-5, activation="silu", tie_embeddings=False, attention_scale=8**-0.5, windows=(None,) * LAYERS,
        ropes=(Rope.from_hf({"rope_theta": 10000.0}, 8, 64),), rope_of_layer=(0,) * LAYERS,
    )  # fmt: skip
    return Decoder(config, torch.randn(VOCAB, HIDDEN, generator=generator), layers, ones, dense(VOCAB, HIDDEN))


def logits(model: Decoder) -> torch.Tensor:
    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None, scale: float, softcap: float | None) -> torch.Tensor:
        return q * 0.5 + v.repeat_interleave(2, 1)

    return model.forward(torch.arange(7), torch.arange(7), attend, None)


@pytest.mark.skipif(not HAS_FBGEMM, reason="this torch has no FBGEMM")
def test_equal_to_rounded_float32() -> None:
    packed, rounded, exact = logits(half_precision(decoder())), logits(decoder(torch.float16)), logits(decoder())
    assert (packed - rounded).abs().max() < 1e-4
    assert 1e-6 < (packed - exact).abs().max() < 0.1


@pytest.mark.skipif(not HAS_FBGEMM, reason="this torch has no FBGEMM")
def test_what_does_not_fit_is_refused() -> None:
    model = decoder()
    big = replace(model.layers[0], out=Dense(model.layers[0].out.weight * 1e6))  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="65504"):
        half_precision(Decoder(model.config, model.embedding, [big, model.layers[1]], model.final_norm, model.head))
    with pytest.raises(EngineError, match="PackedHalf already"):
        half_precision(half_precision(model))
    with pytest.raises(EngineError, match="bfloat16"):
        half_precision(Decoder(model.config, model.embedding.bfloat16(), model.layers, model.final_norm, model.head))
