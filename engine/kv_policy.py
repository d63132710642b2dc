"""Which keys a request keeps. Knows nothing of models, tensors or pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """What any layer of a model reads. window: positions a token sees, its own included; None: everything. sinks: first positions seen besides."""

    window: int | None = None
    sinks: int = 0
