"""A request's events on the caller's own thread or event loop, and its end wherever the caller leaves.

Input: a queued request and the queue its sink fills. This module knows nothing of models or scheduling.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from agentkit.engine.request import Event, FinishEvent, Generation, Outcome, Request, TokenEvent

Arrived = queue.SimpleQueue[TokenEvent | Outcome | BaseException]


class EventStream(Iterator[Event]):
    """Iterates over TokenEvents and one FinishEvent; raises the request's error.

    `close()`, leaving a `with` block, or dropping the stream cancels a request that still runs.
    """

    def __init__(self, request: Request, arrived: Arrived, conclude: Callable[[Outcome | BaseException], Generation]) -> None:
        self._request = request
        self._arrived = arrived
        self._conclude = conclude
        self._over = False

    def __next__(self) -> Event:
        if self._over:
            raise StopIteration
        try:
            event = self._arrived.get()
        except BaseException:  # such as KeyboardInterrupt while waiting
            self.close()
            raise
        if isinstance(event, TokenEvent):
            return event
        self._over = True
        return FinishEvent(self._conclude(event))

    def close(self) -> None:
        """Cancels the request unless it is over; iterating ends here."""
        self._over = True
        self._request.cancel()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._request.cancel()


class Deliveries:
    """What other threads have to say to an event loop, brought there with one wake-up for all that has come since the last one.

    A step gives every request of a batch a token: a wake-up for each would cost more than the step does on a GPU.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._waiting: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._called = False

    def put(self, receive: Callable[[Any], object], what: object) -> None:
        """`receive(what)` is called on the loop soon. Safe from any thread. Raises RuntimeError if the loop is closed."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop is closed")
        self._waiting.append((receive, what))
        if not self._called:
            self._called = True
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # first: who puts something there from now on calls again
        while self._waiting:
            receive, what = self._waiting.popleft()
            receive(what)
