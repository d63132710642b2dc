"""What `weights=` means: a loaded model in the representation asked for.

"fp32" is the reference. "fp16" packs half-precision matrices. "int8" and "int4" hold blocks of 8 or 4 bits: those of
a GGUF file (Q4_0, Q4_1, Q8_0) are taken as they are, which makes the model exactly the one in the file; other matrices are rounded to
8 bits, or with "int4" to 4 (the embedding and the head to 8, as GGUF files do).
Knows nothing of requests or pools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from agentkit.engine.kernels.library import supported
from agentkit.engine.kernels.repack import Q8_0
from agentkit.engine.models.decoder import Decoder, Dense
from agentkit.engine.models.gguf_file import GgufFile, GgufTensor
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.weights.blocks import KINDS, Blocks, eight_bits, four_bits
from agentkit.engine.weights.half import half_precision
from agentkit.engine.weights.packed import PackedDecoder, Part, packable
from agentkit.errors import EngineError

_STACKED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def with_weights(loaded: LoadedModel, weights: str, activations: str = "auto") -> LoadedModel:
    """The same model with its matrices as `weights` says; "auto": the blocks of a quantised file where this processor runs
    them fast, else as loaded: it never rounds what the file holds in full. activations: see EngineConfig.

    Raises EngineError where the representation is not possible.
    """
    found = _with_weights(loaded, weights, narrow=activations == "int8")
    if activations != "auto" and (found is loaded or not isinstance(found.model, PackedDecoder)):
        raise EngineError(
            f"activations={activations!r} is for matrices that this engine puts in blocks: weights='int8' or 'int4', or 'auto' with a quantised GGUF file; "
            "leave it out"
        )
    return found


def _with_weights(loaded: LoadedModel, weights: str, *, narrow: bool) -> LoadedModel:
    model = loaded.model
    if isinstance(model, Decoder) and not isinstance(model.head, Dense):
        if weights == "auto":
            return loaded
        raise EngineError(f"weights={weights!r}: the matrices are {type(model.head).__name__} already; load the model anew, or use weights='auto'")
    half = weights == "fp16" and model.device.type != "cpu" and model.dtype == torch.float16
    if weights == "fp32" or half or (weights == "auto" and not _fits(model)):
        return loaded
    file = None if loaded.gguf is None or weights == "fp16" else GgufFile(loaded.gguf)
    if weights == "auto" and not _is_quantised(file):
        return loaded
    if not isinstance(model, Decoder):
        raise EngineError(f"weights={weights!r}: {_obstacle(model)}; use weights='auto' or 'fp32'")
    if weights == "fp16":
        return replace(loaded, model=half_precision(model))
    if not _fits(model):
        raise EngineError(f"weights={weights!r}: {_obstacle(model)}; use weights='auto', 'fp32' or 'fp16'")
    return replace(loaded, model=quantised(model, file, four=weights == "int4", narrow=narrow))


def quantised(model: Decoder, file: GgufFile | None, *, four: bool, narrow: bool = False) -> PackedDecoder:
    """The decoder in blocks. file: what it was converted from, or None. four: round what is not in blocks to 4 bits. narrow: see PackedDecoder."""
    stored = {} if file is None else {tensor.name: (file, tensor) for tensor in file.tensors}
    return PackedDecoder(model, _Source(model, stored, four).part, narrow=narrow)


@dataclass(frozen=True)
class _Source:
    """Where the blocks of each matrix come from."""

    model: Decoder
    stored: dict[str, tuple[GgufFile, GgufTensor]] = field(repr=False)
    four: bool

    def part(self, layer: int, name: str) -> Part:
        if layer < 0:
            linear, names = self.model.head, ["model.embed_tokens.weight" if self.model.config.tie_embeddings else "lm_head.weight"]
        else:
            linear, names = getattr(self.model.layers[layer], name), [f"model.layers.{layer}.{part}.weight" for part in _STACKED[name]]
        found = [self.stored.get(n) for n in names]
        if all(f is not None and f[1].kind in KINDS for f in found):
            blocks = [_as_stored(file, tensor) for file, tensor in (f for f in found if f is not None)]
            if len({b.kind == Q8_0 for b, _ in blocks}) == 1:
                return Part([b for b, _ in blocks], [order for _, order in blocks])
        assert isinstance(linear, Dense)
        rounded: Callable[..., Blocks] = four_bits if self.four and layer >= 0 else eight_bits
        return Part([rounded(linear.weight.float().numpy())], [None])


def _as_stored(file: GgufFile, tensor: GgufTensor) -> tuple[Blocks, npt.NDArray[np.int64] | None]:
    return Blocks(KINDS[tensor.kind], file.blocks(tensor), tensor.shape[1]), file.row_order(tensor)


def _is_quantised(file: GgufFile | None) -> bool:
    return file is not None and any(tensor.kind not in ("F64", "F32", "F16", "BF16") for tensor in file.tensors)


def _fits(model: object) -> bool:
    return not _obstacle(model)


def _obstacle(model: object) -> str:
    if not isinstance(model, Decoder):
        return "this model runs through transformers, and only matrices of the native decoder are packed"
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"blocks are made of float32 matrices on the CPU, and this model is {model.dtype} on {model.device}"
    if not supported():
        return "this processor (or numba's setting NUMBA_DISABLE_JIT) lacks what the kernels need: AVX2, FMA and F16C"
    return "" if packable(model.config) else "the shape of this model's heads does not fit the kernels"
