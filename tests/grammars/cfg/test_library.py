"""The grammars that come along: what they let through, independent parsers take (json, ast, sqlite3); ordinary texts are accepted."""

from __future__ import annotations

import ast
import functools
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agentkit.engine import Engine
from agentkit.errors import InvalidGrammar
from agentkit.grammars import Grammar, Vocabulary, library
from tests.cases.judge import BYTES, wrongly_judged
from tests.grammars.cfg.walks import random_text

SYNTAX = ("syntax error", "unrecognized token", "incomplete input")


def parse_sql(text: str) -> None:
    """SQLite reads the statement; that tables, columns and functions do not exist is no matter of syntax."""
    try:
        sqlite3.connect(":memory:").execute(f"EXPLAIN {text}")
    except sqlite3.Error as error:
        if any(words in str(error) for words in SYNTAX):
            raise ValueError(f"{error}: {text}") from error


def parse_python(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # such as a call of a number
        ast.parse(text.strip(), mode="eval")


PARSERS: dict[str, Callable[[str], object]] = {"arithmetic": parse_python, "json": json.loads, "python": parse_python, "sql": parse_sql}


@functools.cache
def grammar(name: str) -> Grammar:
    return Grammar.from_lark(library.load(name))


@pytest.mark.parametrize("name", library.NAMES)
def test_walks_over_bytes(name: str) -> None:
    for seed in range(8):
        PARSERS[name](random_text(grammar(name), BYTES, np.random.default_rng(seed), 40))


@pytest.mark.parametrize("name", library.NAMES)
def test_walks_over_tokens_of_a_model(name: str, shared: Path) -> None:
    vocabulary = Vocabulary.from_tokenizer(shared / "maskbench" / "tok" / "smollm2" / "tokenizer.json", stop_token_ids=[2])
    for seed in range(3):
        PARSERS[name](random_text(grammar(name), vocabulary, np.random.default_rng(seed), 20))


TEXTS = {
    "arithmetic": (["1", "-2*(3+4)**-2 // 5 % 6", "1.5e3 - +2"], ["", "1+", "01", "(1", "1 2", "a"]),
    "json": (['{"a": [1, -0.5e+3, true, null, "\\u00e9\\n"]}', "[]", ' "x" '], ["{a: 1}", "[1,]", "01", "'a'", "[1 2]", "tru"]),
    "python": (
        [
            "x.y[1:2, ::3](a, b=2)",
            "[i * 2 for i in range(10) if i % 2]",
            "{'a': 1, 'b': [2, 3]}",
            "{k: v for k, v in x.items()}",
            "not a in b",
            "a not in b is not None",
            "a if b else c if d else e",
            "not not a or - b ** ~ c",
            "a<b<=c!=d",
            "(1,)",
            "()",
            '"x" + y',
            "notx or ifx",
            "x[1:, :2, ::, 3]",
            "'\\n' if x else(y)",
            "1 if 2 else 3",
            "1.real".replace("1.", "1 ."),
        ],
        [
            *("x = 1", "lambda x: x", "f(a=1, 2)", "not", "if", "1if", "1if 2 else 3", "[i for in x]", "'a", "a.for", "a b", "a not b", "a is is b"),
            *("a if b", "a if b else", "1.real", "1x", "01", "a<>b", "x[]", "(a, b", "{a: 1, b}", "f(a=1=2)", "+", "a +", "* a", "1 2", "a 'b'", "True.x = 1"),
        ],
    ),
    "sql": (
        [
            "SELECT * FROM users",
            "select u.name, count(*) from users as u left join orders o on u.id = o.user_id where o.total > 10.5 group by u.name having count(*) > 1;",
            "SELECT DISTINCT a FROM t WHERE b IN (SELECT c FROM d) AND e NOT LIKE 'it''s %' OR f IS NOT NULL ORDER BY a DESC LIMIT 10 OFFSET 5",
            "SELECT CASE WHEN x < 0 THEN 'neg' ELSE 'pos' END FROM t UNION ALL SELECT 1",
            'SELECT a b, c AS d, t.*, e"f" FROM t u, (SELECT 1) v CROSS JOIN w USING (a, b)',
            'select-1,- -x||\'a\'||"b""c"*2%3 from t',
            "SELECT NOT a BETWEEN b AND c AND d NOT IN (1, 2.5e3) OR EXISTS (SELECT * FROM t)",
            "SELECT cast(a AS text) FROM t GROUP BY a, b HAVING sum(DISTINCT c) >= 1 INTERSECT SELECT * FROM u LIMIT 3",
        ],
        [
            "SELECT",
            "SELECT * FROM",
            "SELECT FROM t",
            "DELETE FROM t",
            "SELECT * FROM t; DROP TABLE t",
            "SELECT a FROM where",
            "SELECTa FROM t",
            "SELECT 'a FROM t",
            *("SELECT a FROM t WHERE", "SELECT a b c FROM t", "SELECT 1a", "SELECT a FROM t LIMIT x", "SELECT a,, b", "SELECT (a", "SELECT a NOT b"),
            *("SELECT a IS b", "SELECT --a", "SELECT a FROM t ORDER a", "SELECT CASE END", "SELECT select", "SELECT a FROM t JOIN", "SELECT 1 UNION"),
        ],
    ),
}


@pytest.mark.parametrize("name", library.NAMES)
def test_texts(name: str) -> None:
    good, bad = TEXTS[name]
    assert not wrongly_judged(grammar(name), good, bad)
    for text in good:
        PARSERS[name](text)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(InvalidGrammar, match="arithmetic, json, python, sql"):
        library.load("cobol")


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path) -> Iterator[Engine]:
    with Engine("smollm2-135m") as engine:
        yield engine


TASKS = {
    "arithmetic": "Write the sum of 12 and 30 as arithmetic: ",
    "json": "Ada is 36 years old and lives in London. As JSON: ",
    "python": "A Python list comprehension with the squares of the numbers below ten: ",
    "sql": "An SQL query for the names of all users older than 30: ",
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("seeds", [[1], pytest.param([2, 3, 4, 5], marks=pytest.mark.slow)], ids=["once", "often"])
def test_a_real_model_writes_what_parsers_take(engine: Engine, name: str, seeds: list[int]) -> None:
    """Greedy and sampled; the guard ends what is in the middle of something when the tokens run out."""
    for seed in seeds:
        for temperature, most in ((0.0, 8 * seed), (1.2, 24)):
            written = engine.generate(TASKS[name], grammar=grammar(name), temperature=temperature, seed=seed, max_tokens=most)
            assert written.finish_reason in ("stop", "length")  # length: it could have gone on, but what is there is whole
            PARSERS[name](written.text)
