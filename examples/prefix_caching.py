"""What pinning saves: ten questions over one long system prompt with tool descriptions, first cold, then pinned.

    python examples/prefix_caching.py [--plot prefix_caching.png]

Times to the first token are measured here and now, and drawn as bars (with --plot and matplotlib also as a picture).
"""

import argparse
import statistics

from agentkit import Engine
from agentkit.engine import Generation

TOPICS = ["weather", "calendar", "mail", "maps", "music", "notes", "photos", "recipes", "stocks", "tickets", "trains", "translation"]
QUESTIONS = [
    "Will it rain in Oslo tomorrow?", "Move my meeting to Friday.", "Write to Anna that I am late.", "How far is Rome from Paris?", "Play some jazz.",
    "Note down: buy milk.", "Show the photos of last summer.", "What can I cook with leeks?", "How is the market today?", "When is the next train to Kyoto?",
]  # fmt: skip
WIDTH = 60


def tool(topic: str) -> str:
    """A description as systems write them: what it does, when to use it, its arguments."""
    return (
        f"{topic}: looks up and changes everything that has to do with {topic}. Use it whenever the user asks about {topic}, and never guess what it "
        f"would say. Arguments: query (text, required): what the user wants to know about {topic}, in the user's own words; limit (integer from 1 to 20, "
        f"default 5): how many results about {topic} to return; since (date as YYYY-MM-DD, optional): only results about {topic} that are newer than this; "
        f"language (two letters, default en): the language of the answer. It returns a list of results, each with a title, a text and the place it is from. "
        f"If there are no results about {topic}, say so, and ask the user what else to look for."
    )


SYSTEM = "You are a helpful assistant. These are your tools:\n" + "\n".join(map(tool, TOPICS))


def ask(engine: Engine, question: str) -> Generation:
    return engine.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}], max_tokens=8)


def seconds(generation: Generation) -> float:
    ttft = generation.usage.ttft_s
    assert ttft is not None  # at least one token was sampled
    return ttft


def measure(engine: Engine) -> tuple[list[float], list[float]]:
    """Seconds to the first token of each question: with nothing cached, and with the system prompt pinned."""
    cold = []
    for question in QUESTIONS:
        engine.prefix.clear()
        cold.append(seconds(ask(engine, question)))
        print(f"nothing cached, question {len(cold)} of {len(QUESTIONS)}: first token after {cold[-1]:.3f} s", flush=True)
    engine.prefix.clear()
    with engine.pin([{"role": "system", "content": SYSTEM}]) as pin:
        print(f"{pin.tokens} tokens of system prompt pinned")
        warm = [seconds(ask(engine, question)) for question in QUESTIONS]
    return cold, warm


def draw(cold: list[float], warm: list[float]) -> None:
    scale = WIDTH / max(cold)
    for question, before, after in zip(QUESTIONS, cold, warm, strict=True):
        print(f"\n{question}")
        print(f"  cold   {'█' * round(before * scale)} {before:.3f} s")
        print(f"  pinned {'█' * max(1, round(after * scale))} {after:.3f} s")


def plot(cold: list[float], warm: list[float], path: str) -> None:
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    places = range(len(QUESTIONS))
    pyplot.bar([p - 0.2 for p in places], cold, 0.4, label="cold")
    pyplot.bar([p + 0.2 for p in places], warm, 0.4, label="pinned")
    pyplot.ylabel("seconds to the first token")
    pyplot.xticks(list(places), [str(p + 1) for p in places])
    pyplot.legend()
    pyplot.savefig(path)
    print(f"drawn to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--plot", help="write a picture to this file (needs matplotlib)")
    options = parser.parse_args()
    with Engine(options.model) as engine:
        cold, warm = measure(engine)
    draw(cold, warm)
    before, after = statistics.median(cold), statistics.median(warm)
    print(f"\nmedian {before:.3f} s cold, {after:.3f} s pinned: {before / after:.1f} times faster, {1 - after / before:.0%} saved")
    if options.plot:
        plot(cold, warm, options.plot)


if __name__ == "__main__":
    main()
