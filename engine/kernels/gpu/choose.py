"""Which implementation of the device's kernels is called, by a decoder and by a whole decode step: Triton's, or the reference in torch.

Triton is imported only where it is chosen: it is not installed everywhere. Knows nothing of what the kernels are used for.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Protocol, cast

import torch

from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Prefix, shared_of
from agentkit.engine.kernels.gpu.sampling_batch import Sampled, SamplingBatch
from agentkit.engine.received import Received
from agentkit.errors import EngineError
from agentkit.grammars.kernels.tables import States, Tables

__all__ = ["KERNEL_SETS", "Kernels", "StepKernels", "kernel_set", "step_kernels"]

KERNEL_SETS = ("triton", "reference")
ANY, FP8 = ((8, 0), "a model on a GPU", "device='cpu'"), ((8, 9), "kv='fp8'", "kv='int8'")
"""The compute capability that a GPU must have, what for, and what serves without."""
MIXED = 136 << 10
"""Bytes of shared memory that it takes to mix wide heads."""


class Kernels(Protocol):
    """See attention.py, weigh.py, rotary.py, norm.py, gate.py, store.py and lora.py."""

    def attend(
        self, q: torch.Tensor, layer: KVLayer, batch: Batch, *, scale: float, window: int | None, softcap: float | None, sinks: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor: ...  # fmt: skip
    def attend_shared(
        self, q: torch.Tensor, layer: KVLayer, batch: Batch, prefix: Prefix, *, scale: float, softcap: float | None, sinks: torch.Tensor | None
    ) -> torch.Tensor: ...
    def attend_streaming(
        self, q: torch.Tensor, back: torch.Tensor, layer: KVLayer, batch: Batch, *, scale: float, window: int, sink_keys: int, softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor: ...  # fmt: skip
    def weigh(
        self, q: torch.Tensor, layer: KVLayer, batch: Batch, lse: torch.Tensor, received: Received, *, begin: bool, scale: float, softcap: float | None
    ) -> None: ...
    def write(self, k: torch.Tensor, v: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None: ...
    def rotate_and_write(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layer: KVLayer, slots: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> torch.Tensor: ...
    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...
    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, before: torch.Tensor | None) -> torch.Tensor: ...
    def gated(self, gate_up: torch.Tensor, kind: str) -> torch.Tensor: ...
    def shrink(self, x: torch.Tensor, down: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> torch.Tensor: ...
    def expand(self, h: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, out: torch.Tensor, batch: Batch, adapters: torch.Tensor) -> None: ...


class StepKernels(Protocol):
    """See sampler.py, and pushdown.py in grammars/kernels."""

    def sample(
        self, logits: torch.Tensor, bank: torch.Tensor, rows: torch.Tensor, batch: SamplingBatch, out: Sampled, *, vocab_size: int, logprobs: bool = False
    ) -> None: ...
    def find_rows(self, tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor) -> None: ...
    def build_rows(self, tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor) -> None: ...
    def advance(self, tables: Tables, states: States, status: torch.Tensor, tokens: torch.Tensor) -> None: ...


def kernel_set(name: str, device: torch.device, held: torch.dtype | None = None, head_dim: int = 0) -> Kernels:
    """What a decoder calls. name: one of KERNEL_SETS.   device: where the tensors are.   held, head_dim: of the pool, if there is one.

    Raises EngineError where Triton is missing, or the device cannot run its kernels or has no numbers of that type.
    """
    _check(name, device, held)
    if name == "triton" and device.type == "cuda" and held == torch.int8 and head_dim > 128 and shared_of(device) < MIXED:
        raise EngineError(f"kv='int8' with heads of {head_dim} needs {MIXED >> 10} KiB of shared memory, and {device} has less; use kv='auto' or 'fp8'")
    if name == "reference":
        from agentkit.engine.kernels.gpu import reference

        return cast(Kernels, reference)
    from agentkit.engine.kernels.gpu import triton_set

    return cast(Kernels, triton_set)


def step_kernels(name: str, device: torch.device) -> StepKernels:
    """What a decode step calls beside the decoder; as for `kernel_set`."""
    _check(name, device)
    if name == "reference":
        from agentkit.engine.kernels.gpu import sampler_reference
        from agentkit.grammars.kernels import pushdown_reference

        return _joined(sampler_reference, pushdown_reference)
    from agentkit.engine.kernels.gpu import sampler
    from agentkit.grammars.kernels import pushdown

    return _joined(sampler, pushdown)


def _joined(sampler: ModuleType, pushdown: ModuleType) -> StepKernels:
    return cast(StepKernels, SimpleNamespace(sample=sampler.sample, find_rows=pushdown.find_rows, build_rows=pushdown.build_rows, advance=pushdown.advance))


def _check(name: str, device: torch.device, held: torch.dtype | None = None) -> None:
    if name not in KERNEL_SETS:
        raise ValueError(f"kernels must be one of {', '.join(map(repr, KERNEL_SETS))}, not {name!r}")
    if name == "reference":
        return
    try:
        import triton
    except ImportError as error:
        raise EngineError("kernels for a GPU need Triton, which is not installed here: pip install triton (Linux)") from error
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise EngineError(f"Triton's kernels run on a CUDA GPU, and the model is on {device}; on the CPU use the engine's own kernels (device='cpu')")
    if device.type == "cuda":
        has, (needed, what, instead) = torch.cuda.get_device_capability(device), FP8 if held == torch.uint8 else ANY
        if has < needed:
            raise EngineError(f"{what} needs a GPU of compute capability {needed[0]}.{needed[1]}, and {device} has {has[0]}.{has[1]}; use {instead}")
