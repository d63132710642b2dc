"""Random schemas against the jsonschema package: the same verdict on every value, whatever the keywords do to each other."""

from __future__ import annotations

import random

import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars.frontends.json_schema import compile_schema
from agentkit.grammars.frontends.json_schema.types import InPlaceCycle
from tests.grammars import reference
from tests.grammars.json_schema.oracle import Exact, dump
from tests.grammars.json_schema.random_schemas import Maker, value


@pytest.mark.parametrize("block", range(8))
def test_verdicts_equal_those_of_jsonschema(block: int) -> None:
    compared = 0
    for seed in range(12 * block, 12 * block + 12):
        r = random.Random(seed)
        schema = Maker(r, strings=seed % 2 == 0).document()
        values = [value(r) for _ in range(25)]
        try:
            known = reference.Reference(compile_schema(schema, key_order="any").program)
        except InPlaceCycle:  # jsonschema would recurse for ever
            continue
        except (UnsupportedSchema, GrammarTooComplex):
            continue
        except UnsatisfiableSchema:
            known = None
        oracle = Exact(schema)
        for v in values:
            taken = known is not None and reference.accepts(known, dump(v).encode())
            assert taken == oracle.is_valid(v), (seed, schema, v)
            compared += 1
    assert compared > 100


def test_most_random_schemas_are_within_reach() -> None:
    """Refusals stay rare, so that the comparison above means something."""
    refused = 0
    for seed in range(200):
        try:
            compile_schema(Maker(random.Random(seed)).document())
        except (UnsupportedSchema, GrammarTooComplex):
            refused += 1
        except (InvalidGrammar, UnsatisfiableSchema):
            continue
    assert refused <= 6
