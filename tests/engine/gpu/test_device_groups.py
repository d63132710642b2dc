"""Layers that see less than others, on a device: page tables of their own in a batch and in steps that do not wait for the host. Logits, tokens
and pages are those of the CPU. (Any order of events, over the same runner: tests/engine/test_kv_groups.py.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine import Engine
from agentkit.engine.device import runner
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.gpu import sharing
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVSequence, KVShape
from agentkit.engine.kv_groups import PageGroups, by_window
from agentkit.engine.kv_policy import reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import load_model
from agentkit.engine.request import Request
from agentkit.engine.runner import Runner, Span, TorchRunner
from agentkit.engine.scheduler import Limits
from agentkit.engine.speculation.draft_model import SequenceGuesser
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.self_draft import SelfDraftProposer, first_layers
from agentkit.engine.speculation.speculator import Speculator
from tests.engine.gpu.bursts import GRAMMARS, SAMPLED, VOCABULARY, DeviceBench, outputs
from tests.engine.kernels.models import VARIANTS, decoder, tokens
from tests.engine.loaded import loaded_model
from tests.engine.models.fixtures import gemma3_folder
from tests.engine.test_kv_groups import alone, machine_for
from tests.engine.test_kv_policy import in_ragged_spans
from tests.engine.tiny import STOP, TOKENS, WIDTH, Bench

__all__ = ["gemma3_folder"]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU's runner is the reference, and Triton is not interpreted here")
SMALL: dict[str, Any] = {"heads": 2, "kv": 1, "hidden": 32, "inner": 32}
LONG = [(7 * i) % 250 for i in range(150)]


def gemma(**options: Any) -> Decoder:
    """Two windows, then one layer that sees everything, twice: a table of two layers for those, two tables for the four windows."""
    return decoder(**{**VARIANTS["gemma"], **SMALL, "layers": 6, "windows": (40, 64, None) * 2, "rope_of_layer": (0, 0, 1) * 2, **options})


def groups_of(model: Decoder) -> PageGroups:
    groups = by_window(reach_of("auto", model.config), model.config.num_layers, model.config.max_position)
    assert len(groups.groups) == 2
    return groups


def pages_of(sequence: KVSequence) -> int:
    """That it holds where nothing that can still be seen is missing and nothing more is there."""
    return sum(len(group.tables) * (sequence.blocks - group.first_block(sequence.length)) for group in sequence.groups.groups)


# -- logits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [torch.float16, torch.bfloat16, torch.int8, torch.uint8])
def test_keys_and_values_of_other_types(kv: torch.dtype) -> None:
    model, texts, found = gemma(), [tokens(150, 128, 1), tokens(120, 128, 2)], []
    for device in (False, True):
        machine = machine_for(model, kv=kv, pages=14, prefix_caching=False)
        if device:
            machine.runner = DeviceRunner(model, machine.pool, "reference")  # type: ignore[assignment]
        sequences = [machine.pool.start(ids, room=150) for ids in texts]
        found.append(in_ragged_spans(machine, sequences, texts, lambda length: length // PAGE + 1 + 2 * 4))
    for host, ours in zip(*found, strict=True):
        assert (host - ours).abs().max() < (0.02 if kv == torch.int8 else 5e-3) * host.abs().max()


def test_the_kernels_read_and_write_by_each_layer_s_table() -> None:
    """Through Triton: a chunk, one after pages were given back, then a token."""
    model, ids = decoder(**SMALL, layers=2, windows=(20, None)), tokens(80, 128, 3)
    rows = []
    for device in (False, True):
        machine = machine_for(model, pages=6, prefix_caching=False)
        if device:
            machine.runner = DeviceRunner(model, machine.pool, "triton")  # type: ignore[assignment]
        sequence = machine.pool.start(ids)
        rows.append([machine.run((sequence, ids[first:last]))[0] for first, last in ((0, 62), (62, 79), (79, 80))])
        assert len(sequence.held) == pages_of(sequence) == 3 + 2
    for host, ours in zip(*rows, strict=True):
        np.testing.assert_allclose(ours, host, atol=2e-4)


@pytest.mark.parametrize("kernels", ["triton", "reference"])
def test_a_beginning_is_shared_by_the_layers_that_see_it_all(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of their tables has other pages of it; those of the window have fallen out of it for all who share."""
    monkeypatch.setattr(sharing, "LEAST_PAGES", 1)
    model = decoder(**SMALL, layers=3, windows=(None, 20, None))

    def run(make: partial[Runner]) -> list[np.ndarray]:
        shape = KVShape(3, 1, 16)
        pool = KVPool(shape, 20 * shape.bytes_per_page, groups=groups_of(model))
        assert [len(group.tables) for group in pool.groups.groups] == [2, 1]
        pool.data.fill_(torch.nan)
        beginning, first = tokens(2 * PAGE + 2, 128, 1), pool.start([1])
        assert pool.reserve(first, 2 * PAGE + 8)
        TorchRunner(model, pool).execute([Span(first, tuple(beginning))])
        others, alone = [pool.start([*beginning, i]) for i in range(2)], pool.start([5, 6, 7])
        assert [other.length for other in others] == [2 * PAGE, 2 * PAGE]
        assert all(len(other.held) == 2 * 2 + 1 for other in others)
        assert all(pool.reserve(s, s.length + 4) for s in (*others, alone))
        spans = [Span(others[0], (1,)), Span(alone, (5, 6), rows=2), Span(others[1], (2, 3), rows=1), Span(first, (4,))]
        rows = list(make(pool=pool).execute(spans))
        pool.check_invariants()
        return rows

    found: list[Any] = []
    monkeypatch.setattr(runner, "arranged", lambda *rest: found.append(sharing.arranged(*rest)) or found[-1])  # type: ignore[func-returns-value]
    want, got = run(partial(TorchRunner, model)), run(partial(DeviceRunner, model, kernels=kernels))
    assert [each.prefix.lengths.tolist() for each in found] == [[2 * PAGE, 0]]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


