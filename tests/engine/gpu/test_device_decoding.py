"""Bursts of steps on a device (here: the same body on the CPU) against the scheduler's way over the host: the same tokens, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine import Engine, TokenEvent, assembly
from agentkit.engine.advance import Advancer
from agentkit.engine.device.decoding import DeviceDecoding, decoding_for
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_policy import Reach
from agentkit.engine.request import Request
from agentkit.errors import EngineError, NumericalError
from agentkit.grammars.ahead import Ahead
from tests.engine.gpu.bursts import GRAMMARS, SAMPLED, VOCABULARY, DeviceBench, both, outputs
from tests.engine.kernels.models import decoder
from tests.engine.loaded import loaded_model
from tests.engine.tiny import STOP, WIDTH, ScriptedDecoder, TinyDecoder


@pytest.mark.parametrize("grammar", [None, *(name for name in GRAMMARS if name != "forced")])
def test_tokens_are_those_of_the_host(grammar: str | None) -> None:
    """Greedy and seeded, three at once, with all sampling options among them; no output is left to the host alone."""
    most = 18 if grammar == "open" else 38  # the keys there are states of their own, each missed
    asked = [
        {"grammar": grammar, "max_tokens": most - 8},
        {"grammar": grammar, "max_tokens": most + 7, "seed": 11, **SAMPLED},
        {"grammar": grammar, "max_tokens": most, "seed": 12, "temperature": 1.3, "top_k": 40, "presence_penalty": 0.5, "logit_bias": {70: 1.0}, "logprobs": 0},
    ]
    requests, bench = both(asked)
    assert all(r.error is None for r in requests)
    assert bench.steps > (2 if grammar == "open" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("grammar", ["object", "deep"])
def test_tokens_of_the_kernels_are_those_of_the_host(grammar: str) -> None:
    """The same through Triton's kernels, in the interpreter where there is no GPU."""
    asked = [{"grammar": grammar, "max_tokens": 46}, {"grammar": grammar, "max_tokens": 40, "seed": 11, "temperature": 0.9}, {"max_tokens": 46}]
    _, bench = both(asked, kernels="triton")
    assert bench.steps > 10


def test_all_kinds_of_sampling_are_tried_before_the_first_request() -> None:
    """Its kernels are compiled then, so that no request waits for a compiler; one more or fewer of them changes nothing."""
    bench, kinds = DeviceBench(TinyDecoder(0, WIDTH)), list[tuple[bool, ...]]()
    decoding = bench.scheduler._decoding
    assert decoding is not None
    sample = decoding._kernels.sample

    def counted(logits: torch.Tensor, *others: Any, **options: Any) -> None:
        kinds.append((others[2].draws, others[2].ranks, others[2].masses))
        sample(logits, *others, **options)

    decoding._kernels.sample = counted  # type: ignore[method-assign]
    decoding.warm_up()
    assert kinds == [(False, False, False), (True, False, False), (True, True, True)]


def test_requests_with_and_without_grammars_share_steps() -> None:
    asked = [{"max_tokens": 25, "seed": 1, **SAMPLED}, {"grammar": "object", "max_tokens": 50, "seed": 2, **SAMPLED}, {"grammar": "text", "max_tokens": 20}]
    _, bench = both(asked)
    assert bench.steps > 10


def test_what_is_not_handed_over_is_redone() -> None:
    """Nothing is expanded ahead, so that masks and states are missing all the time; the tokens are the same."""
    _, bench = both([{"grammar": "object", "max_tokens": 40, "seed": s, **SAMPLED} for s in range(3)], ahead=0, expanded=0)
    assert sum(b.misses for b in bench.bursts) > 3


