"""What policies keep, on a device: the logits of explicit attention over what a token may see, with pages freed and used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kv import pages_for
from agentkit.engine.kv_format import decode
from agentkit.engine.kv_policy import H2O, STEP, Streaming, Window, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.errors import EngineError
from tests.engine.kernels.models import VARIANTS, decoder, tokens
from tests.engine.test_h2o import naive_logits
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


def in_a_budget(model: Decoder, policy: H2O, texts: list[list[int]], kernels: str | None, kv: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, ...]]:
    """For each text its logits, the keys and values that are left, and what they have received.   kernels: None: the CPU's runner."""
    machine = Machine(model, policy, pages=len(texts) * pages_for(policy.budget), kv=kv, prefix_caching=False)
    if kernels is not None:
        machine.runner = DeviceRunner(model, machine.pool, kernels)  # type: ignore[assignment]
    sequences = [machine.pool.start(ids, room=LENGTH) for ids in texts]
    found, received = in_ragged_spans(machine, sequences, texts, lambda _: pages_for(policy.budget)), machine.pool.received
    assert received is not None
    results = []
    for sequence, rows in zip(sequences, found, strict=True):
        slots = torch.cat([torch.arange(*run) for run in sequence.slots(0, sequence.place)])
        kept = machine.pool.data[:, :, :, slots]
        results.append((rows, kept if kv.is_floating_point else decode(kept, torch.float32), received.at(slots, sequence.place)))
    return results


HEAVY = [
    ("llama", {}, H2O(130, recent=20), "reference"),
    ("gemma", {"windows": (None,) * 3}, H2O(140, recent=76), "reference"),
    pytest.param("llama", {"layers": 2, "heads": 4}, H2O(130, recent=20), "triton", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("variant", "options", "policy", "kernels"), HEAVY, ids=str)
def test_heavy_hitters_are_those_of_sums_made_token_by_token(variant: str, options: dict[str, Any], policy: H2O, kernels: str) -> None:
    """Two texts side by side in ragged spans, far beyond the budget: logits, which positions are left, and what each has received."""
    model, texts = decoder(**{**VARIANTS[variant], **options}), [tokens(200, 128, 1), tokens(150, 128, 2)]
    for (rows, kept, received), ids in zip(in_a_budget(model, policy, texts, kernels), texts, strict=True):
        logits, attend = naive_logits(model, policy, ids)
        assert (rows - logits).abs().max() < 1e-3 * logits.abs().max()
        assert torch.allclose(received, torch.tensor(attend.received), rtol=1e-3, atol=2e-3)
        for layer in range(model.config.num_layers):
            assert torch.allclose(kept[layer, 0], torch.stack(attend.keys[layer], 1).float(), atol=1e-3)
            assert torch.allclose(kept[layer, 1], torch.stack(attend.values[layer], 1).float(), atol=1e-3)


def test_heavy_hitters_by_the_kernels_themselves() -> None:
    """A prompt as long as the budget in one span, and tokens behind it."""
    model, policy, ids = decoder(layers=1, heads=2, kv=1), H2O(128, recent=40), tokens(132, 128, 1)
    machine = Machine(model, policy, prefix_caching=False)
    machine.runner = DeviceRunner(model, machine.pool, "triton")  # type: ignore[assignment]
    sequence = machine.pool.start(ids)
    rows = torch.cat([machine.run((sequence, part))[0] for part in (ids[:128], ids[128:131], ids[131:])])
    logits, attend = naive_logits(model, policy, ids)
    assert sequence.place == len(attend.positions) == 132 - STEP
    assert (rows - logits).abs().max() < 1e-3 * logits.abs().max()
    slots = torch.cat([torch.arange(*run) for run in sequence.slots(0, sequence.place)])
    assert torch.allclose(machine.pool.data[0, 0][:, slots], torch.stack(attend.keys[0], 1).float(), atol=1e-3)


@pytest.mark.parametrize("kv", [torch.float16, torch.int8, torch.uint8], ids=str)
def test_heavy_hitters_in_other_formats_are_those_of_the_cpu(kv: torch.dtype) -> None:
    model, policy, texts = decoder(layers=2), H2O(128, recent=30), [tokens(180, 128, 1), tokens(140, 128, 2)]
    for own, host in zip(*(in_a_budget(model, policy, texts, kernels, kv) for kernels in ("reference", None)), strict=True):
        for a, b in zip(own, host, strict=True):
            assert (a - b).abs().max() < 0.02 * b.abs().max()


def test_heavy_hitters_need_a_kernel_that_gives_the_log_sum_exp() -> None:
    model, policy = decoder(), H2O(256)
    with pytest.raises(EngineError, match="needs attention='flash'"):
        reach_of(policy, model.config, standard=True)
