"""The command `agentkit`: look after downloaded models, compile kernels ahead of time, train and measure speculation, print versions.

Thin: parses arguments, calls the engine's model store, prints. Knows nothing of how models are fetched or stored. Errors of
agentkit are printed as one line, exit status 1; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from agentkit.errors import AgentKitError

__all__ = ["app", "main"]

app = typer.Typer(
    name="agentkit", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Agents whose tool calls cannot be malformed."
)
models = typer.Typer(no_args_is_help=True, help="List, fetch and remove models.")
app.add_typer(models, name="models")

bench = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
app.add_typer(bench, name="bench")

ModelName = Annotated[str, typer.Argument(metavar="NAME", help="A short name (smollm2-135m), or org/name on the model hub.")]


def _version_option(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version_option, is_eager=True, help="Print versions and stop.")] = False) -> None:
    """Agents whose tool calls cannot be malformed."""


@app.command()
def version() -> None:
    """Print the versions of agentkit, Python and what the engine runs on."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    typer.echo(f"agentkit {installed('agentkit')}")
    typer.echo(f"python {platform.python_version()} ({platform.system()} {platform.machine()})")
    for name in ("torch", "numba", "triton", "transformers"):
        try:
            typer.echo(f"{name} {installed(name)}")
        except PackageNotFoundError:
            typer.echo(f"{name} is not installed")


@app.command()
def warmup(
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Also run this model once (it is fetched if need be).")] = None,
) -> None:
    """Compile the kernels ahead of the first use."""
    from agentkit.warmup import warm_up

    warm_up(model)


@models.command("list")
def list_models() -> None:
    """List the models that have a short name, and what else is in the cache."""
    from rich.console import Console
    from rich.table import Table

    from agentkit.engine.models import store

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "in the cache", "from", "licence"):
        table.add_column(heading, overflow="fold")
    for entry in store.list_models():
        table.add_row(entry.name, f"{entry.bytes / 1e6:.0f} MB" if entry.cached else "no", entry.source, entry.licence)
    Console(highlight=False).print(table)


@models.command("pull")
def pull_model(name: ModelName) -> None:
    """Fetch a model into the cache (nothing happens if it is there) and print its folder."""
    from agentkit.engine.models import store

    typer.echo(store.pull(name, progress=None))


@models.command("path")
def model_path(name: ModelName) -> None:
    """Print the folder of a model in the cache."""
    from agentkit.engine.models import store

    typer.echo(store.path(name))


@models.command("rm")
def remove_model(name: ModelName) -> None:
    """Remove a model from the cache."""
    from agentkit.engine.models import store

    store.remove(name)
    typer.echo(f"removed {name}")


Prompts = Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines: questions, or objects with messages and tools.")]


@app.command()
def train(
    kind: Annotated[str, typer.Argument(metavar="medusa|eagle")],
    model: ModelName = "smollm2-135m",
    prompts: Prompts = None,
    texts: Annotated[int, typer.Option(help="Texts to train on, at most.", min=10)] = 300,
    minutes: Annotated[float, typer.Option(help="Time for everything.", min=0.5)] = 25.0,
) -> None:
    """Train heads that guess a model's next tokens, from texts that it writes itself. Goes on where it was interrupted."""
    from agentkit.speculation.commands import train_heads

    train_heads(kind, model, prompts, texts, minutes)


@bench.command("speculation")
def bench_speculation(
    model: ModelName = "smollm2-135m",
    prompts: Prompts = None,
    count: Annotated[int, typer.Option(help="Prompts to measure, at most.", min=1)] = 12,
    draft: Annotated[str | None, typer.Option(metavar="MODEL", help="A smaller model of the same family to try as well.")] = None,
) -> None:
    """Which speculation pays for this model, these prompts and this machine."""
    from agentkit.speculation.commands import bench_settings

    bench_settings(model, prompts, count, draft)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except AgentKitError as error:
        typer.echo(f"agentkit: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
