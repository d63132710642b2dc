"""Progress of long work (downloads, conversions): the callback, and what a terminal shows of it.

A callback takes (stage, done, total): `stage` is a short text for people, `done` and `total` count bytes or tensors;
total None means that the amount is not known, or that the stage is only a message. Knows nothing of models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["LineProgress", "Progress", "one_stage", "progress_or_default", "silent"]


class Progress(Protocol):
    """Called often and from one thread at a time; must return quickly."""

    def __call__(self, stage: str, done: int, total: int | None) -> None: ...


def silent(stage: str, done: int, total: int | None) -> None:
    """A callback that shows nothing."""


class LineProgress:
    """Plain lines for logs: one when a stage starts, then one at each further quarter."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._stage = ""
        self._quarter = 0

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        quarter = 4 * done // total if total else 0
        if stage == self._stage and quarter <= self._quarter:
            return
        started = stage != self._stage
        self._stage, self._quarter = stage, quarter
        share = f" {100 * done // total} %" if total and not (started and done == 0) else ""
        print(f"agentkit: {stage}{share}", file=self._stream or sys.stderr, flush=True)


class _BarProgress:
    """Bars in a terminal: one row per stage."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        task = self._tasks.get(stage)
        if task is None:
            task = self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(task, completed=done, total=total)


@contextmanager
def progress_or_default(progress: Progress | None) -> Iterator[Progress]:
    """`progress` itself, or a renderer on stderr: bars in a terminal, lines elsewhere. Nothing shows before the first call."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield LineProgress()
    else:
        lazy = _LazyBars()
        try:
            yield lazy
        finally:
            lazy.close()


@contextmanager
def one_stage(stage: str, progress: Progress | None) -> Iterator[None]:
    """Shows work of which only its beginning and its end are known."""
    with progress_or_default(progress) as report:
        report(stage, 0, 1)
        yield
        report(stage, 1, 1)


class _LazyBars:
    """Starts rich only when there is something to show, so that a model in the cache costs no import."""

    def __init__(self) -> None:
        self._bars: RichProgress | None = None
        self._show: _BarProgress | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if self._show is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            self._bars = Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=Console(stderr=True))
            self._bars.start()
            self._show = _BarProgress(self._bars)
        self._show(stage, done, total)

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
