"""Tool calls right or wrong, by how weights and keys and values are held: questions of the Berkeley Function-Calling Leaderboard.

    python tests/bench/tool_accuracy.py [--model smollm2-135m] [--questions 60] [--data ../shared/bfcl]

Each question is one turn with its tools and a call demanded, greedy. "right" is by the leaderboard's own rules (score.py beside the data);
"same calls" counts the questions answered exactly as in float32.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import importlib.util
import json
import platform
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from agentkit.engine import Engine
from agentkit.local_model import LocalModel
from agentkit.messages import UserMessage
from agentkit.model import CallClosed, Sampling, ToolSpec, TurnRequest

CATEGORIES = ("simple_python", "multiple", "live_simple")
SETTINGS = (("fp32", "auto", "fp32"), ("fp16", "auto", "fp32"), ("int8", "auto", "fp32"), ("int8", "auto", "fp16"), ("int8", "int8", "fp16"))


async def answer(model: LocalModel, case: dict[str, Any]) -> list[dict[str, Any]]:
    tools = tuple(ToolSpec(t["name"], t.get("description", ""), t["parameters"]) for t in case["tools"])
    messages = tuple(UserMessage(content=m["content"]) for m in case["messages"] if m["role"] == "user")
    request = TurnRequest(messages, tools=tools, tool_choice="required", sampling=Sampling(max_tokens=200))
    made = [event.call async for event in model.stream_turn(request) if isinstance(event, CallClosed)]
    return [{"name": call.name, "arguments": json.loads(call.arguments)} for call in made]


async def answers(model: LocalModel, cases: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return list(await asyncio.gather(*(answer(model, case) for case in cases)))


def scorer(data: Path) -> Callable[[dict[str, Any], list[dict[str, Any]]], tuple[bool, str]]:
    spec = importlib.util.spec_from_file_location("score", data / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[dict[str, Any], list[dict[str, Any]]], tuple[bool, str]] = module.score
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "bfcl")
    options = parser.parse_args()
    if not options.data.exists():
        sys.exit(f"{options.data} is not there; give the folder with open.jsonl.gz and score.py as --data")
    with gzip.open(options.data / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["category"] in CATEGORIES]
    cases = random.Random(0).sample(cases, options.questions)
    score = scorer(options.data)
    print(f"{platform.machine()}, torch {torch.__version__}, {options.model}, {len(cases)} questions of {', '.join(CATEGORIES)}\n")
    print("| weights | activations | kv | valid | right tool | right | same calls as fp32 |\n|---|---|---|---|---|---|---|")
    first: list[list[dict[str, Any]]] | None = None
    for weights, activations, kv in SETTINGS:
        with Engine(options.model, weights=weights, activations=activations, kv=kv) as engine:
            made = asyncio.run(answers(LocalModel(engine), cases))
        first = first or made
        tool = sum(bool(m) and any(m[0]["name"] in answer for answer in case["answers"]) for case, m in zip(cases, made, strict=True))
        right = sum(score(case, m)[0] for case, m in zip(cases, made, strict=True))
        same = sum(a == b for a, b in zip(first, made, strict=True))
        print(f"| {weights} | {activations} | {kv} | {sum(len(m) == 1 for m in made)} | {tool} | {right} | {same} |", flush=True)


if __name__ == "__main__":
    main()
