"""Compile the kernels ahead of their first use: `agentkit warmup`.

Kernels are compiled by numba the first time they run and are then loaded from the cache folder. So this runs each of them
once: those of the grammars with a vocabulary of single bytes (in a process of their own where there are two cores), the engine's with a
tiny random decoder, and all of them together, if a model is named, with one short constrained generation. Knows nothing of which kernels there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.engine.models.progress import Progress

__all__ = ["warm_up"]


def warm_up(model: str | None = None, progress: Progress | None = None) -> None:
    """Compile all kernels, and run a model once if one is named (it is fetched if need be).

    Args:
        model: as for `Engine`.
        progress: called with (stage, done, total); None: shown on the terminal.

    Raises:
        ModelNotFound: the model is neither here nor can it be fetched.
    """
    from agentkit.engine import warmup as engine
    from agentkit.engine.models.progress import one_stage, progress_or_default
    from agentkit.grammars.warmup import begin_compiling, compile_kernels, kernels_cached

    stage = "running the kernels of grammars (compiled before)" if kernels_cached() else "compiling the kernels of grammars (once on this machine)"
    how = "running the kernels of the engine (compiled before)" if engine.kernels_cached() else "compiling the kernels of the engine (once on this machine)"
    steps: list[tuple[str, Callable[[], None]]] = [(how, engine.compile_kernels), (stage, compile_kernels)]
    if model is not None:
        steps.append((f"running {model} once", lambda: _generate_once(model)))
    begin_compiling()
    with progress_or_default(progress) as report:
        for stage, step in steps:
            with one_stage(stage, report):
                step()


def _generate_once(model: str) -> None:
    from agentkit.engine import Engine

    with Engine(model) as engine:
        engine.generate("Name a colour as JSON: ", schema={"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]})