def test_masks_that_the_host_has_not_made_are_built_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All states are handed over, but only the masks of where a request was loaded."""
    monkeypatch.setattr(Ahead, "look_ahead", lambda *_: None)
    grammar = GRAMMARS["text"]
    bench = DeviceBench(TinyDecoder(0), ahead=0, expanded=1000)
    for seed in range(2):
        bench.bursts.clear()
        request = bench.submit([5, 9, 70], grammar.matcher(VOCABULARY), max_tokens=30, seed=seed, **SAMPLED)
        bench.run(request)
    assert bench.steps > 8
    assert sum(b.misses for b in bench.bursts) == 0


def test_with_little_room_for_tables_they_begin_anew() -> None:
    both([{"grammar": "object", "max_tokens": 60, "seed": s, **SAMPLED} for s in range(2)], states=120, rows=12)


def test_too_deep_a_stack_goes_over_the_host() -> None:
    both([{"grammar": "deep", "max_tokens": 60, "seed": 3, "temperature": 1.0}], depth=2)


def test_a_text_that_repeats_needs_no_second_expansion() -> None:
    """The second time every mask and state on the way is known: nothing is redone."""
    bench = DeviceBench(TinyDecoder(0))
    for _ in range(2):
        bench.bursts.clear()
        request = bench.submit([5, 9, 70], GRAMMARS["text"].matcher(VOCABULARY), max_tokens=40, seed=4, **SAMPLED)
        bench.run(request)
        assert request.error is None
    assert sum(b.misses for b in bench.bursts) == 0


def test_stop_strings_and_limits_end_a_request_while_a_step_is_in_flight() -> None:
    requests, bench = both([{"max_tokens": 7}, {"max_tokens": 40, "seed": 5, "stop": ("a", "e", "B"), **SAMPLED}, {"max_tokens": 1, "seed": 1, **SAMPLED}])
    assert [r.outcome is not None for r in requests] == [True] * 3
    assert bench.pool.free_pages > 0


def test_a_stop_token_ends_a_request_and_the_others_go_on() -> None:
    script = [7, 8, STOP]
    model = ScriptedDecoder(script, prompt=3)
    bench = DeviceBench(model)
    request = bench.submit([5, 9, 70], max_tokens=20)
    bench.run(request)
    assert request.tokens[3:] == [7, 8]
    assert request.outcome is not None
    assert request.outcome.finish_reason == "stop"


def test_nan_ends_its_request_with_the_host_s_error() -> None:
    bench = DeviceBench(ScriptedDecoder([7, 8, None], prompt=3))
    request = bench.submit([5, 9, 70], max_tokens=20)
    bench.run(request)
    assert isinstance(request.error, NumericalError)
    assert request.tokens[3:] == [7, 8]


def test_little_memory_makes_requests_give_way() -> None:
    """Bursts end where pages run out; who gives way is computed again, and the tokens stay the same."""
    _, bench = both([{"max_tokens": 70, "seed": s, **SAMPLED} for s in range(3)], pages=7)
    assert bench.pool.page_count == 7


def test_pages_that_a_window_leaves_behind_are_given_back() -> None:
    _, bench = both([{"max_tokens": 90, "seed": s, **SAMPLED} for s in range(2)], reach=Reach(window=33))
    assert bench.steps > 60


def test_a_shared_beginning_is_attended_to_once() -> None:
    """Requests that begin with the same 17 pages: one group in the step, and the tokens of the host."""
    prompt, results = [(7 * i) % 250 for i in range(17 * PAGE)], []
    for burst in (False, True):
        bench = DeviceBench(TinyDecoder(0), burst=burst)
        requests = [bench.submit([*prompt, 5 + n, 9], max_tokens=10, seed=n, **SAMPLED) for n in range(3)]
        bench.run(*requests)
        results.append(outputs(requests))
    assert results[0] == results[1]
    decoding = bench.scheduler._decoding
    assert decoding is not None
    assert [bucket.shared for bucket in decoding._steps] == [0, 32]  # while prompts are computed, too, nothing is shared


def test_a_newcomer_does_not_wait_for_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes while a burst is on ends it, and takes part in the next one."""
    model = TinyDecoder(0)
    bench, forward, later = DeviceBench(model), model.forward, list[Request]()

    def interrupted(*args: Any) -> torch.Tensor:
        if len(model.calls) == 5:
            later.append(bench.submit([6, 9, 70], max_tokens=5))
        return forward(*args)

    monkeypatch.setattr(model, "forward", interrupted)
    first = bench.submit([5, 9, 70], max_tokens=200, seed=3, temperature=1.0)
    bench.step()
    assert 5 <= bench.steps <= 7
    bench.step()
    assert later[0].generated >= 1
    first.cancel()
    bench.run(first, *later)
    assert later[0].outcome is not None


