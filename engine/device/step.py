"""One decode step as it runs on a device: forward, masks, sampling, and everything the next step reads, without the host.

All that a step reads or writes has a fixed address, so that on a GPU it is captured as a graph, once per bucket, and replayed; all
graphs share one pool of memory. On the CPU the same body simply runs. The host loads requests into places between two launches and
reads what a launch gave one or more launches later. A request whose status is not FINE stands still until it is loaded again, so
that a step it could not take is taken anew. A launch may compute further tokens beside (see beside.py): few in a graph of its own with
room for them, prompts and whatever has logits for the host as it comes. Knows nothing of requests, pages' owners or how a grammar is
expanded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch

from agentkit.engine.device.beside import Beside, Ragged
from agentkit.engine.device.capture import Graphs
from agentkit.engine.kernels.gpu.batch import NOWHERE, Batch, BatchShape, send
from agentkit.engine.kernels.gpu.choose import StepKernels
from agentkit.engine.kernels.gpu.plan import Part, Prefix
from agentkit.engine.kernels.gpu.sampling_batch import NO_MASK, Draw, Sampled, SamplingBatch
from agentkit.engine.kernels.layout import PAGE
from agentkit.errors import EngineError
from agentkit.grammars.kernels.tables import FINE, STOPPED, States, Tables
from agentkit.grammars.place import Place

__all__ = ["ROOMS", "Bucket", "DeviceStep", "Forward", "Result"]

Forward = Callable[[Batch, Sequence[Part]], torch.Tensor]
"""A batch, and the parts of it that are attended to one by one -> logits [R, V]."""
ROOMS = (32, 256)
"""Tokens beside the places' own that captured steps have room for."""


@dataclass(frozen=True)
class Bucket:
    """A shape of steps. requests, pages of one: upper bounds. grammars, history (penalties), logprobs: whether any request has them;
    biases: how many one may have; draws, ranks, masses: see SamplingBatch.
    shared: blocks, at most, that all begin with and that are attended to once for all; 0: nothing is.
    page_tables: of a request.
    """

    requests: int
    pages: int
    grammars: bool = False
    history: bool = False
    logprobs: bool = False
    biases: int = 0
    shared: int = 0
    draws: bool = True
    ranks: bool = True
    masses: bool = True
    page_tables: int = 1

    def serves(self, need: Bucket) -> bool:
        """Is this one large enough, and not much larger than needed? Who stays in a step need not be loaded into another."""
        fits = all(mine >= its for mine, its in zip(astuple(self), astuple(need), strict=True)) and bool(self.shared) == bool(need.shared)
        return fits and self.requests <= 2 * need.requests and self.pages <= 4 * need.pages


@dataclass(frozen=True)
class Result:
    """What a launch gave, per place of the bucket. launch: its number. status: see grammars.kernels.tables and sampling_batch.

    beside: for each span beside the places its logits for the host [rows, V]; none for a place's.
    """

    launch: int
    tokens: np.ndarray
    status: np.ndarray
    logprobs: np.ndarray
    beside: Sequence[np.ndarray] = ()


@dataclass(frozen=True)
class _Flying:
    """A launch whose result has not been read. results, logits: on their way to the host until `event`.   rows: of the logits, per span beside."""

    launch: int
    results: torch.Tensor
    event: torch.cuda.Event | None
    logits: torch.Tensor | None
    rows: Sequence[slice]


