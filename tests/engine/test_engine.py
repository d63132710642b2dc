"""The public engine: generate, stream, async, constraints and their values, errors, lifetime."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from pydantic import BaseModel, Field

from agentkit.engine import Engine, FinishEvent, TokenEvent
from agentkit.engine.config import SamplingParams
from agentkit.engine.constraint import resolve
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.request import Outcome, Usage
from agentkit.errors import (
    AgentKitError,
    BudgetTooSmall,
    ContextTooLong,
    EngineBusy,
    EngineError,
    GenerationTruncated,
    GrammarError,
    InvalidOption,
    NumericalError,
)
from agentkit.grammars import Grammar
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model

Make = Callable[..., Engine]


class Point(BaseModel):
    x: int = Field(ge=0, le=99)
    label: Literal["a", "b"]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes engines over tiny models; closes them afterwards. Model options go to loaded_model, the rest to Engine."""
    engines: list[Engine] = []

    def build(*, model: LoadedModel | None = None, **options: Any) -> Engine:
        own = {k: options.pop(k) for k in ("seed", "script", "prompt", "delay") if k in options}
        engine = Engine(model or loaded_model(tmp_path, **own), threads=1, **options)
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make: Make) -> Engine:
    return make()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def idle(engine: Engine) -> bool:
    return not engine._scheduler.has_work and engine._scheduler.pool.live_pages == 0


def test_generate_text(engine: Engine) -> None:
    g = engine.generate("hello", max_tokens=12)
    assert (len(g.token_ids), g.finish_reason, g.value) == (12, "length", None)
    assert g.text == engine.tokenizer.decode(g.token_ids)
    assert g.usage.input_tokens == 5
    assert g.usage.output_tokens == 12
    assert g.usage.load_s == engine.load_s
    assert engine.generate(engine.tokenizer.encode("hello", special=True), max_tokens=12).token_ids == g.token_ids


def test_special_tokens_of_a_text_prompt_are_recognised(engine: Engine) -> None:
    assert engine.generate("<|im_start|>a", max_tokens=1).usage.input_tokens == 2


def test_schema_value_is_parsed(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    g = engine.generate("x", schema=schema, max_tokens=40)
    assert g.value == json.loads(g.text)
    assert set(g.value) == {"n"}
    assert g.finish_reason == "stop"
    assert g.usage.forced_tokens > 0


def test_schema_model_gives_an_instance(engine: Engine) -> None:
    g = engine.generate("x", schema=Point, max_tokens=60)
    assert isinstance(g.value, Point)
    assert isinstance(engine.generate("x", schema=list[Literal["a", "b"]], max_tokens=20).value, list)


def test_choices_and_regex_and_grammar(engine: Engine) -> None:
    g = engine.generate("x", choices=["yes", "no"])
    assert g.value == g.text
    assert g.text in ("yes", "no")
    assert engine.generate("x", regex="[ab]{3}").text.strip("ab") == ""
    assert engine.generate("x", grammar=Grammar.from_choices(["one"])).text == "one"


def test_one_constraint_at_a_time(engine: Engine) -> None:
    with pytest.raises(ValueError, match="schema and regex"):
        engine.generate("x", schema=Point, regex="a")
    with pytest.raises(TypeError, match=r"json\.loads"):
        engine.generate("x", schema='{"type": "object"}')
    with pytest.raises(TypeError, match="sequence of strings"):
        engine.generate("x", choices="yes")
    with pytest.raises(TypeError, match="regex must be a string"):
        engine.generate("x", regex=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"temperature": -1}, {"max_tokens": 0}, {"stop": ""}, {"top_p": 0}])
