"""Decoder-only models without a native decoder: transformers' own modules, with our attention in them.

Job: a folder in Hugging Face layout -> a model with the contract of `Decoder.forward`. The concatenated tokens of a step go through
the model as one row with their positions and without a cache; attention is left to the caller's `attend`, so scheduler, pages,
prefixes and drafts are the same as for native models. Everything that `attend` cannot do is refused by name, and what loads has
computed the same logits as the model's own attention (transformers_check.py). Knows nothing of requests or pages.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import ERROR
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging

from agentkit.engine.models import transformers_attention as attention
from agentkit.engine.models.config import token_ids
from agentkit.engine.models.decoder import Attend, RowSelection
from agentkit.engine.models.loader import end_tokens
from agentkit.engine.models.progress import Progress
from agentkit.engine.models.transformers_check import Layer, check_against_own_attention, probe
from agentkit.errors import EngineError

__all__ = ["TransformersConfig", "TransformersDecoder", "load_transformers"]

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_PROBLEMS = (ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, RuntimeError)


@dataclass(frozen=True)
class TransformersConfig:
    """What the engine needs to know of a model that transformers runs. windows: as in ModelConfig. digest: of the whole config.json."""

    architecture: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    windows: tuple[int | None, ...]
    digest: str
    bos_token_id: int | None = None
    stop_token_ids: tuple[int, ...] = ()


class TransformersDecoder:
    """A transformers model under the contract of `Decoder`. Stateless: `forward` may be called from any thread."""

    def __init__(self, model: PreTrainedModel, config: TransformersConfig, layers: Sequence[tuple[torch.nn.Module, Layer]]) -> None:
        """model: set to RUN. layers: its attention modules and what they ask for, as `probe` found them."""
        self.config = config
        self.model = model
        self.device = model.device
        self.dtype = model.dtype
        self._layers = {id(module): (index, layer) for index, (module, layer) in enumerate(layers)}

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logits_for: RowSelection = None) -> torch.Tensor:
        """Logits [N, V] in float32 for the chosen rows; token_ids and positions: int64 [T]. See Decoder.forward."""
        rows = torch.arange(token_ids.shape[0], device=token_ids.device)
        kept = rows if logits_for is None else rows[logits_for]
        with attention.handled_by(partial(self._attend, attend)):
            out = self.model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=kept)
        return out.logits[0].float()  # type: ignore[no-any-return]

    __call__ = forward

    def _attend(
        self,
        attend: Attend,
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        settings: Mapping[str, Any],
    ) -> torch.Tensor:
        """One layer's attention by the caller's `attend`; values narrower than keys are padded with zeros on the way."""
        index, layer = self._layers[id(module)]
        queries, keys, values = (x[0].transpose(0, 1) for x in (q, k, v))  # [T, H or KV, D]
        if layer.value_dim < layer.head_dim:
            values = torch.nn.functional.pad(values, (0, layer.head_dim - layer.value_dim))
        sinks = {"sinks": settings["s_aux"]} if layer.sinks else {}
        out = attend(index, queries.contiguous(), keys, values, window=layer.window, scale=layer.scale, softcap=layer.softcap, **sinks)
        return out[None, ..., : layer.value_dim].contiguous()


def load_transformers(folder: Path, dtype: torch.dtype, device: torch.device, max_context: int | None, progress: Progress) -> TransformersDecoder:
    """The model in `folder`. max_context: longest text wanted, None: whatever suits the model; it matters where RoPE goes by length.

    Raises EngineError for what is not decoder-only, needs code of its own or attends in a way not offered here.
    """
    config = _config(folder)
    model_class = _model_class(config)
    max_position, long = _context(config.get_text_config(decoder=True), max_context, progress)
    model = _load(folder, model_class, config, dtype).to(device)  # type: ignore[arg-type]
    attention.prepare(model)
    if long:
        _take_long_factors(model)
    try:
        with torch.inference_mode():
            layers = probe(model)
            decoder = TransformersDecoder(model, _shape(folder, config, max_position, [layer for _, layer in layers]), layers)
            check_against_own_attention(decoder)
    except _PROBLEMS as error:
        raise EngineError(f"the architecture {config.model_type!r} fails on a test text, so it cannot run here: {type(error).__name__}: {error}") from error
    return decoder


def _config(folder: Path) -> PretrainedConfig:
    """The folder's config, of a class that transformers itself has."""
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = fields.get("model_type")
    if kind not in CONFIG_MAPPING:
        own = " It comes with code of its own (auto_map), which is never run here." if "auto_map" in fields else ""
        raise EngineError(f"the architecture {kind!r} has no native decoder and is not in transformers {transformers.__version__}.{own}")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except _PROBLEMS as error:
        raise EngineError(f"{folder / 'config.json'} is not a config that transformers {transformers.__version__} reads: {error}") from error
    return config


