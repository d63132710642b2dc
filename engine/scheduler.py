"""Which request computes how many tokens in this step.

Inputs: requests from any thread, a Runner, a KVPool, an Advancer. There is no prefill or decode phase: each request has
tokens known and tokens computed, and every step gives each running one a share of the token budget. Requests that decode
get what they need (a token, with the forced run behind it); the rest of the budget goes to long prompts in turns, so that
none stalls the others. A failure ends the one request it belongs to. This module knows nothing of threads' lifetimes,
models or sampling.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from agentkit.engine.advance import Advancer
from agentkit.engine.kv import KVPool
from agentkit.engine.request import Request, State
from agentkit.engine.runner import Logits, Runner, Span
from agentkit.errors import EngineBusy, EngineError

DECODE_GAP = 32  # a request with at most this many tokens to compute gets them all at once
PREFILL_SHARE = 64  # smallest chunk of a prompt: below it a forward costs the same


@dataclass(frozen=True)
class Limits:
    """See EngineConfig for the meaning of the values."""

    max_running: int = 16
    max_queue: int = 256
    step_tokens: int = 512
    mixed_step_tokens: int = 128


class Scheduler:
    """`submit` may be called from any thread; everything else belongs to the engine thread."""

    def __init__(self, runner: Runner, pool: KVPool, advancer: Advancer, limits: Limits) -> None:
        self.pool = pool
        self._runner = runner
        self._advancer = advancer
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()  # guarded by the lock
        self.running: list[Request] = []

    def submit(self, request: Request) -> None:
        """Queues a request. Raises EngineBusy when max_queue requests wait already (beside those that could start at once)."""
        with self._lock:
            free = max(0, self._limits.max_running - len(self.running))
            if len(self._waiting) >= self._limits.max_queue + free:
                raise EngineBusy(f"{len(self._waiting)} requests are waiting and max_queue is {self._limits.max_queue}; try again later or raise max_queue")
            self._waiting.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting)

    def step(self) -> None:
        """Drops what was cancelled, admits what fits, computes one plan, and advances the requests that got logits."""
        self._drop_cancelled()
        self._admit()
        plan = self._plan()
        if not plan:
            return
        for request, outcome in zip([r for r, _ in plan], self._execute([s for _, s in plan]), strict=True):
            self._advance(request, outcome)
        self.running = [r for r in self.running if r.state is State.RUNNING]

    def abort_all(self, error: BaseException) -> None:
        """Ends every request with `error`."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for request in [*self.running, *waiting]:
            self._fail(request, error)
        self.running = []

    def _drop_cancelled(self) -> None:
        with self._lock:
            waiting = [r for r in self._waiting if r.cancelled]
            self._waiting = deque(r for r in self._waiting if not r.cancelled)
        for request in [*(r for r in self.running if r.cancelled), *waiting]:
            self._fail(request, EngineError("the request was cancelled"))
        self.running = [r for r in self.running if r.state is State.RUNNING]

    def _admit(self) -> None:
        while len(self.running) < self._limits.max_running:
            with self._lock:
                if not self._waiting or not self.pool.can_hold(self._capacity(self._waiting[0])):
                    return
                request = self._waiting.popleft()
            self._start(request)

    @staticmethod
    def _capacity(request: Request) -> int:
        return len(request.prompt) + request.params.max_tokens

    def _start(self, request: Request) -> None:
        request.clock.admitted = time.perf_counter()
        request.state = State.RUNNING
        try:
            self._advancer.begin(request)
            if request.state is State.RUNNING:
                request.sequence = self.pool.acquire(request.tokens, self._capacity(request))
                request.cached = min(request.computed, len(request.prompt))
                self.running.append(request)
        except Exception as error:  # noqa: BLE001 - whatever a grammar raises belongs to this request and reaches its caller
            self._fail(request, error)

    def _plan(self) -> list[tuple[Request, Span]]:
        """Spans of this step. Runs of at most DECODE_GAP tokens first, then prompts in turns from the budget."""
        gaps = [(r, len(r.tokens) - r.computed) for r in self.running]
        short = [(r, gap) for r, gap in gaps if gap <= DECODE_GAP]
        long = [(r, gap) for r, gap in gaps if gap > DECODE_GAP]
        budget = self._limits.mixed_step_tokens if short else self._limits.step_tokens
        shares = list(short)
        quantum = max(PREFILL_SHARE, budget // max(1, len(long)))
        for request, gap in long:
            share = min(gap, quantum, budget)
            budget -= share
            if share:
                shares.append((request, share))
        served = [r for r, _ in shares[len(short) :]]
        if len(served) < len(long):  # those not served now are first next time
            self.running = [r for r in self.running if r not in served] + served
        return [(request, self._span(request, share)) for request, share in shares]

    @staticmethod
    def _span(request: Request, count: int) -> Span:
        assert request.sequence is not None
        start = request.computed
        tokens = tuple(request.tokens[start : start + count])
        return Span(request.sequence, tokens, rows=int(start + count == len(request.tokens)))

    def _execute(self, spans: list[Span]) -> list[Logits | Exception]:
        """Runs the plan; when that fails, span by span, so that only the culprit suffers."""
        try:
            return list(self._runner.execute(spans))
        except Exception as error:  # noqa: BLE001 - becomes the error of the request that caused it
            if len(spans) == 1:
                return [error]
        return [result for span in spans for result in self._execute([span])]

    def _advance(self, request: Request, outcome: Logits | Exception) -> None:
        request.forwards += 1
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if outcome.shape[0]:
                self._advancer.advance(request, outcome[-1])
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return
        if request.state is State.FINISHED:
            self._release(request, keep=True)

    def _fail(self, request: Request, error: BaseException) -> None:
        self._release(request, keep=request.cancelled)
        request.fail(error)

    def _release(self, request: Request, *, keep: bool) -> None:
        if request.sequence is not None:
            sequence, request.sequence = request.sequence, None
            self.pool.release(sequence, keep=keep)
