"""From settings to the parts of an engine: the model in the weights asked for, then memory, runner and scheduler around it.

Inputs: a model and an EngineConfig. Whatever depends on where the model lies (a CPU or a GPU) and on how keys and values are held is
chosen here, once, and its kernels are compiled. Knows nothing of prompts or callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentkit.engine.adapters.adapter import AdapterForm, Layered, LowRank, Place
from agentkit.engine.adapters.loaded import Adapters
from agentkit.engine.adapters.packed import PackedLowRank
from agentkit.engine.advance import Advancer
from agentkit.engine.device.decoding import decoding_for
from agentkit.engine.device.runner import DeviceRunner, runner_for
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import reach_of
from agentkit.engine.memory import kv_bytes, kv_type
from agentkit.engine.models.loader import LoadedModel, load_model, on_a_gpu
from agentkit.engine.models.progress import Progress, one_stage
from agentkit.engine.scheduler import Limits, Scheduler
from agentkit.engine.warmup import compile_adapted_once, compile_for_kv_once, compile_kernels_once, warm_up_device
from agentkit.engine.weights.choose import with_weights
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.errors import EngineError

if TYPE_CHECKING:
    from agentkit.engine.config import EngineConfig
    from agentkit.engine.metrics import Metrics

__all__ = ["adapters_for", "model_for", "scheduler_for"]

GPU_SHARE = 16
"""Tokens of a step on a GPU for one on a CPU."""


def model_for(config: EngineConfig, model: str | Path | LoadedModel, progress: Progress | None) -> LoadedModel:
    """The model, loaded if it is not yet, in the weights that the settings name. Raises ModelNotFound, EngineError, ValueError."""
    loaded = model if isinstance(model, LoadedModel) else _load(model, config, progress)
    if config.device != "auto" and not _is_on(loaded.model.device, torch.device(config.device)):
        raise ValueError(f"device={config.device!r}, but this model has been loaded on {loaded.model.device}; leave device out, or load it there")
    if loaded.model.device.type == "cpu":
        compile_kernels_once(progress)
    loaded = with_weights(loaded, config.weights, config.activations)
    packed = isinstance(loaded.model, PackedDecoder)
    if config.deterministic and not packed:
        raise EngineError(f"deterministic=True needs weights='int8' or 'int4' on the CPU; {type(loaded.model).__name__} rounds by batch")
    if config.attention == "standard" and packed:
        raise EngineError(f"attention='standard' computes with plain matrices, and those of {loaded.name!r} are in blocks; use weights='fp32' with it")
    return loaded


def scheduler_for(loaded: LoadedModel, config: EngineConfig, metrics: Metrics, progress: Progress | None) -> Scheduler:
    """A scheduler over the runner and the memory that fit the model's device and the settings. Raises EngineError, ValueError."""
    model, standard = loaded.model, config.attention == "standard"
    share = GPU_SHARE if model.device.type == "cuda" else 1
    steps = share * config.step_tokens, share * config.mixed_step_tokens
    pool = _pool(loaded, config, max(steps), progress)
    limits = Limits(config.max_running, config.max_queue, *(min(tokens, pool.groups.chunk) for tokens in steps))
    runner = runner_for(model, pool, config.threads, standard=standard)
    warm_up_device(runner, progress)
    stops = loaded.tokenizer.stop_token_ids
    advancer = Advancer(loaded.token_count, stops)
    columns = loaded.config.vocab_size, loaded.token_count
    decoding = decoding_for(runner, pool, advancer, columns, stops) if config.cuda_graphs and not standard else None
    if decoding is not None:
        with one_stage("compiling kernels that sample on the GPU (kept for the next start)", progress):
            decoding.warm_up()
    return Scheduler(runner, pool, advancer, limits, metrics=metrics, decoding=decoding)


def _is_on(device: torch.device, wanted: torch.device) -> bool:
    """wanted: without a number any device of its kind."""
    return device.type == wanted.type and wanted.index in (None, device.index)


def adapters_for(loaded: LoadedModel, scheduler: Scheduler, progress: Progress | None) -> Adapters:
    """No adapters yet, and what is to be made of each: what the CPU's kernels read, or tensors where torch or a device's kernels multiply."""
    model, on_device = loaded.model, isinstance(scheduler.runner, DeviceRunner)
    kernels = not on_device and supported() and (model.device.type, model.dtype) == ("cpu", torch.float32)

    def form(places: Mapping[Place, LowRank]) -> AdapterForm:
        if isinstance(model, PackedDecoder):
            compile_adapted_once(scheduler.pool.data.dtype, progress)
            from agentkit.engine.adapters.whole import WholeAdapter  # its kernel is compiled only where there are adapters

            return WholeAdapter.of(places, model.config)
        return Layered({place: PackedLowRank.of(low) if kernels else low for place, low in places.items()})

    device = torch.device("cpu") if on_device else model.device
    return Adapters(loaded, device, form, progress)


def _load(model: str | Path, config: EngineConfig, progress: Progress | None) -> LoadedModel:
    on_gpu = config.device.startswith("cuda") or (config.device == "auto" and on_a_gpu())
    dtype = {"auto": "auto", "fp16": "float16" if on_gpu else "float32"}.get(config.weights, "float32")
    return load_model(model, device=config.device, dtype=dtype, max_context=config.max_context, cache_dir=config.cache_dir, progress=progress)


def _pool(loaded: LoadedModel, config: EngineConfig, step_tokens: int, progress: Progress | None) -> KVPool:
    """Memory for keys and values as `config.kv` says, and on a CPU the kernels that read them.

    step_tokens: of the largest step that is wished for; the groups say for how many there is room.
    """
    model, c, kv = loaded.model, loaded.config, config.kv
    packed = isinstance(model, PackedDecoder)
    held = kv_type(kv if isinstance(kv, str) else kv.format, model.dtype, blocks=packed)
    if model.device.type == "cpu":
        compile_for_kv_once(held, progress, whole=packed)
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, held, model.device)
    reach = reach_of(kv, c, standard=config.attention == "standard")
    context = config.max_context or c.max_position
    groups = by_window(reach, c.num_layers, context)
    enough = 2 * config.max_running * groups.in_steps_of(step_tokens).most_pages(context) * shape.page_bytes(groups)
    budget = kv_bytes(config.kv_memory, model.device, enough)
    groups = groups.in_steps_up_to(step_tokens, context, budget // shape.page_bytes(groups))
    return KVPool(shape, budget, prefix_caching=config.prefix_caching, reach=reach, groups=groups)
