"""The manifest is complete and true: no case or statement of the bank is left out, none stands twice, nothing is stale."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.cases.bank import CASES, FILE, Statement, read, statements, wording
from tests.cases.collected import Found
from tests.cases.judge import TEXT_FORMS
from tests.cases.manifest import LATER, MARKED, NAMED, TABLES, TESTED, Feature, Later
from tests.cases.pointers import check_is_tested, marked_tests, named_tests

KINDS = {"schema", "grammar", "tokenization", "engine", "sdk", "server"}
BEHAVIOUR = set(statements(CASES.values()))
MARKABLE = {statement for statement in BEHAVIOUR if CASES[statement[0]]["kind"] == "sdk"}


def test_the_bank_is_the_shared_one(shared: Path) -> None:
    theirs = shared / "cases" / "open.jsonl"
    if not theirs.is_file():
        pytest.skip(f"the reference data holds no {theirs.name}: {theirs} does not exist")
    assert FILE.read_bytes() == theirs.read_bytes(), "copy the shared file over tests/cases/open.jsonl"


def test_the_bank_is_read_whole() -> None:
    cases = read(FILE)
    assert len(cases) == FILE.read_bytes().count(b"\n") == len(CASES) == 135
    assert {case["kind"] for case in cases} == KINDS
    for case in cases:
        has_statements = case["expect"]["mode"] == "behaviour"
        assert has_statements == bool(case["expect"].get("behaviour")) == (case["expect"]["mode"] not in TABLES)
        assert len(set(case["expect"].get("behaviour", ()))) == len(case["expect"].get("behaviour", ()))


def test_every_statement_is_tested_or_waits_and_none_does_both() -> None:
    tested, waiting = set(TESTED), set(LATER)
    assert not tested & waiting
    assert not tested & MARKABLE, "statements of kind sdk are marks of their tests"
    assert tested | waiting | MARKABLE == BEHAVIOUR


def test_what_waits_says_for_what() -> None:
    for later in LATER.values():
        assert isinstance(later, Later)
        assert later.feature in get_args(Feature)
        assert later.reason
    assert all(nodes for nodes in TESTED.values())
    assert all(len(set(nodes)) == len(nodes) for nodes in TESTED.values())


def test_marks_of_sdk_tests_are_the_banks(collected: dict[str, Found]) -> None:
    marks = {found.behaviour for found in collected.values() if found.behaviour}
    bank = {(statement[0], wording(statement)) for statement in MARKABLE}
    assert marks <= bank, "a test quotes a statement that is not in the bank"
    assert marks == bank, "a statement of kind sdk has no test that quotes it"


def test_every_named_test_exists(collected: dict[str, Found]) -> None:
    for statement in TESTED:
        check_is_tested(statement, collected)


def test_every_test_of_an_engine_case_is_named(collected: dict[str, Found]) -> None:
    """A test that carries a case's id and that no entry names is a sign that the manifest is behind."""
    named = {found.node_id for statement, nodes in TESTED.items() for node in nodes for found in named_tests(node, statement[0], collected)}
    carrying = {node_id for node_id in collected if node_id.startswith(NAMED + "/") and any(case_id in node_id for case_id in CASES)}
    assert carrying
    assert carrying - named == set()


def test_the_rest_of_the_bank_is_tested_one_by_one(collected: dict[str, Found]) -> None:
    """Schema, text and mask cases: the test of the mode is there for each, and always runs."""
    missing, wrong = [], []
    cases = [case for case in CASES.values() if case["expect"]["mode"] in TABLES]
    assert len(cases) + len({statement[0] for statement in BEHAVIOUR}) == len(CASES)
    for case in cases:
        node, case_id = TABLES[case["expect"]["mode"]], case["id"]
        ids = {f"{node}[{case_id}]", *(f"{node}[{case_id}-{form}]" for form in TEXT_FORMS)}
        if "regex_list" in case["input"]:
            node = node.replace("test_case", "test_exact_or_refused_by_name")
            ids = {f"{node}[{case_id}-{number}]" for number in range(len(case["input"]["regex_list"]))}
            assert ids <= collected.keys()
        tests = [collected[node_id] for node_id in ids & collected.keys()]
        if not tests:
            missing.append(case_id)
        elif not all(found.runs_everywhere for found in tests):
            wrong.append(case_id)
    assert (missing, wrong) == ([], [])


def test_a_missing_or_idle_test_is_noticed(collected: dict[str, Found]) -> None:
    """The checks above can fail."""
    statement: Statement = ("eng-temperature-zero", 0)
    (node,) = TESTED[statement]
    others = {node_id: found for node_id, found in collected.items() if not node_id.startswith(node)}
    with pytest.raises(AssertionError, match="no such test"):
        check_is_tested(statement, others)
    idle = {node_id: Found(node_id, frozenset({"xfail"}), found.behaviour) for node_id, found in collected.items()}
    with pytest.raises(AssertionError, match="does not always run"):
        check_is_tested(statement, idle)
    marked = next(iter(sorted(MARKABLE - set(LATER))))
    assert marked_tests(marked, collected)
    with pytest.raises(AssertionError, match="a mark in " + MARKED):
        check_is_tested(marked, {})
    with pytest.raises(AssertionError, match="names no test"):
        check_is_tested(("srv-fail-open", 0), collected)