@pytest.mark.slow
def test_gemma_3_over_more_than_its_window(gemma3_folder: Path) -> None:
    """The real model: a text of 1,300 tokens, of which 15 of the 18 layers see 512, then tokens of its own; logits and pages are the CPU's."""
    model, rows = load_model(gemma3_folder, device="cpu", dtype="float32"), []
    ids = model.tokenizer.encode("The tide comes in twice a day, and nobody in the village asks why. " * 90, bos=True)[:1300]
    c = model.config
    shape, reach = KVShape(c.num_layers, c.num_kv_heads, c.head_dim), reach_of("auto", c)
    for make in (partial(TorchRunner, model.model), partial(DeviceRunner, model.model, kernels="reference")):
        pool = KVPool(shape, 60 * shape.bytes_per_page, reach=reach, groups=by_window(reach, c.num_layers, c.max_position))
        pool.data.fill_(torch.nan)
        runs, sequence, found, text = make(pool=pool), pool.start(ids), [], list(ids)
        while sequence.length < len(ids) + 6:
            new = text[sequence.length : sequence.length + 500]
            assert pool.reserve(sequence, sequence.length + len(new))
            found.append(runs.execute([Span(sequence, tuple(new))])[0])
            pool.check_invariants()
            assert len(sequence.held) == pages_of(sequence)
            if sequence.length == len(text):
                text.append(int(found[-1][-1].argmax()))
        assert len(sequence.held) == 41 + 5 * 17
        rows.append(np.concatenate(found))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-3 * np.abs(rows[0]).max())
    assert rows[0].argmax(1).tolist() == rows[1].argmax(1).tolist()


# -- whole requests ---------------------------------------------------------------------------------------------


def asked_of(bench: Bench, asked: Sequence[dict[str, Any]]) -> list[Request]:
    requests = []
    for ask in asked:
        grammar = ask.get("grammar")
        matcher = None if grammar is None else GRAMMARS[grammar].matcher(VOCABULARY)
        requests.append(bench.submit(ask["prompt"], matcher, **{k: v for k, v in ask.items() if k not in ("grammar", "prompt")}))
    return requests


