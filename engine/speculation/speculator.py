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
from agentkit.engine.models.decoder import Allowed
from agentkit.engine.request import Request, State
from agentkit.engine.speculation.constrain import constrain, masks_after
from agentkit.engine.speculation.features import extended
from agentkit.engine.speculation.pace import Kind, Pace
from agentkit.engine.speculation.proposer import Proposer
from agentkit.engine.speculation.tree import ROOT, TokenTree

if TYPE_CHECKING:
    from agentkit.engine.advance import Advancer
    from agentkit.engine.runner import Logits

MAX_DRAFT = 16
"""Tokens of one draft, at most."""
FURTHER = 6
"""Guesses beyond those that pay by themselves which are held against the grammar."""


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

    def draft(self, request: Request, base: int, beside: int = 1) -> TokenTree | None:
        """Guesses for a request whose known tokens are all in this step; None where none pay.

        base: tokens of the step so far.   beside: requests that choose their next token in it, this one included.
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
        tree = self._worth(tree, request, most, base, beside)
        if not tree.is_chain and not one_range(len(request.tokens), len(tree)):
            tree = tree.trunk()
        return tree if tree.guesses else None

    def _worth(self, tree: TokenTree, request: Request, most: int, base: int, beside: int) -> TokenTree:
        """The first nodes of a tree, as many as pay, with what a grammar forces between them: by that it may pay to go further."""
        depth = self.pace.depth(self._kind(tree, 0), self._chances(tree), base=base, beside=beside) if len(tree) else 0
        if not depth or request.matcher is None:
            return tree.trimmed(depth)
        tree = constrain(tree.trimmed(depth + FURTHER), request.matcher, request.tokens[len(request.prompt) :], most)
        best, _ = self.pace.best(self._chances(tree), tree.forced, base=base, beside=beside)
        return tree.trimmed(best or 1)

    def _chances(self, tree: TokenTree) -> list[float]:
        """Of each node, that all of its path comes true."""
        own = any(tree.chances)
        chances: list[float] = []
        for node, parent in enumerate(tree.parents):
            before = chances[parent] if parent != ROOT else 1.0
            if tree.forced[node]:
                chances.append(before)
            else:
                rate = self.pace.acceptance(self._kind(tree, node))
                chances.append(min(before, rate * tree.chances[node]) if own else before * rate)
        return chances

    def allowed(self, request: Request, tree: TokenTree) -> Allowed:
        """What the grammar lets follow each node, at least: the guard of the budget may forbid more. Where the proposer asks for choices, all is wanted."""
        if request.matcher is None or self.proposer.wants_choices:
            return [None] * len(tree)
        return masks_after(tree, request.matcher)

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
        self._learn(tree, set(kept), sampled)
        if self.proposer.wants_choices:
            self.proposer.observe(request, tree, np.argmax(rows, axis=1).tolist())
        return kept

    def release(self, request: Request) -> None:
        """The request is over."""
        self.proposer.release(request)
        request.features = None
        self._states.pop(request, None)

    def _learn(self, tree: TokenTree, kept: set[int], sampled: int) -> None:
        if any(tree.chances):
            self.pace.calibrate(self._kind(tree, 0), sampled, sum(tree.chances))
            return
        for node, parent in enumerate(tree.parents):
            if not tree.forced[node] and (parent == ROOT or parent in kept):
                self.pace.learn(self._kind(tree, node), node in kept)

    def _kind(self, tree: TokenTree, node: int) -> Kind:
        return self.proposer.name, tree.kinds[node]


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
