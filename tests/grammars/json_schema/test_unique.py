"""uniqueItems over values of any kind: what is equal, where it is refused, what can run out; against jsonschema on random walks."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentkit.errors import GrammarViolation, NoTokenPath, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.core.layout import INFINITE
from agentkit.grammars.frontends.json_schema import compile_schema
from tests.grammars.json_schema.oracle import check

STOP = 400
PIECES = [b'","', b"},{", b"1,1", b'"a","a"', b'":"', b'{"', b'a"},{"k":"a"', b"tr", b"ue,true", b"0,0", b'},{"a":', b'"a":1},{"a":1', b"1.0", b".0,1"]
PIECES += [b",1", b"1]", b'"]', b"true", b"null", b",null", b"],[", b"[]", b"[],[]", b"{}", b",{}", b"\\u0061", b"\\u", b"00", b"61"]
TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), *PIECES]
PAIR = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 1}, "b": {"type": "boolean"}}, "additionalProperties": False}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """All bytes, and tokens that end an item and go on with the next."""
    return Vocabulary(TOKENS, stop_token_ids=[STOP])


def unique(**more: Any) -> dict[str, Any]:
    return {"type": "array", "uniqueItems": True, **more}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (["[]", "[{}]", '[{"a":1},{"a":2}]', '[{},{"a":{}}]'], ["[{},{}]", '[{"a":1},{"a":1}]', '[{"a":{}},{"a":{}}]']),
        (['[{"a":1,"b":2},{"a":2,"b":1}]'], ['[{"a":1,"b":2},{"b":2,"a":1}]', '[{"a":{"x":1,"y":[0]}},{"a":{"y":[0.0],"x":1.00}}]']),
        (["[1,10,100,1.5,-1]", "[0.001,0.0010001]", "[1e3,100]"], ["[1,1.0]", "[0,-0]", "[0.0,0]", "[100,1e2]", "[0.1,1e-1]", "[1.5e1,15]", "[2,3,2]"]),
        (["[true,1,false,0,null]", '["true",true,"",[],{}]'], ["[true,false,true]", "[null,null]", "[[],[]]", "[false,false]"]),
        (["[[1],[1,2],[[1]]]", "[[1,2],[2,1]]"], ["[[1],[1]]", "[[[1]],[[1.0]]]", "[[1,[2]],[1,[2]]]"]),
        (['["a","ab","","b"]', r'["\u0061","A"]', r'["\n","n"]'], ['["a","ab","a"]', r'["\u0061","a"]', r'["\n","\u000A"]', '["",""]', r'["\/","/"]']),
        ([r'["\ud83d\ude00","\ud83d\ude01"]', '["é","e"]'], [r'["\ud83d\ude00","😀"]', r'["é","\u00e9"]', r'[{"k":"é"},{"k":"\u00E9"}]']),
    ],
)
def test_what_is_equal(good: list[str], bad: list[str]) -> None:
    check(unique(), good, bad, key_order="any")
    spaced = [" ".join(json_tokens(t)) for t in (*good, *bad)]
    check(unique(), spaced[: len(good)], spaced[len(good) :], whitespace="flexible", key_order="any")


def json_tokens(text: str) -> list[str]:
    """A text cut where white space may stand."""
    out, in_text = [""], False
    for i, c in enumerate(text):
        in_text ^= c == '"' and not text[:i].endswith("\\")
        out[-1] += c
        if not in_text and (c in '[{,:"' or text[i + 1 : i + 2] in "]},:"):
            out.append("")
    return [part for part in out if part]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('[{"id":1,"name":"a"},{"id":1,"name":"a"}]', 39),  # the closing quote could still have been followed by another name
        ('[["a"],["a"]]', 11),
        ('["ab","abc","ab"]', 15),
        ("[12,1,12]", 8),  # a digit may follow, a comma or a bracket may not
        ("[true,true]", 6),  # nothing but the rest of the word could come
        ("[null,[null],[null]]", 18),
    ],
)
def test_refused_at_the_very_byte(vocabulary: Vocabulary, text: str, right: int) -> None:
    matcher = Grammar.from_json_schema(unique()).matcher(vocabulary)
    matcher.accept_bytes(text[:right].encode())
    with pytest.raises(GrammarViolation):
        matcher.accept_bytes(text[right : right + 1].encode())


def test_closed_objects_are_refused_where_they_can_only_repeat(vocabulary: Vocabulary) -> None:
    item = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}
    matcher = Grammar.from_json_schema(unique(items=item)).matcher(vocabulary)
    matcher.accept_bytes(b'[{"name":"x"},{"name":"x')
    with pytest.raises(GrammarViolation):
        matcher.accept_bytes(b'"')
    twin = matcher.fork()
    matcher.accept_bytes(b'y"}]')
    twin.accept_bytes(b'"'.replace(b'"', b'z"'))
    twin.rollback()
    with pytest.raises(GrammarViolation):
        twin.accept_bytes(b'"')
    assert matcher.is_accepting


def test_values_that_run_out(vocabulary: Vocabulary) -> None:
    matcher = Grammar.from_json_schema(unique(items={**PAIR, "required": ["a"]})).matcher(vocabulary)
    matcher.accept_bytes(b'[{"a":0},{"a":1},{"a":0,"b":true},{"a":1,"b":true},{"a":0,"b":false},{"a":1,"b"')
    assert matcher.forced_bytes() == b":false}]"
    whole = Grammar.from_json_schema(unique(items=PAIR, minItems=9)).matcher(vocabulary)  # all there are
    text = bytes(whole.arena.shortest_completion(whole.state).astype(np.uint8))
    assert len({json.dumps(item) for item in json.loads(b"[" * (text[:1] != b"[") + text)}) == 9


@pytest.mark.parametrize(
    "schema",
    [
        unique(items=PAIR, minItems=10),
        unique(items={"type": ["boolean", "array"], "maxItems": 0}, minItems=4),
        unique(items=unique(items={"enum": ["a", "b", "c"]}, minItems=2, maxItems=2), minItems=7),
        unique(items={"$ref": "#"}, minItems=2),
    ],
)
def test_too_few_values(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsatisfiableSchema):
        compile_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        unique(items=PAIR, minItems=9),
        unique(items={"type": ["boolean", "array"], "maxItems": 0}, minItems=3),
        unique(items=unique(items={"enum": ["a", "b", "c"]}, minItems=2, maxItems=2), minItems=6),
        unique(items={"type": "object", "properties": {"next": {"$ref": "#/items"}}, "additionalProperties": False}, minItems=50),
        unique(items={"type": "number", "minimum": 0, "maximum": 1}, minItems=20),
        unique(prefixItems=[{"type": "boolean"}, {"type": "object"}], items={"type": "string"}, minItems=3),
    ],
)
def test_just_enough_values(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    matcher = Grammar.from_json_schema(schema).matcher(vocabulary)
    text = bytes(matcher.arena.shortest_completion(matcher.state).astype(np.uint8))
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize(
    "schema",
    [
        unique(contains={"type": "object"}),
        unique(prefixItems=[{"type": "object"}, {"type": "object"}], minItems=2),
        unique(
            items={"anyOf": [{"type": "object", "maxProperties": 0}, {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}]},
            minItems=3,
        ),
    ],
)
def test_what_may_run_out_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema({"properties": {"x": schema}})
    assert (caught.value.pointer, caught.value.keyword) == ("#/properties/x", "uniqueItems")


def test_a_vocabulary_that_spells_too_few_values() -> None:
    some = Vocabulary([bytes([byte]) for byte in b'[]{}",1'], stop_token_ids=[50])
    numbers = unique(items={"type": ["integer", "array"], "maximum": 1, "maxItems": 0, "minimum": 0})
    assert Grammar.from_json_schema({**numbers, "minItems": 2}).matcher(some).completion_tokens() == len("[1,[]]")
    with pytest.raises(NoTokenPath):
        Grammar.from_json_schema({**numbers, "minItems": 3}).matcher(some).completion_tokens()


SCHEMAS = [
    unique(),
    unique(items=PAIR),
    unique(items={**PAIR, "required": ["a"]}, minItems=5),
    unique(items={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}, minItems=3),
    unique(items={"type": ["number", "null", "array", "string"]}, minItems=2),
    unique(prefixItems=[{"type": "boolean"}, {"type": "object"}], items={"type": ["integer", "boolean"], "minimum": 0, "maximum": 4}, minItems=2),
    {"type": "object", "properties": {"x": unique(items=unique(items={"type": ["boolean", "integer"], "minimum": 0, "maximum": 1}))}, "required": ["x"]},
    unique(items={"anyOf": [unique(minItems=1), {"type": "number"}]}, minItems=2),
    unique(items={"$ref": "#"}),
]


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def pick(rng: random.Random, tokens: list[int]) -> int:
    """Short and structural tokens rather than others, so that items repeat."""
    texts = [TOKENS[t] if t < len(TOKENS) else b"]" for t in tokens]
    weights = [8.0 if text in b'{}[],:01atfn\\"' else 1 if len(text) > 1 else 0.02 if not 32 <= text[0] < 127 else 0.3 for text in texts if text is not None]
    return rng.choices(tokens, weights)[0]


def walk(matcher: Matcher, rng: random.Random, budget: int, looks: float) -> bytes:
    """A text within the budget; masks are compared with what is accepted token by token, guarded ones with what fits."""
    text = b""
    for left in range(budget, -1, -1):
        if rng.random() < looks:
            right = {t for t in range(len(TOKENS)) if matcher.allows(t)} | ({STOP} if matcher.is_accepting else set())
            assert set(allowed(matcher.mask())) == right, text
        tokens = allowed(matcher.mask(remaining=left))
        if matcher.is_guarded(left):
            assert all(matcher.fits(t, left) for t in tokens), text
        token = pick(rng, tokens)
        if not matcher.fits(token, left):
            token = rng.choice(allowed(matcher.guarded_mask(left)))
        matcher.accept(token)
        if matcher.is_finished:
            return text
        text += TOKENS[token] or b""
    raise AssertionError(f"cut off: {text!r}")


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize(("whitespace", "key_order"), [("compact", "declared"), ("flexible", "any")])
def test_random_walks_are_valid_and_end_within_their_budget(vocabulary: Vocabulary, schema: dict[str, Any], whitespace: Any, key_order: Any) -> None:
    rng = random.Random(f"{SCHEMAS.index(schema)} {whitespace}")
    grammar = Grammar.from_json_schema(schema, whitespace=whitespace, key_order=key_order)
    for _ in range(6):
        matcher = grammar.matcher(vocabulary)
        least = matcher.completion_tokens()
        assert least < INFINITE
        text = walk(matcher, rng, max(rng.choice([20, 60, 150]), least + rng.randrange(3)), 0.1)
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text


def test_random_instances(vocabulary: Vocabulary) -> None:
    rng = random.Random(7)

    def value(depth: int) -> Any:
        kind = rng.randrange(7 if depth else 5)
        if kind < 5:
            return rng.choice([0, 1, 1.0, 2.5, True, None, "", "a", "é"])
        return [value(depth - 1) for _ in range(rng.randrange(3))] if kind == 5 else {rng.choice("abc"): value(depth - 1) for _ in range(rng.randrange(3))}

    grammar = Grammar.from_json_schema(unique(), whitespace="flexible", key_order="any")
    verdicts = []
    for _ in range(400):
        array = [value(2) for _ in range(rng.randrange(5))]
        matcher, right = grammar.matcher(vocabulary), jsonschema.Draft202012Validator(unique()).is_valid(array)
        try:
            matcher.accept_bytes(json.dumps(array, ensure_ascii=rng.random() < 0.5).encode())
            verdicts.append((matcher.is_accepting, right))
        except GrammarViolation:
            verdicts.append((False, right))
    assert all(taken == right for taken, right in verdicts)
    assert {right for _, right in verdicts} == {True, False}
