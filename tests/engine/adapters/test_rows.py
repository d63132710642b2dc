"""Requests with other adapters in one forward: each computes what the model would into whose weights its adapter is merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.adapters.adapter import LowRank, Part
from agentkit.engine.adapters.packed import PackedLowRank
from agentkit.engine.adapters.rows import runs_of
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.runner import Span, TorchRunner
from agentkit.engine.weights.blocks import eight_bits, four_bits
from tests.engine.adapters.native import pool_for, some_steps, use_of
from tests.engine.adapters.peft_files import RandomAdapter
from tests.engine.kernels.models import VARIANTS, decoder, quantised

SCALES = (1.0, -0.5, 2.5)


def random_model(variant: str, layers: int = 2) -> Decoder:
    short = {"windows": (5, None), "rope_of_layer": (0, 1)} if variant == "gemma" else {}
    return decoder(**{**VARIANTS[variant], **short, "layers": layers})


def three(model: Decoder) -> list[RandomAdapter]:
    """All matrices; two of them, with a rank of its own each; and one that skips the attention."""
    c = model.config
    return [
        RandomAdapter(c, rank=5, seed=1),
        RandomAdapter(c, rank=3, ranks={"v": 7}, alphas={"v": 3.0}, targets=("q", "v"), seed=2, rslora=True),
        RandomAdapter(c, rank=16, targets=("up", "down", "o"), seed=3),
    ]


def compare(tmp_path: Path, model: Decoder, plain: Decoder, make: Any, *, form: str, error: float) -> None:
    """A batch of the base model and three adapters, against merged models that know of no adapters, sequence by sequence."""
    made = three(model)
    uses = [use_of(m, tmp_path / str(i), number=i, scale=s, form=form) for i, (m, s) in enumerate(zip(made, SCALES, strict=True))]
    chosen = [uses[0], None, uses[1], uses[2], uses[0]]
    got, got_states = some_steps(model, make(model, pool := pool_for(model)), pool, chosen)
    merged = [plain, *(m.merged(plain, s) for m, s in zip(made, SCALES, strict=True))]
    want = [some_steps(each, TorchRunner(each, pool := pool_for(each)), pool, [None] * 5) for each in merged]
    owners = [1, 0, 2, 1, 3, 1, 0, 1, 0, 1, 2, 3]  # of the rows that come back, in the order of the spans
    assert len(got) == len(owners)
    for place, (rows, owner) in enumerate(zip(got, owners, strict=True)):
        np.testing.assert_allclose(rows, want[owner][0][place], atol=error)
    torch.testing.assert_close(got_states[0], want[1][1][0], atol=error, rtol=error)
    assert not np.allclose(want[0][0][3], want[1][0][3], atol=100 * error)  # the adapters do change something


@pytest.mark.parametrize("form", ["torch", "kernel"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_computes_what_its_merged_model_does(variant: str, form: str, tmp_path: Path) -> None:
    model = random_model(variant)
    compare(tmp_path, model, model, TorchRunner, form=form, error=2e-4)


@pytest.mark.parametrize("rounded", [four_bits, eight_bits])
@pytest.mark.parametrize("variant", VARIANTS)
def test_beside_matrices_in_blocks(variant: str, rounded: Any, tmp_path: Path) -> None:
    blocks, plain = quantised(random_model(variant), rounded)
    compare(tmp_path, blocks, plain, TorchRunner, form="whole", error=5e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_on_a_device(variant: str, tmp_path: Path) -> None:
    model = random_model(variant)
    compare(tmp_path, model, model, lambda model, pool: DeviceRunner(model, pool, "reference"), form="torch", error=2e-4)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
def test_on_a_device_by_triton(tmp_path: Path) -> None:
    model = random_model("biases, one key head, odd sizes", layers=1)
    compare(tmp_path, model, model, lambda model, pool: DeviceRunner(model, pool, "triton"), form="torch", error=2e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
def test_one_step_by_triton(tmp_path: Path) -> None:
    """A prompt, a token and a request without an adapter, as the reference computes them."""
    model = decoder(layers=1, heads=2, kv=1, hidden=40, inner=50)
    uses = [use_of(RandomAdapter(model.config, rank=rank, seed=rank), tmp_path / str(rank), scale=rank / 4) for rank in (3, 5)]
    results = []
    for kernels in ("reference", "triton"):
        pool = pool_for(model)
        sequences = [pool.start([], bytes([i])) for i in range(3)]
        assert all(pool.reserve(s, 8) for s in sequences)
        spans = [Span(s, ids, adapter=use) for s, ids, use in zip(sequences, ((1, 2, 3), (4,), (5, 6)), (uses[0], None, uses[1]), strict=True)]
        results.append(np.concatenate(DeviceRunner(model, pool, kernels).execute(spans)))
    np.testing.assert_allclose(results[0], results[1], atol=2e-4)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(3, 5), slice(0, 30), slice(2, 60)])
@pytest.mark.parametrize("rank", [1, 8, 33])
def test_the_kernel_adds_what_torch_adds(rows: slice, rank: int) -> None:
    """Outputs of whole panels and of odd numbers, into a matrix whose rows are wider than what is added."""
    generator = torch.Generator().manual_seed(rank)
    parts = tuple(Part(torch.randn(columns, rank, generator=generator), i * rank, column) for i, (column, columns) in enumerate(((0, 64), (64, 7), (75, 33))))
    low = LowRank(torch.randn(3 * rank, 50, generator=generator), parts)
    x, out = torch.randn(60, 50, generator=generator), torch.randn(60, 120, generator=generator)[:, :110]
    want = out.clone()
    low.add(x, want, rows, 0.75)
    before = out.clone()
    PackedLowRank.of(low).add(x, out, rows, 0.75)
    torch.testing.assert_close(out, want, atol=1e-4, rtol=1e-5)
    others = torch.ones(60, dtype=torch.bool)
    others[rows] = False
    assert torch.equal(out[others], before[others])


def test_a_row_gets_the_same_beside_any_others() -> None:
    generator = torch.Generator().manual_seed(0)
    low = PackedLowRank.of(LowRank(torch.randn(8, 50, generator=generator), (Part(torch.randn(70, 8, generator=generator), 0, 0),)))
    x, out = torch.randn(60, 50, generator=generator), torch.zeros(60, 70)
    low.add(x, out, slice(0, 60), 1.0)
    for first, count in ((0, 1), (1, 2), (17, 3), (59, 1)):
        own = torch.zeros(60, 70)
        low.add(x, own, slice(first, first + count), 1.0)
        assert torch.equal(own[first : first + count], out[first : first + count])


def test_neighbouring_rows_are_one_run(tmp_path: Path) -> None:
    model = decoder(layers=1)
    a = use_of(RandomAdapter(model.config), tmp_path)
    b = a._replace(scale=2.0)
    assert runs_of([]) == runs_of([None, None]) == []
    assert runs_of([a, a, None, b, a]) == [(slice(0, 2), a), (slice(3, 4), b), (slice(4, 5), a)]
