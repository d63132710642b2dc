"""Several outputs per prompt, log-probabilities, penalties, deadlines and figures, through the public engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkit.engine import Engine, FinishEvent, SamplingParams, Usage
from agentkit.engine.metrics import genai_attributes
from agentkit.errors import EngineError, GenerationTimeout, GenerationTruncated, InvalidOption
from tests.engine.loaded import loaded_model
from tests.engine.tiny import Bench, ScriptedDecoder, TextsMatcher, TinyDecoder, tokenize

Make = Callable[..., Engine]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    engines: list[Engine] = []

    def build(**options: Any) -> Engine:
        own = {k: options.pop(k) for k in ("script", "delay") if k in options}
        engines.append(Engine(loaded_model(tmp_path, **own), threads=1, **options))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def test_several_outputs_share_the_prompt(make: Make) -> None:
    engine = make()
    g = engine.generate("hello there", n=4, temperature=1.0, seed=3, max_tokens=20)
    outputs = [g, *g.alternatives]
    assert len({o.token_ids for o in outputs}) == 4
    assert [o.usage.cached_tokens for o in outputs] == [0, 11, 11, 11]
    assert [len(o.token_ids) for o in outputs] == [20] * 4
    assert all(o.alternatives == () for o in g.alternatives)
    again = engine.generate("hello there", n=4, temperature=1.0, seed=3, max_tokens=20)
    assert [o.token_ids for o in (again, *again.alternatives)] == [o.token_ids for o in outputs]
    assert engine.generate("hello there", temperature=1.0, seed=3, max_tokens=20).token_ids == g.token_ids


@pytest.mark.parametrize("limit", [1, 2, 16])
def test_outputs_do_not_depend_on_how_many_run(make: Make, limit: int) -> None:
    g = make(max_running=limit, seed=1).generate("hello", n=3, temperature=1.0, seed=3, max_tokens=12, regex="[a-z]+")
    wide = make(seed=1).generate("hello", n=3, temperature=1.0, seed=3, max_tokens=12, regex="[a-z]+")
    assert [o.text for o in (g, *g.alternatives)] == [o.text for o in (wide, *wide.alternatives)]


async def test_several_outputs_async(make: Make) -> None:
    engine = make()
    g = await engine.agenerate("hello", n=3, temperature=1.0, seed=3, max_tokens=9)
    sync = engine.generate("hello", n=3, temperature=1.0, seed=3, max_tokens=9)
    assert [o.token_ids for o in (g, *g.alternatives)] == [o.token_ids for o in (sync, *sync.alternatives)]


def test_what_n_cannot_do(make: Make) -> None:
    engine = make()
    with pytest.raises(ValueError, match="same output 3 times"):
        engine.generate("x", n=3)
    with pytest.raises(ValueError, match="streamed as one"):
        engine.stream("x", n=2, temperature=1.0)
    with pytest.raises(ValueError, match="streamed as one"):
        engine.generate("x", n=2, temperature=1.0, on_event=print)


def test_a_prompt_without_a_choice_and_several_outputs(make: Make) -> None:
    g = make().generate("x", n=3, temperature=1.0, choices=["only"])
    assert [o.text for o in (g, *g.alternatives)] == ["only"] * 3


def test_cancelling_one_of_several_spares_the_others() -> None:
    bench = Bench(TinyDecoder())
    first, second, third = (bench.request([1, 2, 3], max_tokens=12, temperature=1.0, seed=s) for s in range(3))
    first.siblings = [second, third]
    bench.scheduler.submit(first)
    first.cancel()
    second.cancel()
    bench.run(first, second, third)
    assert isinstance(first.error, EngineError)
    assert isinstance(second.error, EngineError)
    assert third.outcome is not None
    assert third.tokens == Bench(TinyDecoder()).complete([1, 2, 3], max_tokens=12, temperature=1.0, seed=2).tokens


def test_logprobs_are_of_the_constrained_distribution() -> None:
    model = ScriptedDecoder(tokenize(b'{"ok":true}'))
    done = Bench(model).complete([1], TextsMatcher([b'{"ok":true}', b'{"ok":false}']), logprobs=3)
    assert done.outcome is not None
    logprobs = done.outcome.logprobs
    assert logprobs is not None
    assert tuple(p.token_id for p in logprobs) == done.outcome.token_ids
    *before, choice, last = logprobs
    assert [p.logprob for p in (*before, last)] == [0.0] * (len(before) + 1)  # forced
    assert choice.logprob == pytest.approx(10 - math.log(math.exp(10) + 2))  # of "true" (10), "t" (0) and "f" (0) alone
    assert [token for token, _ in choice.top] == [choice.token_id, ord("f"), ord("t")]


def test_logprobs_without_a_grammar_sum_to_one(make: Make) -> None:
    engine = make()
    g = engine.generate("hello", max_tokens=5, logprobs=400)
    assert g.logprobs is not None
    for p in g.logprobs:
        assert sum(math.exp(v) for _, v in p.top) == pytest.approx(1.0)
        assert p.top[0] == (p.token_id, p.logprob)
    assert engine.generate("hello", max_tokens=5).logprobs is None
    own = engine.generate("hello", max_tokens=5, logprobs=0).logprobs
    assert own is not None
    assert [(p.token_id, p.top) for p in own] == [(p.token_id, ()) for p in g.logprobs]
    assert [p.logprob for p in own] == pytest.approx([p.logprob for p in g.logprobs], abs=1e-5)


def test_penalties_and_biases(make: Make) -> None:
    engine = make()
    plain = engine.generate("hello", max_tokens=30)
    assert len(set(engine.generate("hello", max_tokens=30, presence_penalty=1000.0).token_ids)) == 30
    assert len(set(engine.generate("hello", max_tokens=30, frequency_penalty=1000.0).token_ids)) == 30
    favourite = int(np.argmax(np.bincount(plain.token_ids)))
    assert favourite not in engine.generate("hello", max_tokens=30, logit_bias={favourite: -1000}).token_ids
    assert set(engine.generate("hello", max_tokens=5, logit_bias={7: 1000}).token_ids) == {7}
    assert engine.generate("hello", regex="[ab]{4}", logit_bias={7: 1000}).text.strip("ab") == ""
    with pytest.raises(ValueError, match="token id 99999"):
        engine.generate("hello", logit_bias={99999: 1.0})
    with pytest.raises(ValueError, match="logit_bias"):
        engine.generate("hello", logit_bias={3: math.nan})


def test_a_timeout_is_a_timeout_error(make: Make) -> None:
    engine = make(delay=0.005)
    with pytest.raises(TimeoutError, match=r"timeout=0\.05 s") as caught:
        engine.generate("x", max_tokens=3000, timeout=0.05)
    assert isinstance(caught.value, GenerationTimeout)
    assert isinstance(caught.value, GenerationTruncated)
    assert caught.value.text
    cut = engine.generate("x", max_tokens=3000, timeout=0.05, allow_truncated=True)
    assert cut.finish_reason == "timeout"
    with pytest.raises(ValueError, match="timeout"):
        engine.generate("x", timeout=0)


@pytest.mark.parametrize("place", ["start", "end"])
def test_a_tracer_that_fails_costs_its_span_alone(make: Make, place: str, caplog: pytest.LogCaptureFixture) -> None:
    class Span:
        def end(self, end_time: int) -> None:
            raise RuntimeError("no collector")

    class Tracer:
        def start_span(self, name: str, *, start_time: int | None = None, attributes: Any = None) -> Span:
            if place == "start":
                raise RuntimeError("no collector")
            return Span()

    engine = make(tracer=Tracer())
    assert len(engine.generate("hello", max_tokens=4).token_ids) == 4
    assert asyncio.run(engine.agenerate("hello", max_tokens=4)).finish_reason == "length"
    assert [record.message for record in caplog.records] == ["the tracer failed on a request that is over; its span is lost"] * 2


def test_what_is_no_tracer_is_refused(make: Make) -> None:
    with pytest.raises(InvalidOption, match="tracer must be an OpenTelemetry tracer, which has start_span, or None, not 5"):
        make(tracer=5)


def test_figures_of_the_engine(make: Make) -> None:
    spans: list[tuple[str, dict[str, Any]]] = []

    class Span:
        def end(self, end_time: int) -> None:
            assert end_time > 0

    class Tracer:
        def start_span(self, name: str, *, start_time: int | None = None, attributes: Any = None) -> Span:
            spans.append((name, attributes))
            return Span()

    engine = make(tracer=Tracer())
    engine.generate("hello", max_tokens=4)
    engine.generate("hello", max_tokens=4)
    with engine.stream("hello", max_tokens=3000) as stream:
        next(stream)
        stream.close()
    engine.generate("x", max_tokens=1)
    wait_until(lambda: engine.stats().requests == 4)  # the cancelled one ends within a step
    stats = engine.stats()
    assert stats.finished == {"length": 3}
    assert stats.failed == {"cancelled": 1}
    assert (stats.requests, stats.running, stats.waiting) == (4, 0, 0)
    assert stats.cached_tokens == 8
    assert 0 < stats.hit_rate < 1
    assert stats.ttft_s is not None
    wait_until(lambda: (now := engine.stats()).free_pages + now.cached_pages == now.pages)
    text = engine.metrics_text()
    assert 'agentkit_requests_finished_total{model="tiny",reason="length"} 3' in text
    assert 'agentkit_ttft_seconds_bucket{model="tiny",le="+Inf"} 4' in text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert all(
        line.startswith("# ") or line.split("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") in names for line in text.splitlines()
    )
    assert [name for name, _ in spans] == ["text_completion tiny"] * 4
    assert spans[0][1]["gen_ai.usage.output_tokens"] == 4
    assert spans[0][1]["gen_ai.response.finish_reasons"] == ["length"]
    assert spans[2][1]["error.type"] == "EngineError"


def test_genai_attributes_leave_out_what_is_unknown() -> None:
    found = genai_attributes("m", SamplingParams(stop=("x",)), Usage(input_tokens=3), "stop")
    assert found["gen_ai.request.stop_sequences"] == ["x"]
    assert not {"gen_ai.request.seed", "error.type", "gen_ai.request.choice.count", "agentkit.ttft_s"} & set(found)


def test_events_carry_logprobs(make: Make) -> None:
    events = list(make().stream("hello", max_tokens=4, logprobs=1))
    assert isinstance(events[-1], FinishEvent)
    assert tuple(p for e in events[:-1] for p in e.logprobs) == events[-1].generation.logprobs  # type: ignore[union-attr]
