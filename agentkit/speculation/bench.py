"""Which proposer pays: the same prompts decoded plainly and with drafts, in turns, on the user's model and machine.

Input: an engine, jobs (each a generation) and settings of speculation. Times are of decoding: from the first token to the last.
Knows nothing of how drafts are made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentkit.errors import EngineError

if TYPE_CHECKING:
    from agentkit.engine import Engine, Generation
    from agentkit.engine.speculation.speculator import Speculator

__all__ = ["Job", "Row", "available", "compare", "pays", "table"]

WORTH = 1.03  # a speed-up below it may be noise

Job = Callable[["Engine"], "Generation"]
"""One generation on the engine it is given."""


@dataclass
class Row:
    """One setting over all jobs: tokens drafted and kept, forwards and the tokens they computed, seconds, and whether outputs were plain decoding's.

    seconds: of decoding.   call_seconds: of whole requests.   processor_seconds: of whole requests, on all threads of this process.
    """

    setting: str
    output: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0
    forwards: int = 0
    computed: int = 0
    seconds: float = 0.0
    call_seconds: float = 0.0
    processor_seconds: float = 0.0
    same: bool = True

    def count(self, generation: Generation, forwards: int, computed: int, processor_seconds: float) -> None:
        usage = generation.usage
        self.output += usage.output_tokens
        self.sampled += usage.output_tokens - usage.forced_tokens
        self.drafted += usage.drafted_tokens
        self.accepted += usage.accepted_tokens
        self.forwards += forwards
        self.computed += computed
        self.seconds += usage.total_s - usage.queue_s - (usage.ttft_s or 0.0)
        self.call_seconds += usage.total_s
        self.processor_seconds += processor_seconds

    @property
    def acceptance(self) -> float:
        return self.accepted / max(1, self.drafted)

    @property
    def tokens_per_forward(self) -> float:
        """Chosen tokens (not those that a grammar forced) per forward, 1 without drafts."""
        return self.sampled / max(1, self.forwards)


def available(engine: Engine, settings: Sequence[str]) -> tuple[dict[str, Speculator | None], dict[str, str]]:
    """Speculators by setting, and why the others cannot be had (heads that were not trained)."""
    made: dict[str, Speculator | None] = {}
    missing: dict[str, str] = {}
    for setting in settings:
        try:
            made[setting] = engine.speculator(setting)
        except (EngineError, ValueError) as error:
            missing[setting] = str(error)
    return made, missing


def compare(
    engine: Engine, jobs: Sequence[Job], speculators: dict[str, Speculator | None], repeats: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Each job under each setting in turns, so that what else the machine does hits all alike. The first pass only warms caches and is not counted.

    speculators: by setting; "off" is added. They keep what they have learnt of acceptance and costs.
    """
    rows = {setting: Row(setting) for setting in {"off": None, **speculators}}
    wanted: dict[int, tuple[int, ...]] = {}
    passes = list(_passes(len(jobs), list(rows), repeats))
    for done, (counted, number, setting) in enumerate(passes):
        if progress is not None:
            progress(done, len(passes))
        engine.speculate(speculators.get(setting))
        before = engine.metrics.steps, engine.metrics.step_tokens
        start = time.process_time()
        generation = jobs[number](engine)
        busy = time.process_time() - start
        steps, tokens = engine.metrics.steps - before[0], engine.metrics.step_tokens - before[1]
        rows[setting].same &= generation.token_ids == wanted.setdefault(number, generation.token_ids)
        if counted:
            prefill = generation.usage.input_tokens - generation.usage.cached_tokens
            rows[setting].count(generation, steps, tokens - prefill, busy)
    return list(rows.values())


def _passes(jobs: int, settings: list[str], repeats: int) -> Iterator[tuple[bool, int, str]]:
    """(counted, job, setting): the order of settings moves on with each job."""
    for number in range(jobs):
        yield False, number, "off"
    for turn in range(repeats):
        for number in range(jobs):
            shift = (turn + number) % len(settings)
            for setting in settings[shift:] + settings[:shift]:
                yield True, number, setting


def pays(rows: Sequence[Row]) -> str | None:
    """The fastest setting of which drafts were kept and that is faster than plain decoding beyond noise; None: there is none."""
    plain = next(row for row in rows if row.setting == "off")
    best = min((row for row in rows if row.accepted), key=lambda row: row.seconds, default=plain)
    return best.setting if best.seconds * WORTH < plain.seconds else None


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Cells for printing, the heading first; speed-up against the row "off"."""
    plain = next(row for row in rows if row.setting == "off")
    cells = [["speculation", "accepted", "tokens per forward", "ms per token", "speed-up", "same output"]]
    for row in rows:
        accepted = f"{row.acceptance:.0%} of {row.drafted}" if row.drafted else "-"
        each = 1e3 * row.seconds / max(1, row.output)
        speedup = plain.seconds / row.seconds if row.seconds else 1.0
        cells.append([row.setting, accepted, f"{row.tokens_per_forward:.2f}", f"{each:.1f}", f"{speedup:.2f}x", "yes" if row.same else "NO"])
    return cells
