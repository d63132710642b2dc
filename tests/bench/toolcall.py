"""Tool calls end to end, one at a time over a warm prefix, beside llama.cpp in the same run.

    python tests/bench/toolcall.py [--kv auto] [--rounds 3] [--peer PYTHON --gguf MODEL.gguf] [--data ../shared/toolcall]

prompts.json: a prefix (system and 12 tools, 1,488 tokens, pinned before), 20 questions and the bounded schema of a call; greedy, 2
threads, at most 256 tokens; each call computes its question's own tokens. PYTHON is an interpreter that has llama-cpp-python: it
runs the folder's peer_llamacpp.py, in turns with ours, so that both meet the same neighbours. Processor time is that of all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentkit.engine import Engine
from agentkit.grammars import Grammar


@dataclass
class Round:
    """Seconds of each call, processor seconds of all together, and what came out."""

    seconds: list[float]
    processor: float
    texts: list[str]
    tokens: list[int]
    forced: list[int]
    forwards: list[int]


class Ours:
    def __init__(self, engine: Engine, data: dict[str, Any]) -> None:
        encode = partial(engine.tokenizer.encode, special=True)
        prefix = encode(data["prefix"])
        self._engine = engine
        self._prompts = [[*prefix, *encode(message + data["suffix"])] for message in data["messages"]]
        self._grammar = Grammar.from_json_schema(data["schema_bounded"])
        engine.pin(prompt=prefix)
        engine.generate(self._prompts[0], grammar=self._grammar, max_tokens=256)  # loads kernels

    def round(self) -> Round:
        done = Round([], 0.0, [], [], [], [])
        used = time.process_time()
        for prompt in self._prompts:
            self._engine.prefix.clear()  # what the last round computed of the questions; the pinned prefix stays
            start = time.perf_counter()
            generation = self._engine.generate(prompt, grammar=self._grammar, max_tokens=256)
            done.seconds.append(time.perf_counter() - start)
            done.texts.append(generation.text)
            done.tokens.append(generation.usage.output_tokens)
            done.forced.append(generation.usage.forced_tokens)
            done.forwards.append(generation.usage.forwards)
        done.processor = time.process_time() - used
        return done


def parsed(texts: list[str]) -> int:
    good = 0
    for text in texts:
        try:
            good += set(json.loads(text)) == {"name", "arguments"}
        except ValueError:
            continue
    return good


def peer(python: str, gguf: Path, folder: Path) -> dict[str, Any]:
    ran = subprocess.run([python, str(folder / "peer_llamacpp.py"), str(gguf)], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--speculation", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--gguf", type=Path, help="the same model for it")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "toolcall")
    options = parser.parse_args()
    if (options.peer is None) != (options.gguf is None):
        parser.error("--peer and --gguf go together")
    file = options.data / "prompts.json"
    if not file.is_file():
        print(f"no reference data: {file} does not exist (give its folder with --data)")
        return 0
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
    print(f"{options.model}, weights={options.weights}, kv={options.kv}, speculation={options.speculation}, {options.threads} threads\n")
    with Engine(options.model, weights=options.weights, kv=options.kv, speculation=options.speculation, threads=options.threads) as engine:
        ours = Ours(engine, json.loads(file.read_text()))
        print("| | s per call, median | fastest | processor s per call | parsed | tokens (forced) | forwards |\n|---|---|---|---|---|---|---|")
        ratios = []
        for _ in range(options.rounds):
            done = ours.round()
            own, middle = statistics.median(done.seconds), [statistics.median(values) for values in (done.tokens, done.forced, done.forwards)]
            print(
                f"| ours | {own:.3f} | {min(done.seconds):.3f} | {done.processor / len(done.seconds):.3f} | {parsed(done.texts)}/{len(done.texts)} "
                f"| {middle[0]:.0f} ({middle[1]:.0f}) | {middle[2]:.0f} |"
            )
            if options.peer is not None:
                theirs = peer(options.peer, options.gguf, options.data)
                print(f"| llama.cpp | {theirs['call_s']:.3f} | {min(theirs['call_s_each']):.3f} | | {theirs['parsed']} | {theirs['tokens']:.0f} | |")
                ratios.append(theirs["call_s"] / own)
        if ratios:
            print(f"\nllama.cpp / ours, medians of calls: {', '.join(f'{r:.1f}' for r in ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
