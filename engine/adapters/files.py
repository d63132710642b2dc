"""From a folder or hub repository in PEFT's layout to the matrices of an adapter, checked against the model that they are for.

Files: adapter_config.json and adapter_model.safetensors. Every tensor must find its place, and every pair must be whole and have the
shapes that the model and the config imply; anything else is an AdapterError that names it. Knows nothing of engines or requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from agentkit.engine.adapters.adapter import LowRank, Part, Place
from agentkit.engine.adapters.peft import PeftConfig
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.fetch import FetchFailed, Wanted, hub_unreachable, local_snapshot, snapshot
from agentkit.engine.models.loader import read_json
from agentkit.engine.models.progress import Progress, progress_or_default
from agentkit.engine.models.store import REPOSITORY
from agentkit.errors import AdapterError, AdapterNotFound, EngineError

__all__ = ["folder_of", "read_adapter"]

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_WANTED = Wanted((CONFIG, TENSORS), lambda folder: (folder / CONFIG).is_file() and (folder / TENSORS).is_file(), f"{CONFIG} and {TENSORS}")
_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>(?:model\.|language_model\.)*layers\.(?P<layer>[0-9]{1,6})\.(?P<part>\w+\.\w+))\.lora_(?P<side>[AB])\.weight"
)


@dataclass(frozen=True)
class _Slot:
    """Where a linear layer of a checkpoint lies in the decoder's fused matrices, and what it maps from and to."""

    matrix: str
    column: int
    inputs: int
    outputs: int


def folder_of(source: str | os.PathLike[str], progress: Progress | None) -> Path:
    """The folder of an adapter: itself, or a repository's in the hub's cache, fetched if need be. Raises AdapterNotFound, TypeError."""
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"an adapter is a folder or a hub repository org/name, not {type(source).__name__}")
    text = os.fspath(source)
    folder = Path(text).expanduser()
    if text.strip() and folder.is_dir():
        return folder
    if folder.is_file():
        raise AdapterNotFound(f"{folder} is a file; pass the folder that holds {CONFIG} and {TENSORS}")
    if not REPOSITORY.fullmatch(text):
        raise AdapterNotFound(f"there is no folder {folder.absolute()}; pass one that holds {CONFIG} and {TENSORS}, or a hub repository org/name")
    found = local_snapshot(text, _WANTED)
    if found is not None:
        return found
    problem = hub_unreachable()
    try:
        if problem is None:
            with progress_or_default(progress) as show:
                return snapshot(text, show, _WANTED)
    except FetchFailed as error:
        problem = str(error)
    raise AdapterNotFound(f"the adapter {text!r}: it is no folder here, the hub's cache on this machine does not hold it, and the model hub: {problem}")