def test_bad_options_raise_at_the_call(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        engine.stream("x", **options)


def test_bad_prompts(engine: Engine) -> None:
    with pytest.raises(ValueError, match="empty"):
        engine.generate("")
    with pytest.raises(ValueError, match="token id 100000"):
        engine.generate([1, 100000])
    with pytest.raises(TypeError, match="'tempature'"):
        engine.generate("x", tempature=1)
    bools: list[Any] = [[True, 5], [1, False], np.array([True]), torch.tensor([True, False])]
    for wrong in (b"hello", [1.7], ["1"], None, 3, {"role": "user"}, [{"role": "user", "content": "x"}], {4, 5}, frozenset({1}), np.ones((2, 2), int), *bools):
        with pytest.raises(TypeError, match=r"sequence of token ids.*chat\(\)"):
            engine.generate(wrong)  # type: ignore[arg-type]
    for good in (np.array([1, 2]), torch.tensor([1, 2]), (1, 2), range(1, 3), [np.int64(1), 2]):
        assert engine.generate(good, max_tokens=1).usage.input_tokens == 2  # type: ignore[arg-type]


def test_extreme_biases_stay_finite(engine: Engine) -> None:
    """A draw from NaN would take the last token, whatever it is."""
    extreme = {"logit_bias": {5: 1e9, 6: -1e9}, "repetition_penalty": 1e9, "presence_penalty": -1e9, "frequency_penalty": 1e9}
    with np.errstate(all="raise", under="ignore"):
        g = engine.generate("hello", max_tokens=8, temperature=1e-4, logprobs=3, seed=1, **extreme)
    assert len(g.token_ids) == 8
    assert g.token_ids[0] == 5


def test_a_device_that_the_loaded_model_is_not_on_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="loaded on cpu"):
        make(device="cuda")


def test_speculate_takes_settings_only(engine: Engine) -> None:
    with pytest.raises(ValueError, match="speculation=5"):
        engine.speculate(5)  # type: ignore[arg-type]
    engine.speculate(None)
    assert engine.generate("x", max_tokens=2).usage.drafted_tokens == 0


def test_context_limits(make: Make) -> None:
    with pytest.raises(ValueError, match="at most"):
        make(max_context=1_000_000)
    engine = make(max_context=50)
    with pytest.raises(ContextTooLong, match="lower max_tokens to 45") as caught:
        engine.generate("hello", max_tokens=46)
    assert (caught.value.tokens, caught.value.limit) == (51, 50)
    assert engine.generate("hello", max_tokens=45).usage.output_tokens == 45
    with pytest.raises(ContextTooLong, match="shorten the prompt"):
        engine.generate("x" * 60, max_tokens=1)
    with pytest.raises(ContextTooLong, match="kv_memory"):
        make(kv_memory=10_000).generate("hello")


def test_stream_adds_up_to_the_generation(engine: Engine) -> None:
    for options in ({"max_tokens": 30}, {"schema": Point}, {"max_tokens": 60, "stop": ["a", "é"]}, {"temperature": 1.5, "seed": 3, "max_tokens": 30}):
        events = list(engine.stream("xyz", **options))
        tokens = [e for e in events if isinstance(e, TokenEvent)]
        (finish,) = (e for e in events if isinstance(e, FinishEvent))
        assert events[-1] is finish
        again = engine.generate("xyz", **options)
        assert "".join(e.text for e in tokens) == finish.generation.text == again.text
        assert [t for e in tokens for t in e.token_ids] == list(finish.generation.token_ids) == list(again.token_ids)
        assert sum(len(e.token_ids) for e in tokens if e.forced) == again.usage.forced_tokens


def test_on_event_sees_every_event(engine: Engine) -> None:
    seen: list[Any] = []
    g = engine.generate("xyz", max_tokens=5, on_event=seen.append)
    assert seen[-1] == FinishEvent(g)
    assert len(seen) >= 6
    for wrong in (5, engine.agenerate):
        with pytest.raises(InvalidOption, match="on_event must be"):
            engine.generate("xyz", on_event=wrong)
        with pytest.raises(InvalidOption, match="on_event must be"):
            asyncio.run(engine.agenerate("xyz", on_event=wrong))


def test_seeds(make: Make) -> None:
    engine = make()
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 20}
    assert engine.generate("x", seed=-5, **options).token_ids == engine.generate("x", seed=-5, **options).token_ids
    assert engine.generate("x", **options).token_ids != engine.generate("x", **options).token_ids
    model = engine._loaded
    first, second = (Engine(model, seed=9) for _ in range(2))
    assert first.generate("x", **options).token_ids == second.generate("x", **options).token_ids
    first.close()
    second.close()


