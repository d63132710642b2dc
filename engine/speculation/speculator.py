"""Speculation around one forward: what is drafted before it, and what of that is kept after it.

Inputs: requests about to sample, and the rows of logits over what was drafted. Checking a draft is decoding: the advancer
chooses from the row after each node as it would without drafts, and goes on as long as what it chose was drafted, so nothing
about the output changes, sampled or greedy. Knows nothing of models, pages or scheduling.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from agentkit.engine.attention import one_range
from agentkit.engine.request import Request, State
from agentkit.engine.speculation.constrain import constrain
from agentkit.engine.speculation.features import extended
from agentkit.engine.speculation.pace import Pace
from agentkit.engine.speculation.proposer import Proposer
from agentkit.engine.speculation.tree import ROOT, TokenTree

if TYPE_CHECKING:
    from agentkit.engine.advance import Advancer
    from agentkit.engine.runner import Logits

MAX_DRAFT = 16
"""Tokens of one draft, at most."""


class Speculator:
    """proposer: who guesses.   pace: how far that pays, kept up to date here.   most: tokens of one draft, at most.

    branches: False: only the first branch of each tree is used.
    listener: for whoever wants to watch: told on the engine thread of each draft that was checked: the request, how many tokens it had
    before, the tree and the nodes that were kept.
    """

    def __init__(self, proposer: Proposer, pace: Pace, most: int = MAX_DRAFT, *, branches: bool = True) -> None:
        self.branches = branches
        self.proposer = proposer
        self.pace = pace
        self.most = most
        self.listener: Callable[[Request, int, TokenTree, list[int]], None] | None = None
        self._states: dict[Request, torch.Tensor] = {}  # after each node of a draft, until it is settled

    def draft(self, request: Request, base: int) -> TokenTree | None:
        """Guesses for a request whose known tokens are all in this step, beside `base` tokens of the step; None where none pay.

        No more than the request may still generate, the last one being sampled from the draft's last row.
        """
        most = min(self.most, request.remaining - 1)
        limit = self.pace.reach(most, base) if most > 0 else 0
        if not limit:
            return None
        start = time.perf_counter()
        tree = self.proposer.propose(request, limit)
        self.pace.asking.record(limit, time.perf_counter() - start)
        if not self.branches:
            tree = tree.trunk()
        if not len(tree):
            return None
        chances = tree.chances if tree.chances[0] else ()
        depth = self.pace.depth(self._kind(tree), min(limit, len(tree)), base, chances)
        if not depth:
            return None
        tree = tree.trimmed(depth)
        if request.matcher is not None:
            tree = constrain(tree, request.matcher, request.tokens[len(request.prompt) :], most)
        if not tree.is_chain and not one_range(len(request.tokens), len(tree)):
            tree = tree.trunk()
        return tree if tree.guesses else None

    def watch(self, request: Request, tree: TokenTree | None, known: int) -> tuple[int, Callable[[torch.Tensor], None] | None]:
        """How many of a span's last `known` tokens the proposer wants states of, and who is told them (see Span)."""
        wanted = self.proposer.features
        if not wanted:
            return 0, None
        count = min(wanted, known)
        return count, partial(self._told, request, len(request.tokens) - count, tree)

    def _told(self, request: Request, start: int, tree: TokenTree | None, states: torch.Tensor) -> None:
        known = len(states) - len(tree or ())
        request.features = extended(request.features, states[:known], start, self.proposer.features)
        if tree is not None:
            self._states[request] = states[known:]

    def settle(self, request: Request, tree: TokenTree, rows: Logits, advancer: Advancer) -> list[int]:
        """Decodes from `rows` [1 + len(tree), V] (the first after the last known token); returns the nodes that were kept, in order.

        The request may end on the way. Tokens chosen behind the last kept node are known and not computed yet.
        """
        kept: list[int] = []
        node, sampled, known = ROOT, 0, len(request.tokens)
        while request.state is State.RUNNING:
            before = len(request.tokens)
            advancer.advance(request, rows[node + 1])
            path = follow(tree, node, request.tokens[before:])
            kept += path
            sampled += bool(path)
            if len(path) < len(request.tokens) - before or not path:
                break
            node = path[-1]
        states = self._states.pop(request, None)
        if states is not None and request.features is not None:
            request.features = extended(request.features, states[kept], request.features.end, self.proposer.features)
        if self.listener is not None:
            self.listener(request, known, tree, kept)
        request.drafted += tree.guesses
        request.accepted += sampled
        deepest = max(sum(not tree.forced[n] for n in tree.path(leaf)) for leaf in range(len(tree)))
        if any(tree.chances):
            self.pace.calibrate(self._kind(tree), sampled, sum(tree.chances))
        else:
            self.pace.learn(self._kind(tree), sampled, deepest)
        if self.proposer.wants_choices:
            self.proposer.observe(request, tree, np.argmax(rows, axis=1).tolist())
        return kept

    def release(self, request: Request) -> None:
        """The request is over."""
        self.proposer.release(request)
        request.features = None
        self._states.pop(request, None)

    def _kind(self, tree: TokenTree) -> tuple[str, int]:
        return self.proposer.name, tree.confidence


def follow(tree: TokenTree, node: int, tokens: list[int]) -> list[int]:
    """The nodes below `node` that spell a beginning of `tokens`."""
    path: list[int] = []
    for token in tokens:
        child = tree.child(node, token)
        if child is None:
            break
        path.append(child)
        node = child
    return path