def read_adapter(folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> tuple[int, dict[Place, LowRank]]:
    """The largest rank of an adapter, and what it changes, in `dtype` on `device`. Raises AdapterError."""
    settings = _settings(folder)
    slots, pairs = _slots(config), _pairs(folder, config)
    found: dict[Place, dict[int, tuple[torch.Tensor, torch.Tensor]]] = {}
    largest = 0
    for (layer, part, module), pair in pairs.items():
        slot = slots[part]
        down, up = _checked(folder, module, pair, slot, settings.rank_of(module))
        up = up * settings.scaling(module)
        for side, tensor in (("A", down), ("B", up)):
            if not bool(torch.isfinite(tensor.to(dtype)).all()):
                name, kind = f"{folder / TENSORS}: lora_{side} of {module}", str(dtype).removeprefix("torch.")
                raise AdapterError(f"{name} holds NaN, or numbers that are infinite as {kind} (lora_alpha / r included); save or fetch the adapter again")
        largest = max(largest, down.shape[0])
        found.setdefault((layer, slot.matrix), {})[slot.column] = down, up
    return largest, {place: _fused(parts, dtype, device) for place, parts in found.items()}


def _settings(folder: Path) -> PeftConfig:
    if not (folder / CONFIG).is_file():
        raise AdapterError(f"{folder} holds no {CONFIG}; pass a folder in PEFT's layout (model.save_pretrained)")
    try:
        settings = PeftConfig.of(read_json(folder / CONFIG), str(folder / CONFIG))
    except AdapterError:
        raise
    except EngineError as error:
        raise AdapterError(str(error)) from error
    other = [target for target in settings.targets if target.rpartition(".")[2] in ("lm_head", "embed_tokens")]
    if other:
        raise AdapterError(f"{folder / CONFIG}: target_modules names {other[0]!r}; adapters of the embedding or the output layer are not supported")
    return settings


def _pairs(folder: Path, config: ModelConfig) -> dict[tuple[int, str, str], dict[str, torch.Tensor]]:
    """(layer, part, module) -> the tensors "A" and "B"."""
    file = folder / TENSORS
    if not file.is_file():
        hint = "; convert adapter_model.bin to safetensors: pickled files are not read" if (folder / "adapter_model.bin").is_file() else ""
        raise AdapterError(f"{folder} holds no {TENSORS}{hint}")
    pairs: dict[tuple[int, str, str], dict[str, torch.Tensor]] = {}
    seen: dict[tuple[int, str, str], str] = {}  # several names of a tensor mean the same matrix
    for name, tensor in _tensors(file).items():
        match = _NAME.fullmatch(name)
        if match is None or match["part"] not in _PARTS:
            raise AdapterError(f"{file}: the tensor {name!r} is not supported; adapters may change {', '.join(_PARTS)} of each layer")
        if int(match["layer"]) >= config.num_layers:
            raise AdapterError(f"{file}: {name!r} is of layer {match['layer']}, and the model has {config.num_layers}; the adapter is for another model")
        earlier = seen.setdefault((int(match["layer"]), match["part"], match["side"]), name)
        if earlier != name:
            raise AdapterError(f"{file}: {earlier!r} and {name!r} are for the same matrix; save the adapter again with one of them")
        pairs.setdefault((int(match["layer"]), match["part"], match["module"]), {})[match["side"]] = tensor
    if not pairs:
        raise AdapterError(f"{file} holds no tensors")
    return pairs


def _tensors(file: Path) -> Mapping[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(file))
    except (SafetensorError, OSError, ValueError) as error:
        raise AdapterError(f"{file}: not a whole safetensors file: {error}; save or fetch the adapter again") from error


def _checked(folder: Path, module: str, pair: Mapping[str, torch.Tensor], slot: _Slot, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of a module in float32, of the shapes that model and config imply."""
    for side, shape in (("A", (rank, slot.inputs)), ("B", (slot.outputs, rank))):
        tensor = pair.get(side)
        if tensor is None:
            raise AdapterError(f"{folder / TENSORS}: {module} has no lora_{side}; the file is incomplete")
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise AdapterError(
                f"{folder / TENSORS}: lora_{side} of {module} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}; the model and rank {rank} "
                f"need numbers of the shape {list(shape)}: the adapter is for another model, or {CONFIG} for another adapter"
            )
    return pair["A"].float(), pair["B"].float()


def _fused(parts: Mapping[int, tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype, device: torch.device) -> LowRank:
    """parts: first column -> A [r, in] and scaled B [columns, r], both float32."""
    ups, rank = [], 0
    for column, (_, up) in sorted(parts.items()):
        ups.append(Part(up.to(device, dtype).contiguous(), rank, column))
        rank += up.shape[1]
    down = torch.cat([down for _, (down, _) in sorted(parts.items())])
    return LowRank(down.to(device, dtype).contiguous(), tuple(ups))


_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _slots(c: ModelConfig) -> dict[str, _Slot]:
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    slots = (
        _Slot("qkv", 0, c.hidden_size, queries), _Slot("qkv", queries, c.hidden_size, keys), _Slot("qkv", queries + keys, c.hidden_size, keys),
        _Slot("out", 0, queries, c.hidden_size), _Slot("gate_up", 0, c.hidden_size, c.intermediate_size),
        _Slot("gate_up", c.intermediate_size, c.hidden_size, c.intermediate_size), _Slot("down", 0, c.intermediate_size, c.hidden_size),
    )  # fmt: skip
    return dict(zip(_PARTS, slots, strict=True))
