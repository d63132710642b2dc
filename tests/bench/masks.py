"""Cost of masks on this machine: compile, first mask, mask + accept per token, cold and warm.

    python tests/bench/masks.py [--tokenizer tokenizer.json] [--repeats 5]

Without a tokenizer, that of the embedded model. The grammar is the demonstration's: one call of one of its tools. Cold: all
caches of the process dropped before (compiled kernels stay). Figures are medians over the repeats, in microseconds unless said.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

from agentkit.demo.tools import TOOLS
from agentkit.engine.models import store
from agentkit.grammars import Grammar, Vocabulary, clear_caches

TEXTS = [
    '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo"}}\n</tool_call>',
    '<tool_call>\n{"name":"convert_currency","arguments":{"amount":250,"from_currency":"EUR","to_currency":"CHF"}}\n</tool_call>',
    '<tool_call>\n{"name":"add_todo","arguments":{"text":"buy oat milk","list":"shopping"}}\n</tool_call>',
    '<tool_call>\n{"name":"create_event","arguments":{"title":"Budget review","start":{"date":"2026-12-04","time":"14:00"},"attendees":[]}}\n</tool_call>',
]


def timed_tokens(grammar: Grammar, vocabulary: Vocabulary) -> list[float]:
    """Microseconds of accept + next mask for each token of the texts."""
    times = []
    for text in TEXTS:
        matcher = grammar.matcher(vocabulary)
        matcher.mask()
        for token in vocabulary.encode_text(text):
            start = time.perf_counter_ns()
            matcher.accept(token)
            matcher.mask()
            times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    path = options.tokenizer or store.pull("smollm2-135m") / "tokenizer.json"
    start = time.perf_counter()
    vocabulary = Vocabulary.from_tokenizer(path, stop_token_ids=[2])
    built = time.perf_counter() - start
    tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in TOOLS]
    Grammar.from_tools(tools, "required").matcher(vocabulary).mask()
    compile_ms, first_us, cold, cold_median, warm = [], [], [], [], []
    for _ in range(options.repeats):
        clear_caches()
        start = time.perf_counter()
        grammar = Grammar.from_tools(tools, "required")
        compile_ms.append((time.perf_counter() - start) * 1e3)
        start = time.perf_counter()
        grammar.matcher(vocabulary).mask()
        first_us.append((time.perf_counter() - start) * 1e6)
        times = timed_tokens(grammar, vocabulary)
        cold.append(statistics.mean(times))
        cold_median.append(statistics.median(times))
        warm.append(statistics.mean(timed_tokens(grammar, vocabulary)))
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {len(vocabulary)} tokens, vocabulary built in {built:.2f} s")
    print("| compile ms | lowering and first mask us | cold mean us | cold median us | warm mean us |\n|---|---|---|---|---|")
    print("| " + " | ".join(f"{statistics.median(x):.1f}" for x in (compile_ms, first_us, cold, cold_median, warm)) + " |")


if __name__ == "__main__":
    main()
