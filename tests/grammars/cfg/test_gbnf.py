"""GBNF and EBNF as llama.cpp and xgrammar write them: what each construct takes, and how wrong texts are refused."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar
from tests.cases.judge import BYTES, wrongly_judged
from tests.grammars.cfg.walks import random_text

CONSTRUCTS = [
    ('root ::= "a" | "b" "c"', ["a", "bc"], ["", "ab", "b"]),
    ('root ::= ("a" | "b")* "c"?', ["", "abba", "c", "bac"], ["cc", "ca"]),
    ('root ::= "a"{3}', ["aaa"], ["aa", "aaaa"]),
    ('root ::= "a"{2,}', ["aa", "aaaaaa"], ["", "a"]),
    ('root ::= "a"{1,2} [0-9]{0,1}', ["a", "aa7"], ["", "aaa", "7"]),
    ('root ::= ("a"+){3,}', ["aaa", "aaaaa"], ["", "a", "aa"]),
    ('root ::= ("a" | "a" "a"){2,} "b"', ["aab", "aaaaaab"], ["ab", "b"]),
    ("root ::= [a-cx_.]", ["b", "x", "_", "."], ["d", "-", "ab"]),
    ("root ::= [^a-c\\n]", ["d", "é", "語", "\r"], ["a", "\n", "", "dd"]),
    ("root ::= [a\\]\\\\-]+", ["]", "\\", "-", "a]"], ["b"]),
    ("root ::= [-+]? [0-9]", ["-1", "+2", "3"], ["--1", "-"]),
    ('root ::= "\\x41\\u00e9\\U0001F600\\t\\"\\\\"', ['Aé😀\t"\\'], ["Aé😀", 'Aé😀 "\\']),
    ('root ::= "é" [あ-ん]', ["éの"], ["é", "ée"]),
    ("root ::= . .", ["ab", "語é", "\n\n"], ["a", "abc"]),
    ('root ::= a-b_c.d x1\na-b_c.d ::= "1" # a comment with "quotes" and ::= in it\nx1 ::= "2"', ["12"], ["1", "2"]),
    ('# first\nroot ::=\n  "a" # here\n  | (\n "b" |\n "c" )\n', ["a", "b", "c"], ["", "bc"]),
    ('root ::= "" | "a" root', ["", "aaa"], ["b"]),
    ('root ::= e\ne ::= e "+" t | t\nt ::= "1" | "(" e ")"', ["1", "1+1", "((1)+1)+1"], ["", "1+", "+1", "(1"]),
    ('root ::= a "x"\na ::= b | ""\nb ::= a "y"', ["x", "yx", "yyyx"], ["", "xy", "y"]),
    ('root ::= "a" | never\nnever ::= "b" never', ["a"], ["b", "bb"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), CONSTRUCTS, ids=[text[:30] for text, _, _ in CONSTRUCTS])
def test_constructs(text: str, good: list[str], bad: list[str]) -> None:
    assert not wrongly_judged(Grammar.from_gbnf(text), good, bad)


def test_another_root() -> None:
    assert not wrongly_judged(Grammar.from_gbnf('root ::= "a"\nother ::= "b" root', root="other"), ["ba"], ["a"])


def test_large_counts_stay_counters() -> None:
    grammar = Grammar.from_gbnf('root ::= ("ab"){2,100000}')
    assert len(grammar.program.code) < 50
    assert not wrongly_judged(grammar, ["abab", "ab" * 300], ["ab", "aba"])


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", None, "no rule 'root'"),
        ('other ::= "a"', None, "it defines: other"),
        ('root := "a"', 0, "line 1, column 1"),
        ('root ::= "a" missing', 13, "'missing' is used but not defined"),
        ('root ::= "a"\nroot ::= "b"', 13, "defined twice"),
        ('root ::= ("a"', 9, "never closed"),
        ('root ::= "a")', 12, "closes nothing"),
        ('root ::= "a\nb"', 9, "not closed"),
        ("root ::= [a-z", 9, "not closed"),
        ("root ::= [z-a]", 10, "backwards"),
        ("root ::= []", 9, "holds no character"),
        ("root ::= * [a]", 9, "nothing stands before"),
        ('root ::= "a"{3,1}', 12, "out of order"),
        ('root ::= "a"{x}', 12, "counts are written"),
        ('root ::= "\\q"', 10, "no escape"),
        ('root ::= "\\U00110000"', 10, "beyond the last character"),
        ("root ::= 'a'", 9, "double quotes"),
        ('root ::= "a"\n\nx ::= , "b"', 20, "line 3, column 7"),
    ],
)
def test_wrong_texts_name_their_place(text: str, position: int | None, words: str) -> None:
    with pytest.raises(InvalidGrammar, match=re.escape(words)) as caught:
        Grammar.from_gbnf(text)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("text", "construct"),
    [
        ('root ::= "a" (= "b") "b"', "(=...)"),
        ("root ::= <think> [a-z]*", "<"),
        ("root ::= <[1000]>", "<"),
        ('root ::= !<think> "a"', "!"),
        ('root ::= TagDispatch(("<a>", x))\nx ::= "b"', "TagDispatch"),
    ],
)
def test_what_is_not_offered_is_named(text: str, construct: str) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        Grammar.from_gbnf(text)
    assert caught.value.keyword == construct


def test_nothing_to_match_and_too_much() -> None:
    with pytest.raises(UnsatisfiableSchema, match="'root'"):
        Grammar.from_gbnf('root ::= "a" root')
    with pytest.raises(GrammarTooComplex, match="nested"):
        Grammar.from_gbnf("root ::= " + "(" * 300 + '"a"' + ")" * 300)
    with pytest.raises(GrammarTooComplex, match="counts beyond"):
        Grammar.from_gbnf('root ::= "a"{2000000}')
    with pytest.raises(InvalidGrammar, match="must be text"):
        Grammar.from_gbnf(b'root ::= "a"')  # type: ignore[arg-type]


JSON = r"""
# objects, arrays, strings, numbers
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""

MOVES = r"""
root      ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move      ::= (pawn | nonpawn | castle) [+#]?
nonpawn   ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn      ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle    ::= "O-O" "-O"?
"""


def test_json_texts_are_json() -> None:
    grammar = Grammar.from_gbnf(JSON)
    for seed in range(25):
        json.loads(random_text(grammar, BYTES, np.random.default_rng(seed), 60), strict=False)
    assert not wrongly_judged(grammar, ['{"a": [1, -2.5e3, "x\\u00e9"]}', "{}", '{"a":{}}\n'], ["[]", '{"a"}', '{"a": 01}', "{,}"])


def test_chess_moves() -> None:
    good = ["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 O-O-O\n12. exd5 Qxd5+\n"]
    assert not wrongly_judged(Grammar.from_gbnf(MOVES), good, ["1. e4 e5\n", "1. e9 e5\n2. a1 a1\n", "2. e4 e5\n2. a1 a1\n"])


def test_against_re() -> None:
    """A regular grammar takes exactly what the same regular expression takes."""
    grammar = Grammar.from_gbnf('root ::= a* ("b" a | "a"{2}){1,2} c?\na ::= "a" | "ba"\nc ::= [bc]')
    pattern = re.compile("(?:a|ba)*(?:b(?:a|ba)|aa){1,2}[bc]?")
    texts = ["".join(letters) for size in range(6) for letters in itertools.product("abc", repeat=size)]
    assert not wrongly_judged(grammar, [t for t in texts if pattern.fullmatch(t)], [t for t in texts if not pattern.fullmatch(t)])
