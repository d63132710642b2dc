"""Logits that no mask allows are not computed, and no output differs for it: by a tiny model in blocks and the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.engine import Engine, Generation
from agentkit.engine.kernels.library import supported
from agentkit.engine.runner import Span, TorchRunner
from agentkit.engine.scheduler import Scheduler
from agentkit.engine.speculation.lookahead import LookaheadProposer
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.speculator import Speculator
from tests.engine.kernels.models import decoder, quantised
from tests.engine.loaded import loaded_model
from tests.engine.speculation.test_speculator import Eager

pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["city", "days", "mood"],
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}, "mood": {"enum": ["calm", "busy"]}},
}  # fmt: skip
CONSTRAINTS: list[dict[str, Any]] = [{"schema": SCHEMA}, {"regex": "[a-f]{3,20}"}, {"choices": ["true", "false", "truest"]}, {}]
SAMPLING: list[dict[str, Any]] = [
    {}, {"temperature": 1.0, "seed": 3, "top_p": 0.9}, {"logprobs": 5}, {"frequency_penalty": 0.4, "repetition_penalty": 1.2, "logit_bias": {97: 2.0}},
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    loaded = loaded_model(tmp_path_factory.mktemp("model"))
    made = decoder(layers=3, vocabulary=loaded.config.vocab_size, seed=4, max_position=4096, stop_token_ids=loaded.config.stop_token_ids)
    made.embedding *= 0.2  # else a token sees nothing but itself
    with Engine(replace(loaded, model=quantised(made)[0], config=made.config), speculation="off", threads=1, deterministic=True) as engine:
        yield engine


def mixed() -> list[Callable[[Engine], Generation]]:
    """Sixteen requests, each with a constraint and a way of sampling of its own, near the end of its budget and not."""
    return [
        partial(Engine.generate, prompt=f"Question {i}", max_tokens=44 if i % 3 else 90, allow_truncated=True, **CONSTRAINTS[i % 4], **SAMPLING[i // 4])
        for i in range(16)
    ]


def outcomes(engine: Engine, jobs: list[Callable[[Engine], Generation]]) -> list[Any]:
    with ThreadPoolExecutor(16) as threads:
        return [(g.token_ids, g.logprobs, g.finish_reason) for g in threads.map(lambda job: job(engine), jobs)]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called: from now on every row of logits is computed whole."""
    return lambda: monkeypatch.setattr(Scheduler, "_allowed", lambda *_: None)


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of each row that came under a mask, the share of logits that were not computed."""
    shares: list[float] = []
    execute = TorchRunner.execute

    def counting(self: TorchRunner, spans: list[Span]) -> Any:
        found = execute(self, spans)
        for span, rows in zip(spans, found, strict=True):
            shares.extend(float(np.isneginf(row).mean()) for row, mask in zip(rows, span.allowed or (), strict=False) if mask is not None)
        return found

    monkeypatch.setattr(TorchRunner, "execute", counting)
    return shares


def test_sixteen_mixed_requests(engine: Engine, spared: list[float], whole: Callable[[], None]) -> None:
    found = outcomes(engine, mixed())
    assert len(spared) > 100
    assert max(spared) > 0.8
    spared.clear()
    whole()
    assert outcomes(engine, mixed()) == found
    assert not spared


@pytest.mark.parametrize("setting", ["ngram", "lookahead"])
def test_drafts_under_grammars(engine: Engine, setting: str, spared: list[float], whole: Callable[[], None]) -> None:
    """Each node of a draft has a mask of its own; lookahead asks for the model's choices, so its rows are whole."""
    jobs = [job for i, job in enumerate(mixed()) if i % 4 != 3]
    plain = outcomes(engine, jobs)
    speculator = engine.speculator(setting)
    assert speculator is not None
    speculator.pace, speculator.most = Eager(StepCosts()), 6
    if setting == "lookahead":
        speculator = Speculator(LookaheadProposer(window=2, ngram=3, verify=1), speculator.pace, 6)
    drafted: list[int] = []
    speculator.listener = lambda request, known, tree, kept: drafted.append(len(tree))
    engine.speculate(speculator)
    try:
        spared.clear()
        assert outcomes(engine, jobs) == plain
        assert sum(drafted) > 20
        assert max(spared) > 0.8
        whole()
        assert outcomes(engine, jobs) == plain
    finally:
        engine.speculate("off")


def test_several_outputs_of_a_prompt(engine: Engine, whole: Callable[[], None]) -> None:
    ask = partial(engine.generate, "Question", n=3, temperature=1.0, seed=1, max_tokens=60, logprobs=2, schema=SCHEMA)
    first, second = ask(), (whole(), ask())[1]
    assert [(g.token_ids, g.logprobs) for g in (first, *first.alternatives)] == [(g.token_ids, g.logprobs) for g in (second, *second.alternatives)]


def test_the_real_model(smollm2_folder: Path, spared: list[float], whole: Callable[[], None]) -> None:
    with Engine("smollm2-135m") as engine:
        ask = partial(engine.generate, "A trip to Rome, as JSON: ", schema=SCHEMA, max_tokens=48, logprobs=3)
        first = ask()
        assert np.mean(spared) > 0.3
        assert max(spared) > 0.99
        whole()
        second = ask()
        assert (second.token_ids, second.logprobs) == (first.token_ids, first.logprobs)
