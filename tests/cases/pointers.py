"""Checks that a behaviour statement's tests, as the manifest names them, exist and run.

Inputs: the manifest and what pytest collected. Knows nothing of what the tests do.
"""

from __future__ import annotations

from tests.cases.bank import CASES, Statement, wording
from tests.cases.collected import Found
from tests.cases.manifest import MARKED, NAMED, TESTED


def marked_tests(statement: Statement, collected: dict[str, Found]) -> list[Found]:
    """The tests that carry the statement as a mark."""
    return [found for found in collected.values() if found.behaviour == (statement[0], wording(statement))]


def named_tests(node: str, case_id: str, collected: dict[str, Found]) -> list[Found]:
    """The tests of a function; where tests are named after cases, those of this case."""
    tests = [found for node_id, found in collected.items() if node_id == node or node_id.startswith(node + "[")]
    return [found for found in tests if case_id in found.node_id] if node.startswith(NAMED) else tests


def check_is_tested(statement: Statement, collected: dict[str, Found]) -> None:
    """AssertionError unless every test that the manifest names for it exists and is an ordinary test."""
    if CASES[statement[0]]["kind"] == "sdk":
        groups = {f"a mark in {MARKED}": marked_tests(statement, collected)}
    else:
        groups = {node: named_tests(node, statement[0], collected) for node in TESTED.get(statement, ())}
    assert groups, f"the manifest names no test and no later issue for {statement}: {wording(statement)}"
    for name, tests in groups.items():
        assert tests, f"{name}: no such test for {statement[0]}"
        assert not [found.node_id for found in tests if not found.runs_everywhere], f"{name} does not always run"
