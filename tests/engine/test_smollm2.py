"""The engine on the real SmolLM2-135M-Instruct, where it is in the cache (agentkit models pull smollm2-135m); skipped otherwise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from agentkit.engine import Engine, TokenEvent

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


class Trip(BaseModel):
    city: str
    days: int
    mood: Literal["calm", "busy"]


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path) -> Iterator[Engine]:
    with Engine("smollm2-135m") as engine:
        yield engine


def test_it_answers(engine: Engine) -> None:
    g = engine.chat(QUESTION, max_tokens=40)
    assert "Paris" in g.text
    assert g.finish_reason == "stop"
    assert "<|" not in g.text


def test_stream_equals_generate_and_a_second_turn_is_warm(engine: Engine) -> None:
    ids = engine.encode_chat(QUESTION)
    g = engine.generate(ids, max_tokens=12)
    events = [e for e in engine.stream(ids, max_tokens=12) if isinstance(e, TokenEvent)]
    assert "".join(e.text for e in events) == g.text
    assert engine.generate([*ids, *g.token_ids, *engine.tokenizer.encode(" So")], max_tokens=1).usage.cached_tokens >= len(ids) + len(g.token_ids) - 1


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_model_of_fields_is_always_valid(engine: Engine, temperature: float) -> None:
    prompt = engine.encode_chat([{"role": "user", "content": "Plan a trip to Rome for three days. Reply with JSON."}])
    for seed in range(3):
        g = engine.generate(prompt, schema=Trip, temperature=temperature, seed=seed, max_tokens=48)
        assert isinstance(g.value, Trip)
        assert g.value == Trip(**json.loads(g.text))
        assert g.finish_reason == "stop"
        assert g.usage.forwards < g.usage.output_tokens


def test_concurrent_requests_equal_lone_ones(engine: Engine) -> None:
    prompts = [engine.encode_chat([{"role": "user", "content": c}]) for c in ("Name a colour.", "Count to five.", "Say hello in Spanish, please.")]
    alone = [engine.generate(p, max_tokens=8).token_ids for p in prompts]

    async def together() -> list[Any]:
        return await asyncio.gather(*(engine.agenerate(p, max_tokens=8) for p in prompts))

    assert [g.token_ids for g in asyncio.run(together())] == alone


def test_half_precision_weights_choose_the_same_tokens(engine: Engine) -> None:
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no FBGEMM")
    ids = engine.encode_chat(QUESTION)
    with Engine("smollm2-135m", weights="fp16") as half:
        assert half.generate(ids, max_tokens=8).token_ids == engine.generate(ids, max_tokens=8).token_ids


def test_tool_calls_of_the_reference_prompts_are_valid(engine: Engine, shared: Path) -> None:
    """Two questions behind the same 1,488 tokens: valid, and the second finds the first one's prefix computed."""
    data = json.loads((shared / "toolcall" / "prompts.json").read_text())
    names = {tool["name"] for tool in data["tools"]}
    results = [engine.generate(data["prefix"] + question + data["suffix"], schema=data["schema_bounded"], max_tokens=256) for question in data["messages"][:2]]
    for g in results:
        assert g.value["name"] in names
        assert set(g.value) == {"name", "arguments"}
        assert g.finish_reason == "stop"
    assert results[1].usage.cached_tokens > 1400
