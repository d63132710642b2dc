"""Drafts beside everything else a request can ask for: several outputs, log-probabilities, penalties, cached prefixes, changes while it runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine import Engine, Generation
from agentkit.engine.models.reference_attention import ReferenceCache
from agentkit.engine.speculation.lookahead import LookaheadProposer
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import ROOT, TokenTree
from tests.engine.loaded import loaded_model
from tests.engine.speculation.test_speculator import Eager
from tests.engine.tiny import TOKENS, Bench, TinyDecoder


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(loaded_model(tmp_path_factory.mktemp("model")), threads=1, seed=3, speculation="off") as engine:
        yield engine


def eager(kind: str) -> Speculator:
    return Speculator(NgramProposer() if kind == "ngram" else LookaheadProposer(window=2, ngram=3), Eager(StepCosts()))


def told(generation: Generation) -> list[Any]:
    return [(g.text, g.token_ids, g.finish_reason, g.stop_string) for g in (generation, *generation.alternatives)]


OPTIONS: list[dict[str, Any]] = [
    {"n": 3, "temperature": 0.9, "seed": 4},
    {"n": 2, "temperature": 0.9, "seed": 4, "regex": "(ab|ba){2,12}"},
    {"presence_penalty": 0.8, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.2, "temperature": 0.5, "seed": 5},  # (with seed 2 a draw falls where the rounding of torch decides)
    {"logprobs": 3},
    {"logprobs": 2, "regex": "[ab]{3,20}c"},
    {"logit_bias": {5: 4.0, 7: 3.0}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["+".join(o) for o in OPTIONS])
@pytest.mark.parametrize("kind", ["ngram", "lookahead"])
def test_the_same_comes_out(engine: Engine, kind: str, options: dict[str, Any]) -> None:
    options = {"max_tokens": 40, "allow_truncated": True, **options}
    engine.speculate("off")
    plain = engine.generate("hello hello hello", **options)
    engine.prefix.clear()
    for _ in range(2):  # the second time from the prefix cache
        engine.speculate(eager(kind))
        drafted = engine.generate("hello hello hello", **options)
        assert told(drafted) == told(plain)
        for ours, theirs in zip((drafted, *drafted.alternatives), (plain, *plain.alternatives), strict=True):
            for a, b in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
                assert a.token_id == b.token_id
                assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
                assert [t for t, _ in a.top] == [t for t, _ in b.top]


def test_the_way_of_drafting_may_change_while_requests_run(engine: Engine) -> None:
    engine.speculate("off")
    plain = engine.generate("hello hello", max_tokens=80)
    tokens: list[int] = []
    speculators = itertools.cycle([eager("ngram"), None, eager("lookahead")])
    for event in engine.stream("hello hello", max_tokens=80):
        tokens += getattr(event, "token_ids", ())
        engine.speculate(next(speculators))
    assert tuple(tokens) == plain.token_ids


def test_settings_by_name(engine: Engine) -> None:
    for setting in ("ngram", "lookahead", "auto"):
        assert engine.speculator(setting) is not None
    assert engine.speculator("off") is None
    with pytest.raises(ValueError, match="is not available"):
        engine.speculator("psychic")


class Pairs:
    """Guesses every pair of the likeliest three tokens, as a tree."""

    name = "pairs"
    features = 0
    wants_choices = False

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._pairs = pairs

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        tree = TokenTree()
        for first, second in self._pairs:
            tree.extend(ROOT, [first, second])
        return tree.trimmed(limit)

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        raise AssertionError("not asked for")

    def release(self, request: Draftable) -> None:
        """Nothing is kept."""


class Reference(ReferenceCache):
    """Attention of a TinyDecoder without pages."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, **_: Any) -> torch.Tensor:
        group = q.shape[1] // k.shape[1]
        keys, values = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), keys, values, is_causal=True, scale=scale).transpose(0, 1)


def distribution(model: TinyDecoder, tokens: list[int], top_k: int) -> dict[int, float]:
    """The likeliest `top_k` tokens after `tokens` and their probabilities among them."""
    ids = torch.tensor(tokens)
    logits = model.forward(ids, torch.arange(len(ids)), Reference(), torch.tensor([len(ids) - 1]))[0, : len(TOKENS)]
    top = logits.topk(top_k)
    return dict(zip(top.indices.tolist(), top.values.softmax(0).tolist(), strict=True))


def test_sampled_pairs_have_the_models_own_distribution() -> None:
    model, prompt, count = TinyDecoder(3), [7, 8, 9], 700
    first = distribution(model, prompt, 3)
    expected = {(a, b): p * q for a, p in first.items() for b, q in distribution(model, [*prompt, a], 3).items()}
    bench = Bench(TinyDecoder(3), speculator=Speculator(Pairs(list(expected)), Eager(StepCosts())))
    requests = [bench.submit(prompt, max_tokens=14, temperature=1.0, top_k=3, seed=i) for i in range(count // 7)]
    seen: Counter[tuple[int, int]] = Counter()
    for batch in range(7):
        requests = [bench.submit(prompt, max_tokens=14, temperature=1.0, top_k=3, seed=100 * batch + i) for i in range(100)] if batch else requests
        bench.run(*requests)
        seen.update((r.tokens[3], r.tokens[4]) for r in requests)
        assert sum(r.accepted for r in requests) > 100
    assert set(seen) <= set(expected)
    statistic = sum((seen[pair] - count * p) ** 2 / (count * p) for pair, p in expected.items() if p > 1e-4)
    assert statistic < 26.1  # chi-square, 8 degrees of freedom: one in a thousand is above
    assert math.isclose(sum(expected.values()), 1.0, rel_tol=1e-5)
    assert np.isfinite(statistic)
