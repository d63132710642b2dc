"""Fixtures of the case tests: compiled kernels, and the list of tests that the manifest refers to."""

from __future__ import annotations

import pytest

from agentkit.grammars import Grammar
from tests.cases import collected as collector
from tests.cases.judge import accepts
from tests.cases.manifest import test_files


@pytest.fixture(scope="session")
def warm() -> None:
    """Kernels compiled or loaded, so that a case's own time can be measured: an object is stepped through once."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 3}}, "required": ["b"]}
    assert accepts(Grammar.from_json_schema(schema, key_order="any"), '{"b":"x","a":1}')


@pytest.fixture(scope="session")
def collected() -> dict[str, collector.Found]:
    """Every test of the files that the manifest names, by node id."""
    return collector.collect(test_files())
