"""The worker pool: bounds, replacement of abandoned workers, contexts, errors."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentkit.errors import ToolError, ToolTimeout
from agentkit.threads import WorkerPool


async def test_jobs_wait_for_a_worker_and_keep_their_order() -> None:
    pool = WorkerPool(workers=2)
    running, highest, order = 0, 0, []
    lock = threading.Lock()

    def job(number: int) -> int:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
            order.append(number)
        threading.Event().wait(0.002)
        with lock:
            running -= 1
        return number

    assert await asyncio.gather(*(pool.run(lambda number=number: job(number)) for number in range(20))) == list(range(20))
    assert highest == 2
    assert order[:1] == [0]
    assert sorted(order) == list(range(20))


async def test_an_abandoned_worker_is_replaced_and_leaves_when_it_is_done() -> None:
    pool = WorkerPool(workers=1, abandoned=2)
    release = threading.Event()
    with pytest.raises(ToolTimeout):
        await pool.run(release.wait, timeout=0.02)
    assert pool.abandoned == 1
    assert await pool.run(lambda: "still works") == "still works"
    with pytest.raises(ToolTimeout):
        await pool.run(release.wait, timeout=0.02)
    with pytest.raises(ToolError, match="2 tool threads have passed their time limits"):
        await pool.run(lambda: "too many")
    release.set()
    for _ in range(200):
        if pool.abandoned == 0:
            break
        await asyncio.sleep(0.01)
    assert pool.abandoned == 0
    assert await pool.run(lambda: "again") == "again"


async def test_time_spent_waiting_for_a_worker_does_not_count() -> None:
    pool = WorkerPool(workers=1)
    slow = asyncio.create_task(pool.run(lambda: threading.Event().wait(0.1)))
    await asyncio.sleep(0)
    assert await pool.run(lambda: "in time", timeout=0.05) == "in time"
    await slow


async def test_a_cancelled_job_that_waits_never_runs() -> None:
    pool = WorkerPool(workers=1)
    release, ran = threading.Event(), []
    first = asyncio.create_task(pool.run(release.wait))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(pool.run(lambda: ran.append(1)))
    await asyncio.sleep(0.02)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    assert await pool.run(lambda: "next") == "next"
    assert ran == []


@pytest.mark.parametrize(("error", "raised"), [(ValueError("x"), ValueError), (StopIteration(), RuntimeError), (TimeoutError("own"), TimeoutError)])
async def test_errors_come_back(error: Exception, raised: type[Exception]) -> None:
    def job() -> None:
        raise error

    with pytest.raises(raised) as caught:
        await WorkerPool().run(job, timeout=5)
    assert not isinstance(caught.value, ToolTimeout)


def test_a_job_may_outlive_its_loop() -> None:
    pool = WorkerPool(workers=1)
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(ToolTimeout):
            await pool.run(release.wait, timeout=0.02)

    asyncio.run(main())
    release.set()
    assert asyncio.run(pool.run(lambda: "new loop")) == "new loop"
