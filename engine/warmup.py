"""Compile the engine's CPU kernels ahead of their first use, and say whether that has been done.

numba compiles a kernel when it first runs and keeps it in the cache folder (grammars/jit.py). So this runs each of them once,
on a random decoder of one layer. Knows nothing of requests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kernels.library import ENGINE, supported
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.progress import Progress, progress_or_default
from agentkit.engine.models.rope import Rope
from agentkit.engine.weights.blocks import Blocks, eight_bits, four_bits
from agentkit.engine.weights.packed import PackedDecoder, Part

__all__ = ["compile_kernels", "compile_kernels_once", "kernels_cached"]

_HIDDEN, _DIM, _VOCABULARY = 32, 16, 64


def kernels_cached() -> bool:
    """Have the kernels of these sources been compiled on this machine before? True where they are not used at all."""
    return not supported() or ENGINE.cached()


def compile_kernels() -> None:
    """Runs every kernel once; quick if they are in the cache folder already, else some seconds. Does nothing where they are not used."""
    if not supported():
        return
    plain = _decoder()
    model = PackedDecoder(plain, lambda layer, name: _part(plain, layer, name))
    half, full = (SimpleNamespace(data=torch.zeros(1, 2, 1, 2 * PAGE, _DIM, dtype=kv)) for kv in (torch.float16, torch.float32))
    sequence: Any = SimpleNamespace(pages=[1, 0])
    with torch.inference_mode():
        ids = torch.arange(3)
        model.forward(ids, ids, BatchAttention(half, [(sequence, 0, 3)]))
        BatchAttention(full, [(sequence, 3, 1)])(0, *(torch.zeros(1, heads, _DIM) for heads in (2, 1, 1)), scale=1.0)
        model.head(torch.zeros(1, _HIDDEN))


def compile_kernels_once(progress: Progress | None) -> None:
    """`compile_kernels` if this machine has not yet, showing that it does."""
    if not kernels_cached():
        with progress_or_default(progress) as report:
            report("compiling the kernels of the engine (once on this machine)", 0, 1)
            compile_kernels()
            report("compiling the kernels of the engine (once on this machine)", 1, 1)


def _part(plain: Decoder, layer: int, name: str) -> Part:
    linear: Any = plain.head if layer < 0 else getattr(plain.layers[layer], name)
    blocks: Blocks = (eight_bits if layer < 0 else four_bits)(linear.weight.numpy())
    return Part([blocks], [None])


def _decoder() -> Decoder:
    config = ModelConfig(
        architecture="llama", vocab_size=_VOCABULARY, hidden_size=_HIDDEN, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=_DIM,
        max_position=64, norm_eps=1e-5, activation="silu", tie_embeddings=False, attention_scale=0.25, windows=(None,),
        ropes=(Rope.from_hf({"rope_theta": 10000.0}, _DIM, 64),), rope_of_layer=(0,),
    )  # fmt: skip
    generator = np.random.default_rng(0)

    def dense(rows: int, columns: int) -> Dense:
        return Dense(torch.from_numpy(generator.normal(size=(rows, columns)).astype(np.float32)))

    ones = torch.ones(_HIDDEN)
    layer = Layer(ones, dense(4 * _DIM, _HIDDEN), dense(_HIDDEN, 2 * _DIM), ones, dense(64, _HIDDEN), dense(_HIDDEN, 32))
    return Decoder(config, torch.zeros(_VOCABULARY, _HIDDEN), [layer], ones, dense(_VOCABULARY, _HIDDEN))
