"""Lark grammars, construct by construct: what lark takes is accepted, what cannot be enforced is refused by name, errors name their place."""

from __future__ import annotations

import time

import lark
import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar
from tests.cases.judge import BYTES, wrongly_judged

CONSTRUCTS = {
    "direct left recursion": ('start: start "a" | "b"\n', ["b", "baa"], ["", "ab", "bb"]),
    "mutual left recursion": ('start: x\nx: y "a" | "b"\ny: x "c" | "d"\n', ["b", "da", "bca", "daca"], ["a", "bc", "d"]),
    "hidden left recursion": ('start: x\nx: e x "a" | "b"\ne: "c" |\n', ["b", "ba", "cba", "ccbaa"], ["c", "cb", "a"]),
    "nullable in a row": ('start: a a a\na: "q" |\n', ["", "q", "qqq"], ["qqqq"]),
    "a rule that is itself": ('start: x\nx: x | y\ny: x | "k"\n', ["k"], ["", "kk"]),
    "templates": ('start: _sep{NUM, ","}\n_sep{x, s}: x (s x)*\nNUM: /[0-9]+/\n', ["1", "1,22,3"], ["", "1,", ",1"]),
    "counted repeats": ('start: "a"~2 "b"~1..3\n', ["aab", "aabbb"], ["ab", "aa", "aabbbb"]),
    "optional and groups": ('start: ["a"] ("b" | "c")+ "d"?\n', ["b", "acbd"], ["a", "ad", "dd"]),
    "flags": ('start: A "B"i\nA: /a.c/is\n', ["aXCb", "A\ncB"], ["ac", "abc"]),
    "verbose flag": ("start: A\nA: /a  b/x\n", ["ab"], ["a  b"]),
    "priorities change no language": ('start: (A | B)+\nA.2: "a"\nB.1: /ab?/\n', ["a", "ab", "aab"], ["b", ""]),
    "ignored text": ('start: "a" "b"\n%ignore " "\n%ignore /#[^\\n]*\\n/\n', ["ab", " a  b ", "a#x\nb"], ["a b#", "#a b"]),
    "import common": ("start: INT WS ESCAPED_STRING\n%import common (INT, WS)\n%import common.ESCAPED_STRING\n", ['1 "a\\"b"', '22\t\n""'], ['1"a"', '1 "a']),
    "import with another name": ("start: N\n%import common.SIGNED_NUMBER -> N\n", ["-1.5", "2e3"], ["-", "--1", ""]),
    "extend": ('start: x\nx: "a"\n%extend x: "b"\n', ["a", "b"], ["ab"]),
    "override": ('start: D\n%import common.DIGIT -> D\n%override D: "x"\n', ["x"], ["1"]),
    "longest match": ("start: NAME NUM?\nNAME: /[a-z]+/\nNUM: /[a-z0-9]+/\n", ["a", "ab", "a1", "ab2c"], ["1", ""]),
    "lazy terminals": ('start: S S\nS: /".*?"/\n', ['"a""b"', '""""'], ['"a"', '"a"b"']),
    "terminal of terminals": ('start: HEX\nHEX: "0x" (DIGIT | "a".."f")+\nDIGIT: "0".."9"\n', ["0x1f"], ["0x", "1f", "0xg"]),
    "a useless rule": ('start: "a" | x\nx: "b" x\n', ["a"], ["b", "bb"]),
    "an unreachable rule": ('start: "a"\nx: "b" x\n', ["a"], ["b"]),
    "characters beyond ASCII": ('start: "é" /[あ-ん]+/ "\\u20ac"\n', ["éのの€"], ["éの", "eの€"]),
    "word boundary": ("start: A B\nA: /a+\\b/\nB: /.+/\n", ["a-b", "aa b"], ["ab", "a"]),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs(name: str) -> None:
    text, good, bad = CONSTRUCTS[name]
    parser = lark.Lark(text, parser="earley", lexer="dynamic")
    for candidate in good:
        parser.parse(candidate)
    for candidate in bad:
        with pytest.raises(lark.exceptions.LarkError):
            parser.parse(candidate)
    assert not wrongly_judged(Grammar.from_lark(text), good, bad)


def test_another_start() -> None:
    assert not wrongly_judged(Grammar.from_lark('start: "a"\nother: "b" start\n', start="other"), ["ba"], ["a", "b"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('start: "a" X\n%declare X\n', "%declare"),
        ('start: "a"\n%import .other.rule\n', "%import ."),
        ("start: A\nA: /(a)\\1/\n", "back-reference"),
        ("start: A\nA: /(?<=bb)a/\n", "(?<=...)"),
        ("start: A B\nA: /a/\nB: /\\bb/\n", "look-behind, ^ or \\b at the beginning"),
        ("start: A\nA: /(a)?(?(1)b|c)/\n", "conditional group"),
        ('start: "b"\n%declare A\n%ignore A\n', "%ignore"),
    ],
)
def test_what_cannot_be_enforced_is_named(text: str, named: str) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        Grammar.from_lark(text)
    assert caught.value.keyword == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('start: "a" b\n', "b"),
        ('start: "a" B\n', "B"),
        ('other: "a"\n', "start"),
        ('start: "a"\nstart: "b"\n', "start"),
        ('start: A\nA: ""\n', "Empty terminals"),
        ("start: A\nA: /[/\n", "unterminated|missing"),
        ('start: A\nA: B\nB: A "x"\n', "[Rr]ecurs"),
        ("start: %json {\n", "%json must be followed"),
    ],
)
def test_wrong_grammars(text: str, words: str) -> None:
    with pytest.raises(InvalidGrammar, match=words):
        Grammar.from_lark(text)


