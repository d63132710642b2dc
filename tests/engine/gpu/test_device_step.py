"""One step by itself: what it leaves for the next, and that a captured step gives what an eager one does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from agentkit.engine.config import SamplingParams
from agentkit.engine.device.beside import Ragged
from agentkit.engine.device.capture import Graphs
from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.device.step import Bucket, DeviceStep
from agentkit.engine.kernels.gpu.batch import NOWHERE, Batch
from agentkit.engine.kernels.gpu.choose import step_kernels
from agentkit.engine.kernels.gpu.plan import Part
from agentkit.engine.kernels.gpu.sampling_batch import Draw
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import reach_of
from agentkit.engine.runner import Span, TorchRunner
from agentkit.grammars import Grammar
from agentkit.grammars.ahead import Ahead
from agentkit.grammars.device import Pushdown
from agentkit.grammars.kernels.tables import FINE, STOPPED, Tables
from tests.engine.gpu.bursts import VOCABULARY
from tests.engine.kernels.models import VARIANTS, decoder, moved, tokens
from tests.engine.tiny import STOP, TOKENS, WIDTH

SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, presence_penalty=0.3)


def step_on(device: str, *, graph: bool, kernels: str) -> DeviceStep:
    """A request with a grammar and one without, over logits that depend on the last token alone."""
    table = 3 * torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)
    table[:, STOP] = -20.0

    def forward(batch: Batch, parts: Sequence[Part]) -> torch.Tensor:
        return table[batch.token_ids]

    host, matcher = Pushdown(VOCABULARY, states=500, rows=20), Grammar.from_regex("[a-z ]*!").matcher(VOCABULARY)
    place = host.place(matcher.arena, matcher.state)
    assert place is not None
    host.know(place, matcher.arena, matcher.state)
    Ahead(host).look_ahead(place, matcher.arena, matcher.state, 1)
    host.expand_near(place, 50)
    bucket = Bucket(4, 8, grammars=True, history=True, logprobs=True, page_tables=2)
    step = DeviceStep(
        bucket, forward, step_kernels(kernels, torch.device(device)), torch.device(device), width=WIDTH, vocab_size=len(TOKENS), stops=[STOP],
        tables=Tables.of(host, 4, device), graphs=Graphs(torch.device(device)) if graph else None,
    )  # fmt: skip
    step.load(0, 7, PAGE - 2, [[3, 5], [13, 15]], Draw(SAMPLED, seed=1, written=[7]), place)
    step.load(2, 9, 4, [[6], [16]], Draw(SamplingParams(temperature=0.0)), None)
    return step


def results(step: DeviceStep, count: int) -> list[list[float]]:
    for _ in range(count):
        step.launch()
    return [[x for part in (r.tokens, r.status, r.logprobs.round(6)) for x in part[[0, 2]].tolist()] for r in (step.read() for _ in range(count))]


def test_a_step_leaves_the_next_one_s_input() -> None:
    step = step_on("cpu", graph=False, kernels="reference")
    first, second, third = results(step, 3)
    assert first[2:4] == second[2:4] == third[2:4] == [FINE, FINE]
    batch = step.batch
    assert batch.token_ids[[0, 2]].tolist() == third[:2]
    assert batch.positions.tolist() == [PAGE + 1, 0, 7, 0]
    assert batch.lengths.tolist() == [PAGE + 2, 0, 8, 0]
    assert batch.slots.tolist() == [[page * PAGE + 1, NOWHERE, (page + 1) * PAGE + 7, NOWHERE] for page in (5, 15)]
    assert step.sampling.positions[0] == 3
    assert step.sampling.history is not None
    assert int(step.sampling.history[0].sum()) == 2 * 4
    assert step.status.tolist() == [FINE, STOPPED, FINE, STOPPED]


def test_pages_are_told_from_the_first_that_has_changed() -> None:
    step = step_on("cpu", graph=False, kernels="reference")
    step.set_pages(0, [[9, 8, 7], [19, 18, 17]], first=1)
    assert step.batch.pages[:, 0, :3].tolist() == [[3, 8, 7], [13, 18, 17]]
    results(step, 2)
    assert step.batch.slots[:, 0].tolist() == [8 * PAGE, 18 * PAGE]


def test_nobody_is_in_a_place_that_was_retired() -> None:
    step = step_on("cpu", graph=False, kernels="reference")
    results(step, 1)
    step.retire(0)
    before = step.batch.token_ids.tolist()
    results(step, 1)
    assert step.batch.token_ids.tolist()[0] == before[0]
    assert step.batch.slots[:, 0].tolist() == [NOWHERE] * 2
    assert step.status.tolist() == [STOPPED, STOPPED, FINE, STOPPED]


def test_a_rehearsal_leaves_no_trace() -> None:
    """Steps are captured while requests have their places: what they give afterwards is the same."""
    want = results(step_on("cpu", graph=False, kernels="reference"), 4)
    step = step_on("cpu", graph=False, kernels="reference")
    got = results(step, 2)
    step._rehearse(None)
    step._rehearse(Ragged.room(8, step.batch.shape, torch.device("cpu")))
    assert got + results(step, 2) == want
    assert NOWHERE not in step.batch.slots[:, 2].tolist()


@pytest.mark.parametrize(("device", "kernels"), [("cpu", "reference"), pytest.param("cuda", "triton", marks=pytest.mark.gpu)])
def test_layers_with_windows_give_pages_back_on_any_device(device: str, kernels: str) -> None:
    """Logits of a text longer than the windows, in chunks; tests/engine/gpu/test_device_groups.py has the rest, where no GPU is."""
    plain, ids, found = decoder(**{**VARIANTS["gemma"], "layers": 6, "windows": (40, 64, None) * 2, "rope_of_layer": (0, 0, 1) * 2}), tokens(200, 128), []
    c, reach = plain.config, reach_of("auto", plain.config)
    for place, runner in (("cpu", TorchRunner), (device, partial(DeviceRunner, kernels=kernels))):
        shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, device=torch.device(place))
        pool = KVPool(shape, 10 * shape.bytes_per_page, reach=reach, groups=by_window(reach, c.num_layers, c.max_position))
        pool.data.fill_(torch.nan)
        execute, sequence = runner(moved(plain, place, torch.float32), pool).execute, pool.start(ids)
        for count in (70, 64, 1, 64, 1):
            assert pool.reserve(sequence, sequence.length + count)
            found.append(execute([Span(sequence, tuple(ids[sequence.length : sequence.length + count]))])[0])
            pool.check_invariants()
        assert len(sequence.held) == 7 + 2 * 3
    np.testing.assert_allclose(np.concatenate(found[5:]), np.concatenate(found[:5]), atol=1e-3)


@pytest.mark.gpu
def test_captured_steps_give_what_eager_ones_do() -> None:
    eager, captured = (results(step_on("cuda", graph=graph, kernels="triton"), 6) for graph in (False, True))
    assert eager == captured
    assert [r[:4] for r in captured] == [r[:4] for r in results(step_on("cpu", graph=False, kernels="reference"), 6)]
