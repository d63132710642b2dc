"""Carries the case id and the statement of a behaviour test into its id."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def behaviour_statement(request: pytest.FixtureRequest) -> tuple[str, str] | None:
    """(case id, statement), for tests marked with `behaviour`."""
    return getattr(request, "param", None)