def test_log_probabilities_come_from_the_device() -> None:
    ask = {"grammar": "text", "max_tokens": 12, "seed": 9, "logprobs": 0, **SAMPLED}
    results = []
    for burst in (False, True):
        bench = DeviceBench(TinyDecoder(0), burst=burst)
        request = bench.submit([5, 9, 70], GRAMMARS["text"].matcher(VOCABULARY), **{k: v for k, v in ask.items() if k != "grammar"})
        bench.run(request)
        results.append([lp.logprob for lp in request.logprobs])
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)
    assert torch.tensor(results[0]).lt(0).any()


def test_a_step_that_fails_ends_those_that_were_in_it() -> None:
    bench = DeviceBench(TinyDecoder(0))
    decoding = bench.scheduler._decoding
    assert decoding is not None
    decoding._forward = lambda batch, parts: 1 / 0  # type: ignore[assignment, return-value]
    requests = [bench.submit([5, 9, 70 + i], max_tokens=20) for i in range(2)]
    bench.run(*requests)
    assert all(isinstance(r.error, EngineError) and "ZeroDivisionError" in str(r.error) for r in requests)
    assert bench.pool.live_sequences == 0


def test_the_engine_writes_the_same_in_bursts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The public surface, over a decoder with the device's reference kernels: schema, regex, free text, several at once."""
    plain = loaded_model(tmp_path)
    model = decoder(vocabulary=plain.config.vocab_size, layers=2)
    loaded = replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
    made: list[DeviceDecoding] = []

    def on_the_cpu(runner: DeviceRunner, pool: Any, advancer: Advancer, columns: tuple[int, int], stops: Sequence[int]) -> DeviceDecoding:
        made.append(DeviceDecoding(runner.forward, pool, advancer, width=columns[0], vocab_size=columns[1], stops=stops, kernels="reference"))
        return made[-1]

    monkeypatch.setattr(assembly, "runner_for", lambda model, pool, threads, standard: DeviceRunner(model, pool, "reference"))
    monkeypatch.setattr(assembly, "decoding_for", on_the_cpu)
    written = []
    for graphs in (False, True):
        with Engine(loaded, weights="fp32", speculation="off", cuda_graphs=graphs, seed=3) as it:
            streams = [it.stream("x" * k, regex="[ab ]{4,20}", max_tokens=24, temperature=0.8, seed=k) for k in (1, 2)]
            texts = [[e.text for e in stream if isinstance(e, TokenEvent)] for stream in streams]
            schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 6}}, "required": ["a"], "additionalProperties": False}
            texts.append([it.generate("y", schema=schema, max_tokens=30).text, it.generate("true: ", max_tokens=30).text])
            written.append(["".join(t) for t in texts])
    assert len(made) == 1
    assert sum(step.launches for step in made[0]._steps.values()) > 20
    assert written[0] == written[1]


def test_bursts_are_for_native_decoders_on_a_gpu() -> None:
    bench = DeviceBench(TinyDecoder(0), burst=False)
    runner = DeviceRunner(bench.model, bench.pool, "reference")  # type: ignore[arg-type]
    assert decoding_for(runner, bench.pool, Advancer(5, []), (5, 5), []) is None
