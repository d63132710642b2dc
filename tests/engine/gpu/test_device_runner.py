"""A decoder on a device against the CPU's runner: the same logits, states and greedy tokens, whatever is mixed in a step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine import Engine, assembly
from agentkit.engine.device.runner import WARM, DeviceRunner
from agentkit.engine.kernels.gpu import choose, sharing
from agentkit.engine.kernels.gpu.batch import Batch
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import load_model
from agentkit.engine.runner import Logits, Runner, Span, TorchRunner
from agentkit.engine.scheduler import Limits
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import TokenTree
from agentkit.errors import EngineError
from tests.engine.kernels.models import VARIANTS, decoder, tokens
from tests.engine.loaded import loaded_model
from tests.engine.tiny import STOP, TOKENS, Bench, TextsMatcher, TinyDecoder

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
SETS = pytest.mark.parametrize("kernels", choose.KERNEL_SETS)


def pool_for(model: Decoder, dtype: torch.dtype = torch.float32) -> KVPool:
    c = model.config
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, dtype)
    pool = KVPool(shape, 40 * shape.bytes_per_page)
    pool.data.fill_(torch.nan if dtype.is_floating_point else 127)  # what is not written may not be read
    return pool


def some_steps(model: Decoder, runner: Runner, pool: KVPool) -> tuple[list[Logits], list[torch.Tensor]]:
    """Prompts in chunks, a decode, a tree and a chain of guesses, states and spans without rows, over three sequences."""
    v = model.config.vocab_size
    texts = [tokens(36, v, 1), tokens(3, v, 2), tokens(5, v, 3)]
    sequences = [pool.start(text, bytes([i])) for i, text in enumerate(texts)]
    assert all(pool.reserve(s, 64) for s in sequences)
    tree, states = TokenTree(), list[torch.Tensor]()
    for parent, token in ((-1, 3), (-1, 4), (0, 5), (1, 6), (2, 7)):
        tree.add(parent, token)
    steps = [
        [Span(sequences[0], tuple(texts[0][:34]), rows=0), Span(sequences[1], tuple(texts[1]), rows=2)],
        [Span(sequences[2], tuple(texts[2]), states=3, on_states=states.append), Span(sequences[0], tuple(texts[0][34:])), Span(sequences[1], (1,))],
        [Span(sequences[1], (9, 2), draft=tree, states=1, on_states=states.append), Span(sequences[0], (5,), draft=TokenTree.chain([1, 2]))],
    ]
    return [rows for step in steps for rows in runner.execute(step)], states


QUICK = ("biases, one key head, odd sizes",)


@pytest.mark.parametrize(
    ("variant", "kernels"),
    [pytest.param(v, k, marks=() if k == "reference" or v in QUICK else pytest.mark.slow) for v in VARIANTS for k in choose.KERNEL_SETS],
)
def test_logits_and_states_are_those_of_the_cpu(variant: str, kernels: str) -> None:
    short = {"layers": 2, "windows": (5, None), "rope_of_layer": (0, 1)} if variant == "gemma" else {"layers": 1}
    model = decoder(**{**VARIANTS[variant], **short})
    want, want_states = some_steps(model, TorchRunner(model, pool := pool_for(model)), pool)
    got, got_states = some_steps(model, DeviceRunner(model, pool := pool_for(model), kernels), pool)
    assert [rows.shape[0] for rows in got] == [0, 2, 1, 1, 1, 6, 3]
    for a, b in zip(got, want, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=2e-4)
    for x, y in zip(got_states, want_states, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.uint8])
@pytest.mark.parametrize("kernels", ["reference", pytest.param("triton", marks=pytest.mark.slow)])
def test_keys_and_values_of_other_types(dtype: torch.dtype, kernels: str) -> None:
    """Near the CPU's logits over the same type, and near those over float32 by what the type loses."""
    if (dtype, kernels) == (torch.uint8, "triton"):
        pytest.skip("Triton's interpreter rounds to fp8 wrongly")
    model = decoder(layers=2)
    want, _ = some_steps(model, TorchRunner(model, pool := pool_for(model, dtype)), pool)
    got, _ = some_steps(model, DeviceRunner(model, pool := pool_for(model, dtype), kernels), pool)
    exact, _ = some_steps(model, TorchRunner(model, pool := pool_for(model)), pool)
    for a, b, c in zip(got, want, exact, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 if dtype == torch.int8 else 2e-3)
        np.testing.assert_allclose(a, c, atol=0.4 if dtype == torch.uint8 else 0.1)


@SETS
def test_long_prompts_beside_decoding_are_attended_to_apart(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "FEW_TOKENS", 4)  # so that some_steps has both
    divided: list[int] = []
    plain = Batch.divided
    monkeypatch.setattr(Batch, "divided", lambda self, spans, count: divided.append(count) or plain(self, spans, count))  # type: ignore[func-returns-value]
    model = decoder(layers=1, heads=2, kv=1)
    want, _ = some_steps(model, TorchRunner(model, pool := pool_for(model)), pool)
    got, _ = some_steps(model, DeviceRunner(model, pool := pool_for(model), kernels), pool)
    assert divided == [1, 2, 1]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


@SETS
def test_a_model_of_another_library_attends_by_the_kernels(kernels: str) -> None:
    model = TinyDecoder(softcap=2.0)
    prompts = [TOKENS.index(b"A"), 5, 9], list(range(34))
    outputs = []
    for runner in (partial(TorchRunner, threads=1), partial(DeviceRunner, kernels=kernels)):
        bench = Bench(model, runner=runner)
        requests = [bench.submit(prompt, max_tokens=2) for prompt in prompts]
        bench.run(*requests)
        outputs.append([r.tokens for r in requests])
    assert outputs[0] == outputs[1]


