"""Executes a step's plan on a device: spans in, one batch of integers over, kernels, rows of logits back.

Inputs: as for TorchRunner, whose place it takes where a GPU holds the model. A native decoder runs with fused kernels
(device/decoder.py); a model of another library calls the attention kernels through its `attend`. Knows nothing of requests,
grammars or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from agentkit.engine.adapters.stacks import AdapterStacks
from agentkit.engine.device.attention import PagedAttention
from agentkit.engine.device.decoder import DeviceDecoder
from agentkit.engine.kernels.gpu.batch import Batch, BatchShape, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.choose import kernel_set
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kernels.gpu.sharing import arranged
from agentkit.engine.kv import KVPool
from agentkit.engine.kv_format import row_dim
from agentkit.engine.models.decoder import Decoder, Layer
from agentkit.engine.models.progress import Progress
from agentkit.engine.runner import Logits, Model, Runner, Span, TorchRunner

__all__ = ["DeviceRunner", "for_device", "runner_for"]


WARM = (
    BatchShape(1, 1, 8, 1, queries=1), BatchShape(1, 1, 256, 1, queries=1), BatchShape(16, 16, 8, 16, queries=1), BatchShape(8, 1, 64, 8, queries=8),
    BatchShape(40, 8, 64, 40, queries=5, trees=True), BatchShape(512, 2, 64, 2, queries=500), BatchShape(4096, 1, 128, 1, queries=4096),
)  # fmt: skip
"""Batches that differ in which kernels they need: decoding over few keys and many, drafts, trees, prompts."""


class DeviceRunner:
    """Runs all spans in one forward.   model: on the pool's device.   kernels: "triton", or "reference" for torch's operations."""

    def __init__(self, model: Model, pool: KVPool, kernels: str = "triton") -> None:
        self._model = model
        self._pool = pool
        self._kernels = kernel_set(kernels, pool.data.device, pool.data.dtype, row_dim(pool.data))
        self._layers = [KVLayer.of(pool.data[stored], table) for table, stored in pool.groups.places]
        self.decoder = DeviceDecoder(model, self._layers, kernels, pool.reach, pool.received) if isinstance(model, Decoder) else None
        self._adapters = AdapterStacks(model.layers, self._kernels, model.dtype, model.device) if isinstance(model, Decoder) else None

    def warm_up(self, progress: Progress, shapes: Sequence[BatchShape] = WARM) -> None:
        """Compiles kernels before the first request: forwards over padding, which read and write no keys. What is compiled is kept on disk by Triton."""
        data, tables = self._pool.data, self._pool.groups.tables
        with torch.cuda.device_of(data), torch.inference_mode():  # a caller's thread goes on with its own device afterwards
            for done, shape in enumerate((*shapes, None)):
                progress("compiling kernels for the GPU (kept for the next start)", done, len(shapes))
                if shape is not None:
                    self.forward(Batch.empty(replace(shape, tables=tables), data.device))

    @property
    def on_gpu(self) -> bool:
        return self._pool.data.is_cuda

    def _on_device(self) -> None:
        """Kernels are launched on the thread's own device, wherever their tensors are."""
        if self.on_gpu:
            torch.cuda.set_device(self._pool.data.device)

    def execute(self, spans: Sequence[Span]) -> list[Logits]:
        """See Runner."""
        self._on_device()
        batch_spans = [for_device(span) for span in spans]
        arrangement = arranged(batch_spans, self._pool.data.device)
        order, ordered = arrangement.order, [batch_spans[number] for number in arrangement.order]
        batch = Batch.of(ordered, self._pool.data.device)
        with torch.inference_mode():
            layers = self._with_adapters(batch, [spans[number] for number in order], [span.rows for span in ordered])
            logits, states = self._forward(batch, arrangement.parts(batch, ordered), layers)
        host = logits.cpu().numpy()  # here the host waits for the device
        for span in spans:
            self._pool.commit(span.sequence, span.tokens)
        results: list[Logits] = [host[:0]] * len(spans)
        for number, end in zip(order, np.cumsum([span.rows for span in ordered]).tolist(), strict=True):
            span = spans[number]
            drafted = len(span.draft) if span.draft is not None else 0
            results[number] = host[end - drafted - span.rows : end]
            if span.on_states is not None:
                assert states is not None, "states are wanted of models with the native decoder only"
                span.on_states(states[end - drafted - span.states : end].float())
        return results

    def forward(self, batch: Batch, parts: Sequence[Part] = ()) -> torch.Tensor:
        """Logits [R, V] in float32, on the device.   parts: see PagedAttention."""
        return self._forward(batch, parts)[0]

    def _with_adapters(self, batch: Batch, spans: Sequence[Span], rows: Sequence[int]) -> list[Layer] | None:
        """The decoder's layers with what the spans of a batch chose beside their products; None where nobody chose any."""
        if all(span.adapter is None for span in spans):
            return None
        assert self._adapters is not None, "adapters are loaded for models with the native decoder only"
        return self._adapters.beside(batch, [span.adapter for span in spans], rows)

    def _forward(self, batch: Batch, parts: Sequence[Part], layers: Sequence[Layer] | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [R, V], and the states [R, E] below them where the model gives any."""
        if self.decoder is not None:
            states = self.decoder.states(batch, parts, layers)
            return self.decoder.logits(states), states
        attend = PagedAttention(batch, self._layers, self._kernels, self._pool.reach, parts, self._pool.received)
        return self._model.forward(batch.token_ids.long(), batch.positions.long(), attend, batch.rows.long()).float(), None


def runner_for(model: Model, pool: KVPool, threads: int | None = None, *, standard: bool = False) -> Runner:
    """The runner of the device that holds the pool.   threads: of the CPU.   standard: attention over whole matrices of scores, for comparison."""
    if standard:
        if threads is not None:
            torch.set_num_threads(threads)
        return DeviceRunner(model, pool, "reference")
    return DeviceRunner(model, pool) if pool.data.is_cuda else TorchRunner(model, pool, pool.data.device, threads)


def for_device(span: Span) -> BatchSpan:
    """A span with its draft behind it; rows: how many of its last tokens must come out at the end."""
    rows, sequence = span.rows if span.on_states is None else max(span.rows, span.states), span.sequence
    if span.draft is None:
        return BatchSpan(sequence.tables, sequence.place, span.tokens, rows, dropped=sequence.dropped)
    return BatchSpan(sequence.tables, sequence.place, (*span.tokens, *span.draft.tokens), rows + len(span.draft), span.draft.parents)