def both(model: Decoder, asked: Sequence[dict[str, Any]], *, pages: int = 40, **options: Any) -> tuple[list[Request], DeviceBench]:
    """Runs the same requests over the CPU's runner and in bursts, in the same memory, and compares; returns the latter.

    What each holds between steps is as much as it takes; what is cached in the end is what the CPU has cached.
    """
    groups, shared, cached = groups_of(model), {key: options[key] for key in ("limits", "speculator") if key in options}, []
    make = shared.pop("speculator", None)
    host = Bench(model, pages=pages, groups=groups, runner=partial(TorchRunner, threads=1), speculator=make and make(), **shared)
    device = DeviceBench(model, pages=pages, groups=groups, **options)
    results = []
    for bench in (host, device):
        bench.pool.data.fill_(torch.nan)
        requests = asked_of(bench, asked)
        while not all(r.outcome or r.error for r in requests):
            bench.step()
            for request in bench.scheduler.running:
                assert request.sequence is not None
                assert len(request.sequence.held) == pages_of(request.sequence)
        assert all(r.error is None for r in requests)
        results.append(requests)
        bench.pool.check_invariants()
        cached.append((bench.pool.live_pages, bench.pool.available_pages))
    assert outputs(results[0]) == outputs(results[1])
    assert cached == [(0, device.pool.page_count)] * 2
    return results[1], device


WANTED: list[dict[str, Any]] = [
    {"prompt": LONG, "max_tokens": 40},
    {"prompt": LONG[:9], "max_tokens": 90, "seed": 2, **SAMPLED},
    {"prompt": [*LONG[:70], 3], "max_tokens": 60, "grammar": "text", "seed": 3, **SAMPLED},
    {"prompt": LONG[:40], "max_tokens": 60, "grammar": "forced", "seed": 4, **SAMPLED},
]


def test_tokens_and_pages_are_those_of_the_cpu() -> None:
    """Prompts longer than the windows, in chunks beside those that decode; greedy and seeded; free, under a grammar, and with forced text."""
    model = gemma(vocabulary=WIDTH, logit_softcap=None)
    requests, bench = both(model, WANTED, limits=Limits(max_running=4, step_tokens=64, mixed_step_tokens=64))
    assert bench.steps > 60
    assert any(burst.beside for burst in bench.bursts)
    assert requests[3].forced > 20
    decoding = bench.scheduler._decoding
    assert decoding is not None
    assert {bucket.page_tables for bucket in decoding._steps} == {3}


def test_little_memory_makes_requests_give_way() -> None:
    model = gemma(vocabulary=WIDTH, logit_softcap=None)
    asked = [{"prompt": [5 + n, 9, 70], "max_tokens": 80, "seed": n, **(SAMPLED if n else {})} for n in range(3)]
    _, bench = both(model, asked, pages=6)
    assert bench.scheduler.metrics.preemptions > 0
    assert bench.pool.tree.evicted > 0


def test_guesses_are_verified_beside() -> None:
    asked = [{"prompt": [7, 8] * 40, "max_tokens": 40}, WANTED[1]]
    requests, _ = both(gemma(vocabulary=WIDTH, logit_softcap=None), asked, speculator=lambda: Speculator(NgramProposer(), Pace(StepCosts())))
    assert requests[0].drafted > 0


def test_the_model_s_first_layers_guess_over_the_same_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gemma(vocabulary=WIDTH, logit_softcap=None)
    bench = DeviceBench(model, groups=groups_of(model))
    guesses = SelfDraftProposer(first_layers(model, 5), bench.pool, torch.device("cpu"), len(TOKENS), [STOP])
    bench.scheduler.speculate(Speculator(guesses, Pace(StepCosts())))
    request = bench.complete(LONG, max_tokens=20)
    want = Bench(model, groups=groups_of(model), runner=partial(TorchRunner, threads=1)).complete(LONG, max_tokens=20)
    assert request.drafted > 0
    assert request.tokens == want.tokens


