"""Takes down texts and the hidden states behind them while an engine writes them: what heads are trained on, at no further cost.

Input: requests as they run. Guesses nothing. Knows nothing of where texts are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from agentkit.engine.request import Request
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.training import Text
from agentkit.engine.speculation.tree import TokenTree

LONGEST = 1024  # tokens of a text whose states are kept
Taken = Callable[[Text, torch.Tensor], None]
"""A text, and the states [N, E] float32 that its own N tokens were chosen from. Called on the engine thread."""


class Recorder:
    """sink: gets every text that was written to its end. Texts of requests that were preempted are left out."""

    name = "recorder"
    features = LONGEST
    wants_choices = False

    def __init__(self, sink: Taken) -> None:
        self._sink = sink

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        if request.draft_state is None:
            request.draft_state = [False] * (len(request.tokens) - len(request.prompt))  # forced from the start
        _note(request)
        return TokenTree()

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        if isinstance(request, Request) and request.outcome is not None and request.features is not None and request.draft_state is not None:
            _note(request)
            start = len(request.prompt)
            features = request.features.until(len(request.tokens) - 1)
            tokens = request.tokens[: features.end + 1]  # a forced run at the end was never computed
            count = len(tokens) - start
            if 0 < count <= features.states.shape[0]:
                self._sink(Text(tuple(tokens), start, tuple(request.draft_state[:count])), features.states[-count:])
        request.draft_state = None


def recording(sink: Taken) -> Speculator:
    """For Engine.speculate."""
    return Speculator(Recorder(sink), Pace(StepCosts()))


def _note(request: Draftable) -> None:
    """Of what came since the last forward the first token was chosen, the rest forced."""
    new = len(request.tokens) - len(request.prompt) - len(request.draft_state)
    request.draft_state += [i == 0 for i in range(new)]
