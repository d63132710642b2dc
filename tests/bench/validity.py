"""Are all calls valid? Function-calling schemas one call each, and many seeds at a high temperature, on a real model.

    python tests/bench/validity.py [--model smollm2-135m] [--seeds 200] [--temperature 1.5] [--data ../shared/maskbench/open.jsonl.gz]

A call counts as valid if its arguments parse as JSON and the jsonschema package accepts them. Without the data file only the seeds run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import time
from pathlib import Path
from typing import Any

import jsonschema

from agentkit import Engine
from agentkit.demo.tools import QUESTIONS, TOOLS
from agentkit.grammars import Grammar

MAX_TOKENS = 160
OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"


def is_valid(text: str, schemas: dict[str, dict[str, Any]]) -> bool:
    """Is `text` one call of one of the tools, with arguments that satisfy its schema?"""
    if not (text.startswith(OPENING) and text.endswith(CLOSING)):
        return False
    try:
        call = json.loads(text[len(OPENING) : -len(CLOSING)])
        jsonschema.validate(call["arguments"], schemas[call["name"]])
    except (ValueError, KeyError, jsonschema.ValidationError):
        return False
    return True


def count_valid(engine: Engine, tools: list[dict[str, Any]], question: str, **options: Any) -> int:
    prompt = engine.encode_chat([{"role": "system", "content": "Call one of the tools. " + json.dumps(tools)}, {"role": "user", "content": question}])
    generation = engine.generate(prompt, grammar=Grammar.from_tools(tools, "required"), max_tokens=MAX_TOKENS, **options)
    return is_valid(generation.text, {t["name"]: t["parameters"] for t in tools})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2].parent / "shared" / "maskbench" / "open.jsonl.gz")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {options.model}, at most {MAX_TOKENS} tokens a call")
    print("| what | valid | s |\n|---|---|---|")
    with Engine(options.model) as engine:
        if options.data.exists():
            with gzip.open(options.data, "rt") as lines:
                cases = [c for c in map(json.loads, lines) if c["id"].startswith(("Glaiveai2K", "BFCL"))]
            start, valid = time.perf_counter(), 0
            for case in cases:
                tools = [{"name": "answer", "description": "Give the answer.", "parameters": case["schema"]}]
                valid += count_valid(engine, tools, "Make up an example.")
            print(f"| function-calling schemas, greedy | {valid} / {len(cases)} | {time.perf_counter() - start:.0f} |")
        else:
            print(f"| function-calling schemas | not there: {options.data.name} | |")
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in TOOLS]
        start, valid = time.perf_counter(), 0
        for seed in range(options.seeds):
            valid += count_valid(engine, tools, QUESTIONS[seed % len(QUESTIONS)], temperature=options.temperature, seed=seed)
        print(f"| {options.seeds} seeds at temperature {options.temperature} | {valid} / {options.seeds} | {time.perf_counter() - start:.0f} |")


if __name__ == "__main__":
    main()
