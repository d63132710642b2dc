"""Events of requests on an event loop: in order, with one wake-up for all that has come, and none that nobody looks at."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentkit.engine import Engine
from agentkit.engine.stream import Deliveries
from tests.engine.loaded import loaded_model


def test_what_has_come_meanwhile_takes_one_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def listens() -> tuple[list[int], int]:
        loop, got, wakes = asyncio.get_running_loop(), list[int](), list[Any]()
        call = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wakes.append(args), call(*args)))
        deliveries = Deliveries(loop)
        for first in (0, 100):
            thread = threading.Thread(target=lambda first=first: [deliveries.put(got.append, first + i) for i in range(100)])
            thread.start()
            thread.join()  # the loop does not get to it before all are there
            await asyncio.sleep(0)
        return got, len(wakes)

    got, wakes = asyncio.run(listens())
    assert got == list(range(200))
    assert wakes == 2


def test_nothing_is_delivered_to_a_loop_that_is_gone() -> None:
    loop = asyncio.new_event_loop()
    deliveries = Deliveries(loop)
    loop.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            deliveries.put(print, 1)
    del loop
    with pytest.raises(RuntimeError, match="closed"):
        deliveries.put(print, 1)


def test_single_tokens_that_nobody_looks_at_do_not_wake_the_loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put = Deliveries.put
    delivered: list[object] = []
    monkeypatch.setattr(Deliveries, "put", lambda self, receive, what: (delivered.append(what), put(self, receive, what)))
    with Engine(loaded_model(tmp_path), speculation="off") as engine:
        whole = asyncio.run(engine.agenerate("hello", max_tokens=9))
        assert len(delivered) == 1
        seen: list[Any] = []
        again = asyncio.run(engine.agenerate("hello", max_tokens=9, on_event=seen.append))
    assert whole.token_ids == again.token_ids
    assert len(delivered) == 1 + len(seen) > 9
