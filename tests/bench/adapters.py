"""What low-rank adapters add to a step of the engine: rows of one token with none, one, and sixteen adapters, and a prompt.

    python -m tests.bench.adapters [--model smollm2-135m] [--weights auto int8 fp32] [--rank 8] [--clock wall|processor]

Random adapters on all seven linear layers of each block. Variants are timed in turns within one process; compare them with each other.
On a busy machine `--clock processor` counts the processor time of all threads.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from agentkit.engine import Engine
from agentkit.engine.adapters.adapter import AdapterUse
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.request import domain_of
from agentkit.engine.runner import Span
from tests.engine.adapters.peft_files import RandomAdapter

ADAPTERS, DEPTH, REPEATS = 16, 128, 9
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def step_ms(engine: Engine, uses: Sequence[AdapterUse | None], tokens: int, clock: str) -> float:
    """One step of `tokens` tokens for a request of each of `uses`, behind DEPTH others."""
    pool, runner = engine._scheduler.pool, engine._scheduler.runner
    sequences = [pool.start([], domain_of(use, str(i))) for i, use in enumerate(uses)]
    for sequence in sequences:
        assert pool.reserve(sequence, DEPTH + tokens)
        pool.commit(sequence, [1] * DEPTH)
    spans = [Span(sequence, (5,) * tokens, adapter=use) for sequence, use in zip(sequences, uses, strict=True)]
    start = CLOCKS[clock]()
    runner.execute(spans)
    took = CLOCKS[clock]() - start
    for sequence in sequences:
        pool.release(sequence, keep=False)
    return took * 1e3


def table(engine: Engine, uses: Sequence[AdapterUse], clock: str) -> list[tuple[str, list[float]]]:
    """Medians by kind of step: without adapters, then with one for all rows, then with another one for each."""
    lines = []
    for name, rows, tokens in (("1 request, 1 token", 1, 1), ("16 requests, 1 token each", 16, 1), ("1 request, 512 tokens of a prompt", 1, 512)):
        kinds: list[Sequence[AdapterUse | None]] = [[None] * rows, [uses[0]] * rows, [*uses[:rows]]]
        taken: list[list[float]] = [[] for _ in kinds]
        for _ in range(REPEATS + 1):
            for own, kind in zip(taken, kinds, strict=True):
                own.append(step_ms(engine, kind, tokens, clock))
        lines.append((name, [statistics.median(own[1:]) for own in taken]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", default=["auto"])
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{given.model}, adapters of rank {given.rank} on all linear layers; ms per step ({given.clock} clock), medians of {REPEATS} in turns\n")
    print("| weights | step | without | one adapter | one per request |\n|---|---|---|---|---|")
    for weights in given.weights:
        with Engine(given.model, weights=weights, kv_memory=1 << 29) as engine, tempfile.TemporaryDirectory() as folder:
            model = engine.decoder
            assert isinstance(model, Decoder), "adapters are for models with the native decoder"
            made = [RandomAdapter(model.config, rank=given.rank, seed=i).write(Path(folder) / str(i)) for i in range(ADAPTERS)]
            uses = [AdapterUse(engine.load_adapter(str(i), path), 1.0) for i, path in enumerate(made)]
            for name, (plain, *others) in table(engine, uses, given.clock):
                print(f"| {weights} | {name} | {plain:.1f} | " + " | ".join(f"{ms:.1f} (x{ms / plain:.2f})" for ms in others) + " |", flush=True)


if __name__ == "__main__":
    main()
