"""The engine thread: the only one that touches the model, the caches and running requests.

Input: a Scheduler. The thread starts with the first request, sleeps while there is nothing to do, and ends when closed;
a child process of fork() has no such thread and is told so. This module knows nothing of what a step does.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from agentkit.engine.request import Request
from agentkit.engine.scheduler import Scheduler
from agentkit.errors import EngineError

T = TypeVar("T")

JOIN_SECONDS = 30.0  # a step takes at most a few seconds


class EngineLoop:
    """Drives a scheduler on a daemon thread of its own."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._pid = os.getpid()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._broken: BaseException | None = None
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    @property
    def is_usable(self) -> bool:
        return not self._closed and self._broken is None and os.getpid() == self._pid

    def check_usable(self) -> None:
        """Raises EngineError if the engine is closed, broken, or was inherited through fork()."""
        if os.getpid() != self._pid:
            raise EngineError(
                f"this engine belongs to process {self._pid} and cannot be used in its forked child {os.getpid()}; "
                "create the Engine after the fork, or start workers with the 'spawn' method"
            )
        if self._broken is not None:
            raise EngineError(f"the engine stopped after an internal error ({type(self._broken).__name__}); create a new one") from self._broken
        if self._closed:
            raise EngineError("the engine is closed; create a new one")

    def submit(self, request: Request) -> None:
        """Queues a request and wakes the thread. Raises EngineError or EngineBusy."""
        self.check_usable()
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed; create a new one")
            self._scheduler.submit(request)
            self._wake_up()

    def call(self, job: Callable[[], T]) -> Future[T]:
        """Runs `job` on the engine thread between two steps. Raises EngineError; what the job raises is in the future."""
        self.check_usable()
        future: Future[T] = Future()
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed; create a new one")
            self._jobs.append((job, future))
            self._wake_up()
        return future

    def _wake_up(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._wake.notify()

    def close(self) -> None:
        """Ends all requests with EngineError and the thread; later calls do nothing. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        error: BaseException = EngineError("the engine was closed while this request was in it")
        try:
            while self._wait_for_work():
                self._run_jobs()
                if self._scheduler.has_work:
                    self._scheduler.step()
        except BaseException as failure:  # noqa: BLE001 - a bug of ours: nobody may wait for ever, and the next caller is told
            self._broken = failure
            error = failure
        finally:
            with self._wake:  # after this no submit gets through, so nothing is left behind
                self._closed = True
            self._scheduler.abort_all(error)
            for _, future in self._jobs:
                future.set_exception(EngineError(f"the engine ended before this was done: {error}"))

    def _run_jobs(self) -> None:
        while self._jobs:
            job, future = self._jobs.popleft()
            try:
                future.set_result(job())
            except Exception as error:  # noqa: BLE001 - belongs to whoever waits for the future
                future.set_exception(error)

    def _wait_for_work(self) -> bool:
        """Blocks until there is work (True) or the engine is closed (False)."""
        with self._wake:
            while not self._closed and not self._scheduler.has_work and not self._jobs:
                self._wake.wait()
            return not self._closed
