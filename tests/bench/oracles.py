"""Proposers that know what will be written, for speculation.py: what a better way of guessing could gain at most.

Input: requests with the same outputs as before; `learn` has them written once. They know the text, not what pays: that is left to the pace.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentkit.engine import Engine
from agentkit.engine.request import Request
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.speculation.bench import Job


class KnowsTheText:
    """Guesses nothing but what comes."""

    name = "knows"
    features = 0
    wants_choices = False

    def __init__(self) -> None:
        self.texts: list[list[int]] = []  # prompt and output

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        return TokenTree.chain(self.following(request)[:limit])

    def following(self, request: Draftable) -> list[int]:
        known = len(request.tokens)
        return next((text[known:] for text in self.texts if text[:known] == request.tokens), [])

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        if isinstance(request, Request) and request.outcome is not None and request.tokens not in self.texts:
            self.texts.append(list(request.tokens))


class StopsInTime(KnowsTheText):
    """The guesses of prompt lookup as far as they are right."""

    name = "stops"

    def __init__(self) -> None:
        super().__init__()
        self._guesser = NgramProposer()

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        guessed, right, node = self._guesser.propose(request, limit), TokenTree(), ROOT
        for token in self.following(request):
            child = guessed.child(node, token)
            if child is None:
                break
            guessed.copy(child, right, len(right) - 1)
            node = child
        return right

    def release(self, request: Draftable) -> None:
        super().release(request)
        self._guesser.release(request)


ORACLES: dict[str, type[KnowsTheText]] = {"knows": KnowsTheText, "stops": StopsInTime}


def learned(engine: Engine, jobs: Sequence[Job], setting: str) -> Speculator:
    """A speculator that has seen what these jobs write."""
    proposer = ORACLES[setting]()
    engine.speculate(Speculator(proposer, Pace(StepCosts())))
    for job in jobs:
        job(engine)
    return Speculator(proposer, Pace(StepCosts()))
