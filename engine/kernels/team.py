"""The threads that run a kernel side by side: the caller's own, and helpers that wait for work.

A kernel that runs here divides its work by sync.py, so helpers that are late cost time only. There is one team per process; two
callers take turns. Helpers end before the interpreter does: one that let go of a tensor after that would abort the process.
Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import atexit
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
        self._helpers: list[_Helper] = []
        self._scratch: list[Array] = []
        self._ended = False

    def end(self) -> None:
        """Waits until the helpers are gone; what runs from now on runs on its caller's thread alone."""
        with self._lock:
            self._ended = True
            helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.end()

    def run(self, kernel: Callable[..., None], workers: int, scratch: int, *arguments: Any) -> None:
        """kernel(worker, sync, *arguments, scratch of that worker), on all workers at once; returns when the work is done.

        scratch: float32 numbers that each worker needs.
        """
        with self._lock:
            while len(self._helpers) < workers - 1 and not self._ended:
                self._helpers.append(_Helper(len(self._helpers) + 1))
            while len(self._scratch) < workers:
                self._scratch.append(np.empty(0, np.float32))
            for worker in range(workers):
                if self._scratch[worker].size < scratch:
                    self._scratch[worker] = np.empty(scratch, np.float32)
            sync = np.zeros(SYNC_SIZE, np.int64)
            for worker, helper in enumerate(self._helpers[: workers - 1], 1):
                helper.jobs.put(partial(kernel, worker, sync, *arguments, self._scratch[worker]))
            kernel(0, sync, *arguments, self._scratch[0])


class _Helper:
    """A thread that does one job after the other."""

    def __init__(self, number: int) -> None:
        self.jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"agentkit-kernels-{number}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            job()
            del job  # what it holds is not kept until the next one

    def end(self) -> None:
        self.jobs.put(None)
        self._thread.join()


TEAM = Team()
atexit.register(TEAM.end)
