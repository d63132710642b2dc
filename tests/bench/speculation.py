"""Speculation: acceptance, tokens per forward and speed-up of each proposer, what forwards of several tokens cost, and the share of the ideal.

    python tests/bench/speculation.py [--model smollm2-135m] [--prompts 8] [--settings ngram lookahead self medusa eagle]
        [--workloads calls bfcl copies text random] [--data ../shared] [--threads 1 --clock processor]

calls: tool calls over a prefix of 1,488 tokens (toolcall/prompts.json); bfcl: function calls, one or more tools (bfcl/open.jsonl.gz);
copies: a JSON document of 500 tokens and more repeated from the prompt; text: free answers; random: continuations of random tokens
at a high temperature, which nobody can guess. Every job runs under every setting in turn, all within one run. Wall times are of decoding
only; on a machine that others use, too, take one thread and its processor time (of whole requests, the prompt being cached).
Two settings know what will be written (oracles.py): "stops" has ngram's guesses as far as they are right, "knows" is never wrong.
The ideal speed-up is the ratio of forwards over the ratio of their costs C(k), k being the mean number of tokens of a forward.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentkit.engine import Engine, Generation
from agentkit.engine.runner import Span
from agentkit.grammars import Grammar
from agentkit.speculation.bench import Job, Row, available, compare
from agentkit.speculation.prompts import Prompt
from agentkit.speculation.train import ask

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench.oracles import ORACLES, learned

SIZES = (1, 2, 3, 4, 5, 8, 12, 16)
DEPTH = 512
QUESTIONS = (
    "Explain how a heat pump works.", "Write a short story about a lighthouse keeper.", "What should I think about when buying a used bicycle?",
    "Why is the sky blue?", "Give me tips for learning a language.", "Describe the city of Lisbon.", "How is paper made?", "What is inflation?",
)  # fmt: skip


def costs(engine: Engine, clock: Callable[[], float]) -> dict[int, float]:
    """Seconds of a forward by its tokens, behind DEPTH others; medians of rounds in which every size has its turn."""
    runner, pool = engine._scheduler.runner, engine._scheduler.pool
    sequence = pool.start([5] * DEPTH, room=DEPTH + 20 * sum(SIZES))
    pool.reserve(sequence, DEPTH + 20 * sum(SIZES))
    runner.execute([Span(sequence, tuple(range(100, 100 + DEPTH)), rows=0)])
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(15):
        for size in SIZES:
            start = clock()
            runner.execute([Span(sequence, (7,) * size, rows=size)])
            times[size].append(clock() - start)
    pool.release(sequence)
    return {size: statistics.median(each) for size, each in times.items()}


def calls(engine: Engine, data: Path, count: int) -> list[Job]:
    prompts = json.loads((data / "toolcall" / "prompts.json").read_text())
    grammar = Grammar.from_json_schema(prompts["schema_bounded"])
    encode = partial(engine.tokenizer.encode, special=True)
    ids = [encode(prompts["prefix"]) + encode(message + prompts["suffix"]) for message in prompts["messages"][:count]]
    return [partial(_generate, prompt=i, grammar=grammar, max_tokens=256) for i in ids]


def bfcl(engine: Engine, data: Path, count: int) -> list[Job]:
    with gzip.open(data / "bfcl" / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["tools"]]
    chosen = random.Random(0).sample(cases, count)
    return [partial(_ask, prompt=Prompt(tuple(c["messages"]), tuple(c["tools"]))) for c in chosen]


def copies(engine: Engine, data: Path, count: int) -> list[Job]:
    rng = random.Random(3)
    jobs: list[Job] = []
    for _ in range(max(1, count // 3)):
        records = [_record(rng) for _ in range(18)]
        kinds = {"id": "integer", "name": "string", "city": "string", "paid": "boolean", "total": "integer"}
        item: dict[str, Any] = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
        item |= {"required": list(kinds), "additionalProperties": False}
        grammar = Grammar.from_json_schema({"type": "array", "items": item, "minItems": 18, "maxItems": 18})
        text = json.dumps(records, separators=(",", ":"))
        ids = engine.encode_chat([{"role": "user", "content": f"Repeat this JSON exactly, character by character:\n{text}"}])
        jobs.append(partial(_generate, prompt=ids, grammar=grammar, max_tokens=1200))
    return jobs


def _record(rng: random.Random) -> dict[str, Any]:
    name, city = rng.choice(["Anna Berg", "Luis Prado", "Mei Tanaka", "Omar Haddad", "Ida Lund"]), rng.choice(["Oslo", "Lima", "Kyoto", "Porto"])
    return {"id": rng.randrange(1000, 9999), "name": name, "city": city, "paid": rng.random() < 0.5, "total": rng.randrange(5, 900)}


def text(engine: Engine, data: Path, count: int) -> list[Job]:
    return [partial(_ask, prompt=Prompt(({"role": "user", "content": question},))) for question in QUESTIONS[:count]]


def noise(engine: Engine, data: Path, count: int) -> list[Job]:
    rng = random.Random(1)
    size = len(engine.tokenizer.token_bytes)
    prompts = [[rng.randrange(100, size) for _ in range(60)] for _ in range(count)]
    return [partial(_generate, prompt=prompt, temperature=3.0, seed=i, max_tokens=128) for i, prompt in enumerate(prompts)]


WORKLOADS = {"calls": calls, "bfcl": bfcl, "copies": copies, "text": text, "random": noise}


def _generate(engine: Engine, prompt: list[int], **options: Any) -> Generation:
    return engine.generate(prompt, **options)


def _ask(engine: Engine, prompt: Prompt) -> Generation:
    return ask(engine, prompt, max_tokens=160)


def lines(rows: list[Row], cost: dict[int, float], jobs: int, *, processor: bool) -> list[str]:
    """The table, and below it speed-ups as bars."""
    plain = next(row for row in rows if row.setting == "off")
    sizes, seconds = list(cost), list(cost.values())

    def price(row: Row) -> float:
        return float(np.interp(row.computed / max(1, row.forwards), sizes, seconds))

    out = [
        "| speculation | accepted | tokens per forward | C(k) / C(plain) | speed-up | of the ideal | s per request | same output |",
        "|---|---|---|---|---|---|---|---|",
    ]
    bars = []
    for row in rows:
        accepted = f"{row.acceptance:.0%} of {row.drafted}" if row.drafted else "-"
        speedup = plain.processor_seconds / row.processor_seconds if processor else plain.seconds / row.seconds
        dearer = price(row) / price(plain)
        ideal = plain.forwards / row.forwards / dearer
        share = f"{speedup / ideal:.2f}" if row is not plain else "-"
        out.append(
            f"| {row.setting} | {accepted} | {row.tokens_per_forward:.2f} | {dearer:.2f} | {speedup:.2f}x | {share} | {row.call_seconds / jobs:.3f} "
            f"| {'yes' if row.same else 'NO'} |"
        )
        bars.append(f"    {row.setting:<10} {'#' * round(20 * speedup)} {speedup:.2f}x")
    return [*out, "", *bars]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--settings", nargs="+", default=["ngram", "lookahead", "self", "medusa", "eagle"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2].parent / "shared")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", default="wall", choices=["wall", "processor"])
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, {options.model}")
    with Engine(options.model, speculation="off", threads=options.threads) as engine:
        processor = options.clock == "processor"
        cost = costs(engine, time.process_time if processor else time.perf_counter)
        print(f"C(k) behind {DEPTH} tokens: " + ", ".join(f"C({k}) {1e3 * s:.1f} ms = {s / cost[1]:.2f}" for k, s in cost.items()))
        for name in options.workloads:
            if name in ("calls", "bfcl") and not options.data.exists():
                print(f"\n{name}: skipped, {options.data} is not there")
                continue
            jobs = WORKLOADS[name](engine, options.data, options.prompts)
            speculators, missing = available(engine, [setting for setting in options.settings if setting not in ORACLES])
            speculators |= {setting: learned(engine, jobs, setting) for setting in options.settings if setting in ORACLES}
            rows = compare(engine, jobs, speculators)
            print(f"\n{name}, {len(jobs)} requests, {rows[0].output / len(jobs):.0f} tokens each\n")
            print("\n".join([*lines(rows, cost, len(jobs), processor=processor), *(f"{setting}: {why}" for setting, why in missing.items())]), flush=True)


if __name__ == "__main__":
    main()
