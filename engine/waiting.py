"""The queue: who waits to run, in order of rank, and who need not begin to wait.

Inputs: requests from any thread. Rank: the higher priority first, of equals the one that was submitted first. This module knows nothing of
steps, models or how room is made; whether there will ever be room beside what is pinned is the one question it asks of the pool.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Iterable

from agentkit.engine.kv import KVPool
from agentkit.engine.request import Request
from agentkit.errors import ContextTooLong, EngineBusy

Rank = tuple[int, int, int]


class Waiting:
    """most_running, most: places for outputs that run, and for further ones that wait. All methods may be called from any thread."""

    def __init__(self, most_running: int, most: int) -> None:
        self._most_running, self._most = most_running, most
        self._lock = threading.Lock()
        self._requests: list[Request] = []  # in order of rank; guarded by the lock
        self._submitted = 0

    def __len__(self) -> int:
        return len(self._requests)

    def check_outputs(self, outputs: int) -> None:
        """Raises ValueError for more outputs of one request than there are places at all."""
        most = self._most_running + self._most
        if outputs > most:
            raise ValueError(f"n={outputs}: at most {most} outputs can run (max_running) and wait (max_queue) together; ask for fewer, or raise max_queue")

    def submit(self, request: Request, running: Iterable[Request]) -> None:
        """Ranks a request and its siblings and queues them; each takes a place, and those who are over (cancelled, late) take none.

        Raises EngineBusy when too many outputs wait already (beside those that could start at once), ValueError as check_outputs does.
        """
        outputs = 1 + len(request.siblings)
        self.check_outputs(outputs)
        with self._lock:
            now = time.perf_counter()
            running = list(running)
            free = max(0, self._most_running - sum(r.is_active(now) for r in running))  # whoever hears the end may ask again before the step is over
            promised = [each for r in running for each in r.siblings]
            waiting = sum(each.is_active(now) for each in [*promised, *(each for r in self._requests for each in (r, *r.siblings))])
            if waiting + outputs > self._most + free:
                raise EngineBusy(
                    f"{waiting} outputs wait to begin, with room for {free} to run, and max_queue is {self._most}; try again later or raise max_queue"
                )
            self._submitted += 1
            for number, each in enumerate((request, *request.siblings)):
                each.rank = (-each.params.priority, self._submitted, number)
            insort(self._requests, request, key=rank)

    def put_back(self, request: Request) -> None:
        """A request that has a rank waits (again)."""
        with self._lock:
            insort(self._requests, request, key=rank)

    def first(self) -> Request | None:
        with self._lock:
            return self._requests[0] if self._requests else None

    def remove(self, request: Request) -> None:
        with self._lock:
            self._requests.remove(request)

    def take_ended(self) -> list[Request]:
        """Those who are over; they wait no more."""
        now = time.perf_counter()
        with self._lock:
            ended = [r for r in self._requests if not r.is_active(now)]
            if ended:
                self._requests = [r for r in self._requests if r not in ended]
        return ended

    def take_all(self) -> list[Request]:
        with self._lock:
            requests, self._requests = self._requests, []
        return requests


def rank(request: Request) -> Rank:
    return request.rank


def may_not_fit(pool: KVPool, request: Request) -> bool:
    """Whether `refusal` has to be asked; from any thread, without looking into the prefix tree."""
    return pool.peak(_total(request)) + pool.tree.pinned > pool.page_count


def refusal(pool: KVPool, request: Request) -> ContextTooLong | None:
    """On the engine thread: why prompt and max_tokens cannot fit beside the pins, even if nothing else ran; None: they can.

    Full pages that a pin holds and the prompt begins with are shared, so they need no room.
    """
    total = _total(request)
    shared = pool.pinned_blocks(request.prompt[:-1], request.domain)
    free = pool.page_count - pool.tree.pinned
    if pool.peak_beside(total, shared) <= free:
        return None
    limit = pool.longest(free, shared)
    return ContextTooLong(
        total, limit,
        f"{len(request.prompt)} prompt tokens and max_tokens={request.params.max_tokens} need more keys and values than the {limit} tokens that fit beside "
        f"pins, which hold {pool.tree.pinned} of {pool.page_count} pages; release pins, raise kv_memory, or lower max_tokens",
    )  # fmt: skip


def _total(request: Request) -> int:
    """Tokens that a request may have in the end."""
    return len(request.prompt) + (0 if request.prefill_only else request.params.max_tokens)
