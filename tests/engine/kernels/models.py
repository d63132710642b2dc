"""Random decoders in every variant of the native architecture, their blocks, and a pool to run them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kv_policy import Policy, reach_of
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.rope import Rope
from agentkit.engine.weights.blocks import Blocks, eight_bits, four_bits, widened
from agentkit.engine.weights.packed import PackedDecoder, Part
from tests.engine.slots import Sequence, Slots

__all__ = ["VARIANTS", "Pool", "Sequence", "decoder", "moved", "quantised", "run", "tokens"]

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases, one key head, odd sizes": {"bias": True, "kv": 1, "hidden": 40, "inner": 50, "vocabulary": 77},
    "qwen3": {"qk_norm": True, "heads": 3, "kv": 3, "dim": 48},
    "gemma": {
        "sandwich_norms": True, "qk_norm": True, "activation": "gelu_tanh", "embed_scale": 5.5, "attention_softcap": 3.0, "logit_softcap": 4.0,
        "windows": (5, None, 40), "rope_of_layer": (0, 1, 0),
    },
    "gelu": {"activation": "gelu", "dim": 64, "heads": 2, "kv": 1},
}  # fmt: skip


def decoder(
    *, bias: bool = False, heads: int = 6, kv: int = 2, dim: int = 16, hidden: int = 64, inner: int = 96, vocabulary: int = 128, layers: int = 3, seed: int = 0,
    **options: Any,
) -> Decoder:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def dense(rows: int, columns: int, *, bias: bool = False) -> Dense:
        return Dense(torch.randn(rows, columns, generator=generator) / columns**0.5, torch.randn(rows, generator=generator) if bias else None)

    def norm(*shape: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(*shape, generator=generator)

    config = ModelConfig(**{
        "architecture": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner, "num_layers": layers, "num_heads": heads,
        "num_kv_heads": kv, "head_dim": dim, "max_position": 4096, "norm_eps": 1e-5, "activation": "silu", "tie_embeddings": False,
        "attention_scale": dim**-0.5, "windows": (None,) * layers, "ropes": tuple(Rope.from_hf({"rope_theta": t}, dim, 4096) for t in (10000.0, 500.0)),
        "rope_of_layer": (0,) * layers, **options,
    })  # fmt: skip
    made = [
        Layer(
            before_attention=norm(hidden), qkv=dense((heads + 2 * kv) * dim, hidden, bias=bias), out=dense(hidden, heads * dim),
            before_mlp=norm(hidden), gate_up=dense(2 * inner, hidden, bias=bias), down=dense(hidden, inner, bias=bias),
            qk_norm=norm(heads + kv, dim) if config.qk_norm else None,
            after_attention=norm(hidden) if config.sandwich_norms else None, after_mlp=norm(hidden) if config.sandwich_norms else None,
        )
        for _ in range(layers)
    ]  # fmt: skip
    embedding = torch.randn(vocabulary, hidden, generator=generator)
    return Decoder(config, embedding, made, norm(hidden), dense(vocabulary, hidden, bias=bias))


def moved(model: Decoder, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """The same model on another device, its matrices in another type."""

    def there(x: Any) -> Any:
        if isinstance(x, Dense):
            return Dense(x.weight.to(device, dtype), None if x.bias is None else x.bias.to(device, dtype))
        return x.to(device) if isinstance(x, torch.Tensor) else x

    layers = [replace(layer, **{field.name: there(getattr(layer, field.name)) for field in fields(layer)}) for layer in model.layers]
    return Decoder(model.config, model.embedding.to(device, dtype), layers, there(model.final_norm), there(model.head))


def quantised(plain: Decoder, rounded: Callable[..., Blocks] = four_bits, *, narrow: bool = False) -> tuple[PackedDecoder, Decoder]:
    """The decoder in blocks (the head in 8 bits), and a plain one of exactly the same values."""

    def linear(layer: int, name: str) -> Any:
        return plain.head if layer < 0 else getattr(plain.layers[layer], name)

    def blocks(layer: int, name: str) -> Blocks:
        return (eight_bits if layer < 0 else rounded)(linear(layer, name).weight.numpy())

    def same(layer: int, name: str) -> Dense:
        return Dense(torch.from_numpy(widened(blocks(layer, name))), linear(layer, name).bias)

    layers = [
        Layer(
            before_attention=layer.before_attention, qkv=same(i, "qkv"), out=same(i, "out"), before_mlp=layer.before_mlp, gate_up=same(i, "gate_up"),
            down=same(i, "down"), qk_norm=layer.qk_norm, after_attention=layer.after_attention, after_mlp=layer.after_mlp,
        )
        for i, layer in enumerate(plain.layers)
    ]  # fmt: skip
    packed = PackedDecoder(plain, lambda layer, name: Part([blocks(layer, name)], [None]), narrow=narrow)
    return packed, Decoder(plain.config, plain.embedding, layers, plain.final_norm, same(-1, "head"))


class Pool(Slots):
    """Those of a model."""

    def __init__(self, model: Decoder, pages: int = 40, dtype: torch.dtype = torch.float32, policy: str | Policy = "auto") -> None:
        c = model.config
        super().__init__(c.num_layers, c.num_kv_heads, c.head_dim, pages=pages, dtype=dtype, reach=reach_of(policy, c))


def run(model: Decoder, pool: Pool, *spans: tuple[Sequence, int, list[int]], rows: Any = None) -> torch.Tensor:
    """Logits of spans (sequence, offset, token ids), one behind the other."""
    attend = BatchAttention(pool, [(sequence, offset, len(ids)) for sequence, offset, ids in spans])
    ids = torch.tensor([t for _, _, span in spans for t in span])
    positions = torch.cat([torch.arange(offset, offset + len(span)) for _, offset, span in spans])
    with torch.inference_mode():
        return model.forward(ids, positions, attend, rows)


def tokens(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocabulary, count)]