def test_truncation_is_typed(make: Make) -> None:
    text = '{"t":"' + "y" * 40 + '"}'
    schema = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False}
    engine = make(script=text)
    assert engine.generate("p", schema=schema, max_tokens=60).text == text
    guarded = engine.generate("p", schema=schema, max_tokens=20)
    assert guarded.usage.output_tokens <= 20
    assert guarded.value["t"].startswith("yyy")
    with pytest.raises(GenerationTruncated, match="max_tokens=20") as caught:
        engine.generate("p", schema=schema, max_tokens=20, budget_guard=False)
    assert text.startswith(caught.value.text)
    allowed = engine.generate("p", schema=schema, max_tokens=20, budget_guard=False, allow_truncated=True)
    assert (allowed.finish_reason, allowed.value, allowed.text) == ("length", None, caught.value.text)
    with pytest.raises(BudgetTooSmall) as small:
        engine.generate("p", schema=schema, max_tokens=2)
    assert small.value.budget == 2
    assert engine.generate("p", schema=schema, max_tokens=small.value.needed).value == {"t": ""}


def test_a_stop_string_inside_a_grammar(make: Make) -> None:
    engine = make(script="ab ab ab")
    with pytest.raises(GenerationTruncated, match="stop string 'b a'"):
        engine.generate("p", regex="(ab ){2}ab", stop="b a")
    cut = engine.generate("p", regex="[ab ]*", stop="b a")  # what is left still matches
    assert (cut.text, cut.stop_string, cut.finish_reason) == ("a", "b a", "stop")


def test_errors_do_not_break_the_engine(make: Make) -> None:
    engine = make(script="abc")
    broken = engine._loaded.model
    forward = broken.forward
    broken.forward = lambda *a: forward(*a) * float("nan")  # type: ignore[method-assign]
    with pytest.raises(NumericalError, match="NaN"):
        engine.generate("p")
    broken.forward = forward  # type: ignore[method-assign]
    assert engine.generate("p").text == "abc"
    with pytest.raises(GrammarError):
        engine.generate("p", schema={"type": "nonsense"})
    assert engine.generate("p").text == "abc"


@case("eng-cancel-frees-blocks")
def test_leaving_a_stream_cancels(case_id: str, make: Make) -> None:
    engine = make(delay=0.002)
    stream = engine.stream("x", max_tokens=3000)
    next(iter(stream))
    stream.close()
    wait_until(lambda: idle(engine))
    assert list(stream) == []
    engine.stream("x", max_tokens=3000)  # dropped before its first event
    wait_until(lambda: idle(engine))
    with engine.stream("x", max_tokens=3000) as left:
        next(left)
    wait_until(lambda: idle(engine))


def test_many_threads_share_one_engine(engine: Engine) -> None:
    wanted = {p: engine.generate(p, max_tokens=15).token_ids for p in ("a", "bb", "ccc", "dddd")}
    with ThreadPoolExecutor(len(wanted)) as threads:
        got = threads.map(partial(engine.generate, max_tokens=15), wanted)
    assert [g.token_ids for g in got] == list(wanted.values())


def test_queue_full(make: Make) -> None:
    engine = make(max_running=1, max_queue=1, delay=0.01)
    first = engine.stream("x", max_tokens=2000)
    next(iter(first))
    second = engine.stream("x", max_tokens=1)
    with pytest.raises(EngineBusy):
        engine.stream("x", max_tokens=1)
    first.close()
    assert isinstance(list(second)[-1], FinishEvent)


async def test_async_generate_runs_concurrently(engine: Engine) -> None:
    wanted = [engine.generate(p, max_tokens=10).token_ids for p in ("a", "b", "c")]
    got = await asyncio.gather(*(engine.agenerate(p, max_tokens=10) for p in ("a", "b", "c")))
    assert [g.token_ids for g in got] == wanted
    events = [e async for e in engine.astream("a", max_tokens=10)]
    assert isinstance(events[-1], FinishEvent)
    assert events[-1].generation.token_ids == wanted[0]


@case("eng-cancel-frees-blocks")
async def test_cancelling_a_task_cancels_the_request(case_id: str, make: Make) -> None:
    engine = make(delay=0.002)
    neighbour = asyncio.create_task(engine.agenerate("neighbour", max_tokens=40))
    whole = asyncio.create_task(engine.agenerate("x", max_tokens=3000))
    stream = engine.astream("x", max_tokens=3000)
    await anext(stream)
    await asyncio.sleep(0.05)
    whole.cancel()
    await stream.aclose()  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert len((await neighbour).token_ids) == 40
    await asyncio.to_thread(wait_until, lambda: idle(engine))


async def test_async_errors_reach_the_caller(engine: Engine) -> None:
    with pytest.raises(ContextTooLong):
        await engine.agenerate("x", max_tokens=10**6)
    with pytest.raises(ValueError, match="temperature"):
        await engine.agenerate("x", temperature=-1)
    with pytest.raises(GrammarError):
        await engine.agenerate("x", schema={"type": "nonsense"})


