"""Steps on a device with more in them than one token each: prompts, forced text and guesses beside those that decode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine import scheduler
from agentkit.engine.device import step as device_step
from agentkit.engine.device.beside import Beside, Ragged
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.gpu.batch import BatchShape, BatchSpan
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_policy import Reach
from agentkit.engine.request import Request
from agentkit.engine.scheduler import Limits
from agentkit.engine.speculation.draft_model import DraftModelProposer
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.self_draft import SelfDraftProposer, first_layers
from agentkit.engine.speculation.speculator import Speculator
from agentkit.errors import EngineError
from tests.engine.gpu.bursts import GRAMMARS, SAMPLED, VOCABULARY, DeviceBench, both, outputs
from tests.engine.kernels.models import decoder
from tests.engine.tiny import STOP, TOKENS, WIDTH, TinyDecoder

LONG = [(7 * i) % 250 for i in range(150)]
CHUNKS = Limits(max_running=8, step_tokens=64, mixed_step_tokens=64)


def joining(burst: bool, late: dict[str, Any], **options: Any) -> tuple[list[Request], DeviceBench, int]:
    """Two requests decode, a third comes later. Also how many steps went over the host since."""
    bench = DeviceBench(TinyDecoder(0), burst=burst, limits=CHUNKS, **options)
    asked: list[dict[str, Any]] = [{"max_tokens": 30, "seed": 2, **SAMPLED}, {"grammar": "text", "max_tokens": 40, "seed": 3, **SAMPLED}]
    requests = []
    for number, ask in enumerate([*asked, late]):
        if ask is late:
            bench.step()
            before = len(bench.over_the_host)
        matcher = GRAMMARS[ask["grammar"]].matcher(VOCABULARY) if "grammar" in ask else None
        requests.append(bench.submit(ask.get("prompt", [5 + number, 9, 70]), matcher, **{k: v for k, v in ask.items() if k not in ("grammar", "prompt")}))
    bench.run(*requests)
    return requests, bench, len(bench.over_the_host) - before


@pytest.mark.parametrize(
    "late",
    [
        {"prompt": LONG, "max_tokens": 12, "seed": 4, **SAMPLED},  # chunks, of which the last gives the first token
        {"prompt": LONG, "max_tokens": 30, "grammar": "object", "seed": 5, **SAMPLED},
        {"prompt": LONG[:9], "max_tokens": 6, "logprobs": 3},  # which the host draws
    ],
    ids=["prompt", "with a grammar", "for the host"],
)
@pytest.mark.parametrize("options", [{}, {"reach": Reach(window=33)}], ids=["", "window"])
def test_who_joins_leaves_the_others_on_the_device(late: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "BURST", 4)
    want, _, _ = joining(False, late, **options)
    got, bench, hosted = joining(True, late, **options)
    assert outputs(got) == outputs(want)
    alone = sum(1 for spans in bench.over_the_host if spans == 1)
    assert hosted == alone  # only once it was the last one, if ever
    assert any(burst.beside for burst in bench.bursts)


def test_forced_text_does_not_end_a_burst() -> None:
    """Keys are forced one after the other, for two requests at once; beside them a third decodes."""
    asked = [{"grammar": "forced", "max_tokens": 80, "seed": s, **SAMPLED} for s in (1, 2)] + [{"max_tokens": 40, "seed": 3, **SAMPLED}]
    requests, bench = both(asked)
    assert all(r.forced > 20 for r in requests[:2])
    assert not bench.over_the_host
    assert len(bench.bursts) < 8
    assert not any(burst.beside for burst in bench.bursts)


def test_runs_go_into_rooms_of_fixed_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where none is large enough they are computed as they come, with the same tokens."""
    asked = [{"grammar": "forced", "max_tokens": 80, "seed": 7, **SAMPLED}]
    for rooms in ((32,), ()):
        monkeypatch.setattr(device_step, "ROOMS", rooms)
        _, bench = both(asked)
        decoding = bench.scheduler._decoding
        assert decoding is not None
        assert {tokens for step in decoding._steps.values() for tokens in step._rooms} == set(rooms)


