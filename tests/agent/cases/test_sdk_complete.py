"""Every behaviour statement of the bank's sdk cases has a test here, or is named with the reason why it has none yet."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.agent.cases.later import LATER

HERE = Path(__file__).parent


def marked() -> set[tuple[str, str]]:
    """(case id, statement) of every `@behaviour(...)` in the test files here."""
    found = set()
    for path in HERE.glob("test_sdk_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "behaviour":
                        case_id, statement = (ast.literal_eval(argument) for argument in mark.args)
                        found.add((case_id, statement))
    return found


def test_every_statement_has_a_test(shared: Path) -> None:
    lines = (shared / "cases" / "open.jsonl").read_text(encoding="utf-8").strip().split("\n")
    cases = [case for case in map(json.loads, lines) if case["kind"] == "sdk"]
    wanted = {(case["id"], statement) for case in cases for statement in case["expect"]["behaviour"]}
    assert cases
    assert wanted - marked() == set(LATER)
    assert marked() <= wanted, "a test quotes a statement that is not in the bank"


def test_nothing_is_both_tested_and_put_off() -> None:
    assert not marked() & set(LATER)
