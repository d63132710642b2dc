"""What the engine has done and how long it took: counters, histograms, and how others read them.

Inputs: requests as they end. `Metrics` belongs to the engine thread; `EngineStats` is a snapshot of it, `prometheus` the same as
text (exposition format 0.0.4), `genai_attributes` one request in the words of OpenTelemetry's conventions for generative AI.
This module knows nothing of models or scheduling, and needs neither client library.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from agentkit.engine.config import SamplingParams
from agentkit.engine.request import FinishReason, Request, Usage
from agentkit.errors import InvalidOption

_log = logging.getLogger("agentkit.engine")

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets."""


class Tracer(Protocol):
    """The part of opentelemetry.trace.Tracer that is used."""

    def start_span(self, name: str, *, start_time: int | None = None, attributes: Any = None) -> Any: ...


@dataclass
class Histogram:
    """Counts per bucket of SECONDS (the last: beyond), and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class EngineStats:
    """A moment of the engine. Counts are since it was made; times are means in seconds, None before the first.

    running, waiting: requests now.    finished: by finish reason.    failed: by name of the error (cancelled ones as "cancelled").
    pages, free_pages, cached_pages, pinned_pages: of 32 tokens; cached ones hold what finished requests computed.
    page_bytes: of one page: keys and values of all layers, or of some where others have windows (kv_groups.py).
    input_tokens, cached_tokens: of prompts, and of those found computed.    hit_rate: cached / input.
    steps, step_tokens: forwards of the engine, and the tokens that went through them.
    """

    running: int
    waiting: int
    pages: int
    free_pages: int
    cached_pages: int
    pinned_pages: int
    evicted_pages: int
    page_bytes: int
    finished: dict[str, int]
    failed: dict[str, int]
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    forced_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    steps: int
    step_tokens: int
    preemptions: int
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    total_s: float | None

    @property
    def requests(self) -> int:
        """Requests that are over."""
        return sum(self.finished.values()) + sum(self.failed.values())

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


class Metrics:
    """Counters of one engine. model: for spans.   tracer: an OpenTelemetry tracer that gets a span per request, or None.

    What a tracer raises is logged. Raises InvalidOption for what is no tracer.
    """

    TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens")
    TIMES = ("queue_s", "ttft_s", "tpot_s", "total_s")

    def __init__(self, model: str = "", tracer: Tracer | None = None) -> None:
        if tracer is not None and not callable(getattr(tracer, "start_span", None)):
            raise InvalidOption(f"tracer must be an OpenTelemetry tracer, which has start_span, or None, not {tracer!r}")
        self._model = model
        self._tracer = tracer
        self.finished: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.tokens = dict.fromkeys(self.TOKENS, 0)
        self.times = {name: Histogram() for name in self.TIMES}
        self.steps = self.step_tokens = self.preemptions = 0

    def record(self, request: Request) -> None:
        """A request is over; those that only fill the cache are not counted."""
        if request.prefill_only:
            return
        usage = request.usage()
        reason = None
        if request.outcome is not None:
            reason = request.outcome.finish_reason
            self.finished[reason] = self.finished.get(reason, 0) + 1
        else:
            name = "cancelled" if request.cancelled else type(request.error).__name__
            self.failed[name] = self.failed.get(name, 0) + 1
        for name in self.TOKENS:
            self.tokens[name] += getattr(usage, name)
        for name, histogram in self.times.items():
            value = getattr(usage, name)
            if value is not None:
                histogram.add(value)
        if self._tracer is not None:
            try:
                self._span(self._tracer, request, usage, reason)
            except Exception:  # noqa: BLE001 - the application's own code, and no reason to withhold an output
                _log.exception("the tracer failed on a request that is over; its span is lost")

    def _span(self, tracer: Tracer, request: Request, usage: Usage, reason: FinishReason | None) -> None:
        end = time.time_ns()
        attributes = genai_attributes(self._model, request.params, usage, reason, request.error)
        span = tracer.start_span(f"text_completion {self._model}", start_time=end - int(usage.total_s * 1e9), attributes=attributes)
        span.end(end_time=end)


def genai_attributes(
    model: str, params: SamplingParams, usage: Usage, finish_reason: FinishReason | None, error: BaseException | None = None
) -> dict[str, str | int | float | list[str]]:
    """Attributes of one request after OpenTelemetry's GenAI semantic conventions; what they have no name for is under `agentkit.`."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "agentkit",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.presence_penalty": params.presence_penalty,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.stop_sequences": list(params.stop) or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.finish_reasons": [finish_reason] if finish_reason else None,
        "error.type": None if error is None else type(error).__name__,
        "agentkit.usage.forced_tokens": usage.forced_tokens,
        "agentkit.usage.drafted_tokens": usage.drafted_tokens,
        "agentkit.usage.accepted_tokens": usage.accepted_tokens,
        "agentkit.forwards": usage.forwards,
        "agentkit.queue_s": usage.queue_s,
        "agentkit.ttft_s": usage.ttft_s,
        "agentkit.tpot_s": usage.tpot_s,
    }
    return {name: value for name, value in found.items() if value is not None}


def prometheus(model: str, stats: EngineStats, times: dict[str, Histogram]) -> str:
    """The text that a Prometheus server scrapes."""
    label = 'model="' + model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    gauges = {"running", "waiting", "pages", "free_pages", "cached_pages", "pinned_pages"}
    lines: list[str] = []
    for item in fields(stats):
        value = getattr(stats, item.name)
        if isinstance(value, dict):
            kind = "reason" if item.name == "finished" else "error"
            lines.append(f"# TYPE agentkit_requests_{item.name}_total counter")
            lines += [f'agentkit_requests_{item.name}_total{{{label},{kind}="{key}"}} {count}' for key, count in sorted(value.items())]
        elif item.name in gauges:
            lines += [f"# TYPE agentkit_{item.name} gauge", f"agentkit_{item.name}{{{label}}} {value}"]
        elif item.name not in times:
            lines += [f"# TYPE agentkit_{item.name}_total counter", f"agentkit_{item.name}_total{{{label}}} {value}"]
    for name, histogram in times.items():
        metric = f"agentkit_{name.removesuffix('_s')}_seconds"
        lines.append(f"# TYPE {metric} histogram")
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), histogram.counts, strict=True):
            below += count
            lines.append(f'{metric}_bucket{{{label},le="{bound}"}} {below}')
        lines += [f"{metric}_sum{{{label}}} {histogram.sum:.6f}", f"{metric}_count{{{label}}} {below}"]
    return "\n".join(lines) + "\n"


def snapshot(metrics: Metrics, *, running: int, waiting: int, pages: int, free: int, cached: int, pinned: int, evicted: int, page_bytes: int) -> EngineStats:
    """The counters as EngineStats; `cached`: pages that only the prefix cache holds."""
    means = {name: h.sum / h.count if h.count else None for name, h in metrics.times.items()}
    return EngineStats(
        running=running,
        waiting=waiting,
        pages=pages,
        free_pages=free,
        cached_pages=cached,
        pinned_pages=pinned,
        evicted_pages=evicted,
        page_bytes=page_bytes,
        finished=dict(metrics.finished),
        failed=dict(metrics.failed),
        steps=metrics.steps,
        step_tokens=metrics.step_tokens,
        preemptions=metrics.preemptions,
        **metrics.tokens,
        **means,  # type: ignore[arg-type]
    )
