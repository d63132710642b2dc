"""Reading a GGUF file: metadata, tensors under Hugging Face names, and the config.json that describes them.

Input: a *.gguf file of an architecture that the native decoder knows. Tensors come out in float32 (or as stored, where they were
never quantised) with llama.cpp's changes undone: the rows of Llama's q and k are put back from interleaved to half-split
rotary order, and Gemma's norm weights lose the 1 that was added. Format: github.com/ggml-org/ggml/blob/master/docs/gguf.md.
Knows nothing of caches or of how the result is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.engine.models.gguf_reader import StoredTensor, read_gguf
from agentkit.engine.models.rope import Rope
from agentkit.errors import EngineError

__all__ = ["GgufFile", "GgufTensor"]

Array = np.ndarray[Any, np.dtype[Any]]

# GGUF architecture -> model_type and class of the Hugging Face config
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_SANDWICH = ("gemma2", "gemma3")
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
_PART_ORDER = list(dict.fromkeys([*_PARTS.values(), "pre_feedforward_layernorm"]))
_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_CHUNK = 4_000_000  # elements dequantised at once, which bounds memory


@dataclass(frozen=True)
class GgufTensor:
    """A tensor under its Hugging Face name. shape is row-major [out, in]; kind is the GGUF quantisation, such as "Q4_1"."""

    name: str
    shape: tuple[int, ...]
    kind: str
    source: StoredTensor


class GgufFile:
    """An open GGUF file. Raises EngineError for a file that is damaged or whose architecture is not supported."""

    def __init__(self, path: Path) -> None:
        self.metadata, self._stored = read_gguf(path)
        self.path = path
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in _ARCHITECTURES:
            raise EngineError(f"{path}: the GGUF architecture {self.architecture!r} is not supported; supported are {', '.join(_ARCHITECTURES)}")

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value; "{arch}." in front of the key stands for the architecture."""
        return self.metadata.get(key.replace("{arch}", self.architecture), default)

    @cached_property
    def tensors(self) -> list[GgufTensor]:
        """All tensors in the order in which they should be stored: q, k, v and gate, up side by side."""
        named = [self._named(tensor) for tensor in self._stored if tensor.name != "rope_freqs.weight"]
        return sorted(named, key=_storage_order)

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(tensor.shape)) for tensor in self.tensors)

    def array(self, tensor: GgufTensor, dtype: np.dtype[Any] | type) -> Array:
        """The tensor's values in `dtype`; a BF16 tensor asked for as uint16 comes as its own bits."""
        flat = self._values(tensor, np.dtype(dtype))
        if self.architecture == "llama" and (part := re.search(r"self_attn\.([qk])_proj", tensor.name)):
            heads = int(self.get("{arch}.attention.head_count"))
            return _half_split(flat, heads if part.group(1) == "q" else int(self.get("{arch}.attention.head_count_kv", heads)))
        if self.architecture.startswith("gemma") and tensor.name.endswith("norm.weight"):
            less: Array = flat - np.asarray(1, flat.dtype)
            return less
        return flat

    def blocks(self, tensor: GgufTensor) -> Array:
        """The stored bytes of a quantised matrix, uint8 [rows, bytes of a row], as the file orders its rows (see `row_order`)."""
        return np.asarray(tensor.source.data).reshape(tensor.shape[0], -1)

    def row_order(self, tensor: GgufTensor) -> Array | None:
        """Which row of the Hugging Face matrix each stored row is; None: the same."""
        part = re.search(r"self_attn\.([qk])_proj", tensor.name)
        if self.architecture != "llama" or part is None:
            return None
        heads = int(self.get("{arch}.attention.head_count"))
        heads = heads if part.group(1) == "q" else int(self.get("{arch}.attention.head_count_kv", heads))
        order = np.empty(tensor.shape[0], np.int64)
        order[_half_split(np.arange(tensor.shape[0]), heads)] = np.arange(tensor.shape[0])
        return order

    def config(self) -> dict[str, Any]:
        """The model as a Hugging Face config.json."""
        model_type, class_name = _ARCHITECTURES[self.architecture]
        embedding = next(tensor for tensor in self.tensors if tensor.name == "model.embed_tokens.weight")
        heads, hidden = int(self._need("attention.head_count")), int(self._need("embedding_length"))
        head_dim = int(self.get("{arch}.attention.key_length", hidden // heads))
        if int(self.get("{arch}.rope.dimension_count", head_dim)) != head_dim:
            raise EngineError(f"{self.path}: rotary embeddings over a part of each head are not supported")
        config = {
            "architectures": [class_name],
            "model_type": model_type,
            "vocab_size": embedding.shape[0],
            "hidden_size": hidden,
            "intermediate_size": int(self._need("feed_forward_length")),
            "num_hidden_layers": int(self._need("block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self.get("{arch}.attention.head_count_kv", heads)),
            "head_dim": head_dim,
            "max_position_embeddings": int(self._need("context_length")),
            "rms_norm_eps": _short(self._need("attention.layer_norm_rms_epsilon")),
            "hidden_act": "silu",
            "tie_word_embeddings": not any(tensor.name == "lm_head.weight" for tensor in self.tensors),
            "attention_bias": any(tensor.name.endswith("self_attn.q_proj.bias") for tensor in self.tensors),
            "bos_token_id": self.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.get("tokenizer.ggml.eos_token_id"),
            "rope_theta": _short(self.get("{arch}.rope.freq_base", 10000.0)),
            "rope_scaling": self._rope_scaling(head_dim),
        }
        return {**config, **self._family(config)}

    def _family(self, config: dict[str, Any]) -> dict[str, Any]:
        """Fields that only some architectures have."""
        window = self.get("{arch}.attention.sliding_window")
        if self.architecture == "llama":
            return {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": int(window)} if window else {}
        if not self.architecture.startswith("gemma"):
            return {"use_sliding_window": False}
        fields: dict[str, Any] = {"hidden_activation": "gelu_pytorch_tanh"}
        if self.architecture == "gemma":
            return fields
        # Gemma 2 27B and Gemma 3 27B alone scale queries by hidden_size / heads
        large = (self.architecture, config["num_hidden_layers"]) in (("gemma2", 46), ("gemma3", 62))
        fields["query_pre_attn_scalar"] = config["hidden_size"] // config["num_attention_heads"] if large else config["head_dim"]
        fields["sliding_window"] = int(window) if window else None
        fields["attn_logit_softcapping"] = self.get("{arch}.attn_logit_softcapping")
        fields["final_logit_softcapping"] = self.get("{arch}.final_logit_softcapping")
        if self.architecture == "gemma3":
            fields["sliding_window_pattern"] = int(self.get("{arch}.attention.sliding_window_pattern", 6))
            fields["rope_local_base_freq"] = _short(self.get("{arch}.rope.freq_base_swa", 10000.0))
        return fields

    def _rope_scaling(self, head_dim: int) -> dict[str, Any] | None:
        factors = next((tensor for tensor in self._stored if tensor.name == "rope_freqs.weight"), None)
        if factors is not None:
            return self._llama3_scaling(head_dim, np.asarray(factors.data, np.float32))
        kind = str(self.get("{arch}.rope.scaling.type", "none"))
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise EngineError(f"{self.path}: rope scaling of type {kind!r} is not supported; supported are linear and yarn")
        scaling = {"rope_type": kind, "factor": _short(self.get("{arch}.rope.scaling.factor", 1.0))}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = int(self._need("rope.scaling.original_context_length"))
        return scaling

    def _llama3_scaling(self, head_dim: int, factors: Array) -> dict[str, Any]:
        """Llama 3.1's parameters from the frequency factors that they gave (8 or 32 times, over 8,192 positions)."""
        theta = {"rope_theta": float(self.get("{arch}.rope.freq_base", 10000.0))}
        plain = np.array(Rope.from_hf(theta, head_dim, 8192).inverse_frequencies)
        for factor in (8.0, 32.0):
            bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
            scaling = {"rope_type": "llama3", "factor": factor, **bands}
            scaled = np.array(Rope.from_hf({**theta, **scaling}, head_dim, 8192).inverse_frequencies)
            if factors.shape == scaled.shape and np.allclose(plain / scaled, factors, rtol=1e-4):
                return scaling
        raise EngineError(f"{self.path}: its rope_freqs are not those of a Llama 3.1 or 3.2 model; this rope scaling is not supported")

    def _need(self, key: str) -> Any:
        value = self.get("{arch}." + key)
        if value is None:
            raise EngineError(f"{self.path}: the metadata lacks {self.architecture}.{key}; the file is incomplete")
        return value

    def _named(self, tensor: StoredTensor) -> GgufTensor:
        return GgufTensor(self._hf_name(tensor.name), tensor.shape, tensor.kind.name, tensor)

    def _hf_name(self, name: str) -> str:
        if name in _TOP:
            return _TOP[name]
        match = _BLOCK.fullmatch(name)
        if match is None or match.group(2) not in _PARTS:
            raise EngineError(f"{self.path}: the tensor {name!r} has no place in a {self.architecture} decoder; this variant is not supported")
        part = _PARTS[match.group(2)]
        if match.group(2) == "ffn_norm" and self.architecture in _SANDWICH:
            part = "pre_feedforward_layernorm"
        return f"model.layers.{match.group(1)}.{part}.{match.group(3)}"

    def _values(self, tensor: GgufTensor, dtype: np.dtype[Any]) -> Array:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        data, kind = tensor.source.data, tensor.source.kind
        if kind == GGMLQuantizationType.BF16 and dtype == np.uint16:
            return np.asarray(data).view(np.uint16).reshape(tensor.shape)
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            return np.asarray(data).reshape(tensor.shape).astype(dtype)
        out = np.empty(tensor.shape, dtype)
        rows = max(1, _CHUNK // tensor.shape[-1])
        wide, packed = out.reshape(-1, tensor.shape[-1]), np.asarray(data).reshape(-1, data.shape[-1])
        for start in range(0, len(wide), rows):
            try:
                wide[start : start + rows] = dequantize(packed[start : start + rows], kind)
            except NotImplementedError as error:
                raise EngineError(f"{self.path}: the tensor {tensor.name} is quantised as {kind.name}, which cannot be read") from error
        return out


def _half_split(array: Array, heads: int) -> Array:
    """Rows of each head from (0, 1), (2, 3) ... pairs to halves: undoes llama.cpp's permutation of q and k."""
    shape = array.shape
    pairs = array.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)


def _storage_order(tensor: GgufTensor) -> tuple[int, int, str, int]:
    """Layer by layer; within a layer weights of a fused group side by side, then their biases."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", tensor.name)
    if match is None:
        return (-1, 0, tensor.name, 0) if tensor.name == "model.embed_tokens.weight" else (1 << 30, 0, tensor.name, 0)
    position = _PART_ORDER.index(match.group(2))
    group = next((first for first, last in _GROUPS if first <= position <= last), position)
    return int(match.group(1)), group, "01"[match.group(3) == "bias"], position


def _group(first: str, last: str) -> tuple[int, int]:
    return _PART_ORDER.index(first), _PART_ORDER.index(last)


_GROUPS = (_group("self_attn.q_proj", "self_attn.v_proj"), _group("mlp.gate_proj", "mlp.up_proj"))


def _short(value: float) -> float:
    """The float32 of the file as the shortest decimal that means the same (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(value)))
