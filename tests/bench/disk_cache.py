"""What compiled grammars and tries kept on disk save a new process.

    python tests/bench/disk_cache.py [--model smollm2-135m] [--repeats 3]

Starts processes of its own in turn, without and with a disk cache (a folder that lasts as long as the benchmark; the first process
that fills it is not counted). Each loads the model, makes the vocabulary, compiles the grammar of the demonstration's tools, asks
for the first mask and the forced tokens, and goes through one call. Medians in seconds of processor time; kernels are compiled before.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise

CALL = '<tool_call>\n{"name":"get_weather","arguments":{"city":"Oslo"}}\n</tool_call>'
COLUMNS = ("vocabulary", "grammar", "first mask, forced tokens", "tokens of one call", "together")


def one_process(model: str, folder: str | None) -> list[float]:
    """Seconds of processor time of each step in this process."""
    from agentkit.demo.tools import TOOLS
    from agentkit.engine import Engine
    from agentkit.grammars import Grammar, configure

    configure(disk_cache=folder)
    tools = [{"name": tool.name, "parameters": tool.parameters} for tool in TOOLS]
    with Engine(model) as engine:
        marks = [time.process_time()]
        vocabulary = engine.vocabulary
        marks.append(time.process_time())
        grammar = Grammar.from_tools(tools, "required")
        marks.append(time.process_time())
        matcher = grammar.matcher(vocabulary)
        matcher.mask()
        matcher.completion_tokens()
        matcher.forced_tokens()
        marks.append(time.process_time())
        for token in vocabulary.encode_text(CALL):
            matcher.accept(token)
            matcher.mask()
        marks.append(time.process_time())
    return [*(after - before for before, after in pairwise(marks)), marks[-1] - marks[0]]


def measured(model: str, folder: str | None) -> list[float]:
    command = [sys.executable, __file__, "--model", model, "--one", json.dumps(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one_process(options.model, json.loads(options.one))))
        return
    with tempfile.TemporaryDirectory() as folder:
        measured(options.model, folder)
        runs = [(measured(options.model, None), measured(options.model, folder)) for _ in range(options.repeats)]
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {options.model}")
    print(f"| | {' | '.join(COLUMNS)} |\n|---{len(COLUMNS) * '|---'}|")
    for name, rows in (("nothing kept", [off for off, _ in runs]), ("read back", [on for _, on in runs])):
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"| {name} | {' | '.join(f'{value:.4f}' for value in medians)} |")


if __name__ == "__main__":
    main()
