"""What it saves that the output matrix computes only what masks allow: tool calls with and without, in turns, and single steps.

    python tests/bench/head.py [--model smollm2-135m] [--calls 20] [--questions 16] [--threads 1] [--speculation auto]
                              [--parts calls bfcl together steps]

calls: the prompts of ../shared/toolcall behind their pinned prefix, as in toolcall.py. bfcl: questions of the Berkeley Function-Calling
Leaderboard with their tools as plain text (so that base models can be asked, too) and one call demanded; prompts are computed before.
together: sixteen of the calls at once. steps: one token each of 1 or 16 requests behind 1,488 shared ones, under no mask, one of nearly all
tokens, and one of twenty. Each call is made both ways, one after the other; processor time is that of all threads.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from agentkit.engine import Engine
from agentkit.engine.advance import Advancer, pack_ids
from agentkit.engine.runner import Span
from agentkit.engine.scheduler import Scheduler
from agentkit.grammars import Grammar

DEPTH = 1488
REPEATS = 9
SHARED = Path(__file__).resolve().parents[3] / "shared"
Job = tuple[list[int], Grammar]


def calls(engine: Engine, count: int) -> list[Job]:
    data = json.loads((SHARED / "toolcall" / "prompts.json").read_text())
    prefix = engine.tokenizer.encode(data["prefix"], special=True)
    engine.pin(prompt=prefix)
    grammar = Grammar.from_json_schema(data["schema_bounded"])
    return [([*prefix, *engine.tokenizer.encode(message + data["suffix"], special=True)], grammar) for message in data["messages"][:count]]


def bfcl(engine: Engine, count: int) -> list[Job]:
    with gzip.open(SHARED / "bfcl" / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["category"] in ("simple_python", "multiple", "live_simple")]
    jobs = []
    for case in random.Random(0).sample(cases, count):
        tools = "\n".join(json.dumps(tool) for tool in case["tools"])
        prompt = f"You may call one of these tools:\n{tools}\nQuestion: {case['messages'][-1]['content']}\nTool call as JSON: "
        jobs.append((engine.tokenizer.encode(prompt), Grammar.from_json_schema(_one_of(case["tools"]), plain_integers=True)))
    return jobs


def _one_of(tools: list[dict[str, Any]]) -> dict[str, Any]:
    def call(tool: dict[str, Any]) -> dict[str, Any]:
        arguments = {**tool["parameters"], "additionalProperties": False}
        properties = {"name": {"const": tool["name"]}, "arguments": arguments}
        return {"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False}

    return {"anyOf": [call(tool) for tool in tools]}


def whole(*_: Any) -> None:
    """In place of Scheduler._allowed: every output is computed."""


@contextmanager
def spared(spares: bool) -> Iterator[None]:
    """With or without what is measured here."""
    with nullcontext() if spares else patch.object(Scheduler, "_allowed", whole):
        yield


@contextmanager
def shares_counted() -> Iterator[list[float]]:
    """Of the masks under which tokens are chosen inside, the share of the head's blocks of 32 that they allow anything of."""
    shares: list[float] = []
    advance = Advancer.advance

    def counting(advancer: Advancer, request: Any, logits: Any) -> None:
        if request.mask is not None:
            shares.append(np.count_nonzero(request.mask) / request.mask.size)
        advance(advancer, request, logits)

    with patch.object(Advancer, "advance", counting):
        yield shares


def widths(shares: Sequence[float]) -> str:
    found = np.array(shares)
    return f"{np.mean(found < 0.05):.0%} under 5 % of the head, {np.mean(found > 0.9):.0%} over 90 %, mean {found.mean():.2f}"


def both_ways(engine: Engine, name: str, jobs: list[Job], *, warm: bool) -> None:
    """warm: prompts are computed before."""
    used: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with shares_counted() as shares:
        same = _in_turns(engine, jobs, used, warm=warm)
    (before, wall), (now, wall_now) = (tuple(statistics.mean(column) * 1e3 for column in zip(*used[key], strict=True)) for key in (False, True))
    print(f"| {name} | {before:.0f} | {now:.0f} | {1 - now / before:.1%} | {wall:.0f} | {wall_now:.0f} | {same}/{len(jobs)} | {widths(shares)} |", flush=True)


