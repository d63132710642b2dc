"""Every proposer gives plain decoding's tokens on a tiny random model in blocks, with and without a grammar, greedy and sampled.

Its greedy texts repeat themselves, so there is much to guess. Its kernels keep one order of sums: any difference is an error.
The real model has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch

from agentkit.engine import Engine, Generation
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.runner import TorchRunner
from agentkit.engine.speculation.draft_model import DraftModelProposer
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.speculation.prompts import Prompt, made_up
from agentkit.speculation.train import ask
from tests.engine.kernels.models import decoder, quantised
from tests.engine.loaded import loaded_model
from tests.engine.speculation.lossless import Credulous, Job, Subject, untrained_heads
from tests.engine.speculation.test_speculator import Eager

SETTINGS = ("ngram", "lookahead", "self", "draft", "medusa", "eagle")
MOST = 120


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
        yield Subject(engine, untrained_heads(engine, model, folder), draft)


def jobs(count: int) -> list[Job]:
    """Every second one without tools, so without a grammar, and every third one sampled."""
    found: list[Job] = []
    for i, prompt in enumerate(islice(made_up(seed=6), count)):
        sampling: dict[str, Any] = {"temperature": 0.8, "seed": i} if i % 3 == 2 else {}
        found.append(partial(_answer, prompt=Prompt(prompt.messages) if i % 2 else prompt, **sampling))
    return found


def _answer(engine: Engine, prompt: Prompt, **options: Any) -> Generation:
    return ask(engine, prompt, max_tokens=MOST, **options)


@pytest.mark.parametrize("setting", SETTINGS)
def test_six_prompts(tiny: Subject, setting: str) -> None:
    tiny.check(tiny.speculator(setting), "six", jobs(6))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_hundred_prompts(tiny: Subject, setting: str) -> None:
    tiny.check(tiny.speculator(setting), "two hundred", jobs(200))


def test_a_verifier_that_believes_likely_guesses_is_caught(tiny: Subject) -> None:
    wrong = Credulous(NgramProposer(), Eager(StepCosts()), 4)
    wrong.believed = 1e-4  # nothing is likely to a random model
    with pytest.raises(AssertionError, match="say something else"):
        tiny.check(wrong, "six", jobs(6))
