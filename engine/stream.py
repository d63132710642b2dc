"""A request's events on the caller's own thread, and its end wherever the caller leaves.

Input: a queued request and the queue its sink fills. This module knows nothing of models or scheduling.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

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
