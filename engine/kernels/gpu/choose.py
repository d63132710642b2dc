"""Which implementation of the device's kernels a decoder calls: Triton's, or the reference in torch.

Triton is imported only where it is chosen: it is not installed everywhere. Knows nothing of what the kernels are used for.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch

from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.errors import EngineError

__all__ = ["KERNEL_SETS", "Kernels", "kernel_set"]

KERNEL_SETS = ("triton", "reference")


class Kernels(Protocol):
    """See attention.py, rotary.py, norm.py, gate.py and store.py."""

    def attend(
        self, q: torch.Tensor, layer: KVLayer, batch: Batch, *, scale: float, window: int | None, softcap: float | None, sinks: torch.Tensor | None = None
    ) -> torch.Tensor: ...
    def attend_shared(
        self, q: torch.Tensor, layer: KVLayer, batch: Batch, prefix: Prefix, *, scale: float, softcap: float | None, sinks: torch.Tensor | None
    ) -> torch.Tensor: ...
    def attend_streaming(
        self, q: torch.Tensor, back: torch.Tensor, layer: KVLayer, batch: Batch, *, scale: float, window: int, sink_keys: int, softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor: ...  # fmt: skip
    def write(self, k: torch.Tensor, v: torch.Tensor, layer: KVLayer, slots: torch.Tensor) -> None: ...
    def rotate_and_write(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layer: KVLayer, slots: torch.Tensor, weight: torch.Tensor | None, eps: float
    ) -> torch.Tensor: ...
    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...
    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, before: torch.Tensor | None) -> torch.Tensor: ...
    def gated(self, gate_up: torch.Tensor, kind: str) -> torch.Tensor: ...


def kernel_set(name: str, device: torch.device) -> Kernels:
    """name: one of KERNEL_SETS.   device: where the tensors are. Raises EngineError where Triton is missing or cannot run there."""
    if name not in KERNEL_SETS:
        raise ValueError(f"kernels must be one of {', '.join(map(repr, KERNEL_SETS))}, not {name!r}")
    if name == "reference":
        from agentkit.engine.kernels.gpu import reference

        return cast(Kernels, reference)
    try:
        import triton
    except ImportError as error:
        raise EngineError("kernels for a GPU need Triton, which is not installed here: pip install triton (Linux)") from error
    if device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise EngineError(f"Triton's kernels run on a CUDA GPU, and the model is on {device}; on the CPU use the engine's own kernels (device='cpu')")
    from agentkit.engine.kernels.gpu import triton_set

    return cast(Kernels, triton_set)