async def test_the_event_loop_stays_free(make: Make) -> None:
    engine = make(delay=0.05)
    task = asyncio.create_task(engine.agenerate("x", max_tokens=8))
    ticks = 0
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 15


def test_close_ends_requests_and_refuses_new_ones(make: Make) -> None:
    engine = make(delay=0.01)
    stream = engine.stream("x", max_tokens=3000)
    next(iter(stream))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        list(stream)
    with pytest.raises(EngineError, match="closed"):
        engine.generate("x")
    engine.close()
    with make() as other:
        other.generate("x", max_tokens=1)
    with pytest.raises(EngineError, match="closed"):
        other.generate("x")


def test_an_internal_error_wakes_everyone(make: Make) -> None:
    engine = make(delay=0.01)
    stream = engine.stream("x", max_tokens=3000)
    next(iter(stream))

    def broken() -> None:
        raise RuntimeError("a bug")

    engine._scheduler.step = broken  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="a bug"):
        list(stream)
    with pytest.raises(EngineError, match="internal error"):
        engine.generate("x")


def test_an_engine_nobody_holds_ends_its_thread(make: Make, tmp_path: Path) -> None:
    engine = Engine(loaded_model(tmp_path / "other"), threads=1)
    engine.generate("x", max_tokens=2)
    thread = engine._loop._thread
    assert thread is not None
    assert thread.is_alive()
    del engine
    wait_until(lambda: not thread.is_alive())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_gets_a_typed_error(engine: Engine) -> None:
    engine.generate("x", max_tokens=2)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            engine.generate("x", max_tokens=2)
            report = "no error"
        except AgentKitError as error:
            report = f"{type(error).__name__}: {error}"
        os.write(write, report.encode())
        engine.close()
        os._exit(0)
    os.waitpid(pid, 0)
    report = os.read(read, 1000).decode()
    assert report.startswith("EngineError")
    assert "after the fork" in report
    assert engine.generate("x", max_tokens=2).usage.output_tokens == 2


@pytest.mark.parametrize("wrong", ["hello", 5, [5], {"role": "user"}], ids=repr)
def test_what_is_no_list_of_dicts_is_refused(wrong: Any, engine: Engine) -> None:
    for ask in (engine.chat, engine.pin):
        with pytest.raises(TypeError, match="messages must be a list of dicts"):
            ask(wrong)
        with pytest.raises(TypeError, match="tools must be a list of dicts"):
            ask([{"role": "system", "content": "x"}], tools=wrong)


def test_a_chat_of_no_messages_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="messages is empty"):
        engine.chat([])


def test_chat_never_recognises_special_tokens_in_contents(engine: Engine) -> None:
    plain, trap = (engine.encode_chat([{"role": "user", "content": c}]) for c in ("hi", "<|im_end|>"))
    start, end = (engine.tokenizer.encode(t, special=True)[0] for t in ("<|im_start|>", "<|im_end|>"))
    assert (plain.count(start), plain.count(end)) == (trap.count(start), trap.count(end)) == (1, 1)
    assert engine.chat([{"role": "user", "content": "hi"}], max_tokens=3).usage.input_tokens == len(plain)


def test_second_turn_finds_the_first_in_the_cache(engine: Engine) -> None:
    first = engine.generate("a fairly long beginning", max_tokens=10)
    prompt = [*engine.tokenizer.encode("a fairly long beginning", special=True), *first.token_ids]
    assert engine.generate(prompt, max_tokens=3).usage.cached_tokens == len(prompt) - 1


def test_importing_the_engine_package_is_cheap() -> None:
    heavy = "torch", "numba", "transformers", "tokenizers", "jinja2"
    code = f"import sys, agentkit.engine; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_output_that_nests_deeper_than_it_can_be_parsed(tmp_path: Path) -> None:
    """A model that repeats itself does that, and the guard of the budget closes all of it."""
    text = "[" * 100_000 + "]" * 100_000
    with Engine(loaded_model(tmp_path), threads=1) as engine, pytest.raises(EngineError, match="nests deeper than it can be parsed"):
        engine._intake.conclude(Outcome(text, (), "stop", Usage(), complete=True), SamplingParams(), resolve({"type": "array"}, None, None, None))
