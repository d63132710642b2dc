"""The required and optional groups of the official JSON-Schema-Test-Suite: right, or refused by name, and these are listed here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentkit.errors import GrammarTooComplex, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar
from tests.cases.judge import accepts

REFUSED = {
    **{f"suite/dynamicRef#{i}": "$ref" for i in range(13, 18)},  # other files of the suite
    "suite/multipleOf#3": "multipleOf remainders",
}
SPELLING = {"suite/optional/bignum#0", "suite/optional/bignum#1", "suite/optional/float-overflow#0"}
"""Right but for spellings that docs/spelling.md leaves out: integers of 53 digits, integers with an exponent."""


@pytest.fixture(scope="module")
def groups(shared: Path) -> list[dict[str, Any]]:
    with gzip.open(shared / "maskbench" / "suite.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_groups_are_right_or_refused_by_name(groups: list[dict[str, Any]]) -> None:
    """Formats bind in the groups about formats and are annotations in the others, as the suite is meant to be run."""
    refused: dict[str, str] = {}
    wrong = set()
    for group in groups:
        name = group["id"]
        if name.startswith(("suite/optional/format/", "suite/optional/format-assertion")):
            continue  # what formats allow is less than their RFCs, format by format (docs/formats.md); false accepts: see below
        try:
            grammar = Grammar.from_json_schema(group["schema"], key_order="any", formats="annotate")
        except (UnsupportedSchema, GrammarTooComplex) as error:
            refused[name] = error.keyword if isinstance(error, UnsupportedSchema) else error.limit
            continue
        except UnsatisfiableSchema:
            grammar = None
        right = all(t["valid"] == (grammar is not None and accepts(grammar, compact(t["instance"]))) for t in group["tests"])
        if not right:
            wrong.add(name)
    assert wrong == SPELLING
    assert refused == REFUSED


def test_formats_take_nothing_that_is_invalid(groups: list[dict[str, Any]]) -> None:
    seen = 0
    for group in groups:
        if group["id"].startswith("suite/optional/format/"):
            grammar = Grammar.from_json_schema(group["schema"], key_order="any")
            taken = [t["instance"] for t in group["tests"] if not t["valid"] and accepts(grammar, compact(t["instance"]))]
            assert not taken, group["id"]
            seen += 1
    assert seen > 20


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
