"""Loading a model: a name, path or hub repository in; a decoder, its tokenizer and its chat template out.

Job: find the folder (store.py), read config.json, map the weights, read tokenizer and template. The native decoder runs what it
knows, transformers the rest (transformers_backend.py, imported only then), and progress says so. The dtype is float32 on the CPU
and bfloat16 on a GPU unless asked otherwise. Knows nothing of requests, batches or caches.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.engine.models.config import ModelConfig, ModelShape, NotNative, token_ids
from agentkit.errors import EngineError

if TYPE_CHECKING:
    import torch

    from agentkit.engine.models.chat_template import ChatTemplate
    from agentkit.engine.models.decoder import LanguageModel
    from agentkit.engine.models.progress import Progress
    from agentkit.engine.models.store import Place
    from agentkit.engine.models.tokenizer import Tokenizer

__all__ = ["LoadedModel", "load_model", "on_a_gpu", "read_config"]

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    chat_template: None where the model has none. path: the folder it was loaded from. gguf: the quantised file that the
    folder was converted from, where it is still there (for kernels that take its blocks as they are), else None.
    """

    name: str
    config: ModelShape
    model: LanguageModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    path: Path
    gguf: Path | None

    @property
    def token_count(self) -> int:
        """How many ids are tokens; logits may have more columns."""
        return min(self.config.vocab_size, len(self.tokenizer.token_bytes))


def load_model(
    spec: str | os.PathLike[str],
    *,
    device: str = "auto",
    dtype: str = "auto",
    max_context: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a model, fetching and converting it first where that has not been done.

    spec: a known short name, a folder in Hugging Face layout, a *.gguf file, or a hub repository "org/name".
    device: "auto" (a GPU if torch has one), "cpu", "cuda", "cuda:1" ... dtype: "auto", "float32", "bfloat16", "float16".
    max_context: longest text wanted; some models have other rotary frequencies for long ones (see transformers_backend.py).
    Raises ModelNotFound (what was tried, what to do) or EngineError (not a decoder-only model, or one whose attention cannot be
    paged; damaged files).
    """
    from agentkit.engine.models.chat_template import ChatTemplate
    from agentkit.engine.models.store import resolve
    from agentkit.engine.models.tokenizer import Tokenizer

    place = resolve(spec, cache_dir=cache_dir, progress=progress)
    target = _device(device)
    config, model = _decoder(place, _dtype(dtype, target), target, max_context, progress)
    tokenizer = Tokenizer.from_folder(place.folder, stop_token_ids=config.stop_token_ids, bos_token_id=config.bos_token_id)
    if len(tokenizer.token_bytes) > config.vocab_size:
        extra = len(tokenizer.token_bytes) - config.vocab_size
        if any(tokenizer.token_bytes[config.vocab_size :]):
            raise EngineError(f"{place.folder}: the tokenizer has {extra} ids more than the model's {config.vocab_size}; they do not belong together")
    template = ChatTemplate.from_folder(place.folder, tokenizer)
    return LoadedModel(place.name, config, model, tokenizer, template, place.folder, place.gguf)


def read_config(folder: Path) -> ModelConfig:
    """The folder's config.json for the native decoder, with the stop tokens of generation_config.json added. Raises NotNative."""
    config = ModelConfig.from_hf(read_json(folder / "config.json", required=True))
    bos, stops = end_tokens(folder, config.bos_token_id, config.stop_token_ids)
    return replace(config, stop_token_ids=stops, bos_token_id=bos)


def end_tokens(folder: Path, bos: int | None, stops: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    """First token and stop tokens as config.json says, completed by generation_config.json."""
    generation = read_json(folder / "generation_config.json")
    return generation.get("bos_token_id") if bos is None else bos, tuple(dict.fromkeys((*stops, *token_ids(generation.get("eos_token_id")))))


def _decoder(place: Place, dtype: torch.dtype, device: torch.device, max_context: int | None, progress: Progress | None) -> tuple[ModelShape, LanguageModel]:
    """The native decoder where there is one for this model, else the model of transformers."""
    from agentkit.engine.models.progress import progress_or_default

    try:
        config = read_config(place.folder)
    except NotNative as reason:
        with progress_or_default(progress) as show:
            show(f"{place.name} runs through transformers: {reason}", 0, None)
            from agentkit.engine.models.transformers_backend import load_transformers

            other = load_transformers(place.folder, dtype, device, max_context, show)
        return other.config, other
    from agentkit.engine.models.tensors import TensorFolder
    from agentkit.engine.models.weights import build_decoder

    return config, build_decoder(config, TensorFolder(place.folder), dtype, device)


def read_json(file: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} for a file that is missing and not required. Raises EngineError naming the file."""
    if not file.is_file():
        if required:
            raise EngineError(f"{file.parent} holds no {file.name}; pass a folder in Hugging Face layout, a *.gguf file, or a model's name")
        return {}
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{file} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise EngineError(f"{file} holds {type(fields).__name__}, expected a JSON object")
    return fields


def on_a_gpu() -> bool:
    """Whether device="auto" means a GPU on this machine."""
    import torch

    return torch.cuda.is_available()


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if on_a_gpu() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"device {name!r} is not one that torch knows: {error}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"device {name!r} was asked for, but torch sees no CUDA GPU; use device='cpu' or install a CUDA build of torch")
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    import torch

    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise EngineError(f"dtype {name!r} is not supported; choose 'auto', {', '.join(map(repr, _DTYPES))}")
    chosen: torch.dtype = getattr(torch, name)
    return chosen
