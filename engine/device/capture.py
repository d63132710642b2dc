"""Work of a device captured as graphs, which are replayed without the host: what a capture asks of streams, memory and other threads.

Inputs: something to run that only uses tensors of fixed address. All graphs of a `Graphs` share one pool of memory, which asks for one stream to
capture on; they are replayed one after the other. Knows nothing of what is captured.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["Graphs"]

_CAPTURING = threading.Lock()
"""torch allows one capture at a time in a process."""


class Graphs:
    """Graphs on `device`, over memory that they share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _stream_of(device)

    def capture(self, rehearse: Callable[[], object], body: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """`body` as a graph. What it launches must have been launched by `rehearse`, with the same shapes, so that all is compiled, loaded and allocated.

        Raises RuntimeError where the body does what cannot be captured: waiting for the device, or copying from memory that is not pinned.
        """
        before, graph = torch.cuda.current_stream(self._device), torch.cuda.CUDAGraph()
        with _CAPTURING, torch.cuda.device(self._device), _uncollected():
            try:
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    rehearse()
                before.wait_stream(self._stream)
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    body()
            finally:
                torch.cuda.set_stream(before)  # which a capture that fails does not see to
        return graph


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One for all: cuBLAS keeps memory of its own for each stream that it has seen, 32 MiB on an H200."""
    return torch.cuda.Stream(device)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: what a tensor or graph does when it goes could not be captured."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
