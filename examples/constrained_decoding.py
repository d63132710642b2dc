"""Watch a model being kept inside a grammar, token by token: `python examples/constrained_decoding.py [--plain]`.

A JSON Schema, a regular expression, a choice and a Lark grammar, each on the embedded model (SmolLM2-135M, about 100 MB,
fetched at the first start). One line is one token: where the grammar stands, how many of the vocabulary's tokens it allowed
there, and whether the token was forced (no choice: never sampled) or chosen by the model. The table at the end says what the
grammar cost: its own calls on the engine's thread, timed as they happen.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lark
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentkit import Engine
from agentkit.grammars import Grammar, Matcher, Vocabulary, clear_caches, configure

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "fields": {"type": "array", "items": {"enum": ["mathematics", "physics", "music"]}, "minItems": 1, "maxItems": 3, "uniqueItems": True},
    },
    "required": ["name", "born", "fields"],
    "additionalProperties": False,
}
BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = rf"{BYTE}(\.{BYTE}){{3}}"
SUMS = r"""
start: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" start ")"
NUMBER: /[1-9][0-9]{0,3}/
"""


@dataclass
class Task:
    """What to ask and which texts are answers. check: whether an independent reader takes the text too."""

    name: str
    prompt: str
    source: str
    build: Any
    check: Any


TASKS = [
    Task(
        "JSON Schema",
        "Ada Lovelace, born in 1815, wrote about mathematics. As JSON: ",
        "name, born, fields",
        lambda: Grammar.from_json_schema(PERSON),
        lambda text: set(json.loads(text)) == {"name", "born", "fields"},
    ),
    Task(
        "regular expression",
        "A computer's own address is 127.0.0.1, and the router at home is ",
        "IPv4",
        lambda: Grammar.from_regex(IPV4),
        lambda text: re.fullmatch(IPV4, text) is not None,
    ),
    Task(
        "choice",
        "Review: What a wonderful evening, we laughed all the way home.\nSentiment (positive, negative or neutral): ",
        "sentiment",
        lambda: Grammar.from_choices(["positive", "negative", "neutral"]),
        lambda text: text in ("positive", "negative", "neutral"),
    ),
    Task(
        "Lark grammar",
        "three plus four = 3+4\nten times the sum of two and five = 10*(2+5)\ntwelve times seven minus nine = ",
        "arithmetic",
        lambda: Grammar.from_lark(SUMS),
        lambda text: bool(lark.Lark(SUMS).parse(text)),
    ),
]


@dataclass
class Clock:
    """Seconds that the grammar took on the engine's thread. masks: of each mask; other: of all other calls together."""

    masks: list[float] = field(default_factory=list)
    other: float = 0.0


class TimedMatcher(Matcher):
    """A matcher that notes how long its calls take."""

    clock: Clock

    def mask(self, remaining: int | None = None) -> np.ndarray:
        start = time.perf_counter()
        row = super().mask(remaining)
        self.clock.masks.append(time.perf_counter() - start)
        return row

    def accept(self, token_id: int) -> None:
        start = time.perf_counter()
        super().accept(token_id)
        self.clock.other += time.perf_counter() - start

    def forced_tokens(self, before: Sequence[int | bytes] | None = None) -> list[int]:
        start = time.perf_counter()
        tokens = super().forced_tokens(before)
        self.clock.other += time.perf_counter() - start
        return tokens


