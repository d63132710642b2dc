"""What requests to a model cost, and the bounds a run may be given.

Usage is counted by whoever serves the model and summed here, each request once. Knows nothing of engines.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentkit.engine.checks import integer, plain_numbers
from agentkit.errors import UsageLimitExceeded

__all__ = ["RequestUsage", "RunUsage", "UsageLimits"]


@dataclass(frozen=True)
class RequestUsage:
    """One request to a model; times in seconds.

    input_tokens: tokens of the prompt, those found in the prefix cache included.
    output_tokens: tokens generated, forced ones included, the stop token not.
    cached_tokens: prompt tokens that were not computed again.
    forced_tokens: output tokens that the grammar left no choice about.
    drafted_tokens, accepted_tokens: speculation: proposed, and kept.
    forwards: runs of the model, prefill included.
    ttft_s: from the request to its first token. tpot_s: mean time for each token after the first. None where there was no such token.
    reasoning_tokens: output tokens spent on reasoning, as far as a remote server counts them apart.

    Of a remote server only what it says is counted (see docs/guide.md): input, output, cached and reasoning tokens.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forwards: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class RunUsage:
    """Sums over the requests of one run.

    requests: requests made, in order; every figure below is derived from them.
    tool_calls: tools that were run (calls returned without running them are not counted).
    """

    per_request: tuple[RequestUsage, ...] = ()
    tool_calls: int = 0

    @property
    def requests(self) -> int:
        """Requests made."""
        return len(self.per_request)

    @property
    def input_tokens(self) -> int:
        """Sum over all requests (a prefix that is sent again counts again; see cached_tokens)."""
        return sum(request.input_tokens for request in self.per_request)

    @property
    def output_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.output_tokens for request in self.per_request)

    @property
    def total_tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def cached_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.cached_tokens for request in self.per_request)

    @property
    def forced_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.forced_tokens for request in self.per_request)

    @property
    def drafted_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.drafted_tokens for request in self.per_request)

    @property
    def accepted_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.accepted_tokens for request in self.per_request)

    @property
    def forwards(self) -> int:
        """Sum over all requests."""
        return sum(request.forwards for request in self.per_request)

    @property
    def reasoning_tokens(self) -> int:
        """Sum over all requests."""
        return sum(request.reasoning_tokens for request in self.per_request)

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token of the first request, in seconds; None before it."""
        return self.per_request[0].ttft_s if self.per_request else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds for each token after the first of its request, weighted by tokens over all requests; None without such tokens."""
        timed = [(max(request.output_tokens - 1, 1), request.tpot_s) for request in self.per_request if request.tpot_s is not None]
        total = sum(weight for weight, _ in timed)
        return sum(weight * seconds for weight, seconds in timed) / total if total else None

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.tool_calls} tool calls, {self.input_tokens} input tokens ({self.cached_tokens} cached), "
            f"{self.output_tokens} output tokens ({self.forced_tokens} forced), {self.forwards} forwards"
        )


@dataclass(frozen=True)
class UsageLimits:
    """Bounds of one run; None: no bound. Token bounds are checked after each request and before the next.

    Raises:
        InvalidOption: a bound is negative, or no integer.
    """

    request_limit: int | None = 50
    tool_calls_limit: int | None = None
    input_tokens_limit: int | None = None
    output_tokens_limit: int | None = None
    total_tokens_limit: int | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        for item in fields(self):
            if getattr(self, item.name) is not None:
                integer(f"UsageLimits.{item.name}", getattr(self, item.name), 0)

    def before_request(self, usage: RunUsage) -> None:
        """Raises UsageLimitExceeded if one more request would pass `request_limit`, or a token bound is already passed."""
        _check("request_limit", usage.requests + 1, self.request_limit, "requests")
        self.after_request(usage)

    def after_request(self, usage: RunUsage) -> None:
        """Raises UsageLimitExceeded if a bound on tokens has been passed."""
        _check("input_tokens_limit", usage.input_tokens, self.input_tokens_limit, "input tokens")
        _check("output_tokens_limit", usage.output_tokens, self.output_tokens_limit, "output tokens")
        _check("total_tokens_limit", usage.total_tokens, self.total_tokens_limit, "tokens in all")

    def before_tools(self, usage: RunUsage, calls: int) -> None:
        """Raises UsageLimitExceeded if running `calls` more tools would pass `tool_calls_limit`; none of them is run."""
        _check("tool_calls_limit", usage.tool_calls + calls, self.tool_calls_limit, "tool calls")


def _check(name: str, value: int, limit: int | None, what: str) -> None:
    if limit is not None and value > limit:
        raise UsageLimitExceeded(name, f"the run would use {value} {what}, but UsageLimits.{name} is {limit}; raise it, or set it to None for no bound")
