"""How many guesses are worth their cost: from how often they came true and what a forward of more tokens takes here.

Inputs: which guesses held, by kind, seconds of past forwards by their number of tokens, and seconds of proposing. With probability a
that the next guess holds, k guesses give 1 + a + ... + a^k tokens for C(k + 1) seconds instead of one for C(1) (Leviathan et al. 2023,
arXiv:2211.17192). Here every guess has a chance of its own, which grows along a match; B requests that decode together give B tokens for C(B)
without drafts; and whatever else is in the step (forced runs, prompts) has to be computed anyway, so that guesses pay only for what they add to it.
`Pace.depth` picks the best k, and 0 where none pays. Kinds that do not pay are tried again now and then, at a cost below one percent.
Knows nothing of proposers, models or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLEND = 0.2  # weight of a new timing in what a size costs beside the line
FORGET = 0.97  # weight that an old timing keeps with each new one in the line
OUTLIER = 3.0  # a timing counts for at most this many times what was expected
MEMORY = 0.97  # weight that an old outcome keeps with each new one: some thirty outcomes count
PROBE_EVERY = 64  # opportunities of a kind that does not pay, of which one is tried
PRIOR = 0.6  # share of guesses that come true, before anything is known
TRUST = 3.0  # outcomes that this is worth
CHEAP = 0.005  # share of a forward that asking may always cost
TRIED = 0.01  # share of the time that asking may cost where it has not paid lately
FIRST = 4  # guesses asked for before anything is known
MARGIN = 1.03  # expected gain below which drafting is not worth the noise
PRIOR_SLOPE = 0.2  # cost of one more token, in forwards of one token, before anything was measured
LARGEST = 64  # tokens of a forward whose cost is recorded

Kind = tuple[str, int]
"""A proposer's name, and one of the kinds of guesses that it tells apart."""


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

    def extra(self, more: int, base: int = 1) -> float:
        """Seconds that `more` add to `base`: what the two sizes differ by, but half to twice of what the line says, for timings of single sizes are noisy."""
        line = self._line(base + more) - self._line(base)
        return min(max(self.seconds(base + more) - self.seconds(base), line / 2), 2 * line)

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
    asked: float = TRUST
    passed_over: int = 0


class Pace:
    """`reach` before anything is proposed, `depth` before a draft, `learn` after it. `costs` is filled by whoever runs the forwards."""

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self.asking = StepCosts()
        self._kinds: dict[Kind, _Kind] = {}
        self._all = _Kind(TRUST * PRIOR)
        self._idle = 0  # opportunities in a row for which nothing was proposed
        self._saved = 0.5  # forwards that a draft was lately expected to save
        self._lately = 1.0  # guesses of a draft lately

    def acceptance(self, kind: Kind) -> float:
        """Estimated probability that a guess of this kind holds, if what it builds on does."""
        book = self._book(kind)
        return book.held / book.asked

    def _book(self, kind: Kind) -> _Kind:
        """A new kind is thought to be between the others and a mild optimism, so that it is tried."""
        if kind not in self._kinds:
            self._kinds[kind] = _Kind(TRUST * (PRIOR + self._all.held / self._all.asked) / 2)
        return self._kinds[kind]

    def reach(self, most: int, base: int = 1) -> int:
        """Guesses worth asking a proposer for: 0 to `most`. Where asking costs, it is for about twice what drafts were lately, and
        only while drafts have lately saved more than that; else now and then, the more seldom the dearer."""
        if not self.asking.known or not self.costs.known:
            return min(FIRST, most)
        if self.asking.seconds(most) < CHEAP * self.costs.seconds(base):
            return most
        wanted = min(most, 2 + int(2 * self._lately))
        self._idle += 1
        price, forward = self.asking.seconds(wanted), self.costs.seconds(base)
        if self._saved * forward < price and (self._idle < PROBE_EVERY or TRIED * self._idle * forward < price):
            return 0
        self._idle = 0
        return wanted

    def depth(self, kind: Kind, chances: Sequence[float], forced: Sequence[bool] = (), *, base: int = 1, beside: int = 1) -> int:
        """Guesses worth adding to a forward that has `base` tokens without them, of which `beside` requests choose their next token.

        kind: of the first guess.   chances: probability of each node of a tree in turn that all of its path comes true.   forced: which of them
        are no guesses; (): none.
        """
        book = self._book(kind)
        best, gain = self.best(chances, forced, base=base, beside=beside)
        self._saved += BLEND * ((gain - 1.0 if best else 0.0) - self._saved)
        self._lately += BLEND * (best - self._lately)
        if best:
            book.passed_over = 0
            return best
        book.passed_over += 1
        if book.passed_over >= PROBE_EVERY:
            book.passed_over = 0
            return min(1, len(chances))
        return 0

    def best(self, chances: Sequence[float], forced: Sequence[bool] = (), *, base: int = 1, beside: int = 1) -> tuple[int, float]:
        """As `depth`, of which nothing is noted: how many guesses give the most tokens per second over all requests that decode, and how many times more.

        Forced nodes that come true would have to be computed in any case, and nothing is gained by them.
        """
        plain = self.costs.seconds(beside)
        expected = saved = 0.0
        best, best_gain = 0, MARGIN
        for k, (chance, free) in enumerate(zip(chances, forced or [False] * len(chances), strict=True), 1):
            if free:
                saved += chance
                continue
            expected += chance
            dearer = self.costs.extra(k, base) * (1 - saved / k) / plain
            gain = (1 + expected / beside) / (1 + dearer)
            if gain > best_gain:
                best, best_gain = k, gain
        return best, best_gain

    def learn(self, kind: Kind, held: bool) -> None:
        """A guess of this kind came true, or did not."""
        self._count(kind, held, 1.0)

    def calibrate(self, kind: Kind, held: int, expected: float) -> None:
        """Of a draft with chances, `held` guesses came true where the proposer expected so many."""
        self._count(kind, held, expected)

    def _count(self, kind: Kind, held: float, asked: float) -> None:
        for book in (self._book(kind), self._all):
            book.held = MEMORY * book.held + held
            book.asked = MEMORY * book.asked + asked
