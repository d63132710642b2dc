"""Blocks of 8 and 4 bits on the real SmolLM2, where it is in the cache: as close to float32 as docs/performance.md says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine.kernels.library import supported
from agentkit.engine.models.loader import LoadedModel, load_model
from agentkit.engine.weights.choose import with_weights
from agentkit.errors import EngineError
from tests.engine.kernels.models import Pool, Sequence, run

pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
TEXT = "def greet(name: str) -> str:\n    return f'Hello, {name}'\n\nThe capital of France is Paris, and the capital of Italy is Rome. In 1969, Neil"


@pytest.fixture(scope="module")
def loaded(smollm2_folder: Path) -> LoadedModel:
    return load_model("smollm2-135m", device="cpu", dtype="float32")


def all_logits(model: Any, ids: list[int]) -> torch.Tensor:
    return run(model, Pool(model, pages=4), (Sequence([2, 0, 3, 1]), 0, ids))


@pytest.mark.parametrize(("weights", "stored", "difference", "agreement"), [("int8", True, 0.03, 1.0), ("int8", False, 1.0, 0.9), ("int4", False, 8.0, 0.7)])
def test_close_to_float32(loaded: LoadedModel, weights: str, stored: bool, difference: float, agreement: float) -> None:
    if stored and loaded.gguf is None:
        pytest.skip("this copy of SmolLM2 did not come from a GGUF file")
    ids = loaded.tokenizer.encode(TEXT)
    wanted = all_logits(loaded.model, ids)
    model: Any = with_weights(loaded if stored else replace(loaded, gguf=None), weights).model
    got = all_logits(model, ids)
    assert (got - wanted).abs().max() < difference
    assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() >= agreement


def test_auto_is_the_file_itself(loaded: LoadedModel) -> None:
    if loaded.gguf is None:
        pytest.skip("this copy of SmolLM2 did not come from a GGUF file")
    model: Any = with_weights(loaded, "auto").model
    assert model.nbytes < 1.01 * loaded.gguf.stat().st_size


@pytest.mark.parametrize("first", ["fp16", "int8"])
@pytest.mark.parametrize("second", ["fp32", "fp16", "int8", "int4"])
def test_matrices_are_converted_once(loaded: LoadedModel, first: str, second: str) -> None:
    converted = with_weights(loaded, first)
    assert with_weights(converted, "auto") is converted
    with pytest.raises(EngineError, match="already"):
        with_weights(converted, second)


def test_activations_of_8_bits_are_close_and_of_16_bits_closer(loaded: LoadedModel) -> None:
    if loaded.gguf is None:
        pytest.skip("this copy of SmolLM2 did not come from a GGUF file")
    ids = loaded.tokenizer.encode(TEXT)
    wanted = all_logits(loaded.model, ids)
    differences = []
    for activations in ("int16", "int8"):
        got = all_logits(with_weights(loaded, "auto", activations).model, ids)
        differences.append(float((got - wanted).pow(2).mean().sqrt()))
        assert (got.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.9
    assert differences[0] < 0.01 < differences[1] < 0.5


def test_activations_are_for_blocks_of_this_engine(loaded: LoadedModel) -> None:
    for weights in ("fp32", "fp16"):
        with pytest.raises(EngineError, match="activations='int8' is for matrices that"):
            with_weights(loaded, weights, "int8")
    with pytest.raises(EngineError, match="of 4 bits, and this model has none"):
        with_weights(replace(loaded, gguf=None), "int8", "int8")
    with pytest.raises(EngineError, match="puts in blocks"):
        with_weights(with_weights(loaded, "int8"), "auto", "int8")
