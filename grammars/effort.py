"""How long compiling may go on, and whether it is still wanted.

Input: a limit in seconds and a question "cancelled?"; `checkpoint()` is called from the loops of all front ends (every new
node of a Builder passes one) and raises once either says stop. The limit holds for the thread, or task, that set it.
Knows nothing of what is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from agentkit.errors import CompileCancelled, GrammarTooComplex

TIME_LIMIT = 60.0
"""Seconds of processor time that compiling one grammar may take, unless the caller says otherwise."""

_EVERY = 64  # checkpoints between two looks at the clock


class _Effort:
    __slots__ = ("cancel", "clock", "deadline", "passed", "time_limit")

    def __init__(self, time_limit: float | None, cancel: Callable[[], bool] | None) -> None:
        self.time_limit = time_limit
        self.cancel = cancel
        self.deadline = None if time_limit is None else time.thread_time() + time_limit
        self.passed = 0

    def look(self) -> None:
        if self.cancel is not None and self.cancel():
            raise CompileCancelled("compiling the grammar was cancelled")
        if self.deadline is not None and time.thread_time() > self.deadline:
            raise GrammarTooComplex("time_limit", f"compiling took more than {self.time_limit} s of processor time; simplify the grammar or raise time_limit")


_current: ContextVar[_Effort | None] = ContextVar("agentkit_compile_effort", default=None)


@contextmanager
def limited(time_limit: float | None = TIME_LIMIT, cancel: Callable[[], bool] | None = None) -> Iterator[None]:
    """Within this block, compiling stops after `time_limit` seconds of this thread's processor time, or once `cancel()` is true.

    Python's own recursion limit is one more limit on nesting here: it never shows itself as a RecursionError.

    Raises:
        GrammarTooComplex: the time is up (limit "time_limit"), or something is nested too deep (limit "nesting").
        CompileCancelled: `cancel` (such as the `is_set` of a threading.Event) has said so.
    """
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be above 0 seconds, or None for no limit, not {time_limit!r}")
    effort = _Effort(time_limit, cancel)
    token = _current.set(effort)
    try:
        effort.look()
        yield
    except RecursionError:
        raise GrammarTooComplex("nesting", "the grammar is nested too deep to be read; flatten it") from None
    finally:
        _current.reset(token)


def checkpoint() -> None:
    """One step of work is done: goes on, or raises as `limited` says. Does nothing outside such a block."""
    effort = _current.get()
    if effort is not None:
        effort.passed += 1
        if effort.passed % _EVERY == 0:
            effort.look()
