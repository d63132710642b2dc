"""Keys and values in fewer bytes: what each format and policy costs in quality, and what it saves.

    python tests/bench/kv.py [--model smollm2-135m] [--parts quality window stream needle tools layers] [--tokens 2048] [--stream 20000]
        [--budget 512] [--tries 4] [--questions 30]

quality  perplexity of a text of --tokens tokens, as one, against keys and values in float32; bytes per token, and what the text held at most.
window   the same text under a window, with and without sinks, by quarters: the engine, and transformers' own attention under a mask.
stream   a text of --stream tokens read to its end in constant memory: with sinks, without them; perplexity by tenths.
needle   a code word said once in a text of 800 tokens, at five depths: is it the likeliest of ten at the end?
tools    questions of the Berkeley Function-Calling Leaderboard (../shared/bfcl): calls that are right, and the same as with float32.
layers   what a text takes in models of which only some layers see everything, all layers in one page and in groups.

The text is the documentation of the language that comes with Python (pydoc_data.topics).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import math
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from tool_accuracy import CATEGORIES, answers, scorer

from agentkit.engine import H2O, Engine, Streaming, Window
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_groups import by_window, together
from agentkit.engine.kv_policy import Reach
from agentkit.engine.runner import Span
from agentkit.local_model import LocalModel

PARTS = ("quality", "window", "stream", "needle", "tools", "layers")
CHUNK = 256
WORDS = ("marble", "falcon", "copper", "violet", "harbor", "pepper", "saturn", "willow", "anchor", "meadow")
DEPTHS = (0.02, 0.25, 0.5, 0.75, 0.95)


def settings(budget: int) -> list[Any]:
    half = budget // 2
    policies = [Window(budget), Streaming(4, budget - 4), H2O(budget), Window(half), Streaming(4, half - 4), H2O(half)]
    return ["fp32", "fp16", "bf16", "int8", "fp8", *policies, Streaming(4, budget - 4, format="int8")]


def open_engine(model: str, kv: Any) -> Engine:
    return Engine(model, kv=kv, speculation="off", prefix_caching=not isinstance(kv, H2O))


def text_of(engine: Engine, tokens: int) -> list[int]:
    ids: list[int] = []
    for topic in sorted(topics):
        ids += engine.tokenizer.encode(topics[topic])
        if len(ids) >= tokens:
            return ids[:tokens]
    sys.exit(f"the text has {len(ids)} tokens only")


def read(engine: Engine, ids: Sequence[int]) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
    """Logits after each token, chunk by chunk, and the bytes that the text holds then."""
    runner, pool = engine._scheduler.runner, engine._scheduler.pool
    sequence = pool.start([ids[0]], room=len(ids))
    while sequence.length < len(ids):
        room = pool.room(sequence)
        chunk = tuple(ids[sequence.length : sequence.length + min(CHUNK, room or CHUNK)])
        assert pool.reserve(sequence, sequence.length + len(chunk))
        held = len(sequence.held) * pool.page_bytes
        yield runner.execute([Span(sequence, chunk, rows=len(chunk))])[0], held
    pool.release(sequence, keep=False)


def quality(model: str, tokens: int, budget: int) -> None:
    print(f"\n{tokens} tokens as one text\n")
    print("| kv | bytes per token | MB held at most | perplexity | KL to fp32 per token | same argmax | tok/s |\n|---|---|---|---|---|---|---|")
    reference: torch.Tensor | None = None
    for kv in settings(budget):
        with open_engine(model, kv) as engine:
            ids = text_of(engine, tokens)
            start = time.perf_counter()
            parts, held = zip(*read(engine, ids), strict=True)
            speed = tokens / (time.perf_counter() - start)
            size = engine._scheduler.pool.shape.bytes_per_token
        log = torch.from_numpy(np.concatenate(parts)).log_softmax(-1)
        reference = log if reference is None else reference
        perplexity = (-log[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).mean()).exp()
        divergence = torch.stack([(a.exp() * (a - b)).sum(-1).mean() for a, b in zip(reference.chunk(16), log.chunk(16), strict=True)]).mean()
        same = (log.argmax(-1) == reference.argmax(-1)).float().mean()
        print(f"| {kv} | {size:,} | {max(held) / 1e6:.1f} | {perplexity:.3f} | {divergence:.1e} | {same:.1%} | {speed:.0f} |", flush=True)


def stream(model: str, tokens: int, budget: int, sinks: Sequence[int]) -> None:
    print(f"\n{tokens} tokens as one text, each tenth on its own\n\n| kv | to token | perplexity | MB held at most |\n|---|---|---|---|")
    for count in sinks:
        kv = Streaming(count, budget - count)
        with open_engine(model, kv) as engine:
            ids, most, done = text_of(engine, tokens), 0, 0
            losses: list[float] = []
            for logits, held in read(engine, ids):
                at, most = done + len(losses), max(most, held)
                log = torch.from_numpy(logits).log_softmax(-1)
                following = torch.tensor(ids[at + 1 : at + 1 + len(log)])
                losses += (-log[: len(following)].gather(1, following.unsqueeze(1)).squeeze(1)).tolist()
                if len(losses) >= tokens // 10 or at + len(log) == tokens:
                    done += len(losses)
                    print(f"| {kv} | {done} | {math.exp(sum(losses) / len(losses)):.2f} | {most / 1e6:.1f} |", flush=True)
                    losses, most = [], 0


def window(model: str, tokens: int, budget: int) -> None:
    """transformers computes with absolute positions, the engine's Streaming counts within the cache; up to the model's context that is nearly the same."""
    import transformers

    print(f"\n{tokens} tokens as one text, float32, perplexity of each quarter\n")
    print(f"| | {' | '.join(f'to {tokens * (i + 1) // 4}' for i in range(4))} | all |\n|---|{'---|' * 5}")
    with Engine(model, weights="fp32", kv="fp32", speculation="off") as engine:
        ids, folder = text_of(engine, tokens), engine._loaded.path
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)
    first = {sinks: torch.arange(tokens) < sinks for sinks in (1, 4)}
    with torch.no_grad():
        shares = [float(layer[0, :, budget // 2 :, 0].mean()) for layer in theirs(torch.tensor([ids[:budget]]), output_attentions=True).attentions]
    masks = {
        "everything": back >= 0,
        f"window {budget}": back < budget,
        f"4 sinks, window {budget - 4}": (back < budget - 4) | first[4],
        f"1 sink, window {budget - 1}": (back < budget - 1) | first[1],
    }
    policies = ("fp32", Window(budget, format="fp32"), Streaming(4, budget - 4, format="fp32"), Streaming(1, budget - 1, format="fp32"))
    for (name, seen), kv in zip(masks.items(), policies, strict=True):
        mask = torch.zeros(1, 1, tokens, tokens).masked_fill_(~(seen & (back >= 0)), -torch.inf)
        with torch.no_grad():
            rows = theirs(torch.tensor([ids]), attention_mask=mask).logits[0]
        print(f"| transformers, {name} | {by_quarters(rows, ids)} |", flush=True)
        with Engine(model, weights="fp32", kv=kv, speculation="off") as engine:
            rows = torch.from_numpy(np.concatenate([logits for logits, _ in read(engine, ids)]))
        print(f"| engine, {kv} | {by_quarters(rows, ids)} |", flush=True)
    print(f"\nOf all attention the first token receives {sum(shares) / len(shares):.0%}; by layer {' '.join(f'{share:.2f}' for share in shares)}")


def by_quarters(logits: torch.Tensor, ids: Sequence[int]) -> str:
    losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
    return " | ".join(f"{part.mean().exp():.2f}" for part in (*losses.tensor_split(4), losses))


def layers() -> None:
    """The pools of models of these shapes, filled; nothing is computed."""
    print("\nMB of keys and values in half precision that a text holds at most, read 512 tokens at a time\n")
    print("| model | depth | all layers in a page | in groups | |\n|---|---|---|---|---|")
    gemma3 = (("Gemma 3 270M", 18, 1, 256, 512, 6), ("Gemma 3 1B", 26, 1, 256, 512, 6), ("Gemma 3 4B", 34, 4, 256, 1024, 6))
    shapes = (*gemma3, ("Gemma 2 2B", 26, 4, 256, 4096, 2))
    for (name, count, heads, dim, near, every), depth in itertools.product(shapes, (512, 8192, 32_768)):
        if name == "Gemma 2 2B" and depth > 8192:
            continue
        reach = Reach(windows=tuple(None if (i + 1) % every == 0 else near for i in range(count)))
        shape = KVShape(count, heads, dim, torch.float16)
        most = []
        for groups in (together(count, reach), by_window(reach, count, 8192 if every == 2 else 32_768)):
            pool = KVPool(shape, (depth + 512) * shape.bytes_per_token * 2, groups=groups, prefix_caching=False)
            sequence, held = pool.start([0]), 0
            for end in range(512, depth + 1, 512):
                assert pool.reserve(sequence, end)
                held = max(held, len(sequence.held) * pool.page_bytes)
                pool.commit(sequence, [0] * 512)
            most.append(held / 1e6)
        print(f"| {name} | {depth:,} | {most[0]:.1f} | {most[1]:.1f} | {most[0] / most[1]:.1f} x |")


def needle(model: str, budget: int, tries: int, length: int = 800) -> None:
    print(f"\nA code word in a text of {length} tokens, {tries} words per depth: found\n")
    print(f"| kv | {' | '.join(f'at {depth:.0%}' for depth in DEPTHS)} | all |\n|---|{'---|' * (len(DEPTHS) + 1)}")
    half = budget // 2
    for kv in ("fp32", "fp16", "int8", "fp8", Window(half), Streaming(4, half - 4), H2O(half), Window(budget), Streaming(4, budget - 4), H2O(budget)):
        with open_engine(model, kv) as engine:
            found = []
            for depth in DEPTHS:
                right = 0
                for word in WORDS[:tries]:
                    prompt = haystack(engine, word, depth, length)
                    right += engine.generate(prompt, choices=WORDS, max_tokens=8).text == word
                found.append(right)
        print(f"| {kv} | {' | '.join(map(str, found))} | {sum(found)} of {tries * len(DEPTHS)} |", flush=True)


def haystack(engine: Engine, word: str, depth: float, length: int) -> str:
    """Sentences of the text, one of them with the word, and the question."""
    ids = text_of(engine, 5000)[3000 : 3000 + length]
    at = int(length * depth)
    before, after = (engine.tokenizer.decode(part) for part in (ids[:at], ids[at:]))
    return f"{before}\n\nThe secret code word is {word}. Remember it.\n\n{after}\n\nQuestion: What is the secret code word?\nAnswer: The secret code word is "


def tools(model: str, data: Path, questions: int, budget: int) -> None:
    if not data.exists():
        print(f"\n{data} is not there; give the folder with open.jsonl.gz and score.py as --data")
        return
    with gzip.open(data / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["category"] in CATEGORIES]
    cases, score = random.Random(0).sample(cases, questions), scorer(data)
    print(f"\n{questions} questions of {', '.join(CATEGORIES)}\n\n| kv | valid | right tool | right | same calls as fp32 |\n|---|---|---|---|---|")
    first: list[list[dict[str, Any]]] | None = None
    for kv in ("fp32", "fp16", "int8", "fp8", Window(budget), Streaming(4, budget - 4), H2O(budget)):
        with open_engine(model, kv) as engine:
            made = asyncio.run(answers(LocalModel(engine), cases))
        first = first or made
        tool = sum(bool(m) and any(m[0]["name"] in answer for answer in case["answers"]) for case, m in zip(cases, made, strict=True))
        right = sum(score(case, m)[0] for case, m in zip(cases, made, strict=True))
        same = sum(a == b for a, b in zip(first, made, strict=True))
        print(f"| {kv} | {sum(len(m) == 1 for m in made)} | {tool} | {right} | {same} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--stream", type=int, default=20_000)
    parser.add_argument("--sinks", nargs="+", type=int, default=[4, 0], help="of the stream, one run for each")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tries", type=int, default=4, help="code words per depth")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "bfcl")
    options = parser.parse_args()
    print(f"{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}; {options.model}, blocks of its file")
    for part in options.parts:
        if part == "quality":
            quality(options.model, options.tokens, options.budget)
        elif part == "stream":
            stream(options.model, options.stream, options.budget, options.sinks)
        elif part == "window":
            window(options.model, options.tokens, options.budget)
        elif part == "layers":
            layers()
        elif part == "needle":
            needle(options.model, options.budget, options.tries)
        else:
            tools(options.model, options.data, options.questions, options.budget)


if __name__ == "__main__":
    main()
