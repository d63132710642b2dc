"""How many guesses are worth their cost: from how often they came true and what a forward of more tokens takes here.

Inputs: outcomes of past drafts by their kind, seconds of past forwards by their number of tokens, and seconds of proposing. With
probability a that the next guess holds, k guesses give 1 + a + ... + a^k tokens for C(k + 1) seconds instead of one for C(1)
(Leviathan et al. 2023, arXiv:2211.17192); beside other requests, B - 1 more tokens on both sides. `Pace.depth` picks the best k,
and 0 where none pays. Kinds that do not pay are tried again now and then, at a cost below one percent. Knows nothing of proposers, models or requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

BLEND = 0.2  # weight of a new timing in what a size costs beside the line
FORGET = 0.97  # weight that an old timing keeps with each new one in the line
OUTLIER = 3.0  # a timing counts for at most this many times what was expected
MEMORY = 0.97  # weight that an old outcome keeps with each new one: some thirty outcomes count
PROBE_EVERY = 64  # opportunities of a kind that does not pay, of which one is tried
PRIOR = 0.6  # share of guesses that come true, before anything is known
CHEAP = 0.005  # share of a forward that asking may always cost
FIRST = 4  # guesses asked for before anything is known
MARGIN = 1.03  # expected gain below which drafting is not worth the noise
PRIOR_SLOPE = 0.2  # cost of one more token, in forwards of one token, before anything was measured
LARGEST = 64  # tokens of a forward whose cost is recorded


class StepCosts:
    """Seconds of work by its size: of a forward by its tokens, or of proposing by the guesses asked for.

    A line through all timings, the old ones fading (least squares, leaning on PRIOR_SLOPE), times how far each size has been from it.
    So timings of one size tell of the others when the whole machine becomes slower or contexts longer.
    """

    def __init__(self) -> None:
        self._count = self._size = self._seconds = self._sizes = self._product = 0.0  # fading sums of 1, x, y, x*x, x*y
        self._beside: dict[int, float] = {}  # seconds over the line's

    def record(self, size: int, seconds: float) -> None:
        if not 1 <= size <= LARGEST:
            return
        if self._count:
            seconds = min(seconds, OUTLIER * self.seconds(size))
        self._count = FORGET * self._count + 1
        self._size = FORGET * self._size + size
        self._seconds = FORGET * self._seconds + seconds
        self._sizes = FORGET * self._sizes + size * size
        self._product = FORGET * self._product + size * seconds
        old = self._beside.get(size, 1.0)
        self._beside[size] = old + BLEND * (seconds / self._line(size) - old)

    @property
    def known(self) -> bool:
        return self._count > 0

    def ratio(self, more: int, base: int = 1) -> float:
        """Cost of base + more in that of `base`; never below 1."""
        return max(1.0, self.seconds(base + more) / self.seconds(base))

    def table(self) -> dict[int, float]:
        """Estimated seconds of the sizes that occurred."""
        return {size: self.seconds(size) for size in sorted(self._beside)}

    def seconds(self, size: int) -> float:
        """An estimate; in forwards of one token before anything was recorded."""
        return self._line(size) * self._beside.get(size, 1.0)

    def _line(self, size: int) -> float:
        if not self._count:
            return 1 + PRIOR_SLOPE * (size - 1)
        x, y = self._size / self._count, self._seconds / self._count
        prior = PRIOR_SLOPE * y / (1 + PRIOR_SLOPE * (x - 1))
        spread = self._sizes - self._size * x
        slope = max(0.0, (self._product - self._size * y + prior) / (spread + 1.0))
        return max(y + slope * (size - x), 0.1 * y)


@dataclass
class _Kind:
    held: float
    asked: float = 2.0
    passed_over: int = 0


class Pace:
    """`reach` before anything is proposed, `depth` before a draft, `learn` after it. `costs` is filled by whoever runs the forwards."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.asking = StepCosts()
        self._kinds: dict[Hashable, _Kind] = {}
        self._all = _Kind(2.0 * PRIOR)
        self._idle = 0  # opportunities in a row for which nothing was proposed
        self._saved = 0.5  # forwards that a draft was lately expected to save
        self._lately = 1.0  # guesses of a draft lately

    def acceptance(self, kind: Hashable) -> float:
        """Estimated probability that the next guess of this kind holds."""
        book = self._book(kind)
        return book.held / book.asked

    def _book(self, kind: Hashable) -> _Kind:
        """A new kind is thought to be between the others and a mild optimism, so that it is tried."""
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(PRIOR + self._all.held / self._all.asked)
        return self._kinds[kind]

    def reach(self, most: int, base: int = 1) -> int:
        """Guesses worth asking a proposer for: 0 to `most`. Where asking costs, it is for about twice what drafts were lately, and
        only while drafts have lately saved more than that; else now and then."""
        if not self.asking.known or not self.costs.known:
            return min(FIRST, most)
        if self.asking.seconds(most) < CHEAP * self.costs.seconds(base):
            return most
        wanted = min(most, 2 + int(2 * self._lately))
        self._idle += 1
        if self._saved * self.costs.seconds(base) < self.asking.seconds(wanted) and self._idle < PROBE_EVERY:
            return 0
        self._idle = 0
        return wanted

    def depth(self, kind: Hashable, most: int, base: int = 1, chances: Sequence[float] = ()) -> int:
        """Guesses worth adding to a forward that has `base` tokens without them: 0 to `most`.

        chances: the proposer's own estimates for each node of a tree in turn; () for a chain, of which each next guess is as likely.
        """
        book = self._book(kind)
        best, gain = self._best(book.held / book.asked, most, base, chances)
        self._saved += BLEND * ((gain - 1.0 if best else 0.0) - self._saved)
        self._lately += BLEND * (best - self._lately)
        if best:
            book.passed_over = 0
            return best
        book.passed_over += 1
        if book.passed_over >= PROBE_EVERY:
            book.passed_over = 0
            return min(1, most)
        return 0

    def _best(self, rate: float, most: int, base: int, chances: Sequence[float]) -> tuple[int, float]:
        """The number of guesses with the most tokens per second over the whole step, those of other requests included, and how many times more."""
        expected, power = 0.0, 1.0
        best, best_gain = 0, MARGIN
        for k in range(1, most + 1):
            power *= rate
            expected += rate * chances[k - 1] if chances else power
            gain = (1 + expected / base) / self.costs.ratio(k, base)
            if gain > best_gain:
                best, best_gain = k, gain
        return best, best_gain

    def learn(self, kind: Hashable, held: int, offered: int) -> None:
        """Of a draft that was `offered` tokens deep the first `held` came true."""
        for book in (self._book(kind), self._all):
            for i in range(min(held + 1, offered)):
                book.held = MEMORY * book.held + (i < held)
                book.asked = MEMORY * book.asked + 1

    def calibrate(self, kind: Hashable, held: int, expected: float) -> None:
        """Of a draft with chances, `held` guesses came true where the proposer expected so many."""
        book = self._book(kind)
        book.held = MEMORY * book.held + held
        book.asked = MEMORY * book.asked + expected
