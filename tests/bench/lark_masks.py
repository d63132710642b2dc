"""Cost of masks under grammars of the kind of a programming language: the library's, and some as users write them.

    python tests/bench/lark_masks.py [--tokenizer tokenizer.json] [NAME ...]

Without a tokenizer, that of the embedded model. Each grammar in a process that has seen others, but none of its own states: its masks are
cold. Processor time in milliseconds. First: of states that the text had not come to before; the others are looked up. States: nodes of the arena
made for the text.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentkit.engine.models import store
from agentkit.grammars import Grammar, Vocabulary, configure
from tests.grammars.cfg.programs import LONG, NAMES, source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    configure(disk_cache=None)
    vocabulary = Vocabulary.from_tokenizer(options.tokenizer or store.pull("smollm2-135m") / "tokenizer.json", stop_token_ids=[2])
    Grammar.from_lark('start: "a"\n').matcher(vocabulary).mask()
    print("| grammar | compile | first mask | tokens | states first come to | masks of those: median | mean | worst | states | MB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.names:
        print(measured(name, vocabulary))


def measured(name: str, vocabulary: Vocabulary) -> str:
    start = time.thread_time()
    grammar = Grammar.from_lark(source(name))
    compiled = (time.thread_time() - start) * 1e3
    start = time.thread_time()
    matcher = grammar.matcher(vocabulary)
    matcher.mask()
    first, times, seen = (time.thread_time() - start) * 1e3, [], {matcher.state}
    before, tokens = vocabulary.arena.stats(), vocabulary.encode_text(LONG[name])
    for token in tokens:
        matcher.accept(token)
        start = time.thread_time()
        matcher.mask()
        if matcher.state not in seen:
            seen.add(matcher.state)
            times.append((time.thread_time() - start) * 1e3)
    after = vocabulary.arena.stats()
    made, size = after["states"] - before["states"], (after["state_bytes"] - before["state_bytes"]) / 1e6
    return (
        f"| {name} | {compiled:.0f} | {first:.1f} | {len(tokens)} | {len(times)} | {statistics.median(times):.2f} | {statistics.mean(times):.2f} "
        f"| {max(times):.1f} | {made:,} | {size:.1f} |"
    )


if __name__ == "__main__":
    main()
