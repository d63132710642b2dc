"""One decode step as it runs on a device: forward, masks, sampling, and everything the next step reads, without the host.

All that a step reads or writes has a fixed address, so that on a GPU it is captured as a graph, once per bucket, and replayed; all
graphs share one pool of memory. On the CPU the same body simply runs. The host loads requests into places between two launches and
reads what a launch gave one or more launches later. A request whose status is not FINE stands still until it is loaded again, so
that a step it could not take is taken anew. Knows nothing of requests, pages' owners or how a grammar is expanded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentkit.engine.kernels.gpu.batch import NOWHERE, Batch, BatchShape, send
from agentkit.engine.kernels.gpu.choose import StepKernels
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.engine.kernels.gpu.sampling_batch import NO_MASK, Draw, Sampled, SamplingBatch
from agentkit.engine.kernels.layout import PAGE
from agentkit.errors import EngineError
from agentkit.grammars.device import Place
from agentkit.grammars.kernels.tables import FINE, STOPPED, States, Tables

__all__ = ["Bucket", "DeviceStep", "Forward", "Result"]

Forward = Callable[[Batch, Prefix | None], torch.Tensor]
"""A batch that decodes, and what all of it begins with -> logits [B, V]."""


@dataclass(frozen=True)
class Bucket:
    """A shape of steps. requests, pages of one: upper bounds. grammars, history (penalties), logprobs: whether any request has them;
    biases: how many one may have.   shared: pages, at most, that all begin with and that are attended to once for all; 0: nothing is.
    """

    requests: int
    pages: int
    grammars: bool = False
    history: bool = False
    logprobs: bool = False
    biases: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Result:
    """What a launch gave, per place of the bucket. launch: its number. status: see grammars.kernels.tables and sampling_batch."""

    launch: int
    tokens: np.ndarray
    status: np.ndarray
    logprobs: np.ndarray


class DeviceStep:
    """The step of one bucket.

    width, vocab_size: columns of the logits, and how many of them are tokens.   tables: of grammars, where the bucket has any.
    stops: ids that end an output.   graph: capture the step; memory: the pool that graphs share (torch.cuda.graph_pool_handle()).
    """

    def __init__(
        self, bucket: Bucket, forward: Forward, kernels: StepKernels, device: torch.device, *, width: int, vocab_size: int, stops: Sequence[int],
        tables: Tables | None = None, depth: int = 64, graph: bool = False, memory: Any = None,
    ) -> None:  # fmt: skip
        size = bucket.requests
        self.bucket = bucket
        self._forward, self._kernels, self._vocab_size = forward, kernels, vocab_size
        self.tables = tables if bucket.grammars else None
        self.batch = Batch.empty(BatchShape(size, size, bucket.pages, size, 1), device)
        self.batch.query_starts.copy_(torch.arange(size + 1))
        self.batch.rows.copy_(torch.arange(size))
        self._prefix = _nothing_shared(bucket, device) if bucket.shared else None
        self.sampling = SamplingBatch.empty(size, device, history=width if bucket.history else 0, biases=bucket.biases)
        self.states = States.empty(size, depth, device)
        self.status = torch.full((size,), STOPPED, dtype=torch.int32, device=device)
        self._sampled = Sampled.empty(size, device)
        self._rows = torch.full((size,), NO_MASK, dtype=torch.int32, device=device)
        self._stops = torch.tensor(list(stops) or [-1], dtype=torch.int64, device=device)
        self._no_bank = torch.zeros((1, 1), dtype=torch.int32, device=device)
        self._results = torch.zeros((3, size), dtype=torch.float64, device=device)  # tokens, status, logprobs: exact in float64
        self.launches = 0
        self._flying: deque[tuple[int, torch.Tensor, torch.cuda.Event | None]] = deque()
        self._graph = self._capture(memory) if graph else None

    def _capture(self, memory: Any) -> torch.cuda.CUDAGraph:
        """The body as a graph. It first runs as it is, with nobody in it, so that everything is compiled and allocated.

        Raises EngineError where that fails.
        """
        device = self._results.device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's stubs leave it untyped
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream), torch.inference_mode():
                for _ in range(2):
                    self._body()
            torch.cuda.current_stream(device).wait_stream(stream)
            with torch.inference_mode(), torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                self._body()
        except RuntimeError as error:
            raise EngineError(
                f"a decode step of {self.bucket} could not be captured as a CUDA graph; Engine(cuda_graphs=False) does without: {error}"
            ) from error
        return graph

    def _body(self) -> None:
        logits, kernels, tables = self._forward(self.batch, self._prefix), self._kernels, self.tables
        if tables is not None:
            kernels.find_rows(tables, self.states, self.status, self._rows)
            kernels.build_rows(tables, self.states, self.status, self._rows)
        bank = self._no_bank if tables is None else tables.bank
        kernels.sample(logits, bank, self._rows, self.sampling, self._sampled, vocab_size=self._vocab_size, logprobs=self.bucket.logprobs)
        tokens = self._sampled.tokens
        self.status.copy_(torch.where(self.status == FINE, self._sampled.status, self.status))
        if tables is not None:
            kernels.advance(tables, self.states, self.status, tokens)
        else:
            stopped = (tokens[:, None] == self._stops).any(1) & (self.status == FINE)
            self.status.masked_fill_(stopped, STOPPED)
        self._results[0].copy_(tokens)
        self._results[1].copy_(self.status)
        self._results[2].copy_(self._sampled.logprobs)
        self._move_on(tokens)

    def _move_on(self, tokens: torch.Tensor) -> None:
        """The next step's input, for the requests that go on."""
        batch, goes_on = self.batch, self.status == FINE
        one = goes_on.int()
        batch.token_ids.copy_(torch.where(goes_on, tokens.int(), batch.token_ids))
        batch.positions.add_(one)
        batch.lengths.add_(one)
        batch.tree_starts.copy_(batch.lengths)
        place = batch.positions.long()
        page = batch.pages.gather(1, (place // PAGE).clamp(max=batch.pages.shape[1] - 1)[:, None])[:, 0]
        batch.slots.copy_(torch.where(goes_on, page * PAGE + (place % PAGE).int(), NOWHERE))
        self.sampling.positions.add_(one)
        if self.sampling.history is not None:
            self.sampling.history.scatter_add_(1, tokens[:, None], 2 * one[:, None])

    # -- the host's side ----------------------------------------------------------------------------------------

    def load(self, place: int, token: int, position: int, pages: Sequence[int], draw: Draw, at: Place | None) -> None:
        """From the next launch on `place` is a request whose token at `position` is to be computed, the next one drawn as `draw` says.

        pages: of the request, one for position + 1 included.   at: where its grammar stands.
        """
        batch = self.batch
        self.set_pages(place, pages)
        batch.token_ids[place], batch.positions[place] = token, position
        batch.lengths[place] = batch.tree_starts[place] = position + 1
        batch.slots[place] = pages[position // PAGE] * PAGE + position % PAGE
        self.sampling.load(place, draw)
        self.states.load(place, at)
        self.status[place] = FINE

    def set_pages(self, place: int, pages: Sequence[int]) -> None:
        """A request has other pages, or more of them."""
        send(self.batch.pages[place, : len(pages)], np.asarray(pages, np.int32))

    def set_shared(self, pages: Sequence[int]) -> None:
        """The pages that all requests of the next launches begin with; at most `bucket.shared`."""
        prefix = self._prefix
        assert prefix is not None
        send(prefix.pages[0, : len(pages)], np.asarray(pages, np.int32))
        prefix.lengths.fill_(len(pages) * PAGE)
        prefix.first_keys.fill_(len(pages) * PAGE)

    def retire(self, place: int) -> None:
        """From the next launch on nobody is in `place`."""
        self.status[place] = STOPPED
        self.batch.slots[place] = NOWHERE
        self.batch.lengths[place] = self.batch.tree_starts[place] = 0

    def launch(self) -> None:
        """Begins a step; its result can be read later."""
        if self._graph is not None:
            self._graph.replay()
        else:
            with torch.inference_mode():
                self._body()
        host, event = self._results.clone(), None
        if self._results.is_cuda:
            host = torch.empty_like(self._results, device="cpu", pin_memory=True)
            host.copy_(self._results, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stubs leave it untyped
            event.record(torch.cuda.current_stream(self._results.device))
        self._flying.append((self.launches, host, event))
        self.launches += 1

    def read(self) -> Result:
        """The result of the oldest launch that has not been read; here the host waits for the device."""
        launch, host, event = self._flying.popleft()
        if event is not None:
            event.synchronize()
        tokens, status, logprobs = host.numpy()
        return Result(launch, tokens.astype(np.int64), status.astype(np.int32), logprobs)

    @property
    def is_idle(self) -> bool:
        """Is a GPU done with all launches? On the CPU a launch is over when it returns, and nothing waits."""
        last = self._flying[-1][2] if self._flying else None
        return last is not None and bool(last.query())  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Nobody will read the results of the launches so far."""
        self._flying.clear()


def _nothing_shared(bucket: Bucket, device: torch.device) -> Prefix:
    """One group of all requests that shares nothing yet."""

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Prefix(ints(0, bucket.requests), ints(0), ints(*[0] * bucket.shared).view(1, -1), ints(*[0] * bucket.requests), bucket.requests)
