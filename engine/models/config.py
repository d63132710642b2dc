"""Shape and constants of a decoder, read once from a Hugging Face config.json and checked.

Job: config.json (a dict) -> `ModelConfig`, one frozen description that the decoder follows without asking which family it
serves. Families: Llama (SmolLM, Mistral), Qwen2, Qwen3, Gemma, Gemma 2, Gemma 3 (text). Anything that the decoder would
not compute exactly is refused with its name. Knows nothing of weights, files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentkit.engine.models.rope import NotNative, Rope
from agentkit.errors import EngineError

__all__ = ["SUPPORTED_ARCHITECTURES", "ModelConfig", "ModelShape", "NotNative"]


class ModelShape(Protocol):
    """What the engine needs to know of any model, whoever runs it. Its repr tells models of other constants apart."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_position(self) -> int: ...
    @property
    def windows(self) -> tuple[int | None, ...]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a decoder but its weights.

    windows: per layer, how many positions a token sees, its own included; None: all before it.
    ropes / rope_of_layer: the distinct rotary embeddings, and which of them each layer uses.
    norm_offset: added to every norm weight (Gemma stores w - 1). attention_scale multiplies q·k.
    attention_softcap, logit_softcap: cap c of c·tanh(x/c), or None.
    sandwich_norms: norms after attention and MLP too (Gemma 2, 3). qk_norm: RMS norm of each head of q and k (Qwen3, Gemma 3).
    stop_token_ids: tokens that end a turn; bos_token_id: None where the model has none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    activation: str
    tie_embeddings: bool
    attention_scale: float
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    rope_of_layer: tuple[int, ...]
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    sandwich_norms: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads a config.json. Raises NotNative naming the architecture or variant that the decoder does not have, EngineError for a missing field."""
        name = architecture_of(config)
        if "text_config" in config and name == "gemma3":
            config = {**config["text_config"], "eos_token_id": config.get("eos_token_id", config["text_config"].get("eos_token_id"))}
        family = _FAMILIES[name]
        try:
            return family(_common(name, config), config)
        except KeyError as error:
            raise EngineError(f"config.json of this {name} model has no field {error.args[0]!r}; the file is incomplete") from error


def architecture_of(config: Mapping[str, Any]) -> str:
    """The model_type, if the native decoder knows it; otherwise NotNative naming it."""
    name = config.get("model_type")
    if name not in _FAMILIES:
        shown = f"{name!r} ({', '.join(config.get('architectures') or ['no architectures field'])})"
        raise NotNative(f"the architecture {shown} has no native decoder; those that have one are {', '.join(SUPPORTED_ARCHITECTURES)}")
    return str(name)


def _common(name: str, config: Mapping[str, Any]) -> ModelConfig:
    """What all families have in common, with the plain Llama meaning for the rest."""
    layers, heads, hidden = int(config["num_hidden_layers"]), int(config["num_attention_heads"]), int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise EngineError(f"config.json: num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise NotNative("config.json: partial_rotary_factor other than 1 is not supported by the native decoder")
    rope = Rope.from_hf(_rope_fields(config, "full_attention"), head_dim, int(config["max_position_embeddings"]))
    return ModelConfig(
        architecture=name,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=int(config["max_position_embeddings"]),
        norm_eps=float(config["rms_norm_eps"]),
        activation=_activation(config.get("hidden_activation") or config.get("hidden_act") or "silu"),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_scale=head_dim**-0.5,
        windows=(None,) * layers,
        ropes=(rope,),
        rope_of_layer=(0,) * layers,
        bos_token_id=config.get("bos_token_id"),
        stop_token_ids=token_ids(config.get("eos_token_id")),
    )


def token_ids(value: Any) -> tuple[int, ...]:
    """config.json's eos_token_id (missing, null, one id or a list) as a tuple."""
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, list | tuple) else (int(value),)


def _activation(name: str) -> str:
    known = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
    if name not in known:
        raise NotNative(f"config.json: the activation {name!r} is not supported; supported are {', '.join(known)}")
    return known[name]


def _rope_fields(config: Mapping[str, Any], layer_type: str) -> dict[str, Any]:
    """The rope parameters for one kind of layer, from the newer `rope_parameters` or the older rope_theta / rope_scaling."""
    parameters = config.get("rope_parameters")
    if parameters:
        chosen = parameters.get(layer_type, parameters) if "rope_theta" not in parameters else parameters
        return {"rope_theta": config.get("rope_theta", 10000.0), **chosen}
    return {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}


def _windows(config: Mapping[str, Any], layers: int, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Window of each layer from layer_types, or from the family's own rule `default` (is this layer sliding?)."""
    window = config.get("sliding_window")
    kinds = config.get("layer_types") or ["sliding_attention" if default(layer) else "full_attention" for layer in range(layers)]
    if len(kinds) != layers:
        raise EngineError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown:
        raise NotNative(f"config.json: layer_types has {', '.join(map(repr, unknown))}; supported are 'full_attention' and 'sliding_attention'")
    return tuple(int(window) if kind == "sliding_attention" and window else None for kind in kinds)


def _llama(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    return base


def _mistral(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    return replace(base, windows=_windows({**config, "layer_types": None}, base.num_layers, lambda layer: True))


def _qwen2(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    sliding = bool(config.get("use_sliding_window", False))
    first = int(config.get("max_window_layers", 0))
    windows = _windows(config, base.num_layers, lambda layer: layer >= first) if sliding else base.windows
    return replace(base, windows=windows)


def _qwen3(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    return replace(_qwen2(base, config), qk_norm=True)


def _gemma(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    return replace(
        base,
        norm_offset=1.0,
        embed_scale=base.hidden_size**0.5,
        activation="gelu_tanh" if base.activation == "gelu" else base.activation,
        tie_embeddings=bool(config.get("tie_word_embeddings", True)),
    )


def _gemma2(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    return replace(
        _gemma(base, config),
        sandwich_norms=True,
        attention_scale=float(config.get("query_pre_attn_scalar", 256)) ** -0.5,
        attention_softcap=config.get("attn_logit_softcapping"),
        logit_softcap=config.get("final_logit_softcapping"),
        windows=_windows(config, base.num_layers, lambda layer: layer % 2 == 0),
    )


def _gemma3(base: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    pattern = int(config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6)
    windows = _windows(config, base.num_layers, lambda layer: (layer + 1) % pattern != 0)
    local = {"rope_theta": config.get("rope_local_base_freq", 10000.0)}
    if config.get("rope_parameters"):
        local = _rope_fields(config, "sliding_attention")
    kinds = config.get("layer_types") or ["full_attention" if window is None else "sliding_attention" for window in windows]
    if config.get("use_bidirectional_attention"):
        raise EngineError("config.json: use_bidirectional_attention makes this an encoder; it cannot generate text")
    return replace(
        _gemma2(base, config),
        qk_norm=True,
        windows=windows,
        ropes=(*base.ropes, Rope.from_hf(local, base.head_dim, base.max_position)),
        rope_of_layer=tuple(int(kind == "sliding_attention") for kind in kinds),
    )


_FAMILIES: dict[str, Callable[[ModelConfig, Mapping[str, Any]], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
}
SUPPORTED_ARCHITECTURES = tuple(_FAMILIES)