def _model_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class of decoder; refused where it is none, or where its attention cannot be taken over."""
    name = f"the architecture {config.model_type!r}"
    known: Mapping[Any, Any] = MODEL_FOR_CAUSAL_LM_MAPPING
    model_class: type[PreTrainedModel] | None = known.get(type(config), None)
    if model_class is None or config.is_encoder_decoder:
        raise EngineError(f"{name} is not a decoder-only language model; only such models generate here")
    text = config.get_text_config(decoder=True)
    other = sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES)
    if other:
        raise EngineError(f"{name} has layers of the type {', '.join(map(repr, other))}; only full and sliding attention can be kept in pages")
    if not attention.follows_interface(model_class) or getattr(config, "alibi", False):
        raise EngineError(f"{name} computes its attention itself (ALiBi, other biases or states), so paged attention cannot take its place")
    if "logits_to_keep" not in inspect.signature(model_class.forward).parameters:
        raise EngineError(f"{name} of transformers {transformers.__version__} cannot give the logits of chosen rows; update transformers")
    return model_class


def _load(folder: Path, model_class: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights, on the CPU. Tensors that are missing or left over are errors, as for native models."""
    load: Any = model_class.from_pretrained  # with output_loading_info it returns two things
    try:
        with _quiet():
            model, report = load(
                folder, config=config, dtype=dtype, attn_implementation="eager", use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except _PROBLEMS as error:
        raise EngineError(f"transformers cannot load {folder} as {model_class.__name__}: {error}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong = sorted(map(str, report.get(what) or ()))
        if wrong:
            shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
            raise EngineError(f"{folder}: the weights do not belong to {model_class.__name__}: {what.replace('_', ' ')} {shown}")
    loaded: PreTrainedModel = model.eval()
    return loaded


def _shape(folder: Path, config: PretrainedConfig, max_position: int, layers: Sequence[Layer]) -> TransformersConfig:
    text = config.get_text_config(decoder=True)
    first, name = layers[0], f"the architecture {config.model_type!r}"
    if len(layers) != text.num_hidden_layers:
        raise EngineError(f"{name} attends in {len(layers)} of its {text.num_hidden_layers} layers; what the others remember cannot be kept in pages")
    for layer in layers:
        if (layer.kv_heads, layer.head_dim) != (first.kv_heads, first.head_dim) or layer.value_dim > layer.head_dim:
            raise EngineError(f"{name} has heads of different shapes ({first} and {layer}); pages hold one shape for all layers")
    bos, stops = end_tokens(folder, text.bos_token_id, token_ids(text.eos_token_id))
    return TransformersConfig(
        architecture=str(config.model_type),
        vocab_size=int(text.vocab_size),
        num_layers=len(layers),
        num_kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        max_position=max_position,
        windows=tuple(layer.window for layer in layers),
        digest=hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()[:16],
        bos_token_id=bos,
        stop_token_ids=stops,
    )


def _context(config: PretrainedConfig, wanted: int | None, progress: Progress) -> tuple[int, bool]:
    """Longest context, and whether the long factors of longrope are to be used for it.

    Keys in the cache are rotated already, and texts of different lengths share a forward: frequencies cannot go by the length of a
    text (dynamic, longrope). So they are used as far as they stay the same; beyond that, longrope's long factors serve every text.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if not longest:
        raise EngineError(f"config.json of this {config.model_type} model does not say its context (max_position_embeddings)")
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") not in ("dynamic", "longrope"):
        return int(longest), False
    original = int(parameters.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None) or longest)
    if original >= longest:
        return int(longest), False
    if parameters["rope_type"] == "longrope" and wanted is not None and wanted > original:
        return int(longest), True
    more = f"; Engine(max_context=...) up to {longest} takes its long-context frequencies, for short texts too" if parameters["rope_type"] == "longrope" else ""
    progress(f"contexts of up to {original} tokens, where the rotary frequencies of this model would change{more}", 0, None)
    return original, False


def _take_long_factors(model: PreTrainedModel) -> None:
    """The frequencies that longrope has for texts beyond its original length, for all texts."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            rope: Any = module
            original = rope.config.rope_parameters["original_max_position_embeddings"]
            frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](rope.config, model.device, seq_len=original + 1)
            rope.inv_freq = frequencies
            rope.original_inv_freq = frequencies.clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bars and its table of keys: what they say is said by errors here."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(ERROR)
    _show_bars(False)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        _show_bars(bars)


def _show_bars(wanted: bool) -> None:
    switch: Any = logging.enable_progress_bar if wanted else logging.disable_progress_bar
    switch()
