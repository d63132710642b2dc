"""Other representations of a loaded decoder's matrices.

Input: a Decoder whose linear layers are plain float32 matrices on the CPU. "fp16" keeps them as half-precision numbers in
FBGEMM's packed layout and multiplies in float32: half the memory traffic, so decoding takes about half the time, and inputs
and sums stay exact. This module knows nothing of requests or caches.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from agentkit.engine.models.decoder import Decoder, Dense, Layer, Linear
from agentkit.errors import EngineError

LARGEST_HALF = 65504.0
_PARTS = ("qkv", "out", "gate_up", "down")


class PackedHalf:
    """x [T, in] float32 -> [T, out] float32, with weight [out, in] rounded to half precision."""

    def __init__(self, dense: Dense) -> None:
        if float(dense.weight.abs().max()) > LARGEST_HALF:
            raise EngineError(f"weights='fp16': a weight is larger than {LARGEST_HALF:g}, the largest half-precision number; use weights='fp32'")
        self._packed = torch.ops.quantized.linear_prepack_fp16(dense.weight, dense.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out


def half_precision(decoder: Decoder) -> Decoder:
    """The same decoder with packed half-precision matrices (its float32 ones are free to go, a tied embedding excepted).

    Raises EngineError on a machine or model where that is not possible.
    """
    if decoder.device.type != "cpu" or decoder.dtype != torch.float32:
        raise EngineError(f"weights='fp16' packs float32 weights on the CPU; this model is {decoder.dtype} on {decoder.device}, so leave weights='auto'")
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise EngineError("weights='fp16' needs a torch with FBGEMM (x86 processors); use weights='fp32' here")
    places: list[Linear] = [getattr(layer, part) for layer in decoder.layers for part in _PARTS]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:  # packing runs outside the GIL
        packed = list(threads.map(_pack, [*places, decoder.head]))
    layers: list[Layer] = []
    for at, layer in enumerate(decoder.layers):
        qkv, out, gate_up, down = packed[at * len(_PARTS) :][: len(_PARTS)]
        layers.append(replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down))
    return Decoder(decoder.config, decoder.embedding, layers, decoder.final_norm, packed[-1])


def _pack(linear: Linear) -> Linear:
    if not isinstance(linear, Dense):
        raise EngineError(f"weights='fp16': a layer is {type(linear).__name__} already; load the model with plain matrices")
    return PackedHalf(linear)
