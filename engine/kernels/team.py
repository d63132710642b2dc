"""The threads that run a kernel side by side: the caller's own, and helpers that wait for work.

A kernel that runs here divides its work by sync.py, so helpers that are late cost time only. There is one team per process; two
callers take turns. Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from agentkit.engine.kernels.sync import SYNC_SIZE

Array = np.ndarray[Any, np.dtype[Any]]


class Team:
    """Runs kernels on `workers` threads. Scratch of each worker is kept between runs and grows as needed."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):  # the helpers stay in the parent process, and the lock may have been held there
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[SimpleQueue[Callable[[], object]]] = []
        self._scratch: list[Array] = []

    def run(self, kernel: Callable[..., None], workers: int, scratch: int, *arguments: Any) -> None:
        """kernel(worker, sync, *arguments, scratch of that worker), on all workers at once; returns when the work is done.

        scratch: float32 numbers that each worker needs.
        """
        with self._lock:
            while len(self._jobs) < workers - 1:
                self._jobs.append(_helper(len(self._jobs) + 1))
            while len(self._scratch) < workers:
                self._scratch.append(np.empty(0, np.float32))
            for worker in range(workers):
                if self._scratch[worker].size < scratch:
                    self._scratch[worker] = np.empty(scratch, np.float32)
            sync = np.zeros(SYNC_SIZE, np.int64)
            for worker in range(1, workers):
                self._jobs[worker - 1].put(partial(kernel, worker, sync, *arguments, self._scratch[worker]))
            kernel(0, sync, *arguments, self._scratch[0])


TEAM = Team()


def _helper(number: int) -> SimpleQueue[Callable[[], object]]:
    jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, name=f"agentkit-kernels-{number}", daemon=True).start()
    return jobs
