"""What happens to one request between two forwards: sample, advance the grammar, take forced tokens, end.

Inputs: a request and the last row of its logits. The reference decoding of the design lives here: stretches that the
grammar forces enter as known tokens (computed in one forward with what follows), the budget guard narrows masks near
max_tokens, and an output is over as soon as the grammar allows nothing but a stop token.
This module knows nothing of scheduling, models or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import numpy.typing as npt

from agentkit.engine.request import Request, TokenLogprob
from agentkit.engine.runner import Logits
from agentkit.engine.sampling import log_probabilities, sample
from agentkit.errors import NoTokenPath

if TYPE_CHECKING:
    from agentkit.grammars import Matcher


Mask = npt.NDArray[np.uint32]


class History(TypedDict):
    """See sampling.adjust."""

    seen: list[int]
    written: list[int]


class Advancer:
    """vocab_size: ids below it have text or are special; columns beyond are padding.   stop_ids: end an output without a grammar.

    Its methods raise what went wrong with the request (GrammarViolation, NumericalError ...); the caller ends it.
    """

    def __init__(self, vocab_size: int, stop_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        self._stop_ids = frozenset(stop_ids)
        self._stop_row = pack_ids(self._stop_ids)

    def begin(self, request: Request) -> None:
        """Before the first forward: what the grammar forces from the start joins the prompt."""
        self._follow(request)

    def advance(self, request: Request, logits: Logits) -> None:
        """Decides the next token from `logits` [V] and whatever it forces; may end the request."""
        token, mask = self._choose(request, logits)
        self.take(request, token, partial(self._logprobs, request, logits, mask, token))

    def take(self, request: Request, token: int, logprobs: Callable[[], list[TokenLogprob]]) -> None:
        """What follows from a token that has been chosen. logprobs: asked for where it is text."""
        matcher = request.matcher
        if matcher is not None:
            matcher.accept(token)
            if matcher.is_finished:
                request.finish("stop", complete=True)
                return
        elif token in self._stop_ids:
            request.finish("stop", complete=True)
            return
        request.add([token], logprobs=logprobs())
        self._follow(request)

    def _choose(self, request: Request, logits: Logits) -> tuple[int, Mask | None]:
        """Samples; returns the token and the mask under which it was drawn.

        A token after which the output could not be completed any more is drawn again under the guard's mask. (Far from max_tokens
        the mask does not rule those out by itself; rejecting one leaves the distribution over the others.)
        """
        params, matcher = request.params, request.matcher
        history = self._history(request)
        draw = partial(sample, logits, params=params, vocab_size=self._vocab_size, seed=request.seed, position=request.generated, **history)
        mask = request.mask
        token = draw(mask=mask)
        if matcher is not None and params.budget_guard and not matcher.fits(token, request.remaining):
            mask = matcher.guarded_mask(request.remaining)
            token = draw(mask=mask, stream=1)
        return token, mask

    @staticmethod
    def _history(request: Request) -> History:
        """What the penalties look at, as far as they are on."""
        params = request.params
        counted = params.presence_penalty or params.frequency_penalty
        seen = request.tokens if params.repetition_penalty != 1.0 else []
        return {"seen": seen, "written": request.tokens[len(request.prompt) :] if counted else []}

    def _logprobs(self, request: Request, logits: Logits, mask: Mask | None, token: int) -> list[TokenLogprob]:
        if request.params.logprobs is None:
            return []
        own, top = log_probabilities(logits, mask, request.params, token, vocab_size=self._vocab_size, **self._history(request))
        return [TokenLogprob(token, own, top)]

    def _follow(self, request: Request) -> None:
        """After new tokens: ends the request, or adds forced tokens and sets the mask for the next one."""
        matcher = request.matcher
        if request.output.stopped is None and matcher is not None:
            forced = self._take_forced(request)
            if forced:
                request.add(forced, forced=True)
        if request.output.stopped is not None:
            request.finish("stop", complete=matcher is None)
        elif matcher is None:
            if request.remaining == 0:
                request.finish("length", complete=True)
        elif matcher.is_accepting and self._is_over(matcher):
            request.finish("stop", complete=True)
        elif request.remaining == 0:
            request.finish("length", complete=matcher.is_accepting)
        else:
            request.mask = matcher.mask(request.remaining) if request.params.budget_guard else matcher.mask()

    def _take_forced(self, request: Request) -> list[int]:
        """Moves the matcher over the tokens that are forced here, as far as the budget reaches, and returns them."""
        matcher = request.matcher
        assert matcher is not None
        taken: list[int] = []
        while len(taken) < request.remaining:
            run = matcher.forced_tokens(request.tokens[len(request.prompt) :] + taken)[: request.remaining - len(taken)]
            for token in run:
                matcher.accept(token)
            kept = len(run)
            while request.params.budget_guard and kept and matcher.completion_tokens() > request.remaining - len(taken) - kept:
                matcher.rollback(1)  # this spelling does not fit: the guard's mask chooses a shorter one
                kept -= 1
            taken += run[:kept]
            if kept == 0 or kept < len(run):
                break
        return taken

    def _is_over(self, matcher: Matcher) -> bool:
        """Whether nothing but a stop token may follow a complete output."""
        try:
            mask = matcher.mask()
        except NoTokenPath:  # a vocabulary without stop tokens
            return True
        width = min(mask.size, self._stop_row.size)
        return not (mask[:width] & ~self._stop_row[:width]).any() and not mask[width:].any()


def pack_ids(ids: Iterable[int]) -> npt.NDArray[np.uint32]:
    """Token ids -> packed uint32 row, just wide enough."""
    members = np.fromiter(ids, np.int64)
    bits = np.zeros((int(members.max()) // 32 + 1) * 32 if members.size else 32, np.uint8)
    bits[members] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
