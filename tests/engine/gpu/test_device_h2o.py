"""Heavy hitters while a device decodes without the host (here: the same body on the CPU): tokens, what is kept and what it has received are the host's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine import H2O, Engine, assembly, scheduler
from agentkit.engine.advance import Advancer
from agentkit.engine.device.beside import Ragged
from agentkit.engine.device.decoding import DeviceDecoding
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_policy import Reach
from agentkit.engine.request import Request
from agentkit.engine.scheduler import Limits
from agentkit.grammars.device import Pushdown
from tests.engine.gpu.bursts import GRAMMARS, SAMPLED, VOCABULARY, DeviceBench, outputs
from tests.engine.kernels.models import decoder
from tests.engine.loaded import loaded_model
from tests.engine.tiny import TinyDecoder

REACH = Reach(budget=128, recent=40)
Kept = dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def _short_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is kept can be looked at often."""
    monkeypatch.setattr(scheduler, "BURST", 4)


def text(length: int, seed: int) -> list[int]:
    return [(7 * i + 11 * seed) % 250 for i in range(length)]


def ask(bench: DeviceBench, number: int, options: dict[str, Any]) -> Request:
    rest = {"seed": number, **SAMPLED, **options}
    grammar, prompt = rest.pop("grammar", None), rest.pop("prompt", [5 + number, 9, 70])
    return bench.submit(prompt, None if grammar is None else GRAMMARS[grammar].matcher(VOCABULARY), **rest)


def kept_by(bench: DeviceBench, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys that are left [layers, KV, N, D], and what they have received [N]."""
    sequence, received = request.sequence, bench.pool.received
    assert sequence is not None
    assert received is not None
    slots = torch.cat([torch.arange(*run) for run in sequence.slots(0, sequence.place)])
    return bench.pool.data[:, 0][:, :, slots].clone(), received.at(slots, sequence.place)


def followed(
    burst: bool, asked: list[dict[str, Any]], late: list[dict[str, Any]], limits: Limits | None = None, **options: Any
) -> tuple[list[Any], Kept, DeviceBench]:
    """Outputs, and between any two steps what each text keeps, by request and length.   late: requests that come after a step."""
    bench, kept = DeviceBench(TinyDecoder(0), burst=burst, reach=REACH, prefix_caching=False, limits=limits, **options), Kept()
    requests = [ask(bench, number, each) for number, each in enumerate(asked)]
    steps = 0
    while late or not all(r.outcome or r.error for r in requests):
        bench.step()
        steps += 1
        assert steps < 400, "requests did not finish"
        for number, request in enumerate(requests):
            if request.sequence is not None and request.computed:
                kept[number, request.computed] = kept_by(bench, request)
        while late:
            requests.append(ask(bench, len(requests), late.pop(0)))
    return outputs(requests), kept, bench


def check(asked: list[dict[str, Any]], late: tuple[dict[str, Any], ...] = (), least: int = 2, **options: Any) -> DeviceBench:
    """least: places at which both can be looked at."""
    want, kept, _ = followed(False, asked, list(late))
    got, found, bench = followed(True, asked, list(late), **options)
    assert got == want
    assert all(reason in ("stop", "length") for _, reason, _ in got)
    common = kept.keys() & found.keys()
    assert len(common) >= least
    for at in common:
        for a, b in zip(found[at], kept[at], strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)
    return bench


def test_places_stand_still_while_they_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fill up at different steps; the others go on meanwhile, and no burst ends for it."""
    monkeypatch.setattr(scheduler, "BURST", 70)
    bench = check([{"prompt": text(90 + 7 * n, n), "max_tokens": 75 + n} for n in range(3)], least=1, limits=Limits())
    assert max(burst.steps for burst in bench.bursts) == 70
    assert not bench.over_the_host


def test_who_is_alone_loses_a_step_in_each_round() -> None:
    bench = check([{"prompt": text(70, 1), "max_tokens": 130, "temperature": 0.0}])
    assert not bench.over_the_host
    assert bench.pool.peak(10**6) == 4


@pytest.mark.parametrize(("grammar", "most"), [("object", 45), ("forced", 80), ("text", 45)])
def test_grammars_runs_and_misses_count_every_token_once(grammar: str, most: int) -> None:
    """Nothing is expanded ahead, so that steps are taken anew all the time; forced text is computed beside, up to the budget."""
    asked = [{"grammar": grammar, "prompt": text(109 + 9 * n, n), "max_tokens": most} for n in range(2)]
    bench = check(asked, ahead=0, expanded=0)
    assert sum(burst.misses for burst in bench.bursts) > (grammar == "object")
    check(asked)


def test_who_is_loaded_again_with_one_slot_left_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that is in flight for others does not fill what a request may hold that is loaded only now."""
    monkeypatch.setattr(scheduler, "BURST", 8)
    asked = [{"grammar": "object", "prompt": text(120, 1), "max_tokens": 40, "seed": 3}, {"prompt": text(40, 2), "max_tokens": 30}]
    check(asked, least=1, ahead=0, expanded=0)


def test_a_run_that_is_missed_is_computed_again_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time nothing is known to the device where a prompt of many tokens ends."""
    know, calls = Pushdown.know, list[int]()

    def first_in_vain(self: Pushdown, *args: Any) -> int:
        calls.append(0 if len(calls) == 0 else know(self, *args))
        return calls[-1]

    monkeypatch.setattr(Pushdown, "know", first_in_vain)
    bench = check([{"grammar": "object", "prompt": text(100, 1), "max_tokens": 40}], ahead=0, expanded=0)
    assert bench.bursts[0].misses > 0


def test_prompts_beyond_the_budget_and_logits_for_the_host_beside_places() -> None:
    late = ({"prompt": text(210, 3), "max_tokens": 12}, {"prompt": text(140, 4), "max_tokens": 6, "logprobs": 3})
    chunks = Limits(max_running=8, step_tokens=64, mixed_step_tokens=64)
    bench = check([{"prompt": text(110, 1), "max_tokens": 40}, {"prompt": text(60, 2), "max_tokens": 50}], late, limits=chunks)
    assert any(burst.beside for burst in bench.bursts)


def test_who_gives_way_keeps_the_same_when_it_is_computed_again() -> None:
    asked = [{"prompt": text(90, n), "max_tokens": 60} for n in range(2)]
    bench = check(asked, pages=6)
    assert bench.pool.page_count == 6
    assert bench.scheduler.metrics.preemptions > 0


def test_the_engine_writes_what_it_writes_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The public surface, greedy and seeded: on the CPU, by a device's runner over the host and in bursts, in small chunks, and where memory is short."""
    plain = loaded_model(tmp_path)
    model = decoder(vocabulary=plain.config.vocab_size, layers=2)
    loaded = replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
    bursts: list[DeviceDecoding] = []

    def written(**options: Any) -> list[tuple[int, ...]]:
        with Engine(loaded, weights="fp32", kv=H2O(128, recent=32), prefix_caching=False, threads=1, seed=0, **options) as it:
            asked: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.2, "top_p": 0.9, "seed": 6, "regex": "[a-z ]{70,90}"}]
            streams = [it.stream(text(20 + 65 * n, n), max_tokens=120, **each) for n, each in enumerate(asked)]
            return [list(stream)[-1].generation.token_ids for stream in streams]  # type: ignore[union-attr]

    def on_the_cpu(runner: DeviceRunner, pool: Any, advancer: Advancer, columns: tuple[int, int], stops: Any) -> DeviceDecoding:
        bursts.append(DeviceDecoding(runner.forward, pool, advancer, width=columns[0], vocab_size=columns[1], stops=stops, kernels="reference"))
        return bursts[-1]

    wanted = written()
    monkeypatch.setattr(assembly, "runner_for", lambda model, pool, threads, standard: DeviceRunner(model, pool, "reference"))
    monkeypatch.setattr(assembly, "decoding_for", on_the_cpu)
    with monkeypatch.context() as patch:
        patch.setattr(assembly, "Limits", lambda running, queue, *_: Limits(running, queue, 40, 24))
        assert written(cuda_graphs=False) == wanted
    assert not bursts
    page = 2 * 2 * 2 * 16 * 4 * PAGE  # layers, keys and values, heads, numbers, bytes
    assert written(kv_memory=9 * page) == wanted  # who gives way to whom depends on when they come; above, where nothing does, it is counted
    assert sum(step.launches for step in bursts[0]._steps.values()) > 60


