"""Requests through the whole inner engine: equality with plain decoding, fairness, limits, cancellation, accounting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.request import Outcome, Request
from agentkit.engine.scheduler import Limits
from agentkit.errors import EngineBusy, EngineError
from tests.engine.tiny import STOP, Bench, ScriptedDecoder, TextsMatcher, TinyDecoder, greedy_without_cache, tokenize

PROMPT = list(range(40, 90))


def test_greedy_equals_decoding_without_a_cache() -> None:
    model = TinyDecoder()
    for prompt in (PROMPT[:1], PROMPT[:2], PROMPT):
        done = Bench(model).complete(prompt, max_tokens=20)
        assert done.outcome is not None
        assert list(done.outcome.token_ids) == greedy_without_cache(model, prompt, 20)


@pytest.mark.parametrize("step_tokens", [1, 7, 64, 512])
def test_chunk_size_does_not_change_the_output(step_tokens: int) -> None:
    prompt = [t % 250 for t in range(300)]
    done = Bench(TinyDecoder(), limits=Limits(step_tokens=step_tokens, mixed_step_tokens=step_tokens)).complete(prompt, max_tokens=12)
    assert done.outcome is not None
    assert list(done.outcome.token_ids) == greedy_without_cache(TinyDecoder(), prompt, 12)


def test_neighbours_joining_and_leaving_do_not_change_a_greedy_output() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=4, mixed_step_tokens=64))
    rng = random.Random(3)
    wanted = greedy_without_cache(bench.model, PROMPT, 24)
    for _ in range(4):
        subject = bench.submit(PROMPT, max_tokens=24)
        others: list[Request] = []
        while not subject.outcome:
            if rng.random() < 0.3:
                others.append(bench.submit([rng.randrange(250) for _ in range(rng.randrange(1, 120))], max_tokens=rng.randrange(1, 30), temperature=1.0))
            if others and rng.random() < 0.1:
                rng.choice(others).cancel()
            bench.step()
        assert list(subject.outcome.token_ids) == wanted
        bench.run(*others)


def test_a_long_prompt_does_not_stall_others() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(step_tokens=64, mixed_step_tokens=64))
    long = bench.submit([1] * 2000, max_tokens=1)
    bench.step()
    short = bench.submit([2, 3], max_tokens=5)
    for _ in range(8):
        bench.step()
    assert short.outcome is not None
    assert long.computed < 1000


def test_long_prompts_take_turns() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(step_tokens=128, mixed_step_tokens=128))
    requests = [bench.submit([10 + i] * 1000, max_tokens=1) for i in range(4)]
    for _ in range(8):
        bench.step()
    assert {r.computed for r in requests} == {256}


def test_every_request_ends_once_and_nothing_leaks() -> None:
    bench = Bench(TinyDecoder(), pages=24, limits=Limits(max_running=5, step_tokens=64, mixed_step_tokens=32))
    rng = random.Random(7)
    base = [rng.randrange(250) for _ in range(150)]
    requests = []
    for i in range(80):
        prompt = base[: rng.randrange(1, 150)] + [rng.randrange(250) for _ in range(rng.randrange(40))]
        requests.append(bench.submit(prompt, max_tokens=rng.randrange(1, 40), temperature=rng.choice([0.0, 1.0]), seed=i))
        if rng.random() < 0.2:
            rng.choice(requests).cancel()
        bench.step()
    bench.run(*requests)
    assert bench.scheduler.running == []
    assert bench.pool.live_pages == 0
    for request in requests:
        ends = [e for e in bench.heard(request) if not hasattr(e, "forced")]
        assert len(ends) == 1
        if request.outcome and request.params.greedy:
            assert list(request.outcome.token_ids) == greedy_without_cache(bench.model, request.prompt, request.params.max_tokens)


def test_second_turn_reuses_the_first() -> None:
    bench = Bench(TinyDecoder())
    first = bench.complete(PROMPT, max_tokens=10)
    assert first.outcome is not None
    assert first.outcome.usage.cached_tokens == 0
    bench.model.calls.clear()
    prompt = [*PROMPT, *first.outcome.token_ids, 5, 6, 7]
    second = bench.complete(prompt, max_tokens=10)
    assert second.outcome is not None
    computed = len(PROMPT) + len(first.outcome.token_ids) - 1  # the last token of the first answer never ran
    assert second.outcome.usage.cached_tokens == computed
    assert bench.model.calls[0] == len(prompt) - computed
    assert list(second.outcome.token_ids) == greedy_without_cache(bench.model, prompt, 10)


def test_a_prompt_seen_before_leaves_one_token_to_compute() -> None:
    bench = Bench(TinyDecoder())
    first, second = (bench.complete(PROMPT, max_tokens=6) for _ in range(2))
    assert first.outcome is not None
    assert second.outcome is not None
    assert second.outcome.token_ids == first.outcome.token_ids
    assert second.outcome.usage.cached_tokens == len(PROMPT) - 1


def test_queue_limit_is_engine_busy() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1, max_queue=2))
    accepted = [bench.submit(PROMPT, max_tokens=2) for _ in range(3)]
    with pytest.raises(EngineBusy, match="max_queue is 2"):
        bench.submit(PROMPT)
    bench.run(*accepted)
    bench.complete(PROMPT, max_tokens=2)


def test_every_output_takes_a_place_in_the_queue() -> None:
    bench = Bench(TinyDecoder(), limits=Limits(max_running=2, max_queue=3))

    def of(count: int) -> Request:
        first, *others = (bench.request(PROMPT, max_tokens=4, temperature=1.0, seed=seed) for seed in range(count))
        first.siblings = others
        return first

    with pytest.raises(ValueError, match="n=6: at most 5 outputs"):
        bench.scheduler.submit(of(6))
    groups = [of(3), of(2)]
    for group in groups:
        bench.scheduler.submit(group)
    requests = [each for group in groups for each in (group, *group.siblings)]
    with pytest.raises(EngineBusy, match="max_queue is 3"):
        bench.submit(PROMPT)
    bench.step()
    with pytest.raises(EngineBusy, match="3 outputs wait"):
        bench.submit(PROMPT)
    bench.run(*requests)
    assert all(r.outcome for r in requests)
    bench.complete(PROMPT, max_tokens=2)


def test_who_is_cancelled_or_late_takes_no_place() -> None:
    """Neither in the queue nor of those that run, and not only from the next step on."""
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1, max_queue=1))
    running, queued = bench.submit(PROMPT, max_tokens=40), bench.submit(PROMPT, max_tokens=40)
    bench.step()
    for gone in (queued, running):
        with pytest.raises(EngineBusy):
            bench.submit(PROMPT)
        gone.cancel()
        further = bench.submit(PROMPT, max_tokens=2)
    with pytest.raises(EngineBusy):
        bench.submit(PROMPT)
    bench.run(further)
    assert isinstance(queued.error, EngineError)
    assert isinstance(running.error, EngineError)
    late = bench.submit(PROMPT, max_tokens=2, timeout=1e-9)
    assert [bench.submit(PROMPT, max_tokens=2).outcome for _ in range(2)] == [None, None]
    bench.step()
    assert late.outcome is not None
    assert late.outcome.finish_reason == "timeout"


def test_who_hears_the_end_may_ask_again_at_once() -> None:
    """An ended request takes no place, even while the step that ended it goes on."""
    bench = Bench(TinyDecoder(), limits=Limits(max_running=1, max_queue=0))
    first, second = (bench.request(PROMPT, max_tokens=2) for _ in range(2))
    hear = first.sink

    def ask_again(event: Any) -> None:
        hear(event)
        if isinstance(event, Outcome):
            bench.scheduler.submit(second)

    first.sink = ask_again
    bench.scheduler.submit(first)
    bench.run(first, second)
    assert first.outcome
    assert second.outcome


def test_waits_for_memory_instead_of_failing() -> None:
    bench = Bench(TinyDecoder(), pages=4)
    requests = [bench.submit([i] * 60, max_tokens=4) for i in range(1, 5)]
    bench.step()
    assert len(bench.scheduler.running) == 2
    bench.run(*requests)
    assert all(r.outcome for r in requests)


def test_a_failing_forward_ends_only_its_request() -> None:
    class Fragile(TinyDecoder):
        def forward(self, ids: torch.Tensor, *rest: object) -> torch.Tensor:
            if 13 in ids.tolist():
                raise RuntimeError("no thirteens")
            return super().forward(ids, *rest)  # type: ignore[arg-type]

    bench = Bench(Fragile())
    good, bad = bench.submit([1, 2, 3], max_tokens=5), bench.submit([12, 13], max_tokens=5)
    bench.run(good, bad)
    assert isinstance(bad.error, EngineError)
    assert isinstance(bad.error.__cause__, RuntimeError)
    assert "no thirteens" in str(bad.error)
    assert good.outcome is not None
    assert list(good.outcome.token_ids) == greedy_without_cache(TinyDecoder(), [1, 2, 3], 5)


def test_stop_token_is_not_part_of_the_output_or_the_budget() -> None:
    done = Bench(ScriptedDecoder(tokenize(b"hey"))).complete([1], max_tokens=4)
    assert done.outcome is not None
    assert (done.outcome.text, done.outcome.finish_reason, done.outcome.usage.output_tokens) == ("hey", "stop", 3)
    cut = Bench(ScriptedDecoder(tokenize(b"hey"))).complete([1], max_tokens=3)
    assert cut.outcome is not None
    assert (cut.outcome.text, cut.outcome.finish_reason) == ("hey", "length")


def test_forced_tokens_enter_in_one_forward_and_cost_no_sampling() -> None:
    model = ScriptedDecoder(tokenize(b'{"ok":true}'))
    bench = Bench(model)
    done = bench.complete([1], TextsMatcher([b'{"ok":true}', b'{"ok":false}']))
    assert done.outcome is not None
    usage = done.outcome.usage
    assert done.outcome.text == '{"ok":true}'
    assert (done.outcome.finish_reason, done.outcome.complete) == ("stop", True)
    assert usage.output_tokens == len(tokenize(b'{"ok":true}'))
    assert usage.forced_tokens == usage.output_tokens - 1  # only true/false was a choice
    assert model.calls == [1 + len(tokenize(b'{"ok":'))]  # one forward: the prompt with what is forced behind it
    assert usage.forwards == 1
    assert [e.forced for e in bench.heard(done)[:-1]] == [True, False, True]


@pytest.mark.parametrize("wanted", [b'{"ok":true}', b'{"ok":false}', b'{"no":[1,2,3]}', b"ababab"])
def test_forcing_equals_letting_the_model_spell_it(wanted: bytes) -> None:
    texts = [b'{"ok":true}', b'{"ok":false}', b'{"no":[1,2,3]}', b"ababab"]
    runs = [Bench(ScriptedDecoder(tokenize(wanted))).complete([1], TextsMatcher(texts, forced=f)) for f in (True, False)]
    assert [r.outcome.text for r in runs if r.outcome] == [wanted.decode()] * 2
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].forwards < runs[1].forwards


def test_an_output_without_a_choice_takes_no_forward() -> None:
    bench = Bench(TinyDecoder())
    done = bench.complete(PROMPT, TextsMatcher([b"only this"]))
    assert done.outcome is not None
    assert (done.outcome.text, done.outcome.usage.forwards, done.outcome.usage.ttft_s) == ("only this", 0, None)
    assert bench.model.calls == []


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("budget", range(2, 8))
def test_budget_guard_always_completes(budget: int, lazy: bool) -> None:
    texts = [b"[]", b"[1]", b"[1,2]", b"[1,2,3]", b"[true]"]
    script = tokenize(b"[1,2,3]")
    done = Bench(ScriptedDecoder(script)).complete([1], TextsMatcher(texts, lazy=lazy), max_tokens=budget)
    assert done.outcome is not None
    assert done.outcome.complete
    assert done.outcome.text.encode() in texts
    assert len(done.outcome.token_ids) <= budget


def test_a_forced_spelling_that_does_not_fit_is_taken_as_far_as_it_does() -> None:
    """Forcing spells one byte per token here, the guard knows the short tokens: it steps in where only they fit."""

    class Spelled(TextsMatcher):
        def forced_tokens(self, before: Sequence[int] = ()) -> list[int]:
            return [*b"xxxabababab"[len(self.text) :]] if not self.is_accepting else []

    for budget in range(7, 12):  # xxx and four times "ab" in one token each: 7
        done = Bench(TinyDecoder()).complete([1], Spelled([b"xxxabababab"]), max_tokens=budget)
        assert done.outcome is not None
        assert (done.outcome.text, done.outcome.complete) == ("xxxabababab", True)
        assert done.outcome.usage.output_tokens == budget
        assert done.outcome.usage.forced_tokens >= 3


def test_without_the_guard_the_cut_is_reported() -> None:
    done = Bench(ScriptedDecoder(tokenize(b"[1,2,3]"))).complete([1], TextsMatcher([b"[1,2,3]", b"[]"]), max_tokens=3, budget_guard=False)
    assert done.outcome is not None
    assert (done.outcome.text, done.outcome.finish_reason, done.outcome.complete) == ("[1,", "length", False)


def test_stop_tokens_are_only_allowed_where_the_grammar_accepts() -> None:
    done = Bench(ScriptedDecoder([STOP, STOP, STOP])).complete([1], TextsMatcher([b"abc", b"xyz"]))
    assert done.outcome is not None
    assert done.outcome.text in ("abc", "xyz")


def test_usage_times_are_consistent() -> None:
    done = Bench(TinyDecoder()).complete(PROMPT, max_tokens=8)
    assert done.outcome is not None
    usage = done.outcome.usage
    assert usage.ttft_s is not None
    assert usage.tpot_s is not None
    assert 0 <= usage.queue_s <= usage.ttft_s <= usage.total_s
    assert usage.ttft_s + usage.tpot_s * (usage.output_tokens - 1) <= usage.total_s
    assert usage.forwards == usage.output_tokens == 8


def test_global_random_state_is_left_alone() -> None:
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index,union-attr]
    Bench(TinyDecoder()).complete(PROMPT, max_tokens=8, temperature=1.0)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # type: ignore[index,union-attr]
