"""What every way of guessing has in common. Knows nothing of how guesses are made or checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentkit.engine.config import SamplingParams
from agentkit.engine.speculation.tree import TokenTree

if TYPE_CHECKING:
    from agentkit.engine.kv import KVSequence
    from agentkit.engine.speculation.features import Features
    from agentkit.grammars import Matcher


class Draftable(Protocol):
    """What a proposer sees of a request.

    tokens: all that is known, `prompt` first; the last one has not been computed yet, and what has is in `sequence`.
    params, seed, matcher: for proposers that guess as the request will choose, with its randomness and under its grammar.
    draft_state: the proposer's own notes on this request.      features: see `Proposer.features`; None at first.
    """

    prompt: list[int]
    tokens: list[int]
    params: SamplingParams
    seed: int
    matcher: Matcher | None
    sequence: KVSequence | None
    draft_state: Any
    features: Features | None


class Proposer(Protocol):
    """One way of guessing. All methods run on the engine thread.

    name: as in Engine(speculation=name).
    features: how many of the model's last hidden states it looks at; so many are kept in `request.features`. 0: none.
    wants_choices: `observe` is called with the model's choice after every node, not only along what was kept.
    """

    name: str
    features: int
    wants_choices: bool

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        """At most `limit` guessed tokens that may follow `request.tokens`; an empty tree when there is nothing to guess."""
        ...

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """After a forward over `tree`, where wants_choices: chosen[0] is the model's likeliest token after the last known one, chosen[i + 1] after node i."""
        ...

    def release(self, request: Draftable) -> None:
        """The request is over; lets go of whatever is kept for it."""
        ...
