"""Every proposer on the real SmolLM2 gives plain decoding's tokens, with and without a grammar; skipped where the model is not in the cache.

The short version asks a few prompts; with --slow it is 200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest
import torch

from agentkit.engine import Engine
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.store import path
from agentkit.engine.speculation.heads import EagleHead, HeadsConfig, MedusaHeads, save_heads
from agentkit.engine.speculation.training import output_rows
from agentkit.engine.weights.packed import PackedDecoder
from agentkit.errors import ModelNotFound
from agentkit.speculation.prompts import Prompt, made_up
from agentkit.speculation.train import ask
from tests.engine.speculation.test_speculator import Eager

SETTINGS = ("ngram", "lookahead", "self:10", "draft:smollm2-135m", "medusa", "eagle")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """With heads that were not trained: what they guess matters to speed alone."""
    try:
        path("smollm2-135m")
    except ModelNotFound:
        pytest.skip("SmolLM2 is not in the cache: run `agentkit models pull smollm2-135m`")
    with Engine("smollm2-135m", speculation="off") as engine:
        decoder = engine.decoder
        if not isinstance(decoder, PackedDecoder):
            pytest.skip("this processor does not run the kernels that keep one order of sums")
        heads_for(engine, decoder, tmp_path_factory.mktemp("heads"))
        yield engine


def heads_for(engine: Engine, decoder: Decoder, folder: Path) -> None:
    torch.manual_seed(0)
    ids = torch.arange(1024)
    rows = output_rows(decoder, ids)
    for kind, make in (("medusa", MedusaHeads), ("eagle", EagleHead)):
        config = HeadsConfig(kind, engine.heads_digest(), decoder.config.hidden_size, len(ids), attention_heads=8)
        save_heads(make(config, ids, rows), folder / f"{kind}.safetensors")
        HEADS[kind] = folder / f"{kind}.safetensors"


HEADS: dict[str, Path] = {}


def tokens_of(engine: Engine, prompts: Sequence[Prompt], most: int) -> list[tuple[int, ...]]:
    found = []
    for i, prompt in enumerate(prompts):
        plain = Prompt(prompt.messages) if i % 2 else prompt  # every second without tools, so without a grammar
        sampling = {"temperature": 0.8, "seed": i} if i % 3 == 2 else {}
        found.append(ask(engine, plain, max_tokens=most, **sampling).token_ids)
    return found


def check(engine: Engine, prompts: Sequence[Prompt], most: int, settings: Sequence[str]) -> None:
    engine.speculate("off")
    wanted = tokens_of(engine, prompts, most)
    for setting in settings:
        speculator = engine.speculator(f"{setting}:{HEADS[setting]}" if setting in HEADS else setting)
        assert speculator is not None
        speculator.pace = Eager(speculator.pace.costs)
        speculator.most = 6
        engine.speculate(speculator)
        before = engine.metrics.steps
        assert tokens_of(engine, prompts, most) == wanted, setting
        assert engine.metrics.steps > before


def test_a_few_prompts(engine: Engine) -> None:
    check(engine, list(islice(made_up(seed=5), 2)), 40, ["ngram", "medusa", "eagle"])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_hundred_prompts(engine: Engine, setting: str) -> None:
    check(engine, list(islice(made_up(seed=6), 200)), 80, [setting])
