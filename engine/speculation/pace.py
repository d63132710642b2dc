"""How many guesses are worth their cost: from how often they came true and what a forward of more tokens takes here.

Inputs: outcomes of past drafts by their kind, seconds of past forwards by their number of tokens, and seconds of proposing. With
probability a that the next guess holds, k guesses give 1 + a + ... + a^k tokens for C(k + 1) seconds instead of one for C(1)
(Leviathan et al. 2023, arXiv:2211.17192); beside other requests, B - 1 more tokens on both sides. `Pace.depth` picks the best k,
and 0 where none pays. Kinds that do not pay are tried again now and then, at a cost below one percent. Knows nothing of proposers, models or requests.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

BLEND = 0.25  # weight of a new timing
MEMORY = 0.97  # weight that an old outcome keeps with each new one: some thirty outcomes count
PROBE_EVERY = 64  # opportunities of a kind that does not pay, of which one is tried
PROBE = 4  # guesses asked for then
MARGIN = 1.03  # expected gain below which drafting is not worth the noise
PRIOR_SLOPE = 0.1  # cost of one more token, in forwards of one token, before anything was measured
LARGEST = 64  # tokens of a forward whose cost is recorded


class StepCosts:
    """Seconds of a forward by its number of tokens; unknown sizes lie on the line between their neighbours."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def record(self, tokens: int, seconds: float) -> None:
        if 1 <= tokens <= LARGEST:
            old = self._seconds.get(tokens)
            self._seconds[tokens] = seconds if old is None else old + BLEND * (min(seconds, 4 * old) - old)

    def ratio(self, more: int, base: int = 1) -> float:
        """Cost of base + more tokens in forwards of `base` tokens; never below 1."""
        return max(1.0, self._cost(base + more) / self._cost(base))

    def share(self, seconds: float, base: int = 1) -> float:
        """`seconds` in forwards of `base` tokens; 0 before any was measured."""
        return seconds / self._cost(base) if self._seconds else 0.0

    def table(self) -> dict[int, float]:
        """Measured seconds by number of tokens."""
        return dict(sorted(self._seconds.items()))

    def _cost(self, tokens: int) -> float:
        known = self._seconds
        if tokens in known:
            return known[tokens]
        below = max((t for t in known if t < tokens), default=None)
        above = min((t for t in known if t > tokens), default=None)
        if below is not None and above is not None:
            share = (tokens - below) / (above - below)
            return known[below] + share * (known[above] - known[below])
        near = below if below is not None else above
        if near is None:
            return 1 + PRIOR_SLOPE * (tokens - 1)
        return known[near] * (1 + PRIOR_SLOPE * (tokens - 1)) / (1 + PRIOR_SLOPE * (near - 1))


@dataclass
class _Kind:
    held: float = 1.5  # a mild optimism, so that a new kind is tried
    asked: float = 2.0
    passed_over: int = 0


class Pace:
    """`reach` before anything is proposed, `depth` before a draft, `learn` after it. `costs` is filled by whoever runs the forwards."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self._kinds: dict[Hashable, _Kind] = {}
        self._proposing = 0.0  # seconds per guess asked for
        self._idle = 0  # opportunities in a row for which nothing was proposed

    def acceptance(self, kind: Hashable) -> float:
        """Estimated probability that the next guess of this kind holds."""
        book = self._kinds.get(kind, _Kind())
        return book.held / book.asked

    def proposed(self, guesses: int, seconds: float) -> None:
        """What it took to propose so many guesses."""
        each = seconds / max(1, guesses)
        self._proposing += BLEND * (min(each, 4 * self._proposing or each) - self._proposing)

    def reach(self, most: int, base: int = 1) -> int:
        """Guesses worth asking a proposer for, of whichever kind they will be: 0 to `most`. Asking costs, too."""
        best = max((book.held / book.asked for book in self._kinds.values()), default=1.0)
        depth = self._best(best, most, base)
        self._idle = 0 if depth else self._idle + 1
        if self._idle >= PROBE_EVERY:
            self._idle = 0
            return min(PROBE, most)
        return depth

    def depth(self, kind: Hashable, most: int, base: int = 1) -> int:
        """Guesses worth adding to a forward that has `base` tokens without them: 0 to `most`."""
        book = self._kinds.setdefault(kind, _Kind())
        best = self._best(book.held / book.asked, most, base)
        if best:
            book.passed_over = 0
            return best
        book.passed_over += 1
        if book.passed_over >= PROBE_EVERY:
            book.passed_over = 0
            return min(1, most)
        return 0

    def _best(self, acceptance: float, most: int, base: int) -> int:
        """The number of guesses with the most tokens per second over the whole step, those of other requests included."""
        expected, power = 0.0, 1.0
        best, best_gain = 0, MARGIN
        for k in range(1, most + 1):
            power *= acceptance
            expected += power
            gain = (1 + expected / base) / (self.costs.ratio(k, base) + self.costs.share(k * self._proposing, base))
            if gain > best_gain:
                best, best_gain = k, gain
        return best

    def learn(self, kind: Hashable, held: int, offered: int) -> None:
        """Of a draft that was `offered` tokens deep the first `held` came true."""
        book = self._kinds.setdefault(kind, _Kind())
        for i in range(min(held + 1, offered)):
            book.held = MEMORY * book.held + (i < held)
            book.asked = MEMORY * book.asked + 1
