"""What policies keep, on a device: the logits of explicit attention over what a token may see, with pages freed and used again."""

from __future__ import annotations

import pytest
import torch

from agentkit.engine.device.runner import DeviceRunner, runner_for
from agentkit.engine.kv_policy import H2O, Streaming, Window, reach_of
from agentkit.engine.runner import TorchRunner
from agentkit.errors import EngineError
from tests.engine.kernels.models import VARIANTS, decoder, tokens
from tests.engine.test_kv_policy import LENGTH, Machine, in_ragged_spans, pages_seen, wanted_logits

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
TRITON = pytest.param("triton", marks=pytest.mark.slow)
CASES: list[tuple[str, Window | Streaming]] = [("llama", Window(75)), ("llama", Streaming(4, 32)), ("qwen3", Streaming(40, 64)), ("gemma", Window(60))]


@pytest.mark.parametrize(
    ("variant", "policy", "kernels"), [*((*case, "reference") for case in CASES), pytest.param(*CASES[1], "triton", marks=pytest.mark.slow)], ids=str
)
def test_outputs_are_those_of_explicit_attention(variant: str, policy: Window | Streaming, kernels: str) -> None:
    model = decoder(**{**VARIANTS[variant], **({"windows": (20, None, 90)} if variant == "gemma" else {})})
    texts = [tokens(LENGTH, 128, 1), tokens(LENGTH - 59, 128, 2)]
    machine = Machine(model, policy, pages=13, prefix_caching=False)
    machine.runner = DeviceRunner(model, machine.pool, kernels)  # type: ignore[assignment]
    sequences = [machine.pool.start(ids, room=LENGTH) for ids in texts]
    for rows, ids in zip(in_ragged_spans(machine, sequences, texts, lambda _: pages_seen(policy)), texts, strict=True):
        logits = wanted_logits(model, policy, ids)
        assert (rows - logits).abs().max() < 1e-3 * logits.abs().max()


@pytest.mark.parametrize("kernels", ["reference", TRITON])
def test_sinks_in_8_bits_are_near_those_in_full(kernels: str) -> None:
    model, policy = decoder(layers=1), Streaming(4, 32)
    found = []
    for kv in (torch.float32, torch.int8):
        machine = Machine(model, policy, kv=kv)
        machine.runner = DeviceRunner(model, machine.pool, kernels)  # type: ignore[assignment]
        sequence, ids = machine.pool.start([1]), tokens(50, 128)
        found.append(torch.cat([machine.run((sequence, ids[at : at + 25]))[0] for at in (0, 25)]))
    assert (found[0] - found[1]).abs().max() < 0.03 * found[0].abs().max()


def test_heavy_hitters_are_summed_by_torch_and_not_by_standard_attention() -> None:
    model, policy = decoder(), H2O(256)
    machine = Machine(model, policy)
    assert isinstance(runner_for(model, machine.pool), TorchRunner)
    with pytest.raises(EngineError, match="needs attention='flash'"):
        reach_of(policy, model.config, standard=True)
