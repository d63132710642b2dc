"""Hidden states reach the proposers that want them: those of the tokens before the last known one, whatever the way there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.reference_attention import ReferenceCache
from agentkit.engine.speculation.features import Features
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.engine.weights.choose import quantised
from tests.engine.models.synthetic import random_decoder
from tests.engine.speculation.test_speculator import Eager
from tests.engine.tiny import Bench


class Watcher:
    """Notes the states it is shown, and guesses a tree of which some comes true."""

    name = "watcher"
    wants_choices = False

    def __init__(self, features: int, truth: Sequence[int], seed: int) -> None:
        self.features, self._truth, self._rng = features, list(truth), random.Random(seed)
        self.seen: list[tuple[list[int], Features]] = []

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        if request.features is None:
            assert list(request.tokens) == request.prompt  # nothing was computed yet
            return TokenTree()
        self.seen.append((list(request.tokens), request.features))
        tree, rest = TokenTree(), self._truth[len(request.tokens) :]
        tree.extend(ROOT, rest[: self._rng.randrange(4)])
        tree.extend(ROOT, [self._rng.randrange(20)] * self._rng.randrange(3))
        return tree.trimmed(limit)

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        raise AssertionError("not asked for")

    def release(self, request: Draftable) -> None:
        """Nothing is kept."""


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    plain = random_decoder(tmp_path_factory.mktemp("random"))
    return {"plain": plain, "packed": quantised(plain, None, four=False)}


def states_of(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor(tokens)
    with torch.inference_mode():
        return decoder.states(ids, torch.arange(len(ids)), ReferenceCache(decoder.config, len(ids), dtype=decoder.dtype)).float()


@pytest.mark.parametrize("kind", ["plain", "packed"])
@pytest.mark.parametrize("most", [1, 8])
def test_a_proposer_sees_the_states_before_the_last_known_token(kind: str, most: int, decoders: dict[str, Decoder]) -> None:
    decoder, prompts = decoders[kind], [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1]]
    options: dict[str, Any] = {"max_tokens": 12}
    truth = [Bench(decoder).complete(p, **options).tokens for p in prompts]
    watchers = []
    for prompt, tokens in zip(prompts, truth, strict=True):
        watcher = Watcher(most, tokens, seed=most)
        request = Bench(decoder, speculator=Speculator(watcher, Eager(StepCosts()), most=5)).complete(prompt, **options)
        assert request.tokens == tokens
        assert request.features is None
        watchers.append(watcher)
    for watcher, tokens in zip(watchers, truth, strict=True):
        whole = states_of(decoder, tokens)
        for known, features in watcher.seen:
            assert features.end == len(known) - 1
            assert 1 <= features.states.shape[0] <= most
            assert torch.allclose(features.states, whole[features.end - features.states.shape[0] : features.end], atol=2e-3)
