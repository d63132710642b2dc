"""Settings are checked once, with errors that name the setting and what it may be."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.checks import listener
from agentkit.engine.config import EngineConfig, SamplingOptions, SamplingParams, sampling_params
from agentkit.engine.kv_policy import H2O, Streaming, Window
from agentkit.errors import InvalidOption


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", v) for v in (-0.1, float("nan"), float("inf"), True, "hot", None)),
        *(("top_p", v) for v in (0.0, 1.01, -1, float("nan"))),
        *(("top_k", v) for v in (-1, 1.5, True)),
        *(("min_p", v) for v in (-0.1, 1.1)),
        *(("repetition_penalty", v) for v in (0.0, -1.0, 1e-300, 1e300)),
        *((name, v) for name in ("presence_penalty", "frequency_penalty") for v in (1e300, -1e300)),
        ("logit_bias", {3: 1e308}),
        *((name, v) for name in ("budget_guard", "include_stop", "allow_truncated") for v in ("no", 1, None)),
        *(("max_tokens", v) for v in (0, -5, 2.0, None)),
        *(("seed", v) for v in (1 << 64, -(1 << 63) - 1, 1.0, "x")),
        *(("stop", v) for v in ("", ["a", ""], [1], None, 3)),
    ],
)
def test_sampling_values_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


def test_sampling_values_at_their_bounds() -> None:
    SamplingParams(temperature=0, top_p=1, top_k=0, min_p=1, max_tokens=1, seed=(1 << 64) - 1)
    SamplingParams(temperature=1e30, top_p=1e-9, seed=-(1 << 63))
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(max_tokens=np.int64(7), temperature=np.float32(0.5), seed=np.uint8(5), logit_bias={np.int64(3): np.float32(2)})  # type: ignore[arg-type, dict-item]
    assert (params.max_tokens, params.temperature, params.seed, params.logit_bias) == (7, 0.5, 5, {3: 2.0})
    config = EngineConfig("m", kv=Streaming(np.int64(4), np.int32(64)), kv_memory=np.int64(1 << 20), max_running=np.int16(2))  # type: ignore[arg-type]
    assert (config.kv, config.kv_memory, config.max_running) == (Streaming(4, 64), 1 << 20, 2)
    assert {type(each) for each in (params.max_tokens, params.seed, *params.logit_bias, config.kv_memory, config.max_running, H2O(np.int64(512)).budget)} == {
        int
    }  # type: ignore[arg-type]
    for wrong in (np.float64(64), np.bool_(True), np.array([64]), "64"):
        with pytest.raises(ValueError, match="kv: window must be an integer"):
            Window(wrong)  # type: ignore[arg-type]


def test_unknown_option_lists_the_known_ones() -> None:
    for wrong, meant in (("temprature", "temperature"), ("shema", "schema"), ("max_token", "max_tokens")):
        with pytest.raises(TypeError, match=rf"unknown generation option '{wrong}'\. Did you mean '{meant}'\? Known are schema, .*, temperature, "):
            sampling_params({wrong: 0.1})  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"unknown generation option 'xyz'\. Known are "):
        sampling_params({"xyz": 0.1})  # type: ignore[typeddict-unknown-key]


def test_the_keyword_arguments_are_those_of_the_parameters() -> None:
    assert list(SamplingOptions.__annotations__) == [f.name for f in fields(SamplingParams)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("speculation", v) for v in ("n-gram", "", None, False, 3)),
        *(("weights", v) for v in ("int3", "q4")),
        *(("max_context", v) for v in (0, -1, 2.5)),
        ("kv", "fp4"),
        *(("threads", v) for v in (0, 100_000)),
        *((name, v) for name in ("prefix_caching", "deterministic", "cuda_graphs") for v in ("no", None)),
        ("max_running", 0),
        ("max_queue", -1),
        *(("device", v) for v in ("", "gpu", "cuda:x", 3, None, torch.device("cpu"))),
        *(("kv_memory", v) for v in (0, -1, True, 1.1, float("nan"), 10**30)),
        ("seed", 1 << 70),
    ],
)
def test_engine_values_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        EngineConfig("m", **{name: value})


async def waits(event: object) -> None: ...


class Waits:
    async def __call__(self, event: object) -> None: ...

    async def see(self, event: object) -> None: ...


@pytest.mark.parametrize("value", [5, "print", waits, partial(waits), Waits(), Waits().see])
def test_a_listener_that_could_not_be_called_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"on_event must be a (plain )?function of one event"):
        listener("on_event", value)


@pytest.mark.parametrize("value", [None, print, [].append, partial(print, 1), lambda event: event, list])
def test_a_listener_may_be_anything_that_is_called(value: Any) -> None:
    listener("on_event", value)
