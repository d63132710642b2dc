"""Marks a test with the failure case of shared/cases that it restates, so that the case's id is in the test's id."""

from __future__ import annotations

import pytest


def case(*ids: str) -> pytest.MarkDecorator:
    """Runs the test once per case id; the test takes the id as `case_id`."""
    return pytest.mark.parametrize("case_id", ids)
