"""Pins and prefix files through the public engine, and the equality of cached and uncached results."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from agentkit.engine import Engine
from agentkit.errors import ContextTooLong, EngineError
from tests.engine.loaded import loaded_model
from tests.engine.tiny import Bench, TinyDecoder, greedy_without_cache

Make = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    engines: list[Engine] = []

    def build(**options: Any) -> Engine:
        seed = options.pop("seed_of_weights", 0)
        engines.append(Engine(loaded_model(tmp_path / "model", seed=seed), threads=1, **options))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


PAGES_100 = 100 * 256 * 32  # bytes of 100 pages of the tiny model


@pytest.mark.parametrize("length", [1, 31, 32, 33, 63, 64, 65, 96])
def test_results_are_those_without_a_cache_at_every_edge(length: int) -> None:
    bench = Bench(TinyDecoder())
    rng = random.Random(length)
    base = [rng.randrange(250) for _ in range(length)]
    for tail in ([], [7], [7, 8], base[:5]):
        prompt = [*base, *tail]
        for _ in range(2):
            done = bench.complete(prompt, max_tokens=5)
            assert done.tokens[len(prompt) :] == greedy_without_cache(bench.model, prompt, 5)
        assert done.cached == len(prompt) - 1


def test_results_survive_a_storm_of_evictions() -> None:
    bench = Bench(TinyDecoder(), pages=14)
    rng = random.Random(1)
    bases = [[rng.randrange(250) for _ in range(100)] for _ in range(3)]
    for _ in range(40):
        prompt = [*rng.choice(bases)[: rng.randrange(1, 101)], *(rng.randrange(250) for _ in range(rng.randrange(4)))]
        done = bench.complete(prompt, max_tokens=3)
        assert done.tokens[len(prompt) :] == greedy_without_cache(bench.model, prompt, 3)
    assert bench.pool.tree.evicted > 20


def test_a_pinned_prefix_outlives_others(make: Make) -> None:
    engine = make(kv_memory=PAGES_100)
    system = [{"role": "system", "content": "be brief " * 20}]
    with engine.pin(system) as pin:
        for i in range(40):
            engine.generate([i] * 200, max_tokens=2)
        stats = engine.stats()
        assert stats.evicted_pages > 0
        assert stats.pinned_pages == -(-pin.tokens // 32)
        warm = engine.chat([*system, {"role": "user", "content": "hello"}], max_tokens=2)
        assert warm.usage.cached_tokens >= pin.tokens
    pin.release()  # a second time does nothing
    for i in range(40):
        engine.generate([100 + i] * 200, max_tokens=2)
    assert engine.stats().pinned_pages == 0  # released long before those requests ended
    assert engine.chat([*system, {"role": "user", "content": "hello"}], max_tokens=2).usage.cached_tokens == 0


def test_pins_know_their_limits(make: Make) -> None:
    engine = make(kv_memory=PAGES_100)
    with pytest.raises(EngineError, match="may hold 75%"):
        engine.pin(prompt=[1] * 2500)
    with pytest.raises(ValueError, match="either messages"):
        engine.pin()
    with pytest.raises(EngineError, match="prefix_caching is off"):
        make(prefix_caching=False).pin(prompt="hello")
    salted = engine.pin(prompt=[5] * 100, cache_salt="a")
    assert engine.generate([5] * 101, max_tokens=1).usage.cached_tokens == 0
    assert engine.generate([5] * 101, max_tokens=1, cache_salt="a").usage.cached_tokens == 100
    salted.release()


def test_what_pins_hold_already_may_be_pinned_again(make: Make) -> None:
    """The same prefix, one that goes on from it, and its beginning; what is new counts alone."""
    engine = make(kv_memory=PAGES_100)
    pages = engine.stats().pages
    prompt = [i % 250 for i in range(32 * (pages * 6 // 10) + 5)]
    first = engine.pin(prompt=prompt)
    held = engine.stats().pinned_pages
    assert held == pages * 6 // 10 + 1
    for again in (prompt, [*prompt, 1, 2, 3], prompt[: len(prompt) // 2]):
        assert not engine.pin(prompt=again).refused
    assert held <= engine.stats().pinned_pages <= held + 1
    with pytest.raises(EngineError, match="may hold 75%"):
        engine.pin(prompt=[7, *prompt])
    with pytest.raises(EngineError, match="may hold 75%"):
        engine.pin(prompt=prompt, cache_salt="another tenant")
    first.release()
    assert engine.generate([*prompt, 1], max_tokens=1).usage.cached_tokens == len(prompt)


def test_what_will_never_fit_beside_pins_is_refused_when_it_is_asked_for(make: Make) -> None:
    engine = make(kv_memory=PAGES_100)
    prefix = [i % 250 for i in range(32 * 60)]
    with engine.pin(prompt=prefix):
        with pytest.raises(ContextTooLong, match="beside pins, which hold 60 of 100 pages") as caught:
            engine.generate([7] * 1200, max_tokens=81)
        assert (caught.value.tokens, caught.value.limit) == (1281, 1280)
        with pytest.raises(ContextTooLong):
            asyncio.run(engine.agenerate([7] * 1200, max_tokens=81))
        assert engine.generate([7] * 1200, max_tokens=2).usage.output_tokens == 2
        assert engine.generate([*prefix, *[7] * 1200], max_tokens=2).usage.cached_tokens == len(prefix)  # it shares the pinned pages
    assert engine.generate([7] * 1279, max_tokens=2).usage.output_tokens == 2


def test_without_a_cache_there_is_nothing_to_pin_save_or_load(make: Make, tmp_path: Path) -> None:
    engine = make(prefix_caching=False)
    for action in (lambda: engine.pin(prompt="hello"), lambda: engine.prefix.save(tmp_path / "file"), lambda: engine.prefix.load(tmp_path / "file")):
        with pytest.raises(EngineError, match="prefix_caching is off"):
            action()
    assert not (tmp_path / "file").exists()


def test_a_pin_that_was_released_is_not_entered_again(make: Make) -> None:
    with make().pin(prompt="hello") as pin:
        pass
    with pytest.raises(EngineError, match="this pin was released; pin the prefix again"), pin:
        pass


def test_a_prefix_file_whose_folder_cannot_be_made_is_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EngineError, match=r"prefix_file=.*its folder cannot be made"):
        make(prefix_file=tmp_path / "file" / "prefix")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.pin(prompt=list(range(50)))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        engine.prefix.save(tmp_path / "file" / "prefix")

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("agentkit.engine.prefix_file.save_file", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(EngineError, match="No space left"):
        engine.prefix.save(tmp_path / "prefix")
    assert sorted(tmp_path.iterdir()) == before


def test_pins_on_their_way_together_keep_to_the_limit(make: Make) -> None:
    engine = make(kv_memory=PAGES_100)
    pages = engine.stats().pages
    engine._loop.call(lambda: time.sleep(0.2))  # all of them are asked for before the first is computed
    pins = [engine.pin(prompt=[i] * 320, wait=False) for i in range(1, 1 + pages // 10)]
    refused = []
    for pin in pins:
        try:
            pin.wait(30)
        except EngineError as error:
            refused.append(str(error))
            assert pin.refused
    assert refused
    assert all("may hold 75%" in message for message in refused)
    assert 0.5 * pages < engine.stats().pinned_pages <= 0.75 * pages
    assert engine.generate([99] * 500, max_tokens=4).finish_reason == "length"  # there is room for others


def test_a_pin_need_not_be_waited_for(make: Make) -> None:
    engine = make()
    pin = engine.pin(prompt=[3] * 300, wait=False)
    assert engine.generate([*[3] * 300, 1], max_tokens=1).usage.cached_tokens > 250  # computed once
    assert pin.wait(10) is pin
    assert engine.stats().requests == 1  # a pin is not a request


def test_a_new_process_starts_warm(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "prefix.safetensors"
    first = make()
    prompt = list(range(100))
    first.pin(prompt=prompt)
    cold = first.generate([*prompt, 7], max_tokens=8)
    first.generate([9] * 64, max_tokens=2)
    assert first.prefix.save(file) == 100
    assert first.prefix.save(tmp_path / "all", pinned_only=False) > 100
    second = make()
    assert second.prefix.load(file) == 100
    warm = second.generate([*prompt, 7], max_tokens=8)
    assert warm.usage.cached_tokens == 100
    assert warm.token_ids == cold.token_ids
    assert second.prefix.load(file) == 100  # again: it is there already
    second._scheduler.pool.check_invariants()
    second.prefix.clear()
    assert second.generate([*prompt, 7], max_tokens=8).usage.cached_tokens == 0
    assert list(file.parent.iterdir()) == [file]  # nothing half-written is left
    small = make(kv_memory=2 * 256 * 32)
    assert small.prefix.load(file) == 64  # as far as there is room
    small._scheduler.pool.check_invariants()


def test_files_that_do_not_belong_are_refused(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "prefix"
    engine = make()
    engine.pin(prompt=list(range(50)))
    engine.prefix.save(file)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(EngineError, match="damaged"):
        engine.prefix.load(file)
    file.write_bytes(data[:100])
    with pytest.raises(EngineError, match="damaged"):
        engine.prefix.load(file)
    with pytest.raises(EngineError, match="is no file"):
        engine.prefix.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"prefix\.save"):
        engine.prefix.load(tmp_path / "none")
    engine.prefix.save(file)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(EngineError, match="another model"):
        make().prefix.load(file)


def test_a_prefix_file_keeps_pins_between_engines(make: Make, tmp_path: Path) -> None:
    file, prompt = tmp_path / "kept" / "prefixes.safetensors", list(range(1, 101))
    first = make(prefix_file=file)
    first.pin(prompt=prompt)
    written = file.stat().st_mtime_ns, file.stat().st_ino
    wanted = first.generate([*prompt, 7], max_tokens=4)
    second = make(prefix_file=str(file))
    second.pin(prompt=prompt)  # found, so that nothing is written again
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == written
    again = second.generate([*prompt, 7], max_tokens=4)
    assert again.usage.cached_tokens == 100
    assert again.token_ids == wanted.token_ids
    second.pin(prompt=[5, *prompt])
    assert (file.stat().st_mtime_ns, file.stat().st_ino) != written
    second.pin(prompt=[6, *prompt], cache_salt="tenant")
    third = make(prefix_file=file)
    assert third.generate([6, *prompt, 9], max_tokens=1, cache_salt="tenant").usage.cached_tokens == 0
    assert third.generate([5, *prompt, 9], max_tokens=1).usage.cached_tokens == 101
    assert third.generate([*prompt, 7], max_tokens=1).usage.cached_tokens == 100


def test_a_prefix_file_of_another_model_is_written_over_and_a_foreign_file_never(make: Make, tmp_path: Path) -> None:
    file, prompt = tmp_path / "prefixes.safetensors", list(range(1, 70))
    make(prefix_file=file).pin(prompt=prompt)
    other = make(prefix_file=file, kv="bf16")
    assert other.generate([*prompt, 7], max_tokens=1).usage.cached_tokens == 0
    other.pin(prompt=prompt)
    assert make(prefix_file=file, kv="bf16").generate([*prompt, 7], max_tokens=1).usage.cached_tokens == len(prompt)
    for name, contents in (("text", b"not a prefix file"), ("weights", save({"weight": torch.zeros(2)}))):
        foreign = tmp_path / name
        foreign.write_bytes(contents)
        with pytest.raises(EngineError, match=name):
            make(prefix_file=foreign)
        assert foreign.read_bytes() == contents
    with pytest.raises(ValueError, match="prefix_caching"):
        make(prefix_file=file, prefix_caching=False)
