"""The bank's JSON Schema cases: what the grammar must take, must refuse, and how the schema itself may be refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pydantic
import pytest

from agentkit import errors, grammars
from agentkit.grammars import Grammar, Vocabulary
from tests.cases.bank import CASES, Case, of_kind
from tests.cases.judge import BYTES, REFUSALS, accepts, check_budget, compiled, schema_grammar, schema_of, wrongly_judged

SCHEMAS = of_kind("schema", "schema")

CONTRADICTIONS = {
    "sch-dangling-ref": "#/properties/b/items",
    "sch-int-min-above-max": "#",
    "sch-oneof-required-all-overlap": "#",
    "sch-required-impossible": "#",
    "sch-tuple-too-short": "#",
}
"""Where the error must point, for the cases that must be refused."""


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in SCHEMAS])
def test_case(case: Case) -> None:
    expect = case["expect"]
    compile_ = expect.get("compile", "ok")
    schema = schema_of(case["input"])
    if compile_.startswith("reject"):
        check_refusal(case, schema)
        return
    try:
        grammar, seconds = compiled(lambda: schema_grammar(schema))
    except REFUSALS[compile_] as error:
        check_pointer(error, schema)
        return
    check_budget(case, seconds)
    accept = expect["must_accept"] + [json.dumps(eval(text), ensure_ascii=False) for text in expect.get("must_accept_expr", ())]
    reject = expect["must_reject"] + [json.dumps(eval(text), ensure_ascii=False) for text in expect.get("must_reject_expr", ())]
    assert not wrongly_judged(grammar, accept, reject + expect.get("policy_reject", []) + expect.get("disputed", {}).get("text", []))


def check_refusal(case: Case, schema: Any) -> None:
    """Refused with the right type, the right pointer, and within the budget."""
    with pytest.raises(REFUSALS[case["expect"]["compile"]]) as caught:
        compiled(lambda: schema_grammar(schema))
    check_pointer(caught.value, schema)
    assert caught.value.pointer == CONTRADICTIONS[case["id"]]
    assert str(caught.value).startswith(caught.value.pointer + ":")


def check_pointer(error: Any, schema: Any) -> None:
    """The pointer leads to a place of the schema: a refusal of no place in particular helps nobody."""
    assert isinstance(error.pointer, str)
    root, *steps = error.pointer.split("/")
    assert root == "#"
    place = schema.model_json_schema() if isinstance(schema, type) else schema
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        place = place[int(name)] if isinstance(place, list) else place[name]


def test_every_refusal_has_a_place() -> None:
    assert set(CONTRADICTIONS) == {case["id"] for case in SCHEMAS if case["expect"]["compile"].startswith("reject")}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in SCHEMAS if case["expect"]["compile"] == "ok_or_explicit_unsupported"])
def test_what_may_be_refused_is_enforced(case: Case) -> None:
    """The case would also allow a refusal; the front end enforces all of them."""
    assert isinstance(schema_grammar(schema_of(case["input"])), Grammar)


def test_a_dangling_reference_is_named() -> None:
    with pytest.raises(errors.InvalidGrammar, match="#/\\$defs/Block"):
        schema_grammar(schema_of(CASES["sch-dangling-ref"]["input"]))


def strict_value(text: str) -> Any:
    """The value of a JSON text by RFC 8259; floats that JSON does not have are refused."""

    def no_constant(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=no_constant)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in SCHEMAS if case["expect"].get("may_refuse")])
def test_a_validator_takes_what_a_generator_may_leave_out(case: Case) -> None:
    """These texts are valid; that the grammar writes another spelling must not make a value invalid."""
    validator = jsonschema.Draft202012Validator(schema_of(case["input"]), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for text in case["expect"]["may_refuse"]:
        validator.validate(strict_value(text))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in SCHEMAS if case["expect"]["must_accept"]])
def test_a_validator_takes_what_the_grammar_must_take(case: Case) -> None:
    schema = schema_of(case["input"])
    for text in case["expect"]["must_accept"]:
        if isinstance(schema, type) and issubclass(schema, pydantic.BaseModel):
            schema.model_validate_json(text)
        else:
            jsonschema.Draft202012Validator(schema).validate(strict_value(text))


def test_large_integers_survive_a_round_trip() -> None:
    """Case sch-int-is-mathematical: 2**53 + 1 is no float."""
    text = "9007199254740993"
    assert accepts(Grammar.from_json_schema({"type": "integer"}), text)
    assert json.dumps(json.loads(text)) == text


@pytest.mark.parametrize("text", ["1" * 1000, "-" + "1" * 1000, "0." + "1" * 1000, "1e" + "1" * 1000], ids=["integer", "negative", "fraction", "exponent"])
def test_digits_of_a_free_number_are_bounded(text: str) -> None:
    """Case sch-empty-schema: an unconstrained value can always end."""
    assert not accepts(schema_grammar(schema_of(CASES["sch-empty-schema"]["input"])), text)


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}, "additionalProperties": False}


def fastest(count: int) -> float:
    """Least CPU time of several cold compilations."""
    times = []
    for _ in range(5):
        grammars.clear_caches()
        times.append(compiled(lambda: schema_grammar(properties(count)))[1])
    return min(times)


@pytest.mark.usefixtures("warm")
def test_time_grows_with_the_number_of_properties_not_its_square() -> None:
    """Case sch-600-properties: time(1200) / time(600) < 3."""
    budget = CASES["sch-600-properties"]["expect"]["budget"]
    assert budget["growth"] == "time(1200)/time(600) < 3"
    assert fastest(1200) < 3 * fastest(600)


def test_a_pattern_with_an_exponential_automaton_takes_few_states() -> None:
    """Case sch-pattern-dfa-blowup: its minimal automaton has over 2**16 states; only those that are visited are built."""
    case = CASES["sch-pattern-dfa-blowup"]
    vocabulary = Vocabulary(BYTES.tokens, stop_token_ids=BYTES.stop_token_ids)
    grammar, _ = compiled(lambda: schema_grammar(schema_of(case["input"])), vocabulary)
    for text in case["expect"]["must_accept"]:
        matcher = grammar.matcher(vocabulary)
        for byte in text.encode():
            matcher.mask()
            matcher.accept(byte)
        assert matcher.is_accepting
    assert vocabulary.arena.node_count <= case["expect"]["budget"]["states"]
