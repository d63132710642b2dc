"""Cost of masks on this machine: compile, first mask, mask + accept per token, cold and warm.

    python tests/bench/masks.py [--tokenizer tokenizer.json] [--repeats 5] [--tools 500]

Without a tokenizer, that of the embedded model. The grammar is the demonstration's: one call of one of its tools. Cold: all
caches of the process dropped before (compiled kernels stay). Figures are medians over the repeats, in microseconds unless said.
A second table is about many tools, made up from the same seed each time, one to six parameters each, in processor time.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

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


def many_tools(count: int) -> list[dict[str, Any]]:
    """Tools as applications have them: names that begin alike, parameters of all kinds, some of them required."""
    rng = random.Random(0)
    kinds: list[dict[str, Any]] = [
        *({"type": "string"},) * 4, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 100},
        {"type": "array", "items": {"type": "string"}}, {"type": "string", "enum": ["low", "medium", "high"]}, {"type": "string", "format": "date"},
    ]  # fmt: skip
    words = ["create", "get", "list", "update", "user", "order", "invoice", "ticket", "report", "file", "city", "amount", "limit", "note"]
    tools = []
    for number in range(count):
        fields = {f"{rng.choice(words)}_{rng.choice(words)}": {**rng.choice(kinds), "description": f"The {number}th."} for _ in range(rng.randint(1, 6))}
        schema = {"type": "object", "properties": fields, "required": sorted(rng.sample(list(fields), rng.randint(0, len(fields))))}
        tools.append({"name": f"{rng.choice(words)}_{rng.choice(words)}_{number}", "parameters": schema})
    return tools


def of_many_tools(vocabulary: Vocabulary, count: int, repeats: int) -> None:
    """Prints what compiling them and the first mask take."""
    rows = []
    tools = many_tools(count)
    for _ in range(repeats):
        clear_caches()
        marks = [time.process_time()]
        grammar = Grammar.from_tools(tools, "required")
        marks.append(time.process_time())
        grammar.matcher(vocabulary).mask()
        marks.append(time.process_time())
        rows.append([(after - before) * 1e3 for before, after in pairwise(marks)])
    compiled, first = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"| {count} tools: compile ms | lowering and first mask ms | together |\n|---|---|---|\n| {compiled:.1f} | {first:.1f} | {compiled + first:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tools", type=int, default=500)
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
    of_many_tools(vocabulary, options.tools, options.repeats)


if __name__ == "__main__":
    main()
