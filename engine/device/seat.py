"""Who sits where in a step on a device, and what can be said of a request without looking at the device.

Inputs: requests of the scheduler. Knows nothing of kernels, tables or when steps are launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentkit.engine.device.beside import Beside
from agentkit.engine.kernels.gpu.batch import BatchSpan
from agentkit.engine.kernels.gpu.sampling_batch import Draw
from agentkit.engine.kernels.gpu.sharing import LEAST_PAGES, common_blocks
from agentkit.engine.kv_sequence import KVSequence
from agentkit.engine.request import Request, TokenLogprob
from agentkit.engine.runner import Logits, Span
from agentkit.grammars.matcher import Matcher
from agentkit.grammars.place import Place

__all__ = ["Burst", "Seat", "draw_of", "is_plain", "logprobs_of", "shared_blocks", "tokens_to_compute"]


@dataclass
class Seat:
    """A request's place in a step. since: the first launch that counts for it.   known: its tokens when device and host agreed last.

    sequence: whose pages the device knows, and `changes` how many of their changes (see KVSequence).
    missed: it has been loaded again for want of a mask, and has not got a token since.
    dropped: positions that its sequence had dropped when it was loaded; once there are more, its keys lie elsewhere.
    """

    request: Request
    sequence: KVSequence | None = None
    place: Place | None = None
    since: int = 0
    known: int = 0
    changes: int = 0
    takes_part: bool = True
    missed: bool = False
    dropped: int = 0

    def run(self, number: int) -> Beside | None:
        """What a launch computes for it beside its last token, if there is more: forced text, or a prompt's end.   number: of the seat."""
        tokens, sequence = tokens_to_compute(self.request), self.sequence
        assert sequence is not None
        return Beside(BatchSpan(sequence.tables, sequence.place, tokens, dropped=sequence.dropped), number) if len(tokens) > 1 else None

    @property
    def is_known(self) -> bool:
        """Does the device know where it stands? Not if it has got tokens elsewhere, or has given its pages back and has others now."""
        request = self.request
        return self.takes_part and self.sequence is request.sequence and self.known == len(request.tokens) == request.computed + 1


@dataclass
class Burst:
    """What happened. steps: launched.   tokens: that requests got.   misses: times that the host had to tell the device how a request goes on.
    errors: of the requests that failed.   beside: logits of those whose step this was without a place.
    """

    steps: int = 0
    tokens: int = 0
    misses: int = 0
    errors: list[tuple[Request, Exception]] = field(default_factory=list)
    beside: list[tuple[Request, Span, Logits]] = field(default_factory=list)


def tokens_to_compute(request: Request) -> tuple[int, ...]:
    """Known tokens without keys and values."""
    return tuple(request.tokens[request.computed :])


def shared_blocks(requests: Sequence[Request]) -> int:
    """How many blocks all requests begin with; 0 where they are too few to be worth it."""
    spans = [BatchSpan(r.sequence.tables, r.computed, r.tokens[-1:]) for r in requests if r.sequence is not None]
    blocks = common_blocks(spans) if len(spans) > 1 else 0
    return blocks if blocks >= LEAST_PAGES else 0


def is_plain(request: Request) -> bool:
    """Is the mask of the next token the state's own? Near the end of the budget it is narrower. Nobody but a Matcher is known well enough."""
    matcher: object = request.matcher
    if matcher is None:
        return True
    return isinstance(matcher, Matcher) and not matcher.is_finished and not matcher.is_guarded(request.remaining if request.params.budget_guard else None)


def draw_of(request: Request) -> Draw:
    """Its next token's draw."""
    prompt = len(request.prompt)
    return Draw(request.params, request.seed, request.generated, 0, request.tokens[:prompt], request.tokens[prompt:])


def logprobs_of(request: Request, token: int, value: float) -> list[TokenLogprob]:
    """As Advancer.take wants them."""
    return [] if request.params.logprobs is None else [TokenLogprob(token, value)]
