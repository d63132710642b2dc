"""Grammars put together by API: + | & ~ repeat, tags in free text, grammars inside Lark, choices, dialects of patterns."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from agentkit.errors import InvalidGrammar, UnsatisfiableSchema, UnsupportedSchema
from agentkit.grammars import Grammar, Vocabulary
from tests.cases.judge import BYTES, wrongly_judged

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("abc", repeat=size)]


def point() -> Grammar:
    return Grammar.from_json_schema(POINT)


def test_one_after_the_other_and_either() -> None:
    word = Grammar.from_choices(["x=", "y="])
    assert not wrongly_judged(word + point(), ['x={"x":1}', 'y={"x":-2}'], ["x=", '{"x":1}', 'x={"x":1}y='])
    assert not wrongly_judged(word | point(), ["x=", '{"x":1}'], ["", 'x={"x":1}'])
    assert (word + point()).report()["(right)#/properties/x/type"].status == "enforced"


def test_repeats() -> None:
    assert not wrongly_judged(point().repeat(1, 2, separator=", "), ['{"x":1}', '{"x":1}, {"x":2}'], ["", '{"x":1}{"x":2}', '{"x":1}, '])
    assert not wrongly_judged(Grammar.from_choices(["a", "bc"]).repeat(2), ["abc", "aaa"], ["", "a"])
    assert not wrongly_judged(Grammar.from_choices(["a"]).repeat(0, 100_000), ["", "a" * 500], ["b"])
    assert not wrongly_judged(point().optional(), ["", '{"x":1}'], ["{"])
    with pytest.raises(InvalidGrammar, match="out of order"):
        point().repeat(2, 1)


def test_recursive_grammars_compose() -> None:
    brackets = Grammar.from_lark('start: s\ns: "(" s ")" s |\n')
    assert not wrongly_judged(brackets + Grammar.from_choices(["."]) + brackets, ["()().(())", "."], ["().)", "(.)"])


@pytest.mark.parametrize("seed", range(15))
def test_intersection_and_complement_of_patterns(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["a", "b", "[ab]*", "(ab)+", ".", "c?", "[^a]", "(a|bc){1,2}", "b{0,3}"]
    one, two = ("".join(rng.choice(pieces) for _ in range(3)) for _ in range(2))
    inside = {text for text in TEXTS if re.fullmatch(one, text)}
    both = {text for text in inside if re.fullmatch(two, text)}
    some = [*rng.sample(TEXTS, 30), *sorted(both)[:5]]
    first, second = Grammar.from_regex(one), Grammar.from_regex(two)
    assert not wrongly_judged(~first, [t for t in some if t not in inside], [t for t in some if t in inside])
    if inside - both:  # otherwise there may be nothing to match, which is an error
        assert not wrongly_judged(first & ~second, [t for t in some if t in inside - both], [t for t in some if t not in inside - both])
    if both:
        assert not wrongly_judged(first & second, [t for t in some if t in both], [t for t in some if t not in both])


def test_what_has_no_intersection() -> None:
    word = Grammar.from_regex("[a-z]+")
    with pytest.raises(UnsatisfiableSchema, match="combined"):
        word & Grammar.from_regex("[0-9]+")
    with pytest.raises(UnsatisfiableSchema, match="complement"):
        ~Grammar.from_regex(r"[\s\S]*")
    with pytest.raises(UnsupportedSchema, match="JSON objects"):
        word & point()
    with pytest.raises(UnsupportedSchema, match="calls rules"):
        ~Grammar.from_lark('start: "(" start ")" |\n')
    with pytest.raises(InvalidGrammar, match="from_choices"):
        word | "text"  # type: ignore[operator]


def test_tags_in_free_text() -> None:
    grammar = Grammar.from_tags([("<fn=move>", point(), "</fn>"), ("<fn=say>", Grammar.from_regex("[a-z]+"), "</fn>")], triggers=["<fn="])
    good = ["", "hello < <f <fn", '<fn=move>{"x":1}</fn>', 'I <<fn=say>hi</fn> and é <fn=move>{"x":2}</fn>.']
    assert not wrongly_judged(grammar, good, ["<fn=", "<fn=walk>", "<fn=say></fn>", 'a<fn=move>{"x":1.5}</fn>', "<fn=say>hi"])
    assert grammar.report()["<fn=move>#/required"].status == "enforced"


def test_tags_that_must_come_and_end_the_text() -> None:
    once = Grammar.from_tags([("[[", point(), "]]")], at_least_one=True, stop_after_first=True)
    assert not wrongly_judged(once, ['[[{"x":1}]]', 'so: [[[{"x":1}]]'.replace("[[[", "[ [[")], ["", "so", '[[{"x":1}]].'])
    some = Grammar.from_tags([("[[", point(), "]]")], at_least_one=True)
    assert not wrongly_judged(some, ['[[{"x":1}]]', 'a [[{"x":1}]] b [[{"x":2}]]'], ["", "a", '[[{"x":1}]] ['[:-1] + "[["])


@pytest.mark.parametrize(
    ("begins", "triggers", "words"),
    [
        ([], None, "no tags"),
        (["<a>"], ["<b"], "none of the triggers"),
        (["<a>"], ["<a", "<b"], "begins no tag"),
        (["<a>", "x<a>"], None, "holds the trigger"),
        (["\ud800"], None, "no UTF-8"),
        ([""], None, "none of the triggers"),
    ],
)
def test_wrong_tags(begins: list[str], triggers: list[str] | None, words: str) -> None:
    with pytest.raises(InvalidGrammar, match=words):
        Grammar.from_tags([(begin, point(), "</a>") for begin in begins], triggers=triggers)


def test_schemas_inside_lark() -> None:
    text = """
        start: "call" NAME args | "%json" // no %json here
        args: "(" %json {
            "type": "integer", "minimum": 5} ")" | %json {"enum": [[]]}
        NAME: /[a-z]+/
        %ignore " "
    """
    grammar = Grammar.from_lark(text)
    assert not wrongly_judged(grammar, ["call me (7)", "callme[]", "%json"], ["call me (3)", "call me 7", "call (7)"])
    assert grammar.report()["JSON_SCHEMA_0#/minimum"].status == "enforced"


def test_grammars_for_declared_terminals() -> None:
    text = 'start: "move" POINT ("," POINT)*\n%declare POINT\n%ignore " "\n'
    grammar = Grammar.from_lark(text, terminals={"POINT": point()})
    assert not wrongly_judged(grammar, ['move {"x":1}', 'move{"x":1} , {"x":2}'], ["move", 'move {"x":1},'])
    with pytest.raises(InvalidGrammar, match="declare it with %declare"):
        Grammar.from_lark('start: A\nA: "a"\n', terminals={"A": point()})
    with pytest.raises(InvalidGrammar, match="empty text"):
        Grammar.from_lark(text, terminals={"POINT": point().optional()})
    with pytest.raises(UnsupportedSchema, match="put a sign between"):
        Grammar.from_lark("start: NAME ANY\nNAME: /[a-z]+/\n%declare ANY\n", terminals={"ANY": Grammar.from_regex(".+")})


def test_ecma_patterns() -> None:
    assert not wrongly_judged(Grammar.from_regex(r"\p{Lu}\p{L}*\d", dialect="ecma"), ["Äé1", "A1"], ["a1", "A١", "A"])
    assert not wrongly_judged(Grammar.from_regex(r"\d(?i:x)"), ["1x", "١X"], ["x", "1"])
    assert not wrongly_judged(Grammar.from_regex("a.c", flags=re.IGNORECASE | re.DOTALL), ["A\nC"], ["ac"])
    with pytest.raises(InvalidGrammar, match="dialect"):
        Grammar.from_regex("a", dialect="perl")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedSchema, match="back-reference"):
        Grammar.from_regex(r"(?<n>a)\k<n>", dialect="ecma")
    with pytest.raises(UnsatisfiableSchema, match="matches no text"):
        Grammar.from_regex("(?=b)a")


def test_many_choices() -> None:
    rng = random.Random(0)
    texts = [f"{rng.choice(['order', 'user'])}-{rng.getrandbits(40):x}" for _ in range(1000)] + ["order", "user-"]
    grammar = Grammar.from_choices(texts)
    assert not wrongly_judged(grammar, [*texts[:20], "order", "user-"], ["", "orde", "order-", "user-xyz", texts[0] + "0" * 20])


def test_choices_that_begin_others() -> None:
    texts = ["x" * size for size in (1, 2, 3, 50)]
    assert not wrongly_judged(Grammar.from_choices(texts), texts, ["", "xxxx", "x" * 51])
    vocabulary = Vocabulary([b"x", b"xx", b"xxxx", None], stop_token_ids=[3])
    assert Grammar.from_choices(["x", "xx"]).matcher(vocabulary).mask()[0] == 0b0011


@pytest.mark.parametrize("wrong", [[], "abc", ["a", 5], ["\ud800"]])
def test_wrong_choices(wrong: object) -> None:
    with pytest.raises(InvalidGrammar):
        Grammar.from_choices(wrong)  # type: ignore[arg-type]


def test_a_part_with_the_empty_text() -> None:
    grammar = Grammar.from_regex("a*") + Grammar.from_choices(["", "b"])
    assert not wrongly_judged(grammar, ["", "aab"], ["ba"])
    assert grammar.matcher(BYTES).is_accepting
