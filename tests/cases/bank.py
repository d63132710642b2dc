"""The failure-case bank: small inputs restated from public bug reports, with the behaviour that is right.

Input: open.jsonl beside this file, one JSON object a line. Knows nothing of how a case is tested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("open.jsonl")

Case = dict[str, Any]
Statement = tuple[str, int]
"""(case id, number of the statement in its expect.behaviour)."""


def read(path: Path) -> list[Case]:
    # str.splitlines would also break lines at U+2028, which JSON strings may hold
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


CASES: dict[str, Case] = {case["id"]: case for case in read(FILE)}


def of_kind(kind: str, *modes: str) -> list[Case]:
    """The cases of a kind whose expectations are given in one of the modes (schema, text, mask, behaviour)."""
    return [case for case in CASES.values() if case["kind"] == kind and case["expect"]["mode"] in modes]


def statements(cases: Iterable[Case]) -> list[Statement]:
    """Every behaviour statement of the cases."""
    return [(case["id"], number) for case in cases for number in range(len(case["expect"].get("behaviour", ())))]


def wording(statement: Statement) -> str:
    case_id, number = statement
    return str(CASES[case_id]["expect"]["behaviour"][number])


def statement_id(statement: Statement) -> str:
    """As it stands in test ids: "case-id#0"."""
    return f"{statement[0]}#{statement[1]}"
