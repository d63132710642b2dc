"""The bank's SDK cases: each statement is the mark of a test under tests/agent/cases, or waits for a feature (see the manifest)."""

from __future__ import annotations

import pytest

from tests.cases.bank import Statement, of_kind, statement_id, statements
from tests.cases.collected import Found
from tests.cases.manifest import LATER
from tests.cases.pointers import check_is_tested

NOW = [statement for statement in statements(of_kind("sdk", "behaviour")) if statement not in LATER]


@pytest.mark.parametrize("statement", NOW, ids=statement_id)
def test_statement_is_tested(statement: Statement, collected: dict[str, Found]) -> None:
    check_is_tested(statement, collected)