def _in_turns(engine: Engine, jobs: list[Job], used: dict[bool, list[tuple[float, float]]], *, warm: bool) -> int:
    """Adds seconds of processor and clock of each job to `used`; how many outputs are the same both ways."""
    same = 0
    for number, (prompt, grammar) in enumerate([jobs[0], *jobs]):
        if warm or not number:
            engine.generate(prompt, grammar=grammar, max_tokens=200)
        outputs = {}
        for spares in (True, False) if number % 2 else (False, True):
            if not warm:
                engine.prefix.clear()  # a question's own tokens; what is pinned stays
            with spared(spares):
                start = time.process_time(), time.perf_counter()
                outputs[spares] = engine.generate(prompt, grammar=grammar, max_tokens=200).token_ids
            if number:
                used[spares].append((time.process_time() - start[0], time.perf_counter() - start[1]))
        same += bool(number) and outputs[True] == outputs[False]
    return same


def together(engine: Engine, jobs: list[Job]) -> None:
    """All jobs at once, twice each way."""
    used = {False: [0.0, 0.0], True: [0.0, 0.0]}

    def ask(job: Job) -> tuple[int, ...]:
        return engine.generate(job[0], grammar=job[1], max_tokens=200).token_ids

    texts: dict[bool, list[tuple[int, ...]]] = {}
    ask(jobs[0])
    for spares in (False, True, True, False):
        engine.prefix.clear()
        start = time.process_time(), time.perf_counter()
        with spared(spares), ThreadPoolExecutor(len(jobs)) as threads:
            texts[spares] = list(threads.map(ask, jobs))
        used[spares][0] += (time.process_time() - start[0]) / (2 * len(jobs)) * 1e3
        used[spares][1] += (time.perf_counter() - start[1]) / (2 * len(jobs)) * 1e3
    (before, wall), (now, wall_now) = used[False], used[True]
    same = sum(a == b for a, b in zip(texts[False], texts[True], strict=True))
    print(f"| {len(jobs)} at once | {before:.0f} | {now:.0f} | {1 - now / before:.1%} | {wall:.0f} | {wall_now:.0f} | {same}/{len(jobs)} | |", flush=True)


def steps(engine: Engine) -> None:
    pool, runner, width = engine._scheduler.pool, engine._scheduler.runner, engine._loaded.config.vocab_size
    first = pool.start([1000 + i for i in range(DEPTH)], room=DEPTH + 200)
    pool.reserve(first, DEPTH + 200)
    for at in range(0, DEPTH, engine.config.step_tokens):
        runner.execute([Span(first, tuple(range(1000 + at, min(1000 + at + engine.config.step_tokens, 1000 + DEPTH))), rows=0)])
    sequences = [first, *(pool.fork(first) for _ in range(15))]
    for sequence in sequences:
        pool.reserve(sequence, DEPTH + 200)
    rng = np.random.default_rng(0)
    masks = {"none": None, "nearly all": pack_ids(np.flatnonzero(rng.random(width) < 0.95)), "twenty": pack_ids(rng.choice(width, 20, replace=False))}
    for count in (1, 16):
        times: dict[str, list[float]] = {name: [] for name in masks}
        for _ in range(REPEATS):
            for name in rng.permutation(list(masks)):
                mask = masks[name]
                start = time.process_time()
                runner.execute([Span(sequence, (5,), allowed=None if mask is None else [mask]) for sequence in sequences[:count]])
                times[name].append(time.process_time() - start)
        print(f"| {count} | {' | '.join(f'{statistics.median(times[name]) * 1e3:.1f}' for name in masks)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--speculation", default="auto")
    names = ["calls", "bfcl", "together", "steps"]
    parser.add_argument("--parts", nargs="+", default=names, choices=names)
    options = parser.parse_args()
    if not SHARED.is_dir():
        print(f"no reference data: {SHARED} does not exist")
        return 0
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, torch {torch.__version__}")
    print(f"{options.model}, speculation={options.speculation}, {options.threads} threads; ms per call and step, without and with\n")
    parts: dict[str, Callable[[Engine], None]] = {
        "calls": lambda engine: both_ways(engine, "toolcall", calls(engine, options.calls), warm=False),
        "bfcl": lambda engine: both_ways(engine, "bfcl", bfcl(engine, options.questions), warm=True),
        "together": lambda engine: together(engine, calls(engine, 16)),
        "steps": steps,
    }
    for part in options.parts:
        head = "| | processor | now | less by | wall | now | same tokens | masks |" if part != "steps" else "| requests | " + "no mask | nearly all | twenty |"
        print(head + "\n" + "|---" * (head.count("|") - 1) + "|")
        with Engine(options.model, threads=options.threads, speculation=options.speculation, max_running=16) as engine:
            parts[part](engine)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
