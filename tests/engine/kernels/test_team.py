"""Workers that share a kernel: any number of them, helpers that never come, and callers from several threads."""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.kernels import forward as f
from agentkit.engine.kernels.integers import GROUP_WORDS
from agentkit.engine.kernels.library import supported
from agentkit.engine.kernels.team import Team
from agentkit.engine.kernels.tiles import GROUP
from tests.engine.kernels.models import decoder, quantised

pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")


def multiply(team: Team, workers: int, tables: Any, x: np.ndarray) -> np.ndarray:
    out = np.full(x.shape[0] * 160, np.nan, np.float32)
    codes = np.empty(x.size // GROUP * GROUP_WORDS, np.float32)
    team.run(f.project, workers, f.MATRIX_SCRATCH, tables, f.M_QKV, x.ravel(), x.shape[1], codes, out)
    return out


def test_the_number_of_workers_changes_nothing() -> None:
    packed, _ = quantised(decoder())
    x = np.random.default_rng(0).normal(size=(130, 64)).astype(np.float32)
    alone = multiply(Team(), 1, packed._tables, x)
    assert not np.isnan(alone).any()
    for workers in (2, 3, 8):
        assert np.array_equal(multiply(Team(), workers, packed._tables, x), alone)


def test_helpers_that_never_come_cost_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = quantised(decoder())
    x = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
    alone = multiply(Team(), 1, packed._tables, x)
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    assert np.array_equal(multiply(Team(), 4, packed._tables, x), alone)


def test_a_team_that_has_ended_goes_on_alone() -> None:
    packed, _ = quantised(decoder())
    x = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32)
    before, team = set(threading.enumerate()), Team()
    wanted = multiply(team, 3, packed._tables, x)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 2
    team.end()
    assert not any(thread.is_alive() for thread in helpers)
    assert np.array_equal(multiply(team, 3, packed._tables, x), wanted)
    assert set(threading.enumerate()) <= before


def test_helpers_keep_nothing_of_what_they_have_done() -> None:
    packed, _ = quantised(decoder())
    x, team = np.zeros((9, 64), np.float32), Team()
    multiply(team, 3, packed._tables, x)
    gone = weakref.ref(x)
    del x
    deadline = time.monotonic() + 10  # a helper may come late
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone() is None
    team.end()


def test_callers_take_turns() -> None:
    packed, _ = quantised(decoder())
    layer: Any = packed.layers[0].gate_up
    inputs = [torch.randn(n, 64) for n in (1, 3, 17, 100) * 5]
    wanted = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(a, b) for a, b in zip(threads.map(layer, inputs), wanted, strict=True))
