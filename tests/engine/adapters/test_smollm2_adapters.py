"""Adapters beside the real SmolLM2-135M-Instruct: merged into its weights in float64, and chosen per request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit import Agent, tool
from agentkit.engine import Engine
from agentkit.engine.models.loader import LoadedModel, load_model
from agentkit.engine.runner import Span, TorchRunner
from tests.engine.adapters.native import pool_for, use_of
from tests.engine.adapters.peft_files import RandomAdapter

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
STORY = "Once upon a time, a fox met"
SCALE = 1.5


@pytest.fixture(scope="module")
def loaded(smollm2_folder: Path) -> LoadedModel:
    return load_model("smollm2-135m", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def made(loaded: LoadedModel) -> RandomAdapter:
    config: Any = loaded.config
    return RandomAdapter(config, rank=8, seed=3, strength=0.1)


@pytest.fixture(scope="module")
def merged(loaded: LoadedModel, made: RandomAdapter) -> Any:
    model: Any = loaded.model
    return made.merged(model, SCALE)


@pytest.fixture(scope="module")
def engine(loaded: LoadedModel, made: RandomAdapter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """In the blocks of its file, as it runs by default."""
    with Engine(loaded, adapters={"random": made.write(tmp_path_factory.mktemp("adapter"))}, kv_memory=1 << 28) as engine:
        yield engine


def test_logits_are_those_of_the_merged_weights(loaded: LoadedModel, made: RandomAdapter, merged: Any, tmp_path: Path) -> None:
    model: Any = loaded.model
    ids, rows = loaded.tokenizer.encode("The capital of France is Paris, and that of Italy is"), []
    for each, use in ((model, use_of(made, tmp_path, scale=SCALE, form="kernel")), (merged, None), (model, None)):
        pool = pool_for(each)
        sequence = pool.start(ids)
        assert pool.reserve(sequence, len(ids))
        rows.append(TorchRunner(each, pool).execute([Span(sequence, tuple(ids), rows=len(ids), adapter=use)])[0])
    np.testing.assert_allclose(rows[0], rows[1], atol=2e-3)
    assert np.abs(rows[2] - rows[1]).max() > 1.0  # against the base model's


def test_greedy_texts_are_those_of_the_merged_weights(loaded: LoadedModel, merged: Any, engine: Engine) -> None:
    """In blocks the base matrices are those of the file, which the plain ones were widened from: the two differ by the rounding of activations alone."""
    with Engine(replace(loaded, model=merged), weights="fp32", kv_memory=1 << 28) as want:
        plain, own = engine.generate(STORY, max_tokens=16), engine.generate(STORY, max_tokens=16, adapter="random", adapter_scale=SCALE)
        assert own.token_ids == want.generate(STORY, max_tokens=16).token_ids
        assert own.token_ids != plain.token_ids


def test_a_grammar_holds_with_an_adapter_and_an_agent_uses_it(engine: Engine) -> None:
    g = engine.chat(QUESTION, adapter="random", schema={"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}, "required": ["city"],
                                                        "additionalProperties": False}, max_tokens=40)  # fmt: skip
    assert set(g.value) == {"city"}

    @tool
    def capital(country: str) -> str:
        """The capital of a country.

        Args:
            country: Its name.
        """
        return "Paris"

    agent = Agent(engine, tools=[capital], instructions="Use the tools.", adapter="random")
    first, second = (agent.run_sync("What is the capital of France?", tool_choice="required", execute_tools=False) for _ in range(2))
    assert [call.name for call in first.tool_calls] == ["capital"]
    assert second.usage.cached_tokens > 0