def test_the_place_of_a_syntax_error() -> None:
    with pytest.raises(InvalidGrammar, match="line 2") as caught:
        Grammar.from_lark('start: "a"\nx: ) "b"\n')
    assert caught.value.position == 14


def test_nothing_to_match() -> None:
    for text in ('start: "a" start\n', 'start: x\nx: y "a"\ny: x\n'):
        with pytest.raises(UnsatisfiableSchema, match="'start'"):
            Grammar.from_lark(text)


def test_deep_groups_are_refused() -> None:
    with pytest.raises((GrammarTooComplex, InvalidGrammar)):
        Grammar.from_lark("start: " + "(" * 3000 + '"a"' + ")" * 3000 + "\n")


AMBIGUOUS = {
    "doubling": ('start: s\ns: s s | "a"\n', "a"),
    "doubling and tripling": ('start: s\ns: s s s | s s | "a"\n', "a"),
    "doubling, or nothing": ('start: s\ns: s s | "a" |\n', "a"),
    "nested": ('start: s\ns: "a" s "a"? | "b"\n', "a"),
    "two rules for the same": ('start: x | y\nx: "a" x "b" | "a"\ny: "a" y "c" | "a" y | "a"\n', "a"),
    "expressions": ('start: e\ne: e "+" e | e "*" e | "-" e | "a"\n', "a+a*-"),
    "which if the else belongs to": ('start: s\ns: "i" s "e" s | "i" s | "a"\n', "i"),
    "brackets": ('start: s\ns: "(" s ")" | s s |\n', "(()"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguity_costs_no_more_the_longer_the_text(name: str) -> None:
    """States stay few however many parses there are: at most 20 new ones for a byte, 2,000 bytes on."""
    text, unit = AMBIGUOUS[name]
    matcher, arena = Grammar.from_lark(text).matcher(BYTES), BYTES.arena
    data = (unit * 2000)[:2000].encode()
    started, before = time.thread_time(), arena.node_count
    for byte in data:
        matcher.mask()
        matcher.accept(byte)
    assert arena.node_count - before <= 20 * len(data)
    assert time.thread_time() - started < 20  # a hang, not a figure


EXPRESSION = r"""
start: "let" NAME "=" sum ";"
?sum: product | sum "+" product
?product: atom | product "*" atom
?atom: NUMBER | NAME | "(" sum ")"
NAME: /[a-z]\w*/
NUMBER: /[0-9]+/
%ignore /\s+/
"""


def test_names_do_not_end_inside_a_word() -> None:
    good = ["let x = 1;", "letx=(y2+3)*z ;", "let let = let;"]
    assert not wrongly_judged(Grammar.from_lark(EXPRESSION), good, ["let x = 1", "let 1 = x;", "let x = 1 2;", "let x y = 1;", "let x = a b;"])


def test_words_of_lark_itself_are_passed_on() -> None:
    with pytest.raises(InvalidGrammar) as caught:
        Grammar.from_lark('start: "a" ->\n')
    assert "Alias expects lowercase name" in str(caught.value)
