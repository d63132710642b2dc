"""Adapters as an application uses them: loaded by name, chosen per request, mixed in one batch, kept apart in the prefix cache."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine import H2O, Engine, FinishEvent, Streaming
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.weights.choose import with_weights
from agentkit.errors import AdapterError, AdapterNotFound, InvalidOption
from tests.engine.adapters.native import native
from tests.engine.adapters.peft_files import RandomAdapter
from tests.engine.loaded import loaded_model

PROMPT = "true: " * 12
Make = Callable[..., Engine]


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedModel:
    return native(tmp_path / "model")


@pytest.fixture
def made(loaded: LoadedModel) -> dict[str, RandomAdapter]:
    config: Any = loaded.model
    return {"a": RandomAdapter(config.config, seed=1), "b": RandomAdapter(config.config, rank=4, targets=("q", "v", "down"), seed=2, rslora=True)}


@pytest.fixture
def make(loaded: LoadedModel, made: dict[str, RandomAdapter], tmp_path: Path) -> Iterator[Make]:
    """Engines that have the adapters "a" and "b"; closes them afterwards."""
    engines: list[Engine] = []
    folders = {name: each.write(tmp_path / name) for name, each in made.items()}

    def build(**options: Any) -> Engine:
        engines.append(Engine(loaded, **{"threads": 1, "seed": 0, "adapters": folders, "weights": "fp32", **options}))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def merged(loaded: LoadedModel, adapter: RandomAdapter, scale: float = 1.0) -> Engine:
    """An engine over the model with the adapter in its weights."""
    model: Any = loaded.model
    return Engine(replace(loaded, model=adapter.merged(model, scale)), threads=1, weights="fp32", speculation="off")


def test_greedy_tokens_are_those_of_the_merged_model(make: Make, loaded: LoadedModel, made: dict[str, RandomAdapter]) -> None:
    engine = make()
    plain = engine.generate(PROMPT, max_tokens=30)
    for name, scale in (("a", 1.0), ("b", 1), ("b", 2), ("a", -0.5)):
        with merged(loaded, made[name], scale) as want:
            g = engine.generate(PROMPT, max_tokens=30, adapter=name, adapter_scale=scale)
            assert g.token_ids == want.generate(PROMPT, max_tokens=30).token_ids
            assert g.token_ids != plain.token_ids
            assert list(engine.score(PROMPT, adapter=name, adapter_scale=scale)) == pytest.approx(list(want.score(PROMPT)), abs=1e-3)
    assert engine.generate(PROMPT, max_tokens=30).token_ids == plain.token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"speculation": "off"},
        {"speculation": "ngram"},
        {"speculation": "self"},
        {"weights": "int8"},
        {"attention": "standard"},
        {"kv": "int8"},
        {"kv": Streaming(4, 40), "weights": "int8"},
        {"kv": H2O(128, 64), "weights": "int8", "prefix_caching": False},
    ],
    ids=lambda options: str(next(iter(options.values()))),
)
def test_a_mixed_batch_equals_each_alone(make: Make, options: dict[str, Any]) -> None:
    """Base and two adapters at several scales side by side, some greedy, some sampled, some under a grammar; drafts are verified with the own adapter."""
    engine = make(**options)
    jobs: list[dict[str, Any]] = [
        {}, {"adapter": "a"}, {"adapter": "b"}, {"adapter": "a", "adapter_scale": 0.5}, {"adapter": "b", "adapter_scale": 2.0, "temperature": 1.0, "seed": 4},
        {"adapter": "a", "regex": "[ab1]{12}"}, {"temperature": 0.9, "seed": 2}, {"adapter": "b", "schema": {"enum": ["true", "ab12"]}},
    ]  # fmt: skip
    alone = [engine.generate(PROMPT * 4, max_tokens=20, **job).token_ids for job in jobs]
    assert len(set(alone)) == len(jobs)

    async def together() -> list[tuple[int, ...]]:
        return [g.token_ids for g in await asyncio.gather(*(engine.agenerate(PROMPT * 4, max_tokens=20, **job) for job in jobs))]

    engine.prefix.clear()
    assert asyncio.run(together()) == alone


def test_all_ways_to_ask(make: Make) -> None:
    engine = make()
    messages = [{"role": "user", "content": "true"}]
    want = engine.generate(engine.encode_chat(messages), max_tokens=9, adapter="a").token_ids
    assert engine.chat(messages, max_tokens=9, adapter="a").token_ids == want
    assert engine.chat(messages, max_tokens=9).token_ids != want
    *_, last = engine.stream(engine.encode_chat(messages), max_tokens=9, adapter="a")
    assert isinstance(last, FinishEvent)
    assert last.generation.token_ids == want

    async def others() -> list[tuple[int, ...]]:
        streamed = [event async for event in engine.astream(engine.encode_chat(messages), max_tokens=9, adapter="a")]
        assert isinstance(streamed[-1], FinishEvent)
        return [(await engine.achat(messages, max_tokens=9, adapter="a")).token_ids, streamed[-1].generation.token_ids]

    assert asyncio.run(others()) == [want, want]
    g = engine.generate(PROMPT, max_tokens=9, n=3, temperature=1.0, seed=5, adapter="a")
    assert g.token_ids == engine.generate(PROMPT, max_tokens=9, temperature=1.0, seed=5, adapter="a").token_ids
    assert len({g.token_ids, *(each.token_ids for each in g.alternatives)}) == 3


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_equal_logits_to_the_bit_beside_any_neighbours(make: Make, weights: str) -> None:
    """deterministic=True holds with adapters, and for requests without one beside them."""
    engine = make(weights=weights, deterministic=True, speculation="off")
    jobs: list[dict[str, Any]] = [{}, {"adapter": "a"}, {"adapter": "b"}, {"adapter": "a", "adapter_scale": -2.0}, {"adapter": "b", "adapter_scale": 0.25}]
    prompts = [PROMPT, PROMPT * 3, "x", PROMPT, PROMPT + "12"]
    alone = [engine.generate(p, max_tokens=12, logprobs=4, **job).logprobs for p, job in zip(prompts, jobs, strict=True)]

    async def together() -> list[Any]:
        both = [*zip(prompts, jobs, strict=True)]
        return await asyncio.gather(*(engine.agenerate(p, max_tokens=12, logprobs=4, **job) for p, job in (*both, *both[::-1])))

    engine.prefix.clear()
    got = [g.logprobs for g in asyncio.run(together())]
    assert got == [*alone, *alone[::-1]]


def test_scale_zero_is_the_base_model_to_the_bit(make: Make) -> None:
    engine = make(weights="int8")
    plain = engine.generate(PROMPT, max_tokens=12, logprobs=3)
    g = engine.generate(PROMPT, max_tokens=12, logprobs=3, adapter="a", adapter_scale=0.0)
    assert g.logprobs == plain.logprobs
    assert g.usage.cached_tokens > 0  # the keys and values are the same, so they are shared


def test_prefixes_are_shared_within_an_adapter_alone(make: Make, tmp_path: Path) -> None:
    engine = make()
    length = engine.generate(PROMPT, max_tokens=1).usage.input_tokens

    def cached(**options: Any) -> int:
        return engine.generate(PROMPT, max_tokens=1, **options).usage.cached_tokens

    for options in ({"adapter": "a"}, {"adapter": "b"}, {"adapter": "a", "adapter_scale": 0.5}, {"adapter": "a", "cache_salt": "x"}, {"cache_salt": "a"}):
        assert cached(**options) == 0
        assert cached(**options) == length - 1
    engine.load_adapter("a", tmp_path / "a")  # the same files, but nobody knows that
    assert cached(adapter="a") == 0


def test_pins_hold_what_their_adapter_computed_and_no_file_does(make: Make, tmp_path: Path) -> None:
    engine = make(prefix_file=tmp_path / "prefixes.safetensors")
    with engine.pin(prompt=PROMPT, adapter="a"):
        engine.prefix.clear()
        length = engine.generate(PROMPT, max_tokens=1, adapter="b").usage.input_tokens
        assert engine.generate(PROMPT, max_tokens=1, adapter="a").usage.cached_tokens == length - 1
        assert engine.prefix.save(tmp_path / "other.safetensors") == 0
    with engine.pin(prompt=PROMPT):
        assert engine.prefix.save(tmp_path / "other.safetensors") == length
    with pytest.raises(AdapterNotFound):
        engine.pin(prompt=PROMPT, adapter="c")


def test_unloading_and_replacing_while_requests_run(make: Make, made: dict[str, RandomAdapter], tmp_path: Path) -> None:
    """A request ends with the weights that it began with, and those are gone after it."""
    engine = make()
    first = engine.generate(PROMPT, max_tokens=60, adapter="a").token_ids
    engine.prefix.clear()
    stream = engine.stream(PROMPT, max_tokens=60, adapter="a")
    next(stream)
    old = weakref.ref(engine.adapters["a"])
    replace(made["a"], seed=9).write(tmp_path / "new")
    assert engine.load_adapter("a", tmp_path / "new").load_number == 3
    second = engine.generate(PROMPT, max_tokens=60, adapter="a").token_ids
    engine.unload_adapter("a")
    assert list(engine.adapters) == ["b"]
    with pytest.raises(AdapterNotFound, match="no adapter 'a' is loaded"):
        engine.generate(PROMPT, adapter="a")
    *_, last = stream
    assert isinstance(last, FinishEvent)
    assert last.generation.token_ids == first != second
    stream.close()
    del stream, last
    engine.generate(PROMPT, max_tokens=1)  # the engine has looked away from it
    gc.collect()
    assert old() is None


def test_with_too_little_memory_outputs_stay(make: Make) -> None:
    page = make()._scheduler.pool.page_bytes
    jobs: list[dict[str, Any]] = [{"adapter": "a"}, {"adapter": "b"}, {}, {"adapter": "a", "adapter_scale": 2.0}]
    roomy, tight = make(), make(kv_memory=8 * page)
    want = [roomy.generate(PROMPT, max_tokens=120, **job).token_ids for job in jobs]

    async def together() -> list[Any]:
        return await asyncio.gather(*(tight.agenerate(PROMPT, max_tokens=120, **job) for job in jobs))

    got = asyncio.run(together())
    assert [g.token_ids for g in got] == want
    assert sum(g.usage.preemptions for g in got) > 0


def test_unknown_names_and_wrong_scales(make: Make) -> None:
    engine = make()
    with pytest.raises(AdapterNotFound, match=r"no adapter 'A' is loaded. Did you mean 'a'\? Loaded are 'a', 'b'"):
        engine.generate(PROMPT, adapter="A")
    with pytest.raises(AdapterNotFound):
        engine.unload_adapter("c")
    engine.unload_adapter("a")
    engine.unload_adapter("b")
    with pytest.raises(AdapterNotFound, match="nor any other"):
        engine.generate(PROMPT, adapter="a", adapter_scale=0.0)
    for options, text in (({"adapter": "a", "adapter_scale": float("nan")}, "adapter_scale must be"), ({"adapter_scale": 0.5}, "no adapter to scale"),
                          ({"adapter": 3}, "adapter must be a string")):  # fmt: skip
        with pytest.raises(InvalidOption, match=text):
            engine.generate(PROMPT, **options)
    with pytest.raises(InvalidOption, match="adapters must map names"):
        make(adapters=["a"])
    for name, error in ((3, TypeError), ("", AdapterError)):
        with pytest.raises(error):
            engine.load_adapter(name, "x")  # type: ignore[arg-type]


def test_models_without_the_native_decoder_say_so(make: Make, tmp_path: Path) -> None:
    folder = make() and tmp_path / "a"
    with Engine(loaded_model(tmp_path / "other")) as engine, pytest.raises(AdapterError, match="only the native decoder"):
        engine.load_adapter("a", folder)


def test_an_adapter_that_cannot_be_read_changes_nothing(make: Make, tmp_path: Path) -> None:
    engine = make()
    before = engine.generate(PROMPT, max_tokens=9, adapter="a").token_ids
    config = tmp_path / "a" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "use_dora": True}))
    with pytest.raises(AdapterError, match="use_dora=True is not supported"):
        engine.load_adapter("a", tmp_path / "a")
    assert engine.adapters["a"].load_number == 1
    assert engine.generate(PROMPT, max_tokens=9, adapter="a").token_ids == before


def test_half_precision_weights(make: Make, loaded: LoadedModel) -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("needs FBGEMM")
    half: Any = with_weights(loaded, "fp16").model
    assert half.dtype == torch.float32
    engine = make(weights="fp16")
    assert engine.generate(PROMPT, max_tokens=9, adapter="a").token_ids == make().generate(PROMPT, max_tokens=9, adapter="a").token_ids
