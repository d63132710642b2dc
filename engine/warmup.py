"""Compile the engine's CPU kernels ahead of their first use, and say whether that has been done.

numba compiles a kernel when it first runs and keeps it in the cache folder (grammars/jit.py). So this runs each of them once,
on a random decoder of one layer. A kernel that reads keys and values is compiled for each type that they are held in: those of
kv="auto" come with all other kernels, another type when an engine first asks for it. Knows nothing of requests.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from agentkit.engine.adapters.adapter import Adapter, AdapterUse, LowRank
from agentkit.engine.adapters.adapter import Part as Change
from agentkit.engine.adapters.packed import PackedLowRank
from agentkit.engine.attention import BatchAttention
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kernels.library import ENGINE, supported
from agentkit.engine.kv_format import KV_TYPES, row_size
from agentkit.engine.kv_groups import together
from agentkit.engine.kv_policy import Reach
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.progress import Progress, one_stage, progress_or_default
from agentkit.engine.models.rope import Rope
from agentkit.engine.runner import Runner
from agentkit.engine.weights.blocks import Blocks, eight_bits, four_bits
from agentkit.engine.weights.packed import PackedDecoder, Part
from agentkit.grammars.warmup import begin_compiling

__all__ = ["compile_adapted_once", "compile_for_kv_once", "compile_kernels", "compile_kernels_once", "kernels_cached", "warm_up_device"]

_HIDDEN, _DIM, _VOCABULARY = 32, 16, 64
_WHOLE, _ATTENTION = torch.float16, torch.float32
"""How kv="auto" holds keys and values beside matrices in blocks, which the whole forward in one kernel is for, and beside others."""


def kernels_cached() -> bool:
    """Have the kernels of these sources been compiled on this machine before? True where they are not used at all."""
    return not supported() or ENGINE.cached()


def compile_kernels() -> None:
    """Runs every kernel once; quick if they are in the cache folder already, else some seconds. Does nothing where they are not used."""
    if not supported():
        return
    _run_whole(_WHOLE)
    _run_attention(_ATTENTION)
    with torch.inference_mode():
        _packed().head(torch.zeros(1, _HIDDEN))
        _run_adapter()


def compile_kernels_once(progress: Progress | None) -> None:
    """`compile_kernels` if this machine has not yet, showing that it does; those of the grammars are begun beside it."""
    if not kernels_cached():
        begin_compiling()
        with one_stage("compiling the kernels of the engine (once on this machine)", progress):
            compile_kernels()


def compile_for_kv_once(kv: torch.dtype, progress: Progress | None, *, whole: bool) -> None:
    """The same for the kernel that reads keys and values held as `kv`: the whole forward, or attention alone."""
    done = _mark(kv, whole)
    if not supported() or kv == (_WHOLE if whole else _ATTENTION) or done.exists():
        return
    stage = f"compiling kernels for kv={next(name for name, dtype in KV_TYPES.items() if dtype == kv)!r} (once on this machine)"
    with one_stage(stage, progress):
        (_run_whole if whole else _run_attention)(kv)
        with suppress(OSError):  # a read-only home or a full disk: each process compiles for itself
            done.touch()


def compile_adapted_once(kv: torch.dtype, progress: Progress | None) -> None:
    """The same for the whole forward with adapters, which is not compiled before an engine has some."""
    done = ENGINE.folder / f"adapted for {str(kv).removeprefix('torch.')}"
    if supported() and not done.exists():
        with one_stage("compiling the kernel for adapters (once on this machine)", progress):
            _run_adapted(kv)
            with suppress(OSError):
                done.touch()


def warm_up_device(runner: Runner, progress: Progress | None) -> None:
    """Compiles what a runner on a GPU needs; the CPU's own kernels are not its business."""
    if isinstance(runner, DeviceRunner) and runner.on_gpu:
        with progress_or_default(progress) as report:
            runner.warm_up(report)


def _mark(kv: torch.dtype, whole: bool) -> Path:
    return ENGINE.folder / f"{'forward' if whole else 'attention'} for {str(kv).removeprefix('torch.')}"


def _run_whole(kv: torch.dtype) -> None:
    ids = torch.arange(3)
    with torch.inference_mode():
        _packed().forward(ids, ids, BatchAttention(_pool(kv), [(_sequence(), 0, 3)]))


def _run_attention(kv: torch.dtype) -> None:
    """Once with sinks, once with sums of what keys receive: kernels of their own."""
    sinks = Reach(window=PAGE, sinks=1, windows=(PAGE,), ropes=((1.0,) * (_DIM // 2),), rope_of_layer=(0,))
    for reach, sums in ((sinks, None), (Reach(), torch.zeros(2 * PAGE))):
        attend = BatchAttention(_pool(kv, reach, sums), [(_sequence(), 3, 1)])
        with torch.inference_mode():
            attend(0, *(torch.zeros(1, heads, _DIM) for heads in (2, 1, 1)), window=reach.window, scale=1.0)


def _run_adapter() -> None:
    PackedLowRank.of(_low_rank()).add(torch.zeros(1, _HIDDEN), torch.zeros(1, _DIM), slice(0, 1), 1.0)


def _run_adapted(kv: torch.dtype) -> None:
    from agentkit.engine.adapters.whole import WholeAdapter, with_adapters  # what it imports counts as a kernel to be compiled at the start

    model, ids = _packed(), torch.arange(3)
    form = WholeAdapter.of({(0, "qkv"): _low_rank()}, model.config)
    use = AdapterUse(Adapter("", 0, "", 1, form), 1.0)
    with torch.inference_mode():
        with_adapters(model, [use, None, use], [0, 1, 2]).forward(ids, ids, BatchAttention(_pool(kv), [(_sequence(), 0, 3)]))


def _low_rank() -> LowRank:
    return LowRank(torch.zeros(1, _HIDDEN), (Change(torch.zeros(_DIM, 1), 0, 0),))


def _pool(kv: torch.dtype, reach: Reach | None = None, sums: torch.Tensor | None = None) -> Any:
    reach = reach or Reach()
    return SimpleNamespace(data=torch.zeros(1, 2, 1, 2 * PAGE, row_size(kv, _DIM), dtype=kv), groups=together(1, reach), reach=reach, sums=sums)


def _sequence() -> Any:
    return SimpleNamespace(tables=[[1, 0]])


def _packed() -> PackedDecoder:
    plain = _decoder()
    return PackedDecoder(plain, lambda layer, name: _part(plain, layer, name))


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
