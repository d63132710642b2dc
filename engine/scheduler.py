"""Which request computes how many tokens in this step, and who waits.

Inputs: requests from any thread, a Runner, a KVPool, an Advancer. There is no prefill or decode phase: each request has
tokens known and tokens computed, and every step gives each running one a share of the token budget. Requests that decode
get what they need (a token, with the forced run behind it); the rest of the budget goes to long prompts in turns, so that
none stalls the others. Requests whose next page is the same compute it once. Pages are taken as a sequence grows; when they
run out, the request of the lowest rank gives its own back and is computed again later, so the highest always gets on.
A failure ends the one request it belongs to. This module knows nothing of threads' lifetimes, models or sampling.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agentkit.engine.advance import Advancer
from agentkit.engine.device.decoding import BURST, DeviceDecoding
from agentkit.engine.device.seat import Burst
from agentkit.engine.kv import KVPool
from agentkit.engine.metrics import Metrics
from agentkit.engine.models.decoder import Allowed
from agentkit.engine.request import Request, State
from agentkit.engine.runner import Logits, Runner, Span
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import TokenTree
from agentkit.engine.waiting import Waiting, may_not_fit, rank, refusal
from agentkit.errors import AgentKitError, EngineError, NumericalError

DECODE_GAP = 32  # a request with at most this many tokens to compute gets them all at once
BETWEEN_DRAFTS = 8  # steps on a device before those who guess are asked again
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

    def __init__(
        self,
        runner: Runner,
        pool: KVPool,
        advancer: Advancer,
        limits: Limits,
        speculator: Speculator | None = None,
        metrics: Metrics | None = None,
        decoding: DeviceDecoding | None = None,
    ) -> None:
        self.pool = pool
        self.metrics = metrics or Metrics()
        self._runner = runner
        self._advancer = advancer
        self._speculator = speculator
        self._decoding = decoding
        self._limits = limits
        self._queue = Waiting(limits.max_running, limits.max_queue)
        self.running: list[Request] = []
        self._steps = 0

    def submit(self, request: Request) -> None:
        """Queues a request, each of whose n outputs takes a place. Raises EngineBusy and ValueError; see Waiting."""
        for each in (request, *request.siblings):
            each.on_end = self.metrics.record
        self._queue.submit(request, self.running)

    def check_outputs(self, outputs: int) -> None:
        """Raises ValueError for more outputs of one request than there are places at all."""
        self._queue.check_outputs(outputs)

    @property
    def runner(self) -> Runner:
        """The backend, for jobs on the engine thread between two steps."""
        return self._runner

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._queue)

    @property
    def active(self) -> int:
        """Requests that run now."""
        return sum(r.state is State.RUNNING for r in self.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def step(self) -> None:
        """Drops what is over, admits what fits, computes one plan, and advances the requests that got logits."""
        self._steps += 1
        self._drop_ended()
        self._admit()
        plan = self._plan()
        if not plan:
            return
        if self._decoding is not None and self._decode(self._decoding, plan):
            return
        self.metrics.steps += 1
        self.metrics.step_tokens += sum(span.size for _, span in plan)
        for (request, span), outcome in zip(plan, self._timed([s for _, s in plan]), strict=True):
            self._advance(request, span, outcome)
        self.running = [r for r in self.running if r.state is State.RUNNING]

    def abort_all(self, error: BaseException) -> None:
        """Ends every request with `error`."""
        while self.running or self._queue:
            running, self.running = self.running, []
            for request in [*running, *self._queue.take_all()]:
                self._fail(request, error)

    def speculate(self, speculator: Speculator | None) -> None:
        """Drafts by `speculator` from now on, for the requests that run, too. Raises EngineError where guesses would count as attention paid."""
        if speculator is not None and self.pool.reach.budget is not None:
            raise EngineError("kv=H2O(...) keeps what has been attended to, and guesses would count; only speculation='off' is available with it")
        if self._speculator is not None:
            for request in self.running:
                self._speculator.release(request)
        self._speculator = speculator

    # -- who runs -----------------------------------------------------------------------------------------------

    def _drop_ended(self) -> None:
        """Ends requests that were cancelled or are past their deadline."""
        now = time.perf_counter()
        over = self._queue.take_ended() + [r for r in self.running if not r.is_active(now)]
        for request in over:
            if request.cancelled:
                self._fail(request, EngineError("the request was cancelled"))
            else:
                request.finish("timeout", complete=False)
                self._release(request, keep=True)
        if over:
            self.running = [r for r in self.running if r.state is State.RUNNING]

    def _admit(self) -> None:
        """Starts waiting requests in order of rank while there is room; a higher priority takes the place of a lower one.

        One that no room can be made for, because of pins that came after it was submitted, ends here.
        """
        while (request := self._queue.first()) is not None:
            error = refusal(self.pool, request) if may_not_fit(self.pool, request) else None
            if error is not None or self._has_room(request):
                self._queue.remove(request)
                if error is None:
                    self._start(request)
                else:
                    self._fail(request, error)
                continue
            last = max(self.running, key=rank)
            if last.params.priority >= request.params.priority:
                return
            self._preempt(last)

    def _has_room(self, request: Request) -> bool:
        """Room to run: for its known tokens, and for every running request to grow by a page."""
        if len(self.running) >= self._limits.max_running:
            return False
        return not self.running or self.pool.can_start(request.tokens, request.domain, spare=len(self.running) + 1)

    def _start(self, request: Request, fork: Request | None = None) -> None:
        """Makes a request run. fork: one whose pages hold all that this one knows."""
        first_time = request.clock.admitted is None
        request.state = State.RUNNING
        try:
            if first_time:
                request.clock.admitted = time.perf_counter()
                self._advancer.begin(request)
            if request.state is State.RUNNING:
                room = len(request.prompt) + request.params.max_tokens
                if fork is not None and fork.sequence is not None and fork.tokens == request.tokens:
                    request.sequence = self.pool.fork(fork.sequence)
                else:
                    request.sequence = self.pool.start(request.tokens, request.domain, room)
                if first_time:
                    request.cached = min(request.computed, len(request.prompt))
                self.running.append(request)
            else:
                self._release(request, keep=True)
        except Exception as error:  # noqa: BLE001 - whatever a grammar raises belongs to this request and reaches its caller
            self._fail(request, error)

    def _preempt(self, request: Request) -> None:
        """Takes a running request's pages; it waits, and is computed again from what the prefix cache still holds by then."""
        self._release(request, keep=True)
        request.state = State.WAITING
        request.preemptions += 1
        self.metrics.preemptions += 1
        self.running.remove(request)
        self._queue.put_back(request)

    def _too_large(self, request: Request) -> EngineError:
        return EngineError(
            f"{len(request.tokens)} tokens do not fit: {self.pool.page_count} pages of keys and values in all, {self.pool.tree.pinned} of them pinned; "
            "release pins or raise kv_memory"
        )

    # -- one step -----------------------------------------------------------------------------------------------

    def _plan(self) -> list[tuple[Request, Span]]:
        """Spans of this step, with their slots reserved; the highest rank takes pages first."""
        plan: list[tuple[Request, Span]] = []
        shares = sorted(self._shares(), key=lambda share: share[0].rank)
        size = sum(count for _, count in shares)
        beside = sum(request.computed + count == len(request.tokens) for request, count in shares)
        for request, wanted in shares:
            if request.state is State.RUNNING and (count := self._reserve(request, wanted)):
                request.served = self._steps
                span = self._span(request, count, size, beside)
                size += span.size - wanted
                plan.append((request, span))
        return plan

    def _shares(self) -> list[tuple[Request, int]]:
        """Tokens per request. Runs of at most DECODE_GAP tokens get all they need; prompts share the budget, who waited longest first."""
        shares = []
        long = []
        claimed: set[bytes] = set()
        for request in sorted(self.running, key=rank):
            gap = len(request.tokens) - request.computed
            if request.sequence is not None and (room := self.pool.room(request.sequence)) is not None:
                gap = min(gap, room)
            if gap > DECODE_GAP:
                gap -= self._adopt(request)
            if gap <= DECODE_GAP:
                shares.append((request, gap))
                continue
            assert request.sequence is not None
            key = self.pool.next_key(request.sequence, request.tokens)
            if key is None or key not in claimed:  # else: another one computes this page now, and it can be had in the next step
                long.append((request, gap))
                claimed.add(key or b"")
        budget = self._limits.mixed_step_tokens if shares else self._limits.step_tokens
        quantum = max(PREFILL_SHARE, budget // max(1, len(long)))
        for request, gap in sorted(long, key=lambda share: (-share[0].params.priority, share[0].served, share[0].rank)):
            share = min(gap, quantum, budget)
            budget -= share
            if share:
                shares.append((request, share))
        return shares

    def _adopt(self, request: Request) -> int:
        assert request.sequence is not None
        found = self.pool.adopt(request.sequence, request.tokens)
        request.cached = min(request.cached + found, len(request.prompt))
        return found

    def _reserve(self, request: Request, count: int) -> int:
        """Slots for the next `count` tokens, if need be from requests of lower rank; returns for how many. 0: it has to pause.

        One that is alone goes on in smaller steps where pages are short: while it computes anew what a pin holds (layers with a window had
        let go of it), it needs pages for a step's tokens beside those of the pin.
        """
        sequence = request.sequence
        assert sequence is not None
        while not self.pool.reserve(sequence, request.computed + count):
            last = max(self.running, key=rank)
            if last is not request:
                self._preempt(last)
            elif len(self.running) > 1:
                return 0
            elif (error := refusal(self.pool, request)) is None and count > 1:
                count //= 2
            else:
                self._fail(request, error or self._too_large(request))  # pins have come since, or somebody holds scores
                self.running.remove(request)
                return 0
        return count

    def _decode(self, decoding: DeviceDecoding, plan: list[tuple[Request, Span]]) -> bool:
        """Steps on a device that does not wait for the host: many of those that decode, or one with prompts and guesses beside. False: for nobody here."""
        most = 1 if len(plan) < len(self.running) else BURST if self._speculator is None else BETWEEN_DRAFTS
        size, start = sum(span.size for _, span in plan), time.perf_counter()
        try:
            burst = decoding.run(plan, self._undisturbed, most)
        except Exception as error:  # noqa: BLE001 - of a step, which was all of theirs
            burst = Burst(steps=1, errors=[(request, error) for request, _ in plan if request.state is State.RUNNING])
        if not burst.steps:
            return False
        if self._speculator is not None and burst.steps == 1:
            self._speculator.pace.costs.record(size, time.perf_counter() - start)
        self.metrics.steps += burst.steps
        self.metrics.step_tokens += size + (burst.steps - 1) * len(plan)
        for request, span, logits in burst.beside:
            self._advance(request, span, logits)
        for request, failure in burst.errors:
            self._fail(request, failure)
        for request, _ in plan:
            if request.outcome is not None:
                self._release(request, keep=True)
        self.running = [r for r in self.running if r.state is State.RUNNING]
        return True

    def _undisturbed(self) -> bool:
        """Is there nothing but to go on with those that run?"""
        now = time.perf_counter()
        if any(not r.is_active(now) for r in self.running if r.state is State.RUNNING):
            return False
        return not self._queue or self.active >= self._limits.max_running

    def _span(self, request: Request, count: int, size: int, beside: int) -> Span:
        """The next `count` tokens of a request, with a draft behind them if they are all that is known.

        size: tokens of the step so far.   beside: requests that choose a token in it.
        """
        assert request.sequence is not None
        start = request.computed
        tokens, last = tuple(request.tokens[start : start + count]), start + count == len(request.tokens) and not request.prefill_only
        draft = self._speculator.draft(request, size, beside) if self._speculator is not None and last and not request.siblings else None
        if draft is not None and not self.pool.reserve(request.sequence, start + count + len(draft)):
            draft = None  # guesses take nobody's memory
        states, sink = self._speculator.watch(request, draft, count) if self._speculator is not None and last else (0, None)
        allowed = self._allowed(request, draft) if last else None
        return Span(request.sequence, tokens, int(last), draft, allowed, states, sink, request.adapter)

    def _allowed(self, request: Request, draft: TokenTree | None) -> Allowed | None:
        """What the grammar lets follow the last known token, and each node of a draft."""
        if request.mask is None:
            return None
        return [request.mask] if draft is None or self._speculator is None else [request.mask, *self._speculator.allowed(request, draft)]

    def _timed(self, spans: list[Span]) -> list[Logits | Exception]:
        start = time.perf_counter()
        outcomes = self._execute(spans)
        if self._speculator is not None:
            self._speculator.pace.costs.record(sum(span.size for span in spans), time.perf_counter() - start)
        return outcomes

    def _execute(self, spans: list[Span]) -> list[Logits | Exception]:
        """Runs the plan; when that fails, span by span, so that only the culprit suffers."""
        try:
            return list(self._runner.execute(spans))
        except Exception as error:  # noqa: BLE001 - becomes the error of the request that caused it
            if len(spans) == 1:
                return [error]
        return [result for span in spans for result in self._execute([span])]

    def _advance(self, request: Request, span: Span, outcome: Logits | Exception) -> None:
        request.forwards += 1
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if span.draft is not None:
                self._settle(request, span.draft, outcome)
            elif outcome.shape[0]:
                self._branch(request, outcome[-1])
                self._advancer.advance(request, outcome[-1])
            elif request.prefill_only and request.computed == len(request.tokens):
                request.finish("stop", complete=True)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(request, error)
            return
        if request.state is State.FINISHED:
            self._release(request, keep=True)

    def _settle(self, request: Request, draft: TokenTree, rows: Logits) -> None:
        assert self._speculator is not None
        assert request.sequence is not None
        kept = self._speculator.settle(request, draft, rows, self._advancer)
        self.pool.keep(request.sequence, kept, [draft.tokens[node] for node in kept])

    def _branch(self, request: Request, logits: Logits) -> None:
        """The prompt of several outputs is computed: the others go on from the same pages, as far as there is room to run."""
        siblings, request.siblings = request.siblings, []
        for sibling in siblings:
            if len(self.running) >= self._limits.max_running or sibling.cancelled:
                self._queue.put_back(sibling)
                continue
            self._start(sibling, fork=request)
            if sibling.state is State.RUNNING and sibling.computed == len(sibling.tokens):
                assert sibling.sequence is not None
                self._advance(sibling, Span(sibling.sequence, ()), logits.reshape(1, -1))

    def _fail(self, request: Request, error: BaseException) -> None:
        sound = isinstance(error, AgentKitError) and not isinstance(error, NumericalError)
        request.fail(error)
        self._release(request, keep=sound)  # what a failed forward or NaN left behind serves nobody

    def _release(self, request: Request, *, keep: bool) -> None:
        if request.sequence is not None:
            sequence, request.sequence = request.sequence, None
            if self._speculator is not None:
                self._speculator.release(request)
            node = self.pool.release(sequence, keep=keep)
            if request.on_kept is not None and request.outcome is not None:
                request.on_kept(node)
        if request.state is State.FINISHED:
            siblings, request.siblings = request.siblings, []  # it never came to branching: they run on their own
            for sibling in siblings:
                self._queue.put_back(sibling)
