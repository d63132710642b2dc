"""Requests that decode one token a step, driven on a device that does not wait for the host.

Inputs: a plan of the scheduler. A *burst* of steps keeps one step in flight while the result of the one before is taken: the host
follows each text with the request's own matcher, a step late, and is the judge of every token. What the device could not do (a mask or
state that was not handed over) it says itself; what it cannot know (stop strings, the budget's end) the host sees, and the step in
flight does not count for that request. Text that a grammar forces goes into the next step beside the others' tokens, and the burst goes
on. Where a plan has prompts or guesses, they are computed beside in a single step, whose logits for them the host gets. While the
device computes, grammars are expanded ahead of it. Knows nothing of the queue, and nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch

from agentkit.engine.advance import Advancer
from agentkit.engine.device.beside import Beside
from agentkit.engine.device.capture import Graphs
from agentkit.engine.device.runner import DeviceRunner, for_device
from agentkit.engine.device.seat import Burst, Seat, draw_of, is_plain, logprobs_of, shared_blocks, tokens_to_compute
from agentkit.engine.device.step import Bucket, DeviceStep, Forward, Result
from agentkit.engine.kernels.gpu.choose import step_kernels
from agentkit.engine.kernels.gpu.plan import next_power
from agentkit.engine.kernels.gpu.sampling_batch import NO_MASK, Sampled, SamplingBatch, kinds_of, needs_history
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVSequence
from agentkit.engine.request import Request, State
from agentkit.engine.runner import Runner, Span
from agentkit.grammars.ahead import Ahead
from agentkit.grammars.device import MISS, Pushdown, token_symbols
from agentkit.grammars.kernels.tables import FINE, LOST, MISSED, STOPPED, Tables
from agentkit.grammars.matcher import Matcher
from agentkit.grammars.place import Place
from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["BURST", "DeviceDecoding", "decoding_for"]

BURST = 32  # steps before the scheduler gets its turn
AHEAD = 2  # tokens for which likely continuations are prepared
EXPANDED = 12  # further places that are prepared per request and step
MOST = 256  # requests of a step
LONGEST_RUN = 256  # forced tokens that go into one step
SMALLEST_PAGES = 8

Plan = Sequence[tuple[Request, Span]]


class DeviceDecoding:
    """forward: logits of a batch.   width, vocab_size: columns of the logits, and how many are tokens.
    stops: ids that end an output.   kernels: "triton", or "reference".   graphs: capture steps (on a GPU).
    states, rows, depth: see Pushdown.   ahead: tokens for which likely continuations are prepared.   expanded: further places per step.
    """

    def __init__(
        self, forward: Forward, pool: KVPool, advancer: Advancer, *, width: int, vocab_size: int, stops: Sequence[int], kernels: str = "triton",
        graphs: bool = True, states: int = 1 << 14, rows: int = 1 << 12, depth: int = 64, ahead: int = AHEAD, expanded: int = EXPANDED,
    ) -> None:  # fmt: skip
        self._forward, self._pool, self._advancer = forward, pool, advancer
        self._device = pool.data.device
        self._kernels = step_kernels(kernels, self._device)
        self._width, self._vocab_size, self._stops = width, vocab_size, tuple(stops)
        self._graphs = Graphs(self._device) if graphs and self._device.type == "cuda" else None
        self._sizes = (states, rows, depth)
        self._ahead: Ahead | None = None
        self._reach, self._expanded = ahead, expanded
        self._pushdown: Pushdown | None = None
        self._tables: Tables | None = None
        self._steps: dict[Bucket, DeviceStep] = {}
        self._last = Bucket(0, 0)
        self._seats: dict[Bucket, list[Seat | None]] = {}
        self._declined: WeakKeyDictionary[Request, int] = WeakKeyDictionary()  # how many tokens a request had when a step could not take it

    def warm_up(self) -> None:
        """Compiles what samples before the first request: for greedy ones, for those with a temperature, and with top-k and top-p as well."""
        logits, out = torch.zeros(1, self._width, device=self._device), Sampled.empty(1, self._device)
        bank, rows = torch.zeros((1, 1), dtype=torch.int32, device=self._device), torch.full((1,), NO_MASK, dtype=torch.int32, device=self._device)
        with torch.cuda.device_of(logits), torch.inference_mode():
            for kinds in ({"draws": False}, {"ranks": False, "masses": False}, {}):
                self._kernels.sample(logits, bank, rows, SamplingBatch.empty(1, self._device, **kinds), out, vocab_size=self._vocab_size)

    # -- who takes part -----------------------------------------------------------------------------------------

    def _fits(self, request: Request, span: Span) -> bool:
        """Can the next token be drawn on the device?"""
        plain = span.rows == 1 and span.draft is None
        declined = self._declined.get(request) == len(request.tokens)
        if not plain or declined or request.prefill_only or request.siblings or request.params.logprobs or not is_plain(request):
            return False
        return not isinstance(request.matcher, Matcher) or self._find_place(request.matcher) is not None

    def _find_place(self, matcher: Matcher) -> Place | None:
        return self._grammars(matcher.vocabulary).place(matcher.arena, matcher.state)

    def _grammars(self, vocabulary: Vocabulary) -> Pushdown:
        """The tables of a vocabulary; begun anew when they are full, or for another vocabulary."""
        states, rows, depth = self._sizes
        if self._pushdown is None or self._pushdown.vocabulary is not vocabulary:
            self._pushdown = Pushdown(vocabulary, states=states, rows=rows, depth=depth)
            self._ahead = Ahead(self._pushdown)
            self._tables = Tables.of(self._pushdown, MOST, self._device)
            self._forget(steps=True)
        elif self._pushdown.is_full:
            self._pushdown.clear()
            assert self._tables is not None
            self._tables.hand_over(self._pushdown, everything=True)
            self._forget(steps=False)
        return self._pushdown

    def _forget(self, *, steps: bool) -> None:
        """Nobody is in step with the device any more; steps: those with grammars are to be made anew."""
        for bucket in [bucket for bucket in self._steps if bucket.grammars]:
            self._seats[bucket] = [None] * bucket.requests
            if steps:
                del self._steps[bucket], self._seats[bucket]

    def _step_for(self, requests: Sequence[Request]) -> DeviceStep:
        """The smallest step that holds the requests, or the last one if that does, told what they share."""
        shared, first = shared_blocks(requests), requests[0].sequence
        assert first is not None
        params = [r.params for r in requests]
        pages = max(r.sequence.blocks for r in requests if r.sequence is not None) + 1 + BURST // PAGE
        need = Bucket(
            requests=next_power(len(requests)),
            pages=max(SMALLEST_PAGES, next_power(pages)),
            grammars=any(r.matcher is not None for r in requests),
            history=any(map(needs_history, params)),
            logprobs=any(p.logprobs is not None for p in params),
            biases=next_power(max(len(p.logit_bias) for p in params)) if any(p.logit_bias for p in params) else 0,
            shared=next_power(shared) if shared else 0,
            page_tables=first.groups.tables,
            **kinds_of(params),
        )
        if self._last in self._steps and self._last.serves(need):
            need = self._last
        self._last = need
        step = self._steps.get(need)
        if step is None:
            step = self._steps[need] = DeviceStep(
                need, self._forward, self._kernels, self._device, width=self._width, vocab_size=self._vocab_size, stops=self._stops,
                tables=self._tables, depth=self._sizes[2], graphs=self._graphs,
            )  # fmt: skip
            self._seats[need] = [None] * need.requests
        if shared:
            step.set_shared(first.tables, shared)
        return step

    # -- a burst ------------------------------------------------------------------------------------------------

    def run(self, plan: Plan, undisturbed: Callable[[], bool], most: int = BURST) -> Burst:
        """Decodes until somebody needs more than a step can do, `undisturbed` is false, or `most` steps are over.

        Spans of a plan that are not drawn from here (prompts, guesses, logits that the host wants) are computed beside, in one step. Every request
        is left between two steps: its tokens but the last are computed, or it has ended. No step at all is launched where nobody can take part or
        there is no room, nor where one with others beside fails: whose fault that is shows over the host.
        """
        burst = Burst()
        if len(plan) > MOST or any(span.on_states is not None or span.adapter is not None for _, span in plan):
            return burst
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of the engine's thread
        wanted = [request for request, span in plan if self._fits(request, span)]
        if not wanted:
            return burst
        step = self._step_for(wanted)
        seats = self._seat(step, wanted)
        seated = {id(seat.request) for seat in seats if seat is not None and seat.takes_part}
        others = [(request, span) for request, span in plan if id(request) not in seated]
        try:
            self._go(step, seats, others, burst, undisturbed, 1 if others else most)
        except Exception:
            self._stand_up(step)
            if not others or burst.tokens:
                raise
            return Burst()
        return burst

    def _go(self, step: DeviceStep, seats: list[Seat | None], others: Plan, burst: Burst, undisturbed: Callable[[], bool], most: int) -> None:
        beside, flying = [Beside(for_device(span)) for _, span in others], 0
        while burst.steps < most and self._make_room(step, seats, flying):
            self._hand_over()
            runs = (seat.run(number) for number, seat in enumerate(seats) if seat is not None and seat.takes_part and seat.since == step.launches)
            step.launch([*beside, *(run for run in runs if run is not None)])
            burst.steps += 1
            flying += 1
            if flying == 2:
                flying -= 1
                if not self._take(step, seats, step.read(), burst) or not undisturbed():
                    break
            else:
                self._look_ahead(step, seats)
        while flying:
            flying -= 1
            result = step.read()
            for (request, span), logits in zip(others, result.beside, strict=False):
                self._pool.commit(span.sequence, span.tokens)
                burst.beside.append((request, span, logits))
            self._take(step, seats, result, burst)

    def _seat(self, step: DeviceStep, requests: Sequence[Request]) -> list[Seat | None]:
        """Puts the requests where they were, if nothing has happened to them since, or loads them."""
        seats = self._seats[step.bucket]
        wanted = {id(r): r for r in requests}
        for number, seat in enumerate(seats):
            if seat is None:
                continue
            if id(seat.request) in wanted and seat.is_known:
                del wanted[id(seat.request)]
            else:
                seats[number] = None
                step.retire(number)
        free = (number for number, seat in enumerate(seats) if seat is None)
        for request in wanted.values():
            number = next(free)
            seats[number] = Seat(request)
            self._load(step, number, seats)
        return seats

    def _stand_up(self, step: DeviceStep) -> None:
        """Nobody is known to be where he sits: a step has failed."""
        step.forget()
        for number in range(step.bucket.requests):
            step.retire(number)
        self._seats[step.bucket] = [None] * step.bucket.requests

    def _load(self, step: DeviceStep, number: int, seats: list[Seat | None]) -> None:
        """Tells the device where a request stands; launches before the next one do not count for it. It leaves if it has no place there."""
        seat = seats[number]
        assert seat is not None
        request, sequence = seat.request, seat.request.sequence
        assert sequence is not None
        seat.sequence, seat.since, seat.known, seat.dropped = sequence, step.launches, len(request.tokens), sequence.dropped
        if isinstance(request.matcher, Matcher):
            seat.place = self._placed(request.matcher)
        is_placed = request.matcher is None or seat.place is not None
        if not is_placed or not self._reserve(sequence, len(request.tokens) + 1) or sequence.blocks > step.bucket.pages:
            seat.takes_part = False
            step.retire(number)
            return
        seat.changes = len(sequence.changes)
        step.load(number, request.tokens[-1], len(request.tokens) - 1, sequence.tables, draw_of(request), seat.place, sequence.dropped)

    def _placed(self, matcher: Matcher) -> Place | None:
        """Where a matcher stands, its mask known; None where there is no room."""
        assert self._pushdown is not None
        place = self._pushdown.place(matcher.arena, matcher.state)
        if place is None or self._pushdown.know(place, matcher.arena, matcher.state) == MISS:
            return None
        self._pushdown.expand_near(place, self._expanded)
        return place

    def _make_room(self, step: DeviceStep, seats: list[Seat | None], flying: int) -> bool:
        """Pages for what the next launch writes and for the slot after it. False: somebody has to give way first, or nobody is left.

        Who holds as much as he may once the launch in flight is over stands still for the next one, until positions are dropped.
        """
        taking_part = [(number, seat) for number, seat in enumerate(seats) if seat is not None and seat.takes_part]
        waiting = 0
        for number, seat in taking_part:
            sequence = seat.sequence
            assert sequence is not None
            computed = len(seat.request.tokens) - 1 + min(flying, step.launches - seat.since)
            if computed - sequence.dropped == self._pool.reach.budget:
                step.retire(number)
                waiting += 1
                continue
            length = len(seat.request.tokens) + flying + 1
            if length - sequence.dropped > step.bucket.pages * PAGE or not self._reserve(sequence, length):
                return False
            if changed := sequence.changes[seat.changes :]:
                seat.changes = len(sequence.changes)
                step.set_pages(number, sequence.tables, min(changed))
        return len(taking_part) > waiting

    def _reserve(self, sequence: KVSequence, length: int) -> bool:
        """Slots for so many positions, as far as they can be there before some are dropped."""
        budget = self._pool.reach.budget
        return self._pool.reserve(sequence, length if budget is None else min(length, sequence.dropped + budget))

    def _hand_over(self) -> None:
        if self._pushdown is not None and self._tables is not None:
            self._tables.hand_over(self._pushdown)

    def _take(self, step: DeviceStep, seats: list[Seat | None], result: Result, burst: Burst) -> bool:
        """What a launch gave becomes the requests' own. False: somebody needs more than a step."""
        goes_on = True
        for number, seat in enumerate(seats):
            if seat is None or not seat.takes_part or result.launch < seat.since:
                continue
            status, request = int(result.status[number]), seat.request
            burst.misses += status in (MISSED, LOST)
            if status == MISSED and not seat.missed:
                seat.missed = True
                assert request.sequence is not None
                if self._pool.received is None:  # else all of the step is computed again, so that all counts once
                    self._pool.commit(request.sequence, tokens_to_compute(request)[:-1])
                self._load(step, number, seats)
            elif status in (FINE, STOPPED, LOST) and self._accepts(request, int(result.tokens[number])):
                self._accept(step, number, seats, result, burst)
            else:  # NaN, or a token that the guard refuses: the way over the host says what becomes of it
                seat.takes_part = False
                self._declined[request] = len(request.tokens)
            goes_on = goes_on and (seat.takes_part or request.state is State.FINISHED)
        self._look_ahead(step, seats)
        return goes_on and not (self._pushdown is not None and self._pushdown.is_full)

    @staticmethod
    def _accepts(request: Request, token: int) -> bool:
        """Would the host have taken this token here?"""
        matcher = request.matcher
        return matcher is None or not request.params.budget_guard or matcher.fits(token, request.remaining)

    def _accept(self, step: DeviceStep, number: int, seats: list[Seat | None], result: Result, burst: Burst) -> None:
        """A request gets its token; its seat follows."""
        seat = seats[number]
        assert seat is not None
        request, token, status = seat.request, int(result.tokens[number]), int(result.status[number])
        sequence, matcher = request.sequence, request.matcher
        assert sequence is not None
        before = matcher.state if isinstance(matcher, Matcher) else 0
        request.forwards += 1
        self._pool.commit(sequence, tokens_to_compute(request))
        try:
            self._advancer.take(request, token, lambda: logprobs_of(request, token, float(result.logprobs[number])))
        except Exception as error:  # noqa: BLE001 - belongs to this request, whose caller gets it
            burst.errors.append((request, error))
            seat.takes_part = False
            return
        burst.tokens += 1
        seat.known, seat.missed = len(request.tokens), False
        more, room = len(tokens_to_compute(request)), self._pool.room(sequence)
        if request.state is State.FINISHED or more > (LONGEST_RUN if room is None else min(room, LONGEST_RUN)) or not is_plain(request):
            seat.takes_part = False
            step.retire(number)
        elif isinstance(matcher, Matcher):
            assert self._pushdown is not None
            assert self._ahead is not None
            self._ahead.noted(matcher.arena, before, token)
            symbols = token_symbols(matcher.vocabulary, token)
            seat.place = self._pushdown.follow(seat.place, symbols) if status == FINE and more == 1 and seat.place is not None else None
            if seat.place is None:
                burst.misses += status == FINE and more == 1
                self._load(step, number, seats)
        if seat.takes_part and seat.dropped != sequence.dropped:
            self._load(step, number, seats)

    def _look_ahead(self, step: DeviceStep, seats: list[Seat | None]) -> None:
        """Prepares grammars while the device computes; for one request at least, another one each time."""
        first = step.launches % len(seats)
        waits = [seat for seat in (*seats[first:], *seats[:first]) if seat is not None and seat.takes_part and seat.place is not None]
        for number, seat in enumerate(waits):
            if number and step.is_idle:
                return
            assert self._ahead is not None
            assert seat.place is not None
            if isinstance(seat.request.matcher, Matcher):
                self._ahead.look_ahead(seat.place, seat.request.matcher.arena, seat.request.matcher.state, self._reach, self._expanded)


def decoding_for(runner: Runner, pool: KVPool, advancer: Advancer, columns: tuple[int, int], stops: Sequence[int]) -> DeviceDecoding | None:
    """Bursts where they are possible: a native decoder on a GPU. columns: of the logits, and how many of them are tokens."""
    if not pool.data.is_cuda or not isinstance(runner, DeviceRunner) or runner.decoder is None:
        return None
    return DeviceDecoding(runner.forward, pool, advancer, width=columns[0], vocab_size=columns[1], stops=stops)
