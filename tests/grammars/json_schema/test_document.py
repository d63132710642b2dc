"""References: pointers, identities, anchors, dynamic scope, and what leads nowhere."""

from __future__ import annotations

import pytest

from agentkit.errors import InvalidGrammar, UnsupportedSchema
from agentkit.grammars import Grammar
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.cases.judge import wrongly_judged
from tests.grammars.json_schema.oracle import check


def test_pointers_are_unescaped_before_lookup() -> None:
    check({"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": {"type": "integer", "maximum": 9}}}, ["1", "9"], ['"1"', "10"])


def test_a_pointer_may_lead_anywhere_in_the_document_and_through_lists() -> None:
    schema = {"type": "array", "prefixItems": [{"enum": ["x"]}, {"$ref": "#/prefixItems/0"}], "items": False, "minItems": 2}
    check(schema, ['["x","x"]'], ['["x","y"]', '["x"]'])


@pytest.mark.parametrize("ref", ["#/$defs/missing", "#/prefixItems/01", "#nowhere", "#/allOf/7"])
def test_a_dangling_reference_is_named(ref: str) -> None:
    with pytest.raises(InvalidGrammar, match=ref.replace("$", r"\$")) as caught:
        compile_schema({"$ref": ref, "prefixItems": [True], "allOf": [True]})
    assert caught.value.pointer == "#"


def test_a_reference_out_of_the_document_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema({"properties": {"a": {"$ref": "https://example.org/other.json#/x"}}})
    assert (caught.value.pointer, caught.value.keyword) == ("#/properties/a", "$ref")


def test_references_are_relative_to_the_nearest_identity() -> None:
    inner = {"$id": "inner.json", "$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"}
    schema = {"$id": "https://example.org/root.json", "$defs": {"n": {"type": "integer"}}, "properties": {"a": inner, "b": {"$ref": "#/$defs/n"}}}
    check(schema, ['{"a":null}', '{"b":1}'], ['{"a":1}', '{"b":null}'])
    check({**schema, "properties": {"c": {"$ref": "inner.json"}, "a": inner}}, ['{"c":null}'], ['{"c":1}'])


def test_anchors() -> None:
    check({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}}, ["null"], ["1"])
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#here", "definitions": {"x": {"$id": "#here", "type": "null"}}}
    check(draft7, ["null"], ["1"])
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#here", "definitions": {"x": {"id": "#here", "type": "null"}}}
    check(draft4, ["null"], ["1"])


def test_identities_inside_constants_and_unknown_keywords_are_data() -> None:
    schema = {
        "$ref": "https://example.org/x",
        "$defs": {"real": {"$id": "https://example.org/x", "type": "null"}, "data": {"enum": [{"$id": "https://example.org/x", "type": "integer"}]}},
        "unknown": {"$id": "https://example.org/x", "type": "string"},
    }
    check(schema, ["null"], ["1", '"a"'])


def test_a_dynamic_reference_goes_to_the_outermost_anchor() -> None:
    tree = {
        "$id": "https://example.org/tree",
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"data": True, "kids": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }
    strict = {"$id": "https://example.org/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": False, "$defs": {"tree": tree}}
    check(strict, ['{"kids":[{"data":1}]}'], ['{"kids":[{"daat":1}]}', '{"daat":1}'])
    check(tree, ['{"kids":[{"daat":1}]}'], ['{"kids":[1]}'])


def test_a_circle_of_references_without_a_container_is_malformed() -> None:
    with pytest.raises(InvalidGrammar, match="back to itself"):
        compile_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})
    with pytest.raises(InvalidGrammar, match="refers back to itself"):
        compile_schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}}})


def test_up_to_draft_7_a_reference_hides_its_neighbours() -> None:
    schema = {"properties": {"a": {"$ref": "#/definitions/n", "maximum": 5}}, "definitions": {"n": {"type": "integer"}}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    check(old, ['{"a":9}', '{"a":5}'], ['{"a":"x"}'])
    check(schema, ['{"a":5}'], ['{"a":9}'])
    entry = compile_schema(old).report["#/properties/a/maximum"]
    assert (entry.status, "hidden" in entry.note) == ("irrelevant", True)


def test_a_draft_before_4_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match="draft-03"):
        compile_schema({"$schema": "http://json-schema.org/draft-03/schema#"})


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://[", "$ref": "a"},
        {"$id": "http://a/", "$defs": {"b": {"$id": "//["}}, "$ref": "#x"},
        {"properties": {1: True}},
        {"properties": {None: {}}},
        {"dependentSchemas": {1: {}}},
        {"$defs": {2: {}}, "$ref": "#x"},
    ],
    ids=str,
)
def test_what_json_or_uris_do_not_have_is_malformed(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compile_schema(schema)
    assert str(caught.value).startswith("#")


def test_a_reference_that_is_no_uri_is_shown_where_it_stands() -> None:
    with pytest.raises(InvalidGrammar, match=r"^#/properties/a/\$ref: ") as caught:
        compile_schema({"$id": "http://a/", "properties": {"a": {"$ref": "//["}}})
    assert caught.value.pointer == "#/properties/a/$ref"


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-06/schema", "https://json-schema.org/draft/2019-09/schema"]
)
def test_meta_schemas_may_be_referred_to(draft: str) -> None:
    schema = {"type": "object", "properties": {"schema": {"$ref": draft}}, "required": ["schema"], "additionalProperties": False}
    grammar = Grammar.from_json_schema(schema, key_order="any")
    good = ['{"schema":{"type":"integer","minimum":0}}', '{"schema":true}', '{"schema":{"properties":{"a":{"enum":[1,{}]}}}}']
    bad = ['{"schema":{"type":"integre"}}', '{"schema":{"minimum":"0"}}', '{"schema":5}', '{"schema":{"properties":{"a":{"required":"b"}}}}']
    assert not wrongly_judged(grammar, good, bad)


def test_a_part_of_a_meta_schema_may_be_referred_to_and_what_it_lacks_is_named() -> None:
    check({"$ref": "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger"}, ["0", "7"], ["-1", '"7"'])
    with pytest.raises(InvalidGrammar, match="leads nowhere"):
        compile_schema({"$ref": "http://json-schema.org/draft-07/schema#/definitions/nothing"})
    with pytest.raises(UnsupportedSchema, match="draft-03"):  # older than what is understood
        compile_schema({"$ref": "http://json-schema.org/draft-03/schema#"})
