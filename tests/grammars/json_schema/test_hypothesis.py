"""Random schemas against the jsonschema package, both ways: what comes out validates, and what validates is taken.

Values are found by walking the grammar itself and changing what came out a little, so that they lie about the schema's
boundaries. `--slow` runs many more.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar, Vocabulary
from tests.cases.judge import accepts
from tests.grammars.json_schema.oracle import Exact, dump
from tests.grammars.json_schema.random_schemas import NAMES, Maker, value
from tests.grammars.test_random_walks import byte_vocabulary, random_text

VOCABULARY: list[Vocabulary] = []
QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=3000, derandomize=False)


def grammars_of(schema: Any) -> list[Grammar]:
    """The schema's grammars in all four styles; none if it is refused."""
    try:
        return [Grammar.from_json_schema(schema, whitespace=w, key_order=k) for k in ("any", "declared") for w in ("compact", "flexible")]
    except (UnsupportedSchema, GrammarTooComplex, UnsatisfiableSchema, InvalidGrammar):
        return []


def changed(r: random.Random, v: Any) -> Any:
    """A value with one thing changed somewhere."""
    if isinstance(v, list) and v and r.random() < 0.8:
        i = r.randrange(len(v))
        return [*v[:i], *([] if r.random() < 0.3 else [changed(r, v[i])]), *v[i + 1 :]]
    if isinstance(v, dict) and v and r.random() < 0.8:
        name = r.choice(sorted(v))
        kept = {k: x for k, x in v.items() if k != name}
        return kept if r.random() < 0.3 else {**kept, (name if r.random() < 0.7 else r.choice(NAMES)): changed(r, v[name])}
    return value(r, 1)


def check(schema: Any, r: random.Random) -> None:
    styles = grammars_of(schema)
    if not styles:
        return
    oracle, vocabulary = Exact(schema), VOCABULARY[0] if VOCABULARY else byte_vocabulary()
    VOCABULARY[:] = [vocabulary]
    found: list[Any] = [value(r) for _ in range(4)]
    for grammar in styles:
        text = random_text(grammar, vocabulary, np.random.default_rng(r.getrandbits(32)), 60 + shortest(grammar, vocabulary))
        assert oracle.is_valid(json.loads(text)), text
        found.append(json.loads(text))
    for v in [*found, *(changed(r, v) for v in found)]:
        if spelled_canonically(v):
            assert accepts(styles[0], dump(v)) == oracle.is_valid(v), v
            assert accepts(styles[1], json.dumps(v, ensure_ascii=False, indent=1)) == oracle.is_valid(v), v


def shortest(grammar: Grammar, vocabulary: Vocabulary) -> int:
    """Tokens of the shortest text, which may be long."""
    return grammar.matcher(vocabulary).completion_tokens()


def spelled_canonically(v: Any) -> bool:
    """Python writes 1e20 for a float that JSON Schema takes for an integer; integers have no exponent here (docs/spelling.md)."""
    if isinstance(v, list):
        return all(map(spelled_canonically, v))
    if isinstance(v, dict):
        return all(map(spelled_canonically, v.values()))
    return not isinstance(v, float) or "e" not in repr(v) or not v.is_integer()


@QUICK
@given(st.randoms(use_true_random=False), st.booleans())
def test_verdicts_equal_those_of_jsonschema(r: random.Random, strings: bool) -> None:
    check(Maker(r, strings=strings).document(), r)


@pytest.mark.slow
@LONG
@given(st.randoms(use_true_random=False), st.booleans())
def test_verdicts_of_many_schemas(r: random.Random, strings: bool) -> None:
    check(Maker(r, strings=strings).document(), r)
