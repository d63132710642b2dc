"""From a folder's tensors to a `Decoder`: which names the checkpoints use, and how they fuse.

Input: a `ModelConfig` and a `TensorFolder` with Hugging Face names. Every tensor of the folder must find its place: one that
is left over is an error, never ignored, because it would mean that the model computes something else than it was trained for.
Knows nothing of where the folder came from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.tensors import TensorFolder
from agentkit.errors import EngineError

__all__ = ["build_decoder"]

# buffers that older checkpoints carry and that are computed here; vision parts of multimodal checkpoints are not part of the text decoder
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|^(model\.)?(vision_tower|multi_modal_projector)\.")


def build_decoder(config: ModelConfig, tensors: TensorFolder, dtype: torch.dtype, device: torch.device) -> Decoder:
    """The decoder with its weights in `dtype` on `device`; on the CPU in the stored dtype they stay views of the mapped files.

    Raises EngineError where a tensor is missing, left over or of the wrong shape.
    """
    source = _Source(config, tensors, dtype, device, _prefix(tensors))
    embedding = source.matrix(["embed_tokens"], (config.vocab_size, config.hidden_size))
    layers = [_layer(source, index) for index in range(config.num_layers)]
    final_norm = source.norm("norm", config.hidden_size)
    head = embedding if config.tie_embeddings else _head(source, config)
    if config.tie_embeddings:
        source.skip("lm_head.weight")
    left = [name for name in tensors.unused if not _COMPUTED.search(name) and name not in source.skipped]
    if left:
        shown = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        raise EngineError(f"the weights hold tensors that a {config.architecture} decoder does not use: {shown}; this variant of the model is not supported")
    return Decoder(config, embedding, layers, final_norm, Dense(head))


@dataclass
class _Source:
    """Takes tensors by their short names."""

    config: ModelConfig
    tensors: TensorFolder
    dtype: torch.dtype
    device: torch.device
    prefix: str

    def __post_init__(self) -> None:
        self.skipped: set[str] = set()

    def matrix(self, names: list[str], shape: tuple[int, ...], kind: str = "weight") -> torch.Tensor:
        return self.tensors.take([f"{self.prefix}{name}.{kind}" for name in names], shape, self.dtype, self.device)

    def dense(self, names: list[str], shape: tuple[int, int]) -> Dense:
        """Weight [out, in] of several fused linears, and their biases where the checkpoint has any."""
        present = [f"{self.prefix}{name}.bias" in self.tensors for name in names]
        if any(present) and not all(present):
            raise EngineError(f"the weights give a bias to only some of {', '.join(names)}; such a mixture is not supported")
        return Dense(self.matrix(names, shape), self.matrix(names, shape[:1], "bias") if all(present) else None)

    def norm(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight in float32, with the family's offset added."""
        weight = self.tensors.take([f"{self.prefix}{name}.weight"], (size,), torch.float32, self.device)
        return weight + self.config.norm_offset if self.config.norm_offset else weight

    def skip(self, name: str) -> None:
        """A tensor that may be there and repeats another one."""
        self.skipped.update({name, f"{self.prefix}{name}"})


def _prefix(tensors: TensorFolder) -> str:
    for prefix in ("model.", "", "language_model.model.", "model.language_model."):
        if f"{prefix}embed_tokens.weight" in tensors:
            return prefix
    raise EngineError("the weights have no embed_tokens.weight under any known prefix; this is not a decoder-only checkpoint that is supported")


def _head(source: _Source, config: ModelConfig) -> torch.Tensor:
    names = ["lm_head.weight", "language_model.lm_head.weight"]
    name = next((name for name in names if name in source.tensors), names[0])
    return source.tensors.take([name], (config.vocab_size, config.hidden_size), source.dtype, source.device)


def _layer(source: _Source, index: int) -> Layer:
    config, at = source.config, f"layers.{index}."
    hidden, heads, keys, size = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    sandwich = config.sandwich_norms
    qk_norm = None
    if config.qk_norm:
        q, k = source.norm(f"{at}self_attn.q_norm", size), source.norm(f"{at}self_attn.k_norm", size)
        qk_norm = torch.cat((q.expand(heads, size), k.expand(keys, size)))
    return Layer(
        before_attention=source.norm(f"{at}input_layernorm", hidden),
        qkv=source.dense([f"{at}self_attn.{part}_proj" for part in "qkv"], ((heads + 2 * keys) * size, hidden)),
        out=source.dense([f"{at}self_attn.o_proj"], (hidden, heads * size)),
        before_mlp=source.norm(f"{at}{'pre_feedforward_layernorm' if sandwich else 'post_attention_layernorm'}", hidden),
        gate_up=source.dense([f"{at}mlp.gate_proj", f"{at}mlp.up_proj"], (2 * config.intermediate_size, hidden)),
        down=source.dense([f"{at}mlp.down_proj"], (hidden, config.intermediate_size)),
        qk_norm=qk_norm,
        after_attention=source.norm(f"{at}post_attention_layernorm", hidden) if sandwich else None,
        after_mlp=source.norm(f"{at}post_feedforward_layernorm", hidden) if sandwich else None,
    )