class DeviceStep:
    """The step of one bucket.

    width, vocab_size: columns of the logits, and how many of them are tokens.   tables: of grammars, where the bucket has any.
    stops: ids that end an output.   graphs: capture the step among these; None: do not.
    """

    def __init__(
        self, bucket: Bucket, forward: Forward, kernels: StepKernels, device: torch.device, *, width: int, vocab_size: int, stops: Sequence[int],
        tables: Tables | None = None, depth: int = 64, graphs: Graphs | None = None,
    ) -> None:  # fmt: skip
        size = bucket.requests
        self.bucket = bucket
        self._forward, self._kernels, self._vocab_size = forward, kernels, vocab_size
        self.tables = tables if bucket.grammars else None
        self.batch = Batch.empty(BatchShape(size, size, bucket.pages, size, 1, tables=bucket.page_tables), device)
        self.batch.query_starts.copy_(torch.arange(size + 1))
        self.batch.rows.copy_(torch.arange(size))
        self._prefix = _nothing_shared(bucket, device) if bucket.shared else None
        kinds = {"draws": bucket.draws, "ranks": bucket.ranks, "masses": bucket.masses}
        self.sampling = SamplingBatch.empty(size, device, history=width if bucket.history else 0, biases=bucket.biases, **kinds)
        self.states = States.empty(size, depth, device)
        self.status = torch.full((size,), STOPPED, dtype=torch.int32, device=device)
        self._sampled = Sampled.empty(size, device)
        self._rows = torch.full((size,), NO_MASK, dtype=torch.int32, device=device)
        self._stops = torch.tensor(list(stops) or [-1], dtype=torch.int64, device=device)
        self._no_bank = torch.zeros((1, 1), dtype=torch.int32, device=device)
        self._results = torch.zeros((3, size), dtype=torch.float64, device=device)  # tokens, status, logprobs: exact in float64
        self.launches = 0
        self._flying: deque[_Flying] = deque()
        self._graphs = graphs
        self._rooms: dict[int, tuple[Ragged, torch.cuda.CUDAGraph | None]] = {}
        self._graph: torch.cuda.CUDAGraph | None = None

    def _capture(self, beside: Ragged | None) -> torch.cuda.CUDAGraph | None:
        """The body as a graph; None where steps are not captured. Raises EngineError where that fails."""
        if self._graphs is None:
            return None
        try:
            with torch.inference_mode():
                return self._graphs.capture(lambda: self._rehearse(beside), lambda: self._body(beside))
        except RuntimeError as error:
            raise EngineError(
                f"a decode step of {self.bucket} could not be captured as a CUDA graph; Engine(cuda_graphs=False) does without: {error}"
            ) from error

    def _rehearse(self, beside: Ragged | None) -> None:
        """Runs the body for nobody and leaves all as it was, keys and values, too."""
        status, block = self.status.clone(), self.batch.block.clone()
        self.status.fill_(STOPPED)
        self.batch.slots.fill_(NOWHERE)
        for _ in range(2):
            self._body(beside)
        self.status.copy_(status)
        self.batch.block.copy_(block)

    def _body(self, beside: Ragged | None) -> torch.Tensor:
        """Logits for the host [R, V] of what is beside."""
        batch, parts = (self.batch, (Part(self.batch, self._prefix),)) if beside is None else beside.behind(self.batch, self._prefix)
        every, kernels, tables = self._forward(batch, parts), self._kernels, self.tables
        logits = every[: self.bucket.requests]
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
        return every[self.bucket.requests :]

    def _move_on(self, tokens: torch.Tensor) -> None:
        """The next step's input, for the requests that go on."""
        batch, goes_on = self.batch, self.status == FINE
        one = goes_on.int()
        batch.token_ids.copy_(torch.where(goes_on, tokens.int(), batch.token_ids))
        batch.positions.add_(one)
        batch.lengths.add_(one)
        batch.tree_starts.copy_(batch.lengths)
        place = (batch.lengths - 1).clamp(min=0).long()
        block = (place // PAGE).clamp(max=self.bucket.pages - 1)
        page = batch.pages.gather(2, block[None, :, None].expand(self.bucket.page_tables, -1, 1))[..., 0]  # [G, B]
        batch.slots.copy_(torch.where(goes_on, page * PAGE + (place % PAGE).int(), NOWHERE))
        self.sampling.positions.add_(one)
        if self.sampling.history is not None:
            self.sampling.history.scatter_add_(1, tokens[:, None], 2 * one[:, None])

    # -- the host's side ----------------------------------------------------------------------------------------

    def load(self, place: int, token: int, position: int, tables: Sequence[Sequence[int]], draw: Draw, at: Place | None, dropped: int = 0) -> None:
        """From the next launch on `place` is a request whose token at `position` is to be computed, the next one drawn as `draw` says.

        tables: pages of the request, those for position + 1 included.   at: where its grammar stands.   dropped: see BatchSpan. Where tokens before that
        one are to be computed, too, the next launch takes all of them beside.
        """
        batch, key = self.batch, position - dropped
        self.set_pages(place, tables)
        batch.token_ids[place], batch.positions[place] = token, position
        batch.lengths[place] = batch.tree_starts[place] = key + 1
        batch.slots[:, place] = batch.pages[:, place, key // PAGE] * PAGE + key % PAGE
        self.sampling.load(place, draw)
        self.states.load(place, at)
        self.status[place] = FINE

    def set_pages(self, place: int, tables: Sequence[Sequence[int]], first: int = 0) -> None:
        """A request has other pages, or more of them, from block `first` on."""
        send(self.batch.pages[:, place, first : len(tables[0])], np.array([pages[first:] for pages in tables], np.int32))

    def set_shared(self, tables: Sequence[Sequence[int]], blocks: int) -> None:
        """All requests of the next launches begin with the same pages, so many of each table; at most `bucket.shared`."""
        prefix = self._prefix
        assert prefix is not None
        send(prefix.pages[:, 0, :blocks], np.array([pages[:blocks] for pages in tables], np.int32))
        prefix.lengths.fill_(blocks * PAGE)
        prefix.first_keys.fill_(blocks * PAGE)

    def retire(self, place: int) -> None:
        """From the next launch on nobody is in `place`."""
        self.status[place] = STOPPED
        self.batch.slots[:, place] = NOWHERE
        self.batch.lengths[place] = self.batch.tree_starts[place] = 0

    def launch(self, beside: Sequence[Beside] = ()) -> None:
        """Begins a step; its result can be read later.   beside: what else it computes."""
        logits, rows = self._run(beside)
        event = None
        if self._results.is_cuda:
            results, logits = _to_host(self._results), None if logits is None else _to_host(logits)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._results.device))
        else:
            results = self._results.clone()
        self._flying.append(_Flying(self.launches, results, event, logits, rows))
        self.launches += 1

    def _run(self, beside: Sequence[Beside]) -> tuple[torch.Tensor | None, Sequence[slice]]:
        """The body, captured or not; logits for the host, and which of them belong to each span beside."""
        ragged, graph, rows = None, None, list[slice]()
        if not beside:
            if self._graph is None:
                self._graph = self._capture(None)
            graph = self._graph
        elif room := self._room_for(beside):
            ragged, graph = room
            ragged.load(beside)
        else:
            ragged, rows = Ragged.of(beside, self.bucket.requests, self._results.device)
        if graph is not None:
            graph.replay()
            return None, rows
        with torch.inference_mode():
            logits = self._body(ragged)
        return (logits if rows else None), rows

    def _room_for(self, beside: Sequence[Beside]) -> tuple[Ragged, torch.cuda.CUDAGraph | None] | None:
        """The smallest room that holds the spans, captured if need be; None where none does."""
        tokens = next((room for room in ROOMS if sum(len(each.span.tokens) for each in beside) <= room), None)
        if tokens is None:
            return None
        if tokens not in self._rooms:
            ragged = Ragged.room(tokens, self.batch.shape, self._results.device)
            self._rooms[tokens] = ragged, self._capture(ragged)
        return self._rooms[tokens] if self._rooms[tokens][0].holds(beside) else None

    def read(self) -> Result:
        """The result of the oldest launch that has not been read; here the host waits for the device."""
        flying = self._flying.popleft()
        if flying.event is not None:
            flying.event.synchronize()
        tokens, status, logprobs = flying.results.numpy()
        logits = None if flying.logits is None else flying.logits.numpy()
        return Result(flying.launch, tokens.astype(np.int64), status.astype(np.int32), logprobs, [] if logits is None else [logits[own] for own in flying.rows])

    @property
    def is_idle(self) -> bool:
        """Is a GPU done with all launches? On the CPU a launch is over when it returns, and nothing waits."""
        last = self._flying[-1].event if self._flying else None
        return last is not None and bool(last.query())

    def forget(self) -> None:
        """Nobody will read the results of the launches so far."""
        self._flying.clear()


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A copy in pinned memory, which is there when the stream has come so far."""
    host = torch.empty_like(values, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    return host


def _nothing_shared(bucket: Bucket, device: torch.device) -> Prefix:
    """One group of all requests that shares nothing yet."""

    def zeros(*sizes: int) -> torch.Tensor:
        return torch.zeros(sizes, dtype=torch.int32, device=device)

    starts = torch.tensor([0, bucket.requests], dtype=torch.int32, device=device)
    return Prefix(starts, zeros(1), zeros(bucket.page_tables, 1, bucket.shared), zeros(bucket.requests), bucket.requests)