class TimedGrammar(Grammar):
    """A grammar whose matchers share a clock."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar.program, grammar.report())
        self.clock = Clock()

    def matcher(self, vocabulary: Vocabulary) -> Matcher:
        plain = super().matcher(vocabulary)
        timed = TimedMatcher(self, vocabulary, plain._arena, plain.state)
        timed.clock = self.clock
        return timed


@dataclass
class Cost:
    """What a task cost, in seconds. decoding: after the forward of the prompt; forwards: of the model, that one included."""

    compile: float
    clock: Clock
    decoding: float
    tokens: int
    forced: int
    forwards: int


def run(task: Task, engine: Engine, console: Console, max_tokens: int) -> Cost:
    """Generates one answer and prints each token as it is decided."""
    start = time.perf_counter()
    grammar = task.build()
    compiled = time.perf_counter() - start
    timed = TimedGrammar(grammar)
    console.print(Text.assemble((f"\n{task.name}", "bold"), f" ({task.source})"))
    console.print(Text(task.prompt, "dim"))
    beside = grammar.matcher(engine.vocabulary)  # walks along with what is printed; the engine has its own
    first = None
    for event in engine.stream(task.prompt, grammar=timed, max_tokens=max_tokens):
        first = first or time.perf_counter()
        if not hasattr(event, "generation"):
            for token in event.token_ids:
                console.print(line(beside, token, event.forced))
                beside.accept(token)
            continue
        generation = event.generation
    right = "an independent reader takes it" if task.check(generation.text) else "REFUSED by an independent reader"
    console.print(Text.assemble("=> ", (generation.text, "bold green"), f"   {right}"))
    usage = generation.usage
    return Cost(compiled, timed.clock, time.perf_counter() - (first or start), usage.output_tokens, usage.forced_tokens, usage.forwards)


def line(matcher: Matcher, token: int, forced: bool) -> Text:
    """One token: the state before it, what was allowed there, and how it came about."""
    vocabulary = matcher.vocabulary
    allowed = int(np.unpackbits(matcher.mask().view(np.uint8)).sum())
    ends = "may end " if matcher.is_accepting else f"needs {matcher.completion_tokens():>2}"
    text = repr(vocabulary.text_of(token).decode("utf-8", "replace"))
    how = ("forced", "magenta") if forced else ("chosen", "cyan")
    return Text.assemble(f"  state {matcher.state:>6}  {ends}  {allowed:>6} of {vocabulary.width} allowed  ", how, "  ", (text, how[1]))


def table(costs: dict[str, Cost], plain: bool) -> Table:
    """What each grammar cost. A step: one forward of the model with everything around it."""
    found = Table(title="What the grammars cost", box=box.ASCII if plain else box.ROUNDED)
    for column in ("", "compile ms", "tokens", "forced", "forwards", "first mask us", "later masks us, median", "step ms", "grammar's share"):
        found.add_column(column, justify="left" if not column else "right")
    for name, cost in costs.items():
        first, later = cost.clock.masks[0], cost.clock.masks[1:]
        steps = cost.forwards - 1
        share = (sum(later) + cost.clock.other) / cost.decoding
        found.add_row(
            name, f"{cost.compile * 1e3:.1f}", str(cost.tokens), str(cost.forced), str(cost.forwards), f"{first * 1e6:.0f}",
            *(("-", "-", "-") if steps < 1 or not later else
              (f"{statistics.median(later) * 1e6:.0f}", f"{cost.decoding / steps * 1e3:.1f}", f"{100 * share:.1f} %")),
        )  # fmt: skip
    return found


def main(arguments: Sequence[str] | None = None, engine: Engine | None = None) -> dict[str, Cost]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="no colours and no box characters, for logs and pipes")
    parser.add_argument("--max-tokens", type=int, default=48, help="limit of each answer, which is complete all the same")
    options = parser.parse_args(arguments)
    console = Console(no_color=options.plain, highlight=False, width=140 if options.plain else None)
    configure(disk_cache=None)  # compiled grammars are not to come from an earlier run
    with engine or Engine("smollm2-135m") as used:
        for task in TASKS:  # modules, kernels and vocabulary are there before anything is timed, and nothing else
            used.generate("Warm", grammar=task.build(), max_tokens=options.max_tokens)
        clear_caches()
        costs = {task.name: run(task, used, console, options.max_tokens) for task in TASKS}
    console.print(table(costs, options.plain))
    return costs


if __name__ == "__main__":
    main()
