"""What `agentkit train` and `agentkit bench speculation` do and print. Knows nothing of the command line's parsing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentkit.speculation.bench import Job, Row, available, compare, pays, table
from agentkit.speculation.prompts import Prompt, made_up, read_prompts
from agentkit.speculation.train import Trained, ask, train

if TYPE_CHECKING:
    from agentkit.engine import Engine, Generation

__all__ = ["SETTINGS", "bench_settings", "train_heads"]

SETTINGS = ("ngram", "lookahead", "self", "medusa", "eagle")
MAX_TOKENS = 128


def train_heads(kind: str, model: str, prompts: Path | None, texts: int, minutes: float) -> Trained:
    """Trains with progress shown, and prints what came of it."""
    from agentkit.engine import Engine
    from agentkit.engine.models.progress import progress_or_default

    own = read_prompts(prompts) if prompts is not None else None
    with Engine(model, speculation="off") as engine, progress_or_default(None) as progress:
        trained = train(kind, engine, prompts=own, texts=texts, minutes=minutes, progress=progress)
    places = ", ".join(f"{share:.0%}" for share in trained.accuracy)
    typer.echo(f"{trained.texts} texts written in {trained.writing_s / 60:.1f} minutes, heads trained in {trained.training_s / 60:.1f}: {trained.path}")
    typer.echo(f"held-out tokens that were not forced and guessed right, by place ahead: {places}")
    typer.echo(f"use them with Engine({model!r}, speculation={kind!r}); measure with: agentkit bench speculation {model}")
    return trained


def bench_settings(model: str, prompts: Path | None, count: int, draft: str | None = None) -> list[Row]:
    """Measures all settings that can be had, prints a table and which one pays."""
    from agentkit.engine import Engine

    asked = read_prompts(prompts)[:count] if prompts is not None else _spread(count)
    settings = [*SETTINGS, *([f"draft:{draft}"] if draft else [])]
    with Engine(model, speculation="off") as engine:
        rows = measured(engine, [partial(ask_engine, prompt=p) for p in asked], settings)
    best = pays(rows)
    verdict = f"best here: speculation={best!r}" if best else 'none pays here: differences from plain decoding are noise or losses ("auto" notices by itself)'
    typer.echo(f"{len(asked)} prompts, greedy, decoding only; {verdict}")
    return rows


def ask_engine(engine: Engine, prompt: Prompt) -> Generation:
    return ask(engine, prompt, max_tokens=MAX_TOKENS)


def measured(engine: Engine, jobs: Sequence[Job], settings: Sequence[str]) -> list[Row]:
    """`compare` with the table printed, and a line for each setting that cannot be had."""
    from rich.console import Console
    from rich.table import Table

    speculators, missing = available(engine, settings)
    rows = compare(engine, jobs, speculators)
    heading, *lines = table(rows)
    shown = Table(*heading, box=None, pad_edge=False)
    for line in lines:
        shown.add_row(*line)
    console = Console(highlight=False)
    console.print(shown)
    for setting, why in missing.items():
        console.print(f"{setting}: {why}")
    return rows


def _spread(count: int) -> list[Prompt]:
    """Made-up prompts, two for each set of tools."""
    return [prompt for i, prompt in enumerate(islice(made_up(seed=1), 4 * count)) if i % 8 < 2][:count]
