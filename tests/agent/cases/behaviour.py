"""Marks a test as the test of one behaviour statement of the failure-case bank.

`@behaviour("case-id", "statement")` puts both into the test's id; tests/cases/test_manifest.py reads these marks back
and compares them with the bank, so that no statement is left out.
"""

from __future__ import annotations

import pytest


def behaviour(case_id: str, statement: str) -> pytest.MarkDecorator:
    """The mark. The statement is quoted from the bank, word for word."""
    return pytest.mark.parametrize("behaviour_statement", [pytest.param((case_id, statement), id=f"{case_id}: {statement}")], indirect=True)
