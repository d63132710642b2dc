"""Keys and values in less memory: what each policy holds, what it costs, what it forgets, and a text without end.

    python examples/kv_compression.py [--tokens 1200] [--budget 256] [--stream 4000] [--plot kv_compression.png]

For each policy: bytes of keys and values that a text takes, its perplexity, and whether a code word is found again that was said at the
beginning, in the middle or near the end. Then a text is read on and on in constant memory, with sinks and without them, and drawn
(with --plot and matplotlib also as a picture). The text is the documentation that comes with Python.
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from pydoc_data.topics import topics

from agentkit import Engine
from agentkit.engine import H2O, Streaming, Window
from agentkit.engine.kv_policy import Policy

WORDS = ("marble", "falcon", "copper", "violet", "harbor", "pepper", "saturn", "willow")
DEPTHS = (0.05, 0.5, 0.95)
POINTS = 20
WIDTH = 50
MOST = 1000.0  # perplexity where the drawing ends


def policies(budget: int) -> list[str | Policy]:
    return ["fp32", "fp16", "int8", "fp8", Window(budget), Streaming(4, budget - 4), H2O(budget), Streaming(4, budget - 4, format="int8")]


def open_engine(model: str, kv: str | Policy) -> Engine:
    # what H2O keeps depends on the whole text, so it shares no prefixes
    return Engine(model, kv=kv, prefix_caching=not isinstance(kv, H2O))


def text_of(engine: Engine, tokens: int) -> list[int]:
    ids: list[int] = []
    for topic in sorted(topics):
        ids += engine.tokenizer.encode(topics[topic])
    return (ids * (1 + tokens // len(ids)))[:tokens]


def read(engine: Engine, ids: list[int]) -> tuple[float, int]:
    """Perplexity of a text, and the bytes of keys and values that it held at most."""
    logprobs, most = [], 0
    for logprob in engine.score(ids):
        logprobs.append(logprob)
        if len(logprobs) % 32 == 0:
            most = max(most, held(engine))
    return math.exp(-statistics.fmean(logprobs)), max(most, held(engine))


def held(engine: Engine) -> int:
    stats = engine.stats()
    return (stats.pages - stats.free_pages - stats.cached_pages) * stats.page_bytes


def found(engine: Engine, depth: float, tokens: int) -> bool:
    """Is a code word remembered that was said at `depth` of a text?"""
    word = WORDS[round(depth * 100) % len(WORDS)]
    ids = text_of(engine, tokens)
    before, after = (engine.tokenizer.decode(part) for part in (ids[: int(tokens * depth)], ids[int(tokens * depth) :]))
    prompt = f"{before}\n\nThe secret code word is {word}. Remember it.\n\n{after}\n\nQuestion: What is the secret code word?\nAnswer: The secret code word is "
    return engine.generate(prompt, choices=WORDS, max_tokens=8).text == word


def compare(model: str, tokens: int, budget: int) -> None:
    print(f"{tokens} tokens, a budget of {budget} positions where there is one\n")
    print(f"{'kv':<48} {'MB held':>8} {'perplexity':>11}   word found at {', '.join(f'{depth:.0%}' for depth in DEPTHS)}")
    for kv in policies(budget):
        with open_engine(model, kv) as engine:
            perplexity, most = read(engine, text_of(engine, tokens))
            marks = "  ".join("yes" if found(engine, depth, tokens) else "no " for depth in DEPTHS)
        print(f"{kv!s:<48} {most / 1e6:>8.1f} {perplexity:>11.2f}   {marks}")


def endless(engine: Engine, tokens: int) -> Iterator[tuple[int, float, int]]:
    """(tokens read, perplexity of the last stretch, bytes held) at POINTS places of a text of `tokens` tokens."""
    stretch: list[float] = []
    for count, logprob in enumerate(engine.score(text_of(engine, tokens + 1)), 1):
        stretch.append(logprob)
        if len(stretch) == max(1, tokens // POINTS):
            yield count, math.exp(-statistics.fmean(stretch)), held(engine)
            stretch.clear()


def stream(model: str, tokens: int, budget: int) -> dict[str, list[tuple[int, float, int]]]:
    curves = {}
    for name, kv in ((f"4 sinks and a window of {budget - 4}", Streaming(4, budget - 4)), (f"no sinks, a window of {budget}", Streaming(0, budget))):
        print(f"\n{tokens} tokens with {name}: perplexity")
        with open_engine(model, kv) as engine:
            curves[name] = []
            for point in endless(engine, tokens):
                curves[name].append(point)
                draw(*point)
    return curves


def draw(count: int, perplexity: float, size: int) -> None:
    length = round(WIDTH * min(1.0, math.log(max(1.0, perplexity)) / math.log(MOST)))
    print(f"  {count:>7} {'█' * length:<{WIDTH}} {perplexity:>9.1f}   {size / 1e6:.1f} MB", flush=True)


def plot(curves: dict[str, list[tuple[int, float, int]]], path: str) -> None:
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    for name, points in curves.items():
        pyplot.plot([count for count, _, _ in points], [perplexity for _, perplexity, _ in points], label=name)
    pyplot.yscale("log")
    pyplot.xlabel("tokens read")
    pyplot.ylabel("perplexity")
    pyplot.legend()
    pyplot.savefig(path)
    print(f"drawn to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=1200)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--stream", type=int, default=4000)
    parser.add_argument("--plot", help="write a picture to this file (needs matplotlib)")
    options = parser.parse_args()
    compare(options.model, options.tokens, options.budget)
    curves = stream(options.model, options.stream, options.budget)
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
