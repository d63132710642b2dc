"""A run that has been asked for but not awaited yet, and the way to wait for one without `await`.

Knows nothing of agents: it wraps any function that makes a coroutine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, TypeVar

__all__ = ["Pending", "run_blocking"]

T = TypeVar("T")


class Pending(Coroutine[Any, Any, T]):
    """A coroutine that says "did you forget await?" when it is used like its result, or dropped.

    Everything that takes a coroutine takes it: await, asyncio.run, create_task, gather. Nothing starts before it is awaited.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]], label: str) -> None:
        self._make = make
        self._label = label
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self.__name__ = self.__qualname__ = label

    def _started(self) -> Coroutine[Any, Any, T]:
        if self._coroutine is None:
            self._coroutine = self._make()
        return self._coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._started().__await__()

    def send(self, value: Any, /) -> Any:
        return self._started().send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        error = typ if isinstance(typ, BaseException) else (val if isinstance(val, BaseException) else typ())
        return self._started().throw(error if tb is None else error.with_traceback(tb))

    def close(self) -> None:
        self._started().close()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._label} has not been awaited, so it has no {name!r} yet: did you forget await? (or use run_sync)")

    def __repr__(self) -> str:
        return f"<{self._label}, not awaited{' yet' if self._coroutine is None else ' to its end'}: did you forget await?>"

    def __del__(self) -> None:
        if self.__dict__.get("_coroutine", self) is None:
            message = f"{self._label} was never awaited, so nothing ran: did you forget await? (or use run_sync)"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)


def run_blocking(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine to its end and gives its result, wherever it is called.

    Without a running event loop here: in this thread. With one (a notebook, an async tool): on a loop of its own in a helper
    thread, with the caller's context; the caller's loop stands still meanwhile.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _run_in_thread(make)


def _run_in_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    running: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = concurrent.futures.Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.set_result((asyncio.get_running_loop(), task))
        return await make()

    def work() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001  # travels to the caller, whatever it is
            outcome.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="agentkit-run-sync", daemon=True).start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        if running.done():
            loop, task = running.result()
            loop.call_soon_threadsafe(task.cancel)
        raise
