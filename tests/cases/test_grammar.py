"""The bank's regular expressions, Lark and EBNF grammars: texts that they must take or refuse."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest

from agentkit import errors
from agentkit.grammars import Grammar
from tests.cases.bank import CASES, Case, of_kind
from tests.cases.judge import BYTES, REFUSALS, TEXT_FORMS, check_budget, compiled, wrongly_judged


def forms_of(case: Case) -> list[str]:
    """The ways in which a case's grammar is written down."""
    return [form for form in TEXT_FORMS if form in case["input"]]


TEXTS = [case for case in of_kind("grammar", "text") if "regex_list" not in case["input"]]
FORMS = [(case, form) for case in TEXTS for form in forms_of(case)]
PARAMETERS = [pytest.param(case, form, id=case["id"] if len(forms_of(case)) == 1 else f"{case['id']}-{form}") for case, form in FORMS]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("case", "form"), PARAMETERS)
def test_case(case: Case, form: str) -> None:
    expect = case["expect"]
    if expect["compile"].startswith("reject"):
        with pytest.raises(REFUSALS[expect["compile"]]):
            compiled(lambda: TEXT_FORMS[form](case["input"]))
        return
    try:
        grammar, seconds = compiled(lambda: TEXT_FORMS[form](case["input"]))
    except REFUSALS[expect["compile"]]:
        return  # its type is all that the case asks of a refusal
    check_budget(case, seconds)
    assert not wrongly_judged(grammar, expect["must_accept"], expect["must_reject"])
    if "mask_ms" in expect.get("budget", {}):
        check_mask_time(grammar, expect["budget"])


def check_mask_time(grammar: Grammar, budget: dict[str, Any]) -> None:
    """Time per token stays bounded along a long text; three times the budget, for slower machines."""
    matcher = grammar.matcher(BYTES)
    times = []
    for byte in (b"ab\n\tor\n\tcd\n" * 100)[: budget["after_chars"]]:
        start = time.thread_time()
        matcher.mask()
        times.append(time.thread_time() - start)
        matcher.accept(byte)
    assert max(times[len(times) // 2 :]) * 1000 <= 3 * budget["mask_ms"]


CONSTRUCTS = {"(?=a)a": "look", "(?!b)a": "look", "(?<=a)b": "look", r"(a)\1": "back-reference", "(?i)abc": "flag"}
"""What the message of a refusal must name."""

LISTS = [
    pytest.param(pattern, id=f"{case['id']}-{number}")
    for case in of_kind("grammar", "text")
    for number, pattern in enumerate(case["input"].get("regex_list", ()))
]


@pytest.mark.parametrize("pattern", LISTS)
def test_exact_or_refused_by_name(pattern: str) -> None:
    """Either the pattern takes just what Python's re takes, of all short texts, or an error names what cannot be enforced."""
    texts = ["".join(letters) for size in range(4) for letters in itertools.product("abABc", repeat=size)]
    taken = [text for text in texts if re.fullmatch(pattern, text)]
    grammar, refusal = grammar_or_refusal(pattern)
    if grammar is not None:
        assert not wrongly_judged(grammar, taken, [text for text in texts if text not in taken])
    elif isinstance(refusal, errors.UnsatisfiableSchema):
        assert not taken
    else:
        assert CONSTRUCTS[pattern] in str(refusal)


def grammar_or_refusal(pattern: str) -> tuple[Grammar | None, errors.GrammarError | None]:
    try:
        return Grammar.from_regex(pattern), None
    except (errors.UnsupportedSchema, errors.InvalidGrammar, errors.UnsatisfiableSchema) as error:
        return None, error


def test_unclosed_groups_are_refused_and_shallow_ones_pass() -> None:
    """Case gr-deep-parens: its other input, and its control."""
    with pytest.raises((errors.GrammarTooComplex, errors.InvalidGrammar)):
        Grammar.from_gbnf(eval(CASES["gr-deep-parens"]["input"]["also"]))
    assert not wrongly_judged(Grammar.from_gbnf("root ::= " + '("a" | "")' * 250), ["", "a" * 250], ["a" * 251])


def test_an_undefined_rule_is_refused_after_a_good_grammar() -> None:
    """Case gr-undefined-rule: also when a good grammar was compiled just before."""
    assert not wrongly_judged(Grammar.from_gbnf('root ::= "a" missing\nmissing ::= "b"'), ["ab"], ["a"])
    with pytest.raises(errors.InvalidGrammar, match="missing"):
        Grammar.from_gbnf(CASES["gr-undefined-rule"]["input"]["ebnf"])
