"""The report: every keyword that was read, enforced or irrelevant."""

from __future__ import annotations

import pytest

from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.json_schema import compile_schema, schema_node
from agentkit.grammars.report import Report

SCHEMA = {
    "title": "Order",
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "default": 3}, "id": {"$ref": "#/$defs/id", "description": "which"}},
    "$defs": {"id": {"type": "string", "maxLength": 5}, "unused": {"not": 3}},
    "x-internal": True,
}


def test_statuses() -> None:
    report = compile_schema(SCHEMA).report
    assert {e.pointer for e in report.enforced} == {
        *("#/type", "#/properties", "#/properties/n/type", "#/properties/n/minimum", "#/properties/id/$ref", "#/$defs/id/type", "#/$defs/id/maxLength"),
    }
    assert {e.pointer for e in report.irrelevant_entries} == {"#/title", "#/$defs", "#/x-internal", "#/properties/n/default", "#/properties/id/description"}
    assert len(report) == 12
    assert report["#/properties/n/minimum"].keyword == "minimum"
    assert "#/$defs/unused/not" not in report


def test_text() -> None:
    lines = str(compile_schema(SCHEMA).report).splitlines()
    assert len(lines) == 12
    assert any(line.split() == ["#/properties/n/minimum", "enforced"] for line in lines)
    assert str(compile_schema(True).report) == "no keywords: any JSON value"


def test_keywords_of_later_drafts_are_annotations() -> None:
    report = compile_schema({"$schema": "http://json-schema.org/draft-04/schema#", "const": 3, "type": "integer"}).report
    assert report["#/const"].status == "irrelevant"


def test_reports_join_under_a_prefix() -> None:
    joined = Report()
    for name in ("first", "second"):
        _, report = schema_node(Builder(), {"type": "null"})
        joined.add(report, prefix=name)
    assert [e.pointer for e in joined] == ["first#/type", "second#/type"]


def test_style_is_checked() -> None:
    with pytest.raises(ValueError, match="whitespace"):
        compile_schema({}, whitespace="loose")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key_order"):
        compile_schema({}, key_order="sorted")  # type: ignore[arg-type]


def test_compiling_is_deterministic_and_leaves_the_schema_alone() -> None:
    before = repr(SCHEMA)
    assert compile_schema(SCHEMA).program.digest == compile_schema(SCHEMA).program.digest
    assert repr(SCHEMA) == before


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("minLenght", "minLength"),
        ("requried", "required"),
        ("additonalProperties", "additionalProperties"),
        ("max_items", "maxItems"),
        ("oneof", "oneOf"),
        ("ref", "$ref"),
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_meant(written: str, meant: str) -> None:
    report = compile_schema({"type": "object", "properties": {"a": {"type": "string", written: 3}}}).report
    assert [(e.pointer, e.note) for e in report.unknown] == [(f"#/properties/a/{written}", f"did you mean {meant!r}?")]
    assert repr(report).endswith("1 unknown>")
    assert list(Report.restored(report)) == list(report)


@pytest.mark.parametrize(
    "name", ["note", "title", "example", "x-internal", "unit", "propertyOrdering", "$defs", "nullable", "default", "types", "minTemperature"]
)
def test_other_names_are_annotations(name: str) -> None:
    assert compile_schema({"type": "object", name: {}}).report[f"#/{name}"].status == "irrelevant"
