"""Threads that run blocking tools beside the event loop.

A pool has a fixed number of daemon workers that are started as needed and used again. A job that is given up (timeout,
cancellation) leaves its worker behind: the pool replaces it, up to a bound on abandoned ones, and the process can end
without waiting for any of them. A tool that itself runs an agent gets the pool of the next depth, so nesting cannot starve
itself of workers. Knows nothing of tools; runs plain callables.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from agentkit.errors import ToolError, ToolTimeout

__all__ = ["MAX_ABANDONED", "MAX_WORKERS", "WorkerPool", "run_in_worker"]

MAX_WORKERS = 16
MAX_ABANDONED = 64

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("agentkit_tool_depth", default=0)
_pools: dict[int, WorkerPool] = {}
_pools_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # threads do not survive a fork: the child starts with empty pools
    os.register_at_fork(after_in_child=_pools.clear)


class _Job:
    """One call: runs in the caller's context, reports to the caller's loop."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = self.loop.create_future()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.given_up = False
        self.running = False

    def report(self, future: asyncio.Future[Any], value: Any = None, error: BaseException | None = None) -> None:
        def settle() -> None:
            if not future.done():
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop has been closed: nobody waits for this result any more


class WorkerPool:
    """At most `workers` jobs run at a time; further ones wait in order.

    Args:
        workers: bound on live, not abandoned threads.
        abandoned: bound on threads left behind by jobs that were given up and still run.
        depth: nesting depth; jobs see depth + 1.
    """

    def __init__(self, workers: int = MAX_WORKERS, abandoned: int = MAX_ABANDONED, depth: int = 0) -> None:
        self.workers, self.max_abandoned, self.depth = workers, abandoned, depth
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._threads = self._idle = self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Threads that still run a job nobody waits for."""
        return self._abandoned

    async def run(self, function: Callable[[], Any], timeout: float | None = None) -> Any:
        """The function's result; `timeout` counts in seconds from when a worker starts it.

        Raises:
            ToolTimeout: the time is up; the worker is abandoned.
            ToolError: too many abandoned workers.
        """
        job = _Job(function)
        self._submit(job)
        try:
            await job.started
            try:
                async with asyncio.timeout(timeout) as limit:
                    return await job.result
            except TimeoutError as error:
                if limit.expired():
                    raise ToolTimeout(f"still running after {timeout} s") from error
                raise
        finally:
            if not job.result.done() or job.result.cancelled():
                self._give_up(job)

    def _submit(self, job: _Job) -> None:
        with self._ready:
            if self._abandoned >= self.max_abandoned:
                raise ToolError(f"{self._abandoned} tool threads have passed their time limits and still run; make these tools end, or make them async")
            self._jobs.append(job)
            self._staff()
            self._ready.notify()

    def _staff(self) -> None:
        """Starts a worker if there is work that no idle one will take (called under the lock)."""
        if len(self._jobs) > self._idle and self._threads < self.workers:
            self._threads += 1
            threading.Thread(target=self._work, name=f"agentkit-tool-{self.depth}", daemon=True).start()

    def _give_up(self, job: _Job) -> None:
        with self._ready:
            if job.given_up:
                return
            job.given_up = True
            if job.running:
                self._threads -= 1
                self._abandoned += 1
                self._staff()
            elif job in self._jobs:
                self._jobs.remove(job)

    def _work(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                while not self._jobs:
                    self._ready.wait()
                self._idle -= 1
                job = self._jobs.popleft()
                job.running = True
            self._perform(job)
            with self._ready:
                job.running = False
                if job.given_up:  # a replacement may already be at work
                    self._abandoned -= 1
                    return

    def _perform(self, job: _Job) -> None:
        job.report(job.started)
        try:
            job.context.run(_depth.set, self.depth + 1)
            value = job.context.run(job.function)
        except BaseException as error:  # noqa: BLE001  # whatever the job raised belongs to the caller, not to this worker
            job.report(job.result, error=_portable(error))
        else:
            job.report(job.result, value)


def _portable(error: BaseException) -> BaseException:
    """StopIteration and cancellation mean something else to a future; they travel inside a RuntimeError."""
    if isinstance(error, StopIteration | asyncio.CancelledError):
        wrapped = RuntimeError(f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped
    return error


async def run_in_worker(function: Callable[[], Any], timeout: float | None = None) -> Any:
    """Runs a blocking call in the pool of the current nesting depth. See WorkerPool.run."""
    depth = _depth.get()
    with _pools_lock:
        pool = _pools.setdefault(depth, WorkerPool(depth=depth))
    return await pool.run(function, timeout)