@pytest.mark.parametrize("device", [False, True])
def test_a_draft_model_gives_pages_back_and_is_rewound_all_the_same(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a page has left the window by guesses that are not to count, the text is taken up again from the prefix cache."""
    model, ids, ended = gemma(), tokens(150, 128, 4), list[int]()
    wanted = alone(model, ids)
    pool = machine_for(model, pages=9).pool
    guesser = SequenceGuesser(DeviceRunner(model, pool, "reference") if device else TorchRunner(model, pool, threads=1), pool)
    release = pool.release
    monkeypatch.setattr(pool, "release", lambda sequence: ended.append(sequence.length) or release(sequence))  # type: ignore[func-returns-value]
    for known in range(20, 150, 2):
        logits = guesser.known(ids[:known])
        assert logits is not None
        assert np.abs(logits - wanted[known - 1].numpy()).max() < 1e-3 * wanted.abs().max()
        assert guesser.guess([1, 2, 3, 4, 5]) is not None
        pool.check_invariants()
    assert 0 < len(ended) < 20
    assert len(guesser._sequence.held) <= 5 + 2 * 4  # type: ignore[union-attr]
    guesser.close()
    assert pool.live_sequences == 0


@pytest.mark.slow
def test_tokens_of_the_kernels_are_those_of_the_cpu() -> None:
    """The body of the captured steps through Triton, forward and all, with a shared beginning."""
    model = decoder(**SMALL, layers=2, windows=(20, None), vocabulary=WIDTH)
    asked = [{"prompt": [*LONG[: 16 * PAGE], n], "max_tokens": 36, "seed": n, **(SAMPLED if n else {})} for n in range(2)]
    both(model, asked, forward="triton", kernels="triton", pages=60)


def test_a_prefix_is_found_as_far_as_on_the_cpu() -> None:
    """After its windows' pages have fallen out of the request that made it, and after some of them were evicted."""
    model, found = gemma(vocabulary=WIDTH, logit_softcap=None), []
    for make in (partial(Bench, runner=partial(TorchRunner, threads=1)), DeviceBench):
        bench = make(model, pages=12, groups=groups_of(model))
        bench.pool.data.fill_(torch.nan)
        first = bench.complete(LONG, max_tokens=30, seed=1, **SAMPLED)
        again = [bench.complete([*LONG[:cut], 5], max_tokens=12, seed=cut, **SAMPLED) for cut in (100, 33, 149)]
        assert [r.cached for r in again] == [100, 33, 149]
        bench.pool.tree.evict(bench.pool.free_pages // 2 + 8)
        after = [bench.complete([*first.tokens[:cut], 6], max_tokens=12, seed=cut, **SAMPLED) for cut in (40, 170)]
        found.append((outputs([first, *again, *after]), [r.cached for r in after]))
    assert found[0] == found[1]


def test_who_gave_its_pages_back_is_not_known_to_the_device_any_more() -> None:
    """It comes back at once, its text found in the prefix cache, but its last page is a copy: what the device knew of its place is void."""
    model = gemma(vocabulary=WIDTH, logit_softcap=None)
    want = Bench(model, groups=groups_of(model), runner=partial(TorchRunner, threads=1)).complete(LONG[:50], max_tokens=70)
    bench = DeviceBench(model, groups=groups_of(model))
    bench.pool.data.fill_(torch.nan)
    request = bench.submit(LONG[:50], max_tokens=70)
    bench.step()
    bench.step()
    bench.scheduler._preempt(request)
    bench.run(request)
    assert request.preemptions == 1
    assert request.tokens == want.tokens


def test_an_engine_with_standard_attention_keeps_pages_by_groups_too(tmp_path: Path) -> None:
    plain, texts = loaded_model(tmp_path), []
    model = gemma(vocabulary=plain.config.vocab_size, logit_softcap=None)
    loaded = replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
    for attention in ("flash", "standard"):
        with Engine(loaded, weights="fp32", attention=attention) as engine:
            assert engine._scheduler.pool.groups.tables == 3
            texts.append(engine.generate("true: " * 30, max_tokens=20).token_ids)
    assert texts[0] == texts[1]
