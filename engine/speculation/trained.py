"""Proposers with trained heads: Medusa and EAGLE.

Input: heads (heads.py) and the target's embedding table. Both read `request.features`, the target's last hidden states. They may end
before the last known token, where a grammar forced what follows; guesses then begin behind what is known all the same.
Knows nothing of how heads are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentkit.engine.speculation.features import Features
from agentkit.engine.speculation.heads import CONTEXT, EagleHead, MedusaHeads, Past
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import ROOT, TokenTree

LEAST = 0.02  # probability of a branch below which it is not worth a place in the tree
WIDTH = 3  # guesses tried at each place


def _usable(request: Draftable) -> Features | None:
    """States of tokens that another known one follows."""
    features = None if request.features is None else request.features.until(len(request.tokens) - 1)
    return features if features is not None and features.states.shape[0] else None


def by_chance(tree: TokenTree) -> TokenTree:
    """The same tree with the likelier nodes first, so that its first nodes are the best small tree."""
    ordered, places = TokenTree(), {ROOT: ROOT}
    for i in sorted(range(len(tree)), key=lambda i: (-tree.chances[i], i)):  # a path is never likelier than its beginning
        places[i] = tree.copy(i, ordered, places[tree.parents[i]])
    return ordered


class MedusaProposer:
    """The likeliest paths over the product of the heads' guesses, the best first."""

    name = "medusa"
    features = 1
    wants_choices = False

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads = heads

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        features = _usable(request)
        if features is None or limit < 1:
            return TokenTree()
        known = len(request.tokens) - 1 - features.end  # tokens that the first heads would guess
        with torch.inference_mode():
            logits = self._heads(features.states[-1])[known:]  # [heads, R]
            if not len(logits):
                return TokenTree()
            top = logits.softmax(-1).topk(WIDTH)
            ids = self._heads.ids[top.indices].tolist()
        chances = top.values.tolist()
        tree = TokenTree()
        front = [(1.0, ROOT, 0)]  # probability, node, place of the next guess
        while front and len(tree) < limit:
            chance, node, place = front.pop(0)
            if place == len(ids):
                continue
            for token, p in zip(ids[place], chances[place], strict=True):
                if chance * p >= LEAST and len(tree) < limit:
                    front.append((chance * p, tree.add(node, token, chance=chance * p), place + 1))
            front.sort(key=lambda entry: -entry[0])
        return by_chance(tree)

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        request.draft_state = None


@dataclass
class _Seen:
    """Keys and values of EAGLE's layer for the states up to token `until` (exclusive)."""

    past: Past | None = None
    until: int = 0


class EagleProposer:
    """A chain by repeated steps of the head, with the runners-up of the first place beside it."""

    name = "eagle"
    features = CONTEXT
    wants_choices = False

    def __init__(self, head: EagleHead, embedding: torch.Tensor) -> None:
        """embedding: [V, E], the target's."""
        self._head, self._embedding = head, embedding

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        features = _usable(request)
        if features is None or limit < 1:
            return TokenTree()
        state = request.draft_state
        if not isinstance(state, _Seen) or state.until > features.end:
            state = request.draft_state = _Seen()
        new = min(features.states.shape[0], features.end - state.until)
        if new < 1:
            return TokenTree()
        tokens = request.tokens
        with torch.inference_mode():
            following, past = self._step(features.states[-new:], tokens[features.end - new + 1 : features.end + 1], state.past)
            state.past, state.until = past, features.end
            for token in tokens[features.end + 1 :]:  # forced: their states are guesses, too
                following, past = self._step(following, [token], past)
            return self._draft(following, past, limit)

    def _step(self, states: torch.Tensor, tokens: list[int], past: Past | None) -> tuple[torch.Tensor, Past]:
        """states [T, E] -> the state one place on from the last [1, E]."""
        following, past = self._head(states[None], self._embedding[torch.tensor(tokens)][None].float(), past)
        return following[0, -1:], past

    def _draft(self, following: torch.Tensor, past: Past, limit: int) -> TokenTree:
        ids, chances = self._guesses(following)
        tree, others = TokenTree(), [(t, p) for t, p in zip(ids[1:], chances[1:], strict=True) if p >= LEAST]
        node, chance = tree.add(ROOT, ids[0], chance=chances[0]), chances[0]
        while len(tree) < limit and chance >= LEAST:
            following, past = self._step(following, ids[:1], past)
            ids, chances = self._guesses(following)
            chance *= chances[0]
            node = tree.add(node, ids[0], chance=chance)
        for token, p in others[: limit - len(tree)]:
            tree.add(ROOT, token, chance=p)
        return by_chance(tree)

    def _guesses(self, state: torch.Tensor) -> tuple[list[int], list[float]]:
        top = self._head.logits(state[0]).softmax(-1).topk(WIDTH)
        return self._head.ids[top.indices].tolist(), top.values.tolist()

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        request.draft_state = None