def test_guesses_are_verified_beside_those_who_have_none() -> None:
    asked = [
        {"prompt": [7, 8] * 12, "max_tokens": 40},
        {"max_tokens": 40, "seed": 3, "temperature": 1.5},
        {"grammar": "text", "max_tokens": 30, "seed": 1, **SAMPLED},
    ]
    requests, bench = both(asked, speculator=lambda: Speculator(NgramProposer(), Pace(StepCosts())))
    assert requests[0].drafted > 0
    assert any(burst.beside and burst.tokens for burst in bench.bursts)


def test_several_outputs_of_a_prompt_branch_beside_others() -> None:
    results = []
    for burst in (False, True):
        bench = DeviceBench(TinyDecoder(0), burst=burst)
        first = bench.submit([5, 9, 70], max_tokens=30, seed=1, **SAMPLED)
        bench.step()
        second, sibling = (bench.request(LONG[:40], max_tokens=8, seed=s, **SAMPLED) for s in (2, 3))
        second.siblings = [sibling]
        bench.scheduler.submit(second)
        bench.run(first, second, sibling)
        results.append(outputs([first, second, sibling]))
    assert results[0] == results[1]


def test_a_prompt_that_fails_takes_nobody_with_it() -> None:
    """A step with a broken prompt beside it is taken again over the host, span by span."""
    bench = DeviceBench(TinyDecoder(0))
    first = bench.submit([5, 9, 70], max_tokens=20, seed=1, **SAMPLED)
    bench.step()
    broken = bench.submit([*LONG[:40], 10**6, 3], max_tokens=5, logprobs=2)
    bench.run(first, broken)
    assert isinstance(broken.error, EngineError)
    alone = DeviceBench(TinyDecoder(0))
    same = alone.submit([5, 9, 70], max_tokens=20, seed=1, **SAMPLED)
    alone.run(same)
    assert first.tokens == same.tokens


def test_a_miss_does_not_compute_a_prompt_twice() -> None:
    """The mask of the first token is never known beforehand where nothing is handed over."""
    bench = DeviceBench(TinyDecoder(0), ahead=0, expanded=0)
    requests = [bench.submit([*LONG, n], GRAMMARS["object"].matcher(VOCABULARY), max_tokens=30, seed=n, **SAMPLED) for n in range(2)]
    bench.run(*requests)
    assert all(r.error is None for r in requests)
    assert bench.model.calls.count(150) <= 1  # type: ignore[union-attr]


def test_a_room_holds_spans_of_places_alone() -> None:
    room = Ragged.room(32, BatchShape(4, 4, 8, 4, 1), torch.device("cpu"))
    run = BatchSpan([[1, 2]], PAGE, [1, 2, 3])
    assert room.holds([Beside(run, 2)])
    assert not room.holds([Beside(run)])
    assert not room.holds([Beside(run, 2)] * 5)
    room.load([Beside(run, 2), Beside(run, 0)])
    assert room.places.tolist() == [4 + 5, 1, 4 + 2, 3]


@pytest.mark.parametrize("kind", ["self", "draft"])
def test_models_that_guess_do_so_beside_places(kind: str) -> None:
    """The model's own first layers, by torch's attention over the same pages, or a second model by the device's kernels: the tokens stay the same."""
    model, results = decoder(vocabulary=WIDTH, layers=2), []
    for guess in (False, True):
        bench = DeviceBench(model)  # type: ignore[arg-type]
        if guess:
            other, pool = decoder(vocabulary=WIDTH, layers=1), bench.pool
            if kind == "self":
                proposer: Any = SelfDraftProposer(first_layers(model, 1), pool, torch.device("cpu"), len(TOKENS), [STOP])
            else:
                shape = KVShape(other.config.num_layers, other.config.num_kv_heads, other.config.head_dim, torch.float32)
                pool = KVPool(shape, 40 * shape.bytes_per_page)
                proposer = DraftModelProposer(DeviceRunner(other, pool, "reference"), pool, len(TOKENS), [STOP])
            bench.scheduler.speculate(Speculator(proposer, Pace(StepCosts())))
        requests = [bench.submit([5 + n, 9, 70], max_tokens=14) for n in range(2)]
        requests.append(bench.submit([5, 9, 71], GRAMMARS["text"].matcher(VOCABULARY), max_tokens=14, seed=3, **SAMPLED))
        bench.run(*requests)
        results.append(outputs(requests))
        assert (sum(r.drafted for r in requests) > 0) == guess
    assert results[0] == results[1]