def generated(model: Decoder, runner: Any, *, pages: int = 2048, speculator: Speculator | None = None) -> list[list[int]]:
    """Greedy tokens of requests that share a prompt, are pushed out, are forced by a grammar, and draft."""
    bench = Bench(model, pages=pages, limits=Limits(max_running=3, step_tokens=48, mixed_step_tokens=20), runner=runner, speculator=speculator)
    long = tokens(70, 256, 5)
    requests = [bench.submit([*long, 1], max_tokens=12), bench.submit([*long, 2], max_tokens=40), bench.submit([7, 8] * 5, max_tokens=30)]
    requests.append(bench.submit([*long[:40], 3], TextsMatcher([b"true and ab", b"tried"]), max_tokens=16))
    bench.run(*requests)
    assert all(r.error is None for r in requests)
    return [r.tokens for r in requests]


@pytest.mark.parametrize("pages", [2048, 5])
@pytest.mark.parametrize("speculate", [False, True])
def test_greedy_tokens_through_the_scheduler_are_those_of_the_cpu(pages: int, speculate: bool) -> None:
    model = decoder(vocabulary=len(TOKENS) + 3, layers=2)
    outputs = []
    for runner in (partial(TorchRunner, threads=1), partial(DeviceRunner, kernels="reference")):
        speculator = Speculator(NgramProposer(), Pace(StepCosts())) if speculate else None
        outputs.append(generated(model, runner, pages=pages, speculator=speculator))
    assert outputs[0] == outputs[1]
    assert STOP not in outputs[0][0]


def test_an_engine_over_the_kernels_writes_what_the_cpu_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loaded_model(tmp_path)
    model = decoder(vocabulary=plain.config.vocab_size, layers=1, heads=2, kv=1)
    loaded = replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
    texts = []
    for kernels in (None, "triton"):
        if kernels is not None:
            monkeypatch.setattr(assembly, "runner_for", lambda model, pool, threads, standard: DeviceRunner(model, pool, "triton"))
        with Engine(loaded, weights="fp32") as it:
            texts.append([it.generate("true: ", max_tokens=3).token_ids, it.generate("x", regex="[ab]{2}12", max_tokens=8).text])
    assert texts[0] == texts[1]
    assert len(texts[0][1]) == 4


@SETS
def test_warming_up_computes_padding_and_touches_no_keys(kernels: str) -> None:
    model = decoder(layers=1)
    pool, said = pool_for(model), list[tuple[int, int | None]]()
    runner = DeviceRunner(model, pool, kernels)
    assert not runner.on_gpu
    runner.warm_up(lambda stage, done, total: said.append((done, total)), [shape for shape in WARM if shape.tokens <= 16])
    assert said == [(i, 4) for i in range(5)]
    assert pool.data.isnan().all()


def test_standard_attention_writes_the_same(tmp_path: Path) -> None:
    plain = loaded_model(tmp_path)
    model = decoder(vocabulary=plain.config.vocab_size, layers=2)
    loaded = replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
    texts = []
    for attention in ("flash", "standard"):
        with Engine(loaded, weights="fp32", attention=attention) as it:
            assert isinstance(it._scheduler._runner, DeviceRunner if attention == "standard" else TorchRunner)
            texts.append(it.generate("true: " * 12, max_tokens=20).token_ids)
    assert texts[0] == texts[1]
    with pytest.raises(EngineError, match="use weights='fp32'"):
        Engine(loaded, weights="int8", attention="standard")
    with pytest.raises(ValueError, match="attention='fast'"):
        Engine(loaded, attention="fast")


def test_what_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="kernels must be one of"):
        choose.kernel_set("cuda", cpu)
    import triton

    assert choose.kernel_set("triton", cpu)  # imported while kernels are interpreted
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(EngineError, match="run on a CUDA GPU, and the model is on cpu"):
        choose.kernel_set("triton", cpu)
    gpu = torch.device("cuda", 0)
    for capability, held, said in (
        ((7, 5), torch.float16, "8.0, and cuda:0 has 7.5; use device='cpu'"),
        ((8, 6), torch.uint8, "8.9, and cuda:0 has 8.6; use kv='int8'"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, of=capability: of)
        with pytest.raises(EngineError, match=said):
            choose.kernel_set("triton", gpu, held)
    monkeypatch.setattr(choose, "shared_of", lambda _: 99 << 10)
    assert choose.kernel_set("triton", gpu, torch.int8, 128)
    with pytest.raises(EngineError, match="heads of 256 needs 136 KiB of shared memory"):
        choose.kernel_set("triton", gpu, torch.int8, 256)
    with pytest.raises(EngineError, match="torch sees no CUDA GPU"):
        load_model(_folder(tmp_path), device="cuda")
    on_second = [assembly._is_on(torch.device("cuda", 1), torch.device(wanted)) for wanted in ("cuda", "cuda:1", "cuda:0", "cpu")]
    assert on_second == [True, True, False, False]
    with pytest.raises(ValueError, match="has been loaded on cpu"):
        Engine(loaded_model(tmp_path / "tiny"), device="cuda")


def _folder(tmp_path: Path) -> Path:
    from tests.engine.models.synthetic import random_decoder

    random_decoder(tmp_path)
    return tmp_path
