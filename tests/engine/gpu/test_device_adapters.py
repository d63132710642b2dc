"""Adapters on a device: numbers in the stacks while requests come and go, and an engine whose other requests decode in bursts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine import Engine, assembly
from agentkit.engine.adapters.adapter import Adapter, AdapterUse
from agentkit.engine.adapters.stacks import AdapterStacks
from agentkit.engine.advance import Advancer
from agentkit.engine.device.decoding import DeviceDecoding
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.gpu.batch import Batch, BatchShape
from agentkit.engine.kernels.gpu.choose import kernel_set
from agentkit.engine.models.decoder import Decoder
from tests.engine.adapters.native import native, use_of
from tests.engine.adapters.peft_files import RandomAdapter
from tests.engine.kernels.models import decoder


def products(stacks: AdapterStacks, model: Decoder, uses: Sequence[AdapterUse | None]) -> torch.Tensor:
    """The last layer's `down` for a row of each use, less the base model's."""
    count = len(uses)
    batch = Batch.empty(BatchShape(count, count, 1, count, 1), "cpu")
    batch.query_starts.copy_(torch.arange(count + 1))
    x = torch.ones(count, model.config.intermediate_size)
    return stacks.beside(batch, uses, [1] * count)[-1].down(x) - model.layers[-1].down(x)


def test_numbers_are_given_and_free_again(tmp_path: Path) -> None:
    """Larger ranks and further places make larger stacks; an adapter that nobody holds leaves its number to the next."""
    model = decoder(layers=2)
    stacks = AdapterStacks(model.layers, kernel_set("reference", torch.device("cpu")), torch.float32, torch.device("cpu"))
    c = model.config
    made = [RandomAdapter(c, rank=2, targets=("down",), seed=1), RandomAdapter(c, rank=2, targets=("q", "down"), seed=2), RandomAdapter(c, rank=9, seed=3)]
    uses = [use_of(each, tmp_path / str(i), number=i) for i, each in enumerate(made)]

    def check(*chosen: AdapterUse | None) -> None:
        got = products(stacks, model, chosen)
        for row, use in zip(got, chosen, strict=True):
            want, x = torch.zeros(1, c.hidden_size), torch.ones(1, c.intermediate_size)
            if use is not None:
                form: Any = use.adapter.form
                form.places[1, "down"].add(x, want, slice(0, 1), use.scale)
            torch.testing.assert_close(row, want[0], atol=1e-4, rtol=1e-4)

    check(uses[0], None, uses[0]._replace(scale=-2.0))
    check(uses[1], uses[0])
    check(uses[0], uses[2], uses[1])
    room = stacks._room
    assert room == 4
    for seed in range(4, 12):
        uses[1] = use_of(RandomAdapter(c, rank=3, targets=("down", "v"), seed=seed), tmp_path / "next", number=seed)
        gc.collect()
        check(uses[2], uses[1], None, uses[0])
    assert stacks._room == room


def test_bursts_go_on_for_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps with an adapter go over the host, those without stay on the device; what is written is what the CPU's engine writes."""
    loaded = native(tmp_path / "model")
    model: Any = loaded.model
    adapters = {name: RandomAdapter(model.config, rank=rank, seed=rank).write(tmp_path / name) for name, rank in (("a", 4), ("b", 7))}
    made: list[DeviceDecoding] = []
    written = []

    def on_the_cpu(runner: DeviceRunner, pool: Any, advancer: Advancer, columns: tuple[int, int], stops: Sequence[int]) -> DeviceDecoding:
        made.append(DeviceDecoding(runner.forward, pool, advancer, width=columns[0], vocab_size=columns[1], stops=stops, kernels="reference"))
        return made[-1]

    for device in (False, True):
        if device:
            monkeypatch.setattr(assembly, "runner_for", lambda model, pool, threads, standard: DeviceRunner(model, pool, "reference"))
            monkeypatch.setattr(assembly, "decoding_for", on_the_cpu)
        with Engine(loaded, weights="fp32", speculation="off", seed=3, adapters=adapters) as it:
            options: list[dict[str, Any]] = [
                {"max_tokens": 40},
                {"adapter": "a", "max_tokens": 12},
                {"adapter": "b", "adapter_scale": 0.5, "regex": "[ab ]{4,20}"},
            ]
            streams = [it.stream("true: " * 5, **each) for each in options]
            written.append([list(stream)[-1] for stream in streams])
            forms: list[Any] = [adapter.form for adapter in it.adapters.values()]
            kinds = {type(change).__name__ for form in forms for change in form.places.values()}
            assert kinds == {"LowRank" if device else "PackedLowRank"}
            assert isinstance(it.adapters["a"], Adapter)
    texts: list[list[Any]] = [[each.generation.token_ids for each in own] for own in written]  # type: ignore[union-attr]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3
    assert sum(step.launches for step in made[0]._steps.values()) > 5