@pytest.mark.slow
def test_tokens_of_the_kernels_are_those_of_the_reference() -> None:
    """The same through Triton's kernels, in the interpreter where there is no GPU."""
    asked = [{"prompt": text(120, 1), "max_tokens": 14}, {"prompt": text(60, 2), "max_tokens": 10}]
    check(asked, least=1, forward="triton")


def test_a_rehearsal_changes_nothing() -> None:
    """Before a step is captured it is run for nobody, with requests in their places already."""
    bench = DeviceBench(TinyDecoder(0), reach=REACH, prefix_caching=False)
    request = ask(bench, 0, {"prompt": text(50, 1), "max_tokens": 60})
    bench.pool.data.zero_()
    bench.step()
    decoding, received = bench.scheduler._decoding, bench.pool.received
    assert decoding is not None
    assert received is not None
    (step,) = decoding._steps.values()
    state = [bench.pool.data, received.sums, received.fresh, received.ends, step.batch.block, step.status]
    before = [part.clone() for part in state]
    for ragged in (None, Ragged.room(32, step.batch.shape, torch.device("cpu"))):
        step._rehearse(ragged)
    assert all(a.equal(b) for a, b in zip(before, state, strict=True))
    bench.run(request)


def test_attention_adds_up_to_one_for_each_head_layer_and_token() -> None:
    bench = DeviceBench(TinyDecoder(0), reach=REACH, prefix_caching=False)
    request = ask(bench, 0, {"prompt": text(30, 1), "max_tokens": 60, "grammar": "text"})
    seen = 0
    while request.outcome is None:
        bench.step()
        if request.sequence is not None and request.computed:
            assert float(kept_by(bench, request)[1].sum()) == pytest.approx(2 * 4 * request.computed, rel=1e-4)
            seen += 1
    assert seen
