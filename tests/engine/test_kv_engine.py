"""Engine(kv=...) as an application uses it: each policy with prefixes, pins, files, drafts, several outputs, preemption and other backends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkit.engine import Engine, FinishEvent, Streaming, Window
from agentkit.engine.kv import PAGE
from agentkit.errors import ContextTooLong, EngineError
from tests.engine.loaded import loaded_model

POLICIES = ["int8", "fp8", Window(64), Streaming(4, 64), Streaming(4, 64, format="int8")]
PROMPT = list(range(100))
ALTERNATING = "one layer of two with a window"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Engine]:
    engines: list[Engine] = []

    def build(kv: Any, context: int = 4096, **options: Any) -> Engine:
        windows: tuple[int | None, ...] = ()
        if kv == ALTERNATING:
            kv, windows = "auto", (40, None)
        engines.append(Engine(loaded_model(tmp_path / "model", context=context, windows=windows), kv=kv, threads=1, seed=0, **options))
        return engines[-1]

    return build


@pytest.mark.parametrize("kv", [*POLICIES, ALTERNATING], ids=str)
def test_prefixes_pins_files_drafts_and_outputs(kv: Any, make: Callable[..., Engine], tmp_path: Path) -> None:
    """Whatever makes an answer cheaper leaves it as it is when all of it is computed anew, token by token."""
    file = tmp_path / "prefix.safetensors"
    plain = make(kv, prefix_caching=False, speculation="off")
    wanted = plain.generate([*PROMPT, 7], max_tokens=150).token_ids
    sampled = [plain.generate([*PROMPT, 7], max_tokens=40, temperature=1.0, seed=3, n=3)]
    engine = make(kv, prefix_file=file, speculation="ngram")
    pin = engine.pin(prompt=PROMPT)
    first = engine.generate([*PROMPT, 7], max_tokens=150)
    assert first.usage.cached_tokens == len(PROMPT)
    assert first.token_ids == wanted
    sampled.append(engine.generate([*PROMPT, 7], max_tokens=40, temperature=1.0, seed=3, n=3))
    assert [g.token_ids for g in (sampled[0], *sampled[0].alternatives)] == [g.token_ids for g in (sampled[1], *sampled[1].alternatives)]
    again = make(kv, prefix_file=file, speculation="off").generate([*PROMPT, 7], max_tokens=150)
    assert again.usage.cached_tokens == len(PROMPT)
    assert again.token_ids == wanted
    pin.release()


def test_a_prefix_file_of_another_policy_is_not_used(make: Callable[..., Engine], tmp_path: Path) -> None:
    file = tmp_path / "prefix.safetensors"
    make(Window(64), prefix_file=file).pin(prompt=PROMPT)
    assert make(Window(96), prefix_file=file).generate([*PROMPT, 7], max_tokens=1).usage.cached_tokens == 0
    make("int8", prefix_file=file).pin(prompt=PROMPT)
    assert make("fp8", prefix_file=file).generate([*PROMPT, 7], max_tokens=1).usage.cached_tokens == 0


@pytest.mark.parametrize("kv", [Window(64), Streaming(4, 64), ALTERNATING], ids=str)
def test_many_at_once_with_little_memory_come_out_the_same(kv: Any, make: Callable[..., Engine]) -> None:
    prompts = [[i, *range(i, 60 + 7 * i)] for i in range(6)]
    roomy = make(kv, prefix_caching=False)
    wanted = [roomy.generate(prompt, max_tokens=100).token_ids for prompt in prompts]
    page = roomy._scheduler.pool.shape.bytes_per_page
    tight = make(kv, kv_memory=12 * page)
    gate = threading.Event()
    tight._loop.call(lambda: gate.wait(60))  # all are there before the first is stepped
    streams = [tight.stream(prompt, max_tokens=100) for prompt in prompts]
    gate.set()
    found = [list(stream)[-1].generation for stream in streams]  # type: ignore[union-attr]
    assert [g.token_ids for g in found] == wanted
    assert sum(g.usage.preemptions for g in found) > 0


def test_what_does_not_fit_is_told_with_what_would(make: Callable[..., Engine]) -> None:
    page = make(Window(64))._scheduler.pool.page_bytes
    message = rf"need 19 pages .* at a time, their windows .* there are 10, enough for 320 tokens; raise kv_memory to {19 * page} bytes"
    with pytest.raises(ContextTooLong, match=message):
        make(Window(64), kv_memory=10 * page).generate(PROMPT, max_tokens=500)
    assert len(make(Window(64), kv_memory=19 * page).generate(PROMPT, max_tokens=500).token_ids) == 500


def test_layers_with_windows_need_less_memory(make: Callable[..., Engine]) -> None:
    engine = make(ALTERNATING, prefix_caching=False)
    pool = engine._scheduler.pool
    held = [pool.page_count - pool.free_pages for _ in engine.stream([1, 2, 3], max_tokens=1000)]
    assert pool.groups.tables == 2
    assert max(held) <= 32 + 3  # of one layer each
    assert engine.stats().page_bytes * 2 == pool.shape.bytes_per_page


def test_a_stream_runs_past_the_context_in_constant_memory(make: Callable[..., Engine]) -> None:
    engine = make(Streaming(4, 64), context=128, prefix_caching=False)
    pool, held = engine._scheduler.pool, []
    for event in engine.stream([1, 2, 3], max_tokens=1000, timeout=100.0):
        held.append(pool.page_count - pool.free_pages)
        last = event
    assert max(held) <= 1 + (64 // PAGE + 1) + 1  # sinks, the window wherever it begins in a page, the page of the next token
    assert isinstance(last, FinishEvent)
    assert len(last.generation.token_ids) == 1000
    with pytest.raises(ContextTooLong):
        make("auto", context=128).generate([1, 2, 3], max_tokens=1000)
    with pytest.raises(ContextTooLong):
        make(Streaming(4, 64), context=128, max_context=500).generate([1, 2, 3], max_tokens=1000)
    with pytest.raises(EngineError, match="trained for 128"):
        make(Streaming(4, 128), context=128)
