"""One request's life: what it asked for, the tokens known so far, what it cost, and what comes back.

Inputs: token ids, sampling parameters and perhaps a matcher. A request has tokens *known* (prompt, forced, sampled) and
tokens *computed* (those whose keys and values are in the cache); everything a scheduler does is to close that gap.
This module knows nothing of models, tensors, threads or how a grammar works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from agentkit.engine.config import SamplingParams
from agentkit.engine.prefix_node import Node, domain
from agentkit.engine.text import OutputText
from agentkit.errors import AgentKitError, EngineError

if TYPE_CHECKING:
    from agentkit.engine.adapters.adapter import AdapterUse
    from agentkit.engine.kv import KVSequence
    from agentkit.engine.speculation.features import Features
    from agentkit.grammars import Matcher

FinishReason = Literal["stop", "length", "timeout"]
"""stop: a stop token or stop string came, or the grammar was complete; length: max_tokens was reached; timeout: the deadline passed."""


@dataclass(frozen=True)
class Usage:
    """What one generation cost. Times are seconds on a monotonic clock.

    input_tokens: the prompt.                   output_tokens: generated, forced ones included, the stop token not.
    cached_tokens: of the prompt, found already computed.
    forced_tokens: of the output, those the grammar forced; they were never sampled.
    drafted_tokens, accepted_tokens: proposed by speculation, and kept.
    forwards: runs of the model for this request, prefill included.        preemptions: times it lost its memory to others.
    queue_s: submit until it was admitted.      ttft_s: submit until the first sampled token (None if there was none).
    tpot_s: mean time per output token after that one, forced ones included (None without any).     total_s: submit until the end.
    load_s: time the engine took to load its model, paid once and before the first request.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forwards: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0
    load_s: float = 0.0
    preemptions: int = 0

    @property
    def tps(self) -> float | None:
        """Output tokens per second after the first sampled one; None without any."""
        return 1.0 / self.tpot_s if self.tpot_s else None


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability (natural) of a token of the output in the constrained distribution: over the tokens that were allowed, after
    penalties and biases, before temperature and truncation. Forced tokens have 0.0.

    top: the likeliest tokens there and their log-probabilities, as many as were asked for, the likeliest first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Generation:
    """The outcome of one request.

    text: the output.           token_ids: its tokens, without the stop token.
    value: with a schema: the parsed JSON, or the validated instance where the schema is a type; else None.
    finish_reason: "stop", "length", or (with allow_truncated) "timeout".      stop_string: the stop string that ended it, if one did.
    logprobs: one per token of token_ids; None unless asked for.
    alternatives: with n > 1 the other n-1 outcomes, each with its own usage.
    """

    text: str
    value: Any
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stop_string: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    alternatives: tuple[Generation, ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """Tokens that were just decided. `text` is what can be shown now: it may lag behind `token_ids` where a character or
    a stop string is still open, and may be empty. `forced`: the grammar left no choice. `logprobs`: per token, if asked for.

    The concatenated texts of a stream are the text of its Generation.
    """

    token_ids: tuple[int, ...]
    text: str
    forced: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class FinishEvent:
    """The end of a stream."""

    generation: Generation


Event = TokenEvent | FinishEvent


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class Outcome:
    """How a request ended inside the engine: complete output, or an error."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    complete: bool
    stop_string: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


Sink = Callable[["TokenEvent | Outcome | BaseException"], None]
"""Takes a request's events in order, on the engine thread; the last is an Outcome or an exception. Must not block."""


@dataclass
class Clock:
    """Moments of a request, seconds of `time.perf_counter`."""

    submitted: float = field(default_factory=time.perf_counter)
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens_after_first: int = 0


def domain_of(use: AdapterUse | None, salt: str | None = None) -> bytes:
    """The domain of keys and values that were computed with this adapter, for this salt."""
    if use is None:
        return domain(salt=salt)
    return domain(adapter=use.adapter.name, load_number=use.adapter.load_number, scale=use.scale, salt=salt)


class Request:
    """Owned by the engine thread once submitted; only `cancel()` may be called from elsewhere.

    prompt: token ids.   seed: the resolved 64-bit seed.   matcher: this request's own, or None.
    output: makes text of tokens and looks for stop strings.   sink: see Sink.   adapter: what params.adapter named; held until the request is gone.
    """

    def __init__(
        self, prompt: list[int], params: SamplingParams, sink: Sink, output: OutputText, *, seed: int = 0, matcher: Matcher | None = None,
        adapter: AdapterUse | None = None,
    ) -> None:  # fmt: skip
        self.prompt = prompt
        self.params = params
        self.sink = sink
        self.output = output
        self.seed = seed
        self.matcher = matcher
        self.adapter = adapter
        self.tokens: list[int] = list(prompt)  # known: prompt, then output
        self.mask: npt.NDArray[np.uint32] | None = None  # row for the next token; None: no grammar
        self.sequence: KVSequence | None = None  # computed: the first `sequence.length` of them
        self.state = State.WAITING
        self.clock = Clock()
        self.domain = domain_of(adapter, params.cache_salt)  # whose computed prefixes it may share
        self.rank = (0, 0, 0)  # set when it is queued; the smallest is served first
        self.served = 0  # the last step that gave it tokens
        self.cached = self.forced = self.forwards = self.preemptions = self.drafted = self.accepted = 0
        self.draft_state: Any = None  # notes of whoever guesses its tokens
        self.features: Features | None = None  # the model's last hidden states, for those who guess from them
        self.logprobs: list[TokenLogprob] = []
        self.siblings: list[Request] = []  # further outputs of the same prompt, until they run
        self.prefill_only = False  # compute the prompt, sample nothing
        self.on_kept: Callable[[Node | None], None] | None = None  # told which node of the prefix tree holds what it computed
        self.on_end: Callable[[Request], None] | None = None  # told on the engine thread, before the sink
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._cancelled = threading.Event()

    @property
    def computed(self) -> int:
        return self.sequence.length if self.sequence is not None else 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.params.max_tokens - self.generated

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed at `now` on `time.perf_counter`."""
        return self.params.timeout is not None and now - self.clock.submitted >= self.params.timeout

    def is_active(self, now: float) -> bool:
        """Whether it still wants to go on at `now`: it has not ended, nor will it end before the next step."""
        return self.state is not State.FINISHED and not self.cancelled and not self.is_late(now)

    def cancel(self) -> None:
        """Asks the engine to drop this request within a step; safe from any thread, any number of times."""
        self._cancelled.set()

    def add(self, token_ids: list[int], *, forced: bool = False, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Decided tokens: known from now on, computed with the next forward, shown to the client now.

        logprobs: theirs, where they were asked for and are not certain. Tokens after the one that completed a stop string are dropped.
        """
        text = ""
        taken: list[int] = []
        for token in token_ids:
            taken.append(token)
            text += self.output.push(token)
            if self.output.stopped is not None:
                break
        self.tokens += taken
        self.forced += len(taken) if forced else 0
        self._stamp(len(taken), forced)
        if self.params.logprobs is not None:
            certain = [TokenLogprob(t, 0.0, ((t, 0.0),)[: self.params.logprobs]) for t in taken] if forced else ()
            logprobs = tuple(logprobs[: len(taken)]) or certain
            self.logprobs += logprobs
        self.sink(TokenEvent(tuple(taken), text, forced, tuple(logprobs)))

    def _stamp(self, count: int, forced: bool) -> None:
        """The clock of TTFT starts at the first *sampled* token: what is forced before it took no forward."""
        clock = self.clock
        if clock.first_token is not None:
            clock.last_token = time.perf_counter()
            clock.tokens_after_first += count
        elif not forced:
            clock.first_token = clock.last_token = time.perf_counter()

    def finish(self, reason: FinishReason, *, complete: bool) -> None:
        """Ends with output. `complete`: nothing was cut that a grammar still needed."""
        tail = self.output.finish()
        if tail:
            self.sink(TokenEvent((), tail))
        written = tuple(self.tokens[len(self.prompt) :])
        logprobs = None if self.params.logprobs is None else tuple(self.logprobs)
        self.outcome = Outcome(self.output.text, written, reason, self.usage(), complete, self.output.stopped, logprobs)
        self._end(self.outcome)

    def fail(self, error: BaseException) -> None:
        """Ends with an error; errors that are not ours arrive as EngineError with the original as cause."""
        if not isinstance(error, AgentKitError):
            wrapped = EngineError(f"the engine failed on this request: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.error = error
        self._end(error)

    def _end(self, last: Outcome | BaseException) -> None:
        if self.state is not State.FINISHED:
            self.state = State.FINISHED
            try:
                if self.on_end is not None:
                    self.on_end(self)
            finally:
                self.sink(last)

    def usage(self) -> Usage:
        c, now = self.clock, time.perf_counter()
        ttft = None if c.first_token is None else c.first_token - c.submitted
        tpot = None
        if c.first_token is not None and c.last_token is not None and c.tokens_after_first:
            tpot = (c.last_token - c.first_token) / c.tokens_after_first
        return Usage(
            input_tokens=len(self.prompt),
            output_tokens=self.generated,
            cached_tokens=self.cached,
            forced_tokens=self.forced,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            forwards=self.forwards,
            queue_s=(c.admitted or now) - c.submitted,
            ttft_s=ttft,
            tpot_s=tpot,
            total_s=now - c.submitted,
            preemptions=self.preemptions,
        )
