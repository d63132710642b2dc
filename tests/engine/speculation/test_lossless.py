"""Every proposer gives plain decoding's tokens, with and without a grammar, greedy and sampled, many requests at once.

Breadth: 200 prompts on a tiny random model in blocks, whose greedy texts repeat themselves. Depth: the real SmolLM2, where it is in the
cache; a few of its prompts always, more with --slow. Both keep one order of sums, so that any difference is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine import Engine
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.runner import TorchRunner
from agentkit.engine.speculation.draft_model import DraftModelProposer
from agentkit.engine.speculation.heads import EagleHead, HeadsConfig, MedusaHeads, save_heads
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.training import output_rows
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.speculation.prompts import Prompt, made_up
from agentkit.speculation.train import ask
from tests.engine.kernels.models import decoder, quantised
from tests.engine.loaded import loaded_model
from tests.engine.speculation.test_speculator import Eager

SETTINGS = ("ngram", "lookahead", "self", "draft", "medusa", "eagle")
TOGETHER = 16


@dataclass
class Subject:
    """An engine, and what it says without drafts, by (prompts, most tokens). heads: files by kind. draft: makes a proposer of a draft model."""

    engine: Engine
    heads: dict[str, Path]
    draft: Callable[[], Speculator]
    plain: dict[tuple[int, int], list[tuple[int, ...]]] = field(default_factory=dict)

    def speculator(self, setting: str) -> Speculator:
        if setting == "draft":
            found = self.draft()
        else:
            made = self.engine.speculator(f"{setting}:{self.heads[setting]}" if setting in self.heads else setting)
            assert made is not None
            found = made
        found.pace, found.most = Eager(found.pace.costs), 4
        return found

    def check(self, setting: str, prompts: Sequence[Prompt], most: int) -> None:
        """Says what it says without drafts, which were made, and of which some were wrong."""
        key = len(prompts), most
        if key not in self.plain:
            self.engine.speculate("off")
            self.plain[key] = [g.token_ids for g in self.answers(prompts, most)]
        self.engine.speculate(self.speculator(setting))
        found = self.answers(prompts, most)
        assert [g.token_ids for g in found] == self.plain[key]
        drafted, accepted = (sum(getattr(g.usage, name) for g in found) for name in ("drafted_tokens", "accepted_tokens"))
        assert 0 <= accepted < drafted

    def answers(self, prompts: Sequence[Prompt], most: int) -> list[Any]:
        def answer(numbered: tuple[int, Prompt]) -> Any:
            i, prompt = numbered
            plain = Prompt(prompt.messages) if i % 2 else prompt  # every second without tools, so without a grammar
            sampling = {"temperature": 0.8, "seed": i} if i % 3 == 2 else {}
            return ask(self.engine, plain, max_tokens=most, **sampling)

        with ThreadPoolExecutor(TOGETHER) as threads:
            return list(threads.map(answer, enumerate(prompts)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    if not supported():
        pytest.skip("this processor does not run the kernels that keep one order of sums")
    folder = tmp_path_factory.mktemp("tiny")
    loaded = loaded_model(folder / "model")
    width = loaded.config.vocab_size

    def packed(layers: int, seed: int) -> PackedDecoder:
        made = decoder(layers=layers, vocabulary=width, seed=seed, max_position=8192, stop_token_ids=loaded.config.stop_token_ids)
        made.embedding *= 0.2  # else a token sees nothing but itself
        return quantised(made)[0]

    model = packed(4, 1)

    def draft() -> Speculator:
        small = packed(1, 1)
        shape = KVShape(1, small.config.num_kv_heads, small.config.head_dim, torch.float32, torch.device("cpu"))
        pool = KVPool(shape, 1 << 26)
        size = len(loaded.tokenizer.token_bytes)
        proposer = DraftModelProposer(TorchRunner(small, pool), pool, size, loaded.tokenizer.stop_token_ids, 8192)
        return Speculator(proposer, Eager(StepCosts()))

    with Engine(replace(loaded, model=model, config=model.config), speculation="off", threads=1) as engine:
        yield Subject(engine, heads_for(engine, model, folder), draft)


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Engine("smollm2-135m", speculation="off") as engine:
        if not isinstance(engine.decoder, PackedDecoder):
            pytest.skip("this processor does not run the kernels that keep one order of sums")

        def draft() -> Speculator:
            speculator = engine.speculator("draft:smollm2-135m")
            assert speculator is not None
            return speculator

        yield Subject(engine, heads_for(engine, engine.decoder, tmp_path_factory.mktemp("heads")), draft)


def heads_for(engine: Engine, model: Decoder, folder: Path) -> dict[str, Path]:
    """Heads that were not trained: what they guess matters to speed alone."""
    torch.manual_seed(0)
    ids = torch.arange(min(1024, model.config.vocab_size))
    rows = output_rows(model, ids)
    found = {}
    for kind, make in (("medusa", MedusaHeads), ("eagle", EagleHead)):
        config = HeadsConfig(kind, engine.heads_digest(), model.config.hidden_size, len(ids), attention_heads=8)
        found[kind] = folder / f"{kind}.safetensors"
        save_heads(make(config, ids, rows), found[kind])
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_tiny_model(tiny: Subject, setting: str) -> None:
    tiny.check(setting, list(islice(made_up(seed=6), 6)), 120)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_tiny_model_over_two_hundred_prompts(tiny: Subject, setting: str) -> None:
    tiny.check(setting, list(islice(made_up(seed=6), 200)), 120)


@pytest.mark.parametrize("setting", ["ngram", "medusa", "eagle"])
def test_a_few_prompts(smollm2: Subject, setting: str) -> None:
    smollm2.check(setting, list(islice(made_up(seed=5), 2)), 40)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_more_prompts(smollm2: Subject, setting: str) -> None:
    smollm2.check(setting, list(islice(made_up(seed=6), 48)), 48)


# -- sampled outputs, with other seeds: the same distribution ---------------------------------------------------------

COLOURS = "red blue red red blue green red blue red green blue red red blue green red blue red red"


def outcomes(engine: Engine, seeds: range, temperature: float = 1.0) -> Counter[str]:
    """Texts of four sampled tokens after a text that repeats itself, so that there is much to guess."""

    def one(seed: int) -> str:
        return engine.generate(COLOURS, max_tokens=4, temperature=temperature, seed=seed).text

    with ThreadPoolExecutor(TOGETHER) as threads:
        return Counter(threads.map(one, seeds))


def likelihood_of_one_source(a: Counter[str], b: Counter[str], rounds: int = 4000) -> float:
    """p-value of the chi-square statistic of two samples, by permutation; texts seen fewer than eight times count as one."""
    both = a + b
    names = [name for name, count in both.items() if count >= 8]
    place = {name: i for i, name in enumerate(names)}
    draws = np.array([place.get(name, len(names)) for counter in (a, b) for name in counter.elements()])
    size = sum(a.values())
    total = np.bincount(draws, minlength=len(names) + 1)
    expected = total * size / len(draws)

    def statistic(order: np.ndarray[Any, Any]) -> float:
        seen = np.bincount(draws[order[:size]], minlength=len(total))
        return float((((seen - expected) ** 2)[total > 0] / expected[total > 0]).sum())

    rng = np.random.default_rng(0)
    own = statistic(np.arange(len(draws)))
    return (1 + sum(statistic(rng.permutation(len(draws))) >= own for _ in range(rounds))) / (1 + rounds)


@pytest.mark.slow
def test_sampled_outputs_have_the_same_distribution(smollm2: Subject) -> None:
    engine = smollm2.engine
    engine.speculate("off")
    plain = outcomes(engine, range(500))
    assert likelihood_of_one_source(plain, outcomes(engine, range(500, 1000), temperature=0.7)) < 0.001, "the test sees nothing"
    for setting in ("ngram", "medusa", "eagle"):  # lookahead has nothing to guess from within four tokens
        engine.speculate(smollm2.speculator(setting))
        before = engine.stats().drafted_tokens
        drafted = outcomes(engine, range(1000, 1500))
        assert engine.stats().drafted_tokens > before
        assert likelihood_of_one_source(plain, drafted) > 0.005, setting
