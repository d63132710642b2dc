"""Whatever a model picks under the masks, a valid text comes out: uniform random picks over real function-calling schemas."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from agentkit.grammars import Grammar, Vocabulary

SCHEMAS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "minLength": 1, "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["C", "F"]},
            "where": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"tags": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 2}}, "required": ["tags"]},
]


def byte_vocabulary() -> Vocabulary:
    """Every byte, and pieces that cross the borders of JSON's parts."""
    pieces = [b'":', b'","', b'"}', b'{"', b"},", b'":"', b"true", b"fals", b"e}", b"10", b"00", b"\\u", b"d8", b"\xc3\xa9", b"\xf0\x9f\x98\x80"]
    return Vocabulary([*(bytes([b]) for b in range(256)), *pieces, None], stop_token_ids=[256 + len(pieces)])


def pick(row: np.ndarray, rng: np.random.Generator) -> int:
    return int(rng.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))))


def random_text(grammar: Grammar, vocabulary: Vocabulary, rng: np.random.Generator, budget: int) -> bytes:
    """A text written as the engine does it: uniform picks under the mask, and under the guard's where what was picked no longer fits."""
    matcher = grammar.matcher(vocabulary)
    text = b""
    for left in range(budget, 0, -1):
        token = pick(matcher.mask(), rng)
        if not matcher.fits(token, left):
            token = pick(matcher.guarded_mask(left), rng)
        matcher.accept(token)
        if matcher.is_finished:
            break
        text += vocabulary.tokens[token] or b""
    assert matcher.is_accepting or matcher.is_finished
    return text


@pytest.mark.parametrize("schema", SCHEMAS, ids=["bounded", "open"])
@pytest.mark.parametrize("seed", range(40))
def test_random_picks_make_valid_values(schema: dict[str, Any], seed: int) -> None:
    grammar, rng = Grammar.from_json_schema(schema), np.random.default_rng(seed)
    text = random_text(grammar, byte_vocabulary(), rng, int(rng.integers(60, 200)))
    jsonschema.validate(json.loads(text), schema)


def test_random_picks_over_function_calling_schemas(shared: Path) -> None:
    tokenizer = shared / "maskbench" / "tok" / "smollm2" / "tokenizer.json"
    vocabulary = Vocabulary.from_tokenizer(tokenizer, stop_token_ids=[2])
    with gzip.open(shared / "maskbench" / "open.jsonl.gz", "rt") as lines:
        cases = [case for case in map(json.loads, lines) if case["id"].startswith(("Glaiveai2K", "BFCL"))]
    assert len(cases) == 70
    for number, case in enumerate(cases):
        grammar, rng = Grammar.from_json_schema(case["schema"]), np.random.default_rng(number)
        text = random_text(grammar, vocabulary, rng, grammar.matcher(vocabulary).completion_tokens() + 24)
        jsonschema.validate(json.loads(text), case["schema"])


def test_names_that_are_taken_do_not_count_as_short_completions() -> None:
    """Two names with a backslash: the second cannot be the shortest one again."""
    schema = {"type": "object", "patternProperties": {"\\\\": {"type": "string"}}, "additionalProperties": False, "minProperties": 2}
    grammar, vocabulary = Grammar.from_json_schema(schema), byte_vocabulary()
    needed = grammar.matcher(vocabulary).completion_tokens()
    for seed in range(12):
        text = random_text(grammar, vocabulary, np.random.default_rng(seed), needed + seed % 4)
        jsonschema.validate(json.loads(text), schema)
