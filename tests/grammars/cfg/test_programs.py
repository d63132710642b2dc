"""Grammars as users write them, of the size of a programming language: what lark takes is accepted, states stay few."""

from __future__ import annotations

import functools
from pathlib import Path

import lark
import numpy as np
import pytest

from agentkit.grammars import Grammar, Vocabulary
from tests.cases.judge import BYTES, accepts
from tests.grammars.cfg.programs import LONG, NAMES, source
from tests.grammars.cfg.walks import random_text


@functools.cache
def parser(name: str) -> lark.Lark:
    return lark.Lark(source(name), parser="earley", lexer="dynamic")


@functools.cache
def grammar(name: str) -> Grammar:
    return Grammar.from_lark(source(name))


@pytest.mark.parametrize("name", ["calc", "lua", "statements"])
def test_what_is_written_lark_takes(name: str) -> None:
    for seed in range(4):
        parser(name).parse(random_text(grammar(name), BYTES, np.random.default_rng(seed), 30))


WRONG = {
    "calc": ["", "1 +", "a b", "x = y = 1", "(1", "1.5.2"],
    "lua": ["x", "f(", "local function end", "return 1 x = 2", "x = 1 +", "x = not", "if x then", "a = 'b", "endx = = 1"],
    "statements": ["def f {", "x = ", "lambda: ", "x + * y", "x = y = 1", "f(a b)", '"a', "f(x", "# no\n)"],
}


@pytest.mark.parametrize("name", WRONG)
def test_texts(name: str) -> None:
    good = LONG[name][: LONG[name].find("\nlocal") if name == "lua" else LONG[name].find(" def f1") if name == "statements" else len("total = (1.5 + x0)")]
    parser(name).parse(good)
    assert accepts(grammar(name), good)
    for text in WRONG[name]:
        with pytest.raises(lark.exceptions.LarkError):
            parser(name).parse(text)
        assert not accepts(grammar(name), text), text


@pytest.mark.parametrize("name", NAMES)
def test_states_stay_few(name: str, shared: Path) -> None:
    """States made for a text of over 300 tokens: their number follows the text, not the ways to go on from it."""
    vocabulary = Vocabulary.from_tokenizer(shared / "maskbench" / "tok" / "smollm2" / "tokenizer.json", stop_token_ids=[2])
    matcher = grammar(name).matcher(vocabulary)
    tokens, before = vocabulary.encode_text(LONG[name]), matcher._arena.node_count
    assert len(tokens) >= 300
    for token in tokens:
        assert matcher.allows(token)
        matcher.accept(token)
    assert matcher.is_accepting
    assert matcher._arena.node_count - before < 100_000
