"""The real model says with every proposer what it says without: 200 prompts, greedy, half of them under grammars, many at a time; and samples
come from one distribution. Its kernels keep one order of sums, so any difference is an error.

Slow: half an hour on two cores (`pytest --slow --log-cli-level=INFO tests/engine/speculation/test_lossless_smollm2.py` also tells what was drafted).
"""

from __future__ import annotations

import gzip
import json
import logging
import pydoc_data.topics
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.engine import Engine, Generation
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.errors import EngineError
from agentkit.grammars import Grammar
from agentkit.speculation.prompts import Prompt, made_up
from agentkit.speculation.train import ask
from tests.engine.speculation.lossless import TOGETHER, Credulous, Job, Subject, first_layers_of, untrained_heads
from tests.engine.speculation.test_speculator import Eager

SETTINGS = ("ngram", "medusa", "eagle", "self", "lookahead", "auto", "draft")
LENGTHS = (8, 12, 16, 28)
DRAFT_LAYERS = 28  # of 30: a model of its own that is right now and then
log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Engine("smollm2-135m", speculation="off") as engine:
        if not isinstance(engine.decoder, PackedDecoder):
            pytest.skip("this processor does not run the kernels that keep one order of sums")

        def draft() -> Speculator:
            folder = tmp_path_factory.mktemp("draft")
            first_layers_of(smollm2_folder, folder, DRAFT_LAYERS)
            speculator = engine.speculator(f"draft:{folder}")
            assert speculator is not None
            return speculator

        heads = untrained_heads(engine, engine.decoder, tmp_path_factory.mktemp("heads"))
        for kind in list(heads):
            try:  # heads that were trained guess better
                engine.speculator(kind)
                del heads[kind]
            except EngineError:
                continue
        yield Subject(engine, heads, draft)


def _asked(engine: Engine, prompt: Prompt, most: int) -> Generation:
    return ask(engine, prompt, max_tokens=most, budget_guard=False, allow_truncated=True)


def _generated(engine: Engine, prompt: str, most: int, grammar: Grammar | None = None) -> Generation:
    return engine.generate(prompt, grammar=grammar, max_tokens=most, allow_truncated=True)


def two_hundred(shared: Path) -> list[Job]:
    """100 under grammars: 20 calls over one long prefix, 60 function calls of the Berkeley leaderboard, 20 made-up ones; 100 without: 40
    and 20 of the same kinds that answer in words, and 40 texts to go on with, half of them begun anew so that there is much to repeat."""
    calls = json.loads((shared / "toolcall" / "prompts.json").read_text())
    bounded = Grammar.from_json_schema(calls["schema_bounded"])
    found: list[Job] = [partial(_generated, prompt=calls["prefix"] + m + calls["suffix"], most=256, grammar=bounded) for m in calls["messages"]]
    with gzip.open(shared / "bfcl" / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["tools"] and len(json.dumps(case["tools"])) < 2000]
    prompts = [Prompt(tuple(c["messages"]), tuple(c["tools"])) for c in random.Random(4).sample(cases, 100)]
    prompts += islice(made_up(seed=6), 40)
    for i, prompt in enumerate(prompts):
        with_tools = i < 60 or (i % 2 == 0 and i >= 100)
        found.append(partial(_asked, prompt=prompt if with_tools else Prompt(prompt.messages), most=LENGTHS[i % 4]))
    topics = [" ".join(text.split()) for _, text in sorted(pydoc_data.topics.topics.items()) if len(text) > 800]
    for i, text in enumerate(topics[:40]):
        found.append(partial(_generated, prompt=f"{text[:600]}\n\n{text[:60]}" if i % 2 else text[:400], most=LENGTHS[i % 4]))
    assert len(found) == 200
    return found


@pytest.mark.parametrize("setting", ["ngram", "medusa", "eagle"])
def test_a_few_prompts(smollm2: Subject, setting: str) -> None:
    few: list[Job] = [partial(_asked, prompt=prompt if i else Prompt(prompt.messages), most=40) for i, prompt in enumerate(islice(made_up(seed=5), 2))]
    smollm2.check(smollm2.speculator(setting), "few", few)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_hundred_prompts(smollm2: Subject, shared: Path, setting: str) -> None:
    found = smollm2.check(smollm2.speculator(setting), "two hundred", two_hundred(shared))
    output, forced, drafted, accepted = (
        sum(getattr(g.usage, name) for g in found) for name in ("output_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens")
    )
    log.info(f"{setting}: {output} tokens of 200 outputs are the same, {forced} of them forced; {accepted} of {drafted} guesses came true")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_verifier_that_believes_likely_guesses_is_caught(smollm2: Subject, shared: Path) -> None:
    with pytest.raises(AssertionError, match="say something else"):
        smollm2.check(Credulous(NgramProposer(), Eager(StepCosts()), 4), "sixteen", two_hundred(shared)[20:36])


# -- sampled outputs, with other seeds: the same distribution ---------------------------------------------------------

COLOURS = "red blue red red blue green red blue red green blue red red blue green red blue red red"
SAMPLES = 300
GRAMMARS = {"free": None, "grammar": Grammar.from_regex("( red| blue| green| very dark red){2}")}
DRAFTED = {"free": ("ngram", "medusa", "eagle"), "grammar": ("ngram",)}  # the others guess nothing within so few tokens


def outcomes(engine: Engine, seeds: range, grammar: Grammar | None, temperature: float = 1.0) -> Counter[str]:
    """Texts of a few sampled tokens after a text that repeats itself, so that there is much to guess."""

    def one(seed: int) -> str:
        most = 4 if grammar is None else 16
        return engine.generate(COLOURS, grammar=grammar, max_tokens=most, temperature=temperature, seed=seed).text

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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", GRAMMARS)
def test_sampled_outputs_have_the_same_distribution(smollm2: Subject, kind: str) -> None:
    engine, grammar = smollm2.engine, GRAMMARS[kind]
    engine.speculate("off")
    plain = outcomes(engine, range(SAMPLES), grammar)
    seeds = range(SAMPLES, 2 * SAMPLES)
    assert likelihood_of_one_source(plain, outcomes(engine, seeds, grammar, temperature=0.4)) < 0.001, "another temperature is not seen"
    engine.speculate(Credulous(NgramProposer(), Eager(StepCosts()), 4))
    assert likelihood_of_one_source(plain, outcomes(engine, seeds, grammar)) < 0.001, "a wrong verifier is not seen"
    for setting in DRAFTED[kind]:
        engine.speculate(smollm2.speculator(setting))
        before = engine.stats().drafted_tokens
        p = likelihood_of_one_source(plain, outcomes(engine, seeds, grammar))
        log.info(f"{kind}, {setting}: p = {p:.3f} of {SAMPLES} and {SAMPLES} samples")
        assert engine.stats().drafted_tokens > before
        assert p > 0.005, setting
