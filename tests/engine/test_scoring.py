"""Engine.score: the log-probabilities of a given text, under every policy, beside requests, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine import H2O, Engine, Streaming, Window
from agentkit.errors import ContextTooLong, EngineBusy, EngineError
from tests.engine.loaded import loaded_model
from tests.engine.tiny import attend_explicit

IDS = [(7 * i) % 250 for i in range(300)]


def wanted(model: Any, ids: list[int], window: int) -> torch.Tensor:
    """By plain attention over the whole text, a window of which is seen."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: Any, scale: float, softcap: float | None) -> torch.Tensor:
        return attend_explicit(q, k.transpose(0, 1), v.transpose(0, 1), mask, scale, softcap)

    distance = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
    mask = torch.zeros(distance.shape).masked_fill_((distance < 0) | (distance >= window), -torch.inf)
    return model.forward(torch.tensor(ids), torch.arange(len(ids)), attend, slice(None))


@pytest.mark.parametrize(("kv", "window"), [("auto", 1000), (Window(64), 64), (H2O(512), 1000)], ids=str)
def test_scores_are_those_of_plain_attention(kv: Any, window: int, tmp_path: Path) -> None:
    loaded = loaded_model(tmp_path / "model")
    with Engine(loaded, kv=kv, threads=1, prefix_caching=False) as engine:
        stream = engine.stream(IDS[:50], max_tokens=60)  # runs beside it
        found = list(engine.score(IDS))
        assert len(list(stream)) > 50
        size = len(engine.tokenizer.token_bytes)
        logits = wanted(loaded.model, IDS, window)[:-1, :size].log_softmax(-1)
        assert torch.allclose(torch.tensor(found), logits.gather(1, torch.tensor(IDS[1:]).unsqueeze(1)).squeeze(1), atol=1e-3)
        assert engine.stats().free_pages == engine.stats().pages


def test_a_text_is_read_past_the_context_while_it_is_asked_for(tmp_path: Path) -> None:
    with Engine(loaded_model(tmp_path / "model", context=128), kv=Streaming(4, 64), threads=1) as engine:
        values = engine.score(IDS * 5)
        assert len([next(values) for _ in range(700)]) == 700
        values.close()  # type: ignore[attr-defined]
        engine._loop.call(lambda: None).result(30.0)  # whoever drops the values does not wait
        assert engine.stats().free_pages == engine.stats().pages
    with Engine(loaded_model(tmp_path / "model", context=128), threads=1) as engine, pytest.raises(ContextTooLong):
        engine.score(IDS)


def test_values_that_the_engine_thread_itself_collects(tmp_path: Path) -> None:
    """Garbage is collected on any thread; on the engine's own nobody may wait for it."""
    with Engine(loaded_model(tmp_path / "model"), threads=1) as engine:
        values = [engine.score(IDS)]
        next(values[0])
        engine._loop.call(values.clear).result(30.0)
        engine._loop.call(lambda: None).result(30.0)
        assert engine.stats().free_pages == engine.stats().pages


def test_the_values_hold_their_engine_and_failures_are_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model(tmp_path / "model")
    assert len(list(Engine(loaded, threads=1).score(IDS))) == len(IDS) - 1
    with Engine(loaded, threads=1) as engine:

        def broken(*args: Any) -> Any:
            raise RuntimeError("no")

        monkeypatch.setattr(engine.decoder, "forward", broken)
        with pytest.raises(EngineError, match="failed on this text: RuntimeError: no"):
            list(engine.score(IDS))
        assert engine.stats().free_pages == engine.stats().pages


def test_memory_that_others_have_is_not_taken(tmp_path: Path) -> None:
    loaded = loaded_model(tmp_path / "model", delay=0.01)
    with Engine(loaded, threads=1) as engine:
        page = engine.stats().page_bytes
    with Engine(loaded, threads=1, kv_memory=10 * page) as engine:
        with engine.stream(IDS[:200], max_tokens=100, timeout=60.0) as stream:
            next(stream)
            with pytest.raises(EngineBusy, match="no pages"):
                list(engine.score(IDS))
        with pytest.raises(ValueError, match=r"token id 275, which only pads"):
            engine.score([1, 275])
        assert list(engine.score([1])) == []
        assert list(engine.score([1, 2])) == list(engine.score([1, 2]))
