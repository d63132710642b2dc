"""What one step of the engine costs on this machine: prefill, decode at two depths, a forced run, sampling, overhead.

    python tests/bench/engine_steps.py [--model smollm2-135m] [--weights auto fp32 fp16 int8 int4] [--activations int8] [--threads N] [--clock processor]
                                         [--together]

On a busy machine `--threads 1 --clock processor` counts the time of the one thread that computes (of `generate` the wall clock).
The bare row runs the model's linear layers alone, one token: the floor that a decode step can approach.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from agentkit.engine import Engine, SamplingParams
from agentkit.engine.advance import pack_ids
from agentkit.engine.kv_sequence import KVSequence
from agentkit.engine.runner import Span
from agentkit.engine.sampling import sample

DEPTH = 1488
REPEATS = 7
WIDTHS = (1, 2, 4, 8, 16)  # tokens of a step, with the logits of each


CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}
_clock = "wall"


def median_ms(run: Callable[[], object], repeats: int = REPEATS) -> float:
    run()
    times, now = [], CLOCKS[_clock]
    for _ in range(repeats):
        start = now()
        run()
        times.append(now() - start)
    return statistics.median(times) * 1e3


def linears_ms(engine: Engine) -> float:
    model = engine._loaded.model
    widths = (model.config.hidden_size, model.config.num_heads * model.config.head_dim, model.config.intermediate_size)
    hidden, heads, inner = (torch.randn(1, w) for w in widths)

    def run() -> None:
        for layer in model.layers:
            layer.qkv(hidden)
            layer.out(heads)
            layer.gate_up(hidden)
            layer.down(inner)
        model.head(hidden)

    with torch.inference_mode():
        return median_ms(run)


def computed(engine: Engine, prompt: list[int], room: int, key: bytes = b"") -> KVSequence:
    """A sequence of its own that holds `prompt`, with room for so many tokens more. key: of the domain whose pages it may use."""
    sequence = engine._scheduler.pool.start(prompt, key, room=len(prompt) + room)
    engine._scheduler.pool.reserve(sequence, len(prompt) + room)
    for at in range(sequence.length, len(prompt), engine.config.step_tokens):
        engine._scheduler.runner.execute([Span(sequence, tuple(prompt[at : at + engine.config.step_tokens]), rows=0)])
    return sequence


def _execute(engine: Engine, spans: list[tuple[KVSequence, tuple[int, ...]]]) -> None:
    """Once more the tokens behind each sequence, with the logits of all; the spans are made within, as a step makes them."""
    engine._scheduler.runner.execute([Span(sequence, tokens, rows=len(tokens)) for sequence, tokens in spans])


def together(engine: Engine) -> list[tuple[str, str]]:
    """A token of each of 16 requests behind the same prefix: its pages attended to together (cascade), and 16 times the same in pages of each one's own."""
    prompt = [1000 + i for i in range(DEPTH)]
    first = computed(engine, prompt, REPEATS + 1)
    shared = [first, *(engine._scheduler.pool.fork(first) for _ in range(15))]
    own = [computed(engine, prompt, REPEATS + 1, bytes([i + 1])) for i in range(16)]
    times = {}
    for name, sequences in (("shared", shared), ("own", own)):
        for sequence in sequences:
            engine._scheduler.pool.reserve(sequence, DEPTH + REPEATS + 1)
        times[name] = median_ms(partial(_execute, engine, [(each, (5,)) for each in sequences]))
    return [(f"16 requests, prefix {name}", f"{ms:.1f} ms") for name, ms in times.items()]


def steps(engine: Engine) -> list[tuple[str, str]]:
    runner, pool = engine._scheduler.runner, engine._scheduler.pool
    prompt = [1000 + i for i in range(DEPTH)]
    room = (REPEATS + 1) * sum(WIDTHS)
    shallow = pool.start([1], room=64)
    pool.reserve(shallow, 64)
    now = CLOCKS[_clock]
    start = now()
    deep = computed(engine, prompt, room)
    prefill = DEPTH / (now() - start)
    rows = [
        (f"prefill of {DEPTH}", f"{prefill:.0f} tok/s"),
        ("linear layers alone, 1 token", f"{linears_ms(engine):.1f} ms"),
        ("step of 1 token, depth 0", f"{median_ms(lambda: runner.execute([Span(shallow, (5,))])):.1f} ms"),
    ]
    for width in WIDTHS:
        ms = median_ms(partial(_execute, engine, [(deep, tuple(range(5, 5 + width)))]))
        rows.append((f"step of {width} tokens, depth {DEPTH}", f"{ms:.1f} ms"))
    return rows


def through_the_engine(engine: Engine) -> list[tuple[str, str]]:
    """Free decoding through the public API against bare steps of the same length: scheduling, sampling, text, threads."""
    usage = engine.generate([7] * 8, max_tokens=24).usage
    runner, pool = engine._scheduler.runner, engine._scheduler.pool
    sequence = pool.start([9], room=64)
    pool.reserve(sequence, 64)
    bare = median_ms(lambda: runner.execute([Span(sequence, (5,))]), 24)
    assert usage.tpot_s is not None
    return [("generate, per token", f"{usage.tpot_s * 1e3:.1f} ms"), ("the same as bare steps", f"{bare:.1f} ms")]


def sampling_us(width: int) -> list[tuple[str, str]]:
    logits = np.random.default_rng(0).normal(size=width).astype(np.float32) * 3
    full, few = pack_ids(range(width)), pack_ids([3, 70, width - 1])
    rows = []
    for name, mask in (("no mask", None), ("full mask", full), ("3 tokens", few)):
        for kind, params in (("greedy", SamplingParams()), ("t=1, top-p 0.9", SamplingParams(temperature=1.0, top_p=0.9))):
            us = median_ms(partial(sample, logits, mask, params, vocab_size=width), 50) * 1e3
            rows.append((f"sample: {kind}, {name}", f"{us:.0f} us"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", nargs="+", default=["fp32"], choices=["auto", "fp32", "fp16", "int8", "int4"])
    parser.add_argument("--activations", default="auto", choices=["auto", "int16", "int8"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--together", action="store_true", help="16 requests behind one prefix, shared and not, too (a minute)")
    parser.add_argument("--clock", default="wall", choices=CLOCKS)
    options = parser.parse_args()
    global _clock
    _clock = options.clock
    load = os.getloadavg()[0]
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    for weights in options.weights:
        with Engine(options.model, weights=weights, activations=options.activations, threads=options.threads) as engine:
            print(
                f"\n{options.model}, weights={weights}, activations={options.activations}, {torch.get_num_threads()} threads, loaded in {engine.load_s:.2f} s"
            )
            found = [*steps(engine), *through_the_engine(engine), *sampling_us(engine._loaded.config.vocab_size)]
            for name, value in [*found, *(together(engine) if options.together else [])]:
                print(f"  {name:<36} {value:>12}")


if __name__ == "__main__":
    main()
