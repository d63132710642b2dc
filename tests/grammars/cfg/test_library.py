"""The grammars that come along: what they let through, independent parsers take (json, ast); ordinary texts are accepted."""

from __future__ import annotations

import ast
import functools
import json
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from agentkit.engine import Engine
from agentkit.engine.models.store import path
from agentkit.errors import InvalidGrammar, ModelNotFound
from agentkit.grammars import Grammar, library
from tests.cases.judge import BYTES, wrongly_judged
from tests.grammars.cfg.walks import random_text


def parse_python(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # such as a call of a number
        ast.parse(text.strip(), mode="eval")


PARSERS: dict[str, Callable[[str], object]] = {"arithmetic": parse_python, "json": json.loads}


NAMES = ["arithmetic", "json"]


@functools.cache
def grammar(name: str) -> Grammar:
    return Grammar.from_lark(library.load(name))


@pytest.mark.parametrize("name", NAMES)
def test_walks_over_bytes(name: str) -> None:
    for seed in range(20):
        PARSERS[name](random_text(grammar(name), BYTES, np.random.default_rng(seed), 40))


TEXTS = {
    "arithmetic": (["1", "-2*(3+4)**-2 // 5 % 6", "1.5e3 - +2"], ["", "1+", "01", "(1", "1 2", "a"]),
    "json": (['{"a": [1, -0.5e+3, true, null, "\\u00e9\\n"]}', "[]", ' "x" '], ["{a: 1}", "[1,]", "01", "'a'", "[1 2]", "tru"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_texts(name: str) -> None:
    good, bad = TEXTS[name]
    assert not wrongly_judged(grammar(name), good, bad)
    for text in good:
        PARSERS[name](text)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(InvalidGrammar, match="arithmetic, json, python, sql"):
        library.load("cobol")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    try:
        path("smollm2-135m")
    except ModelNotFound:
        pytest.skip("SmolLM2 is not in the cache: run `agentkit models pull smollm2-135m`")
    with Engine("smollm2-135m") as engine:
        yield engine


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("arithmetic", "Write the sum of 12 and 30 as arithmetic: "),
        pytest.param("json", "Ada is 36 years old and lives in London. As JSON: ", marks=pytest.mark.slow),
    ],
)
def test_a_real_model_writes_what_parsers_take(engine: Engine, name: str, task: str) -> None:
    for temperature in (0.0, 1.2):
        written = engine.generate(task, grammar=grammar(name), temperature=temperature, seed=1, max_tokens=32)
        assert written.finish_reason in ("stop", "length")  # length: it could have gone on, but what is there is whole
        PARSERS[name](written.text)
