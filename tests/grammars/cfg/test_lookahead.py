"""Terminals that look ahead where something is ignored: against lark's own parser, masks against trying every token, ends of parts."""

from __future__ import annotations

import itertools
import random

import lark
import numpy as np
import pytest

from agentkit.errors import GrammarError, GrammarViolation, UnsatisfiableSchema
from agentkit.grammars import Grammar, Matcher, Vocabulary
from tests.cases.judge import BYTES, accepts, allowed_ids, wrongly_judged
from tests.grammars.cfg.random_grammars import lark_parser, takes
from tests.grammars.cfg.walks import random_text

LETTERS = "ab1. "
TEXTS = ["".join(letters) for size in range(1, 5) for letters in itertools.product(LETTERS, repeat=size)]
TOKENS = Vocabulary([*(t.encode() for t in TEXTS if len(t) < 4), "é".encode(), "é".encode()[:1], "é".encode()[1:], None], stop_token_ids=[5 + 25 + 125 + 3])
TERMINALS = ["/[ab]+/", r"/a+\b/", "/a(?!b)/", "/ab?1?/", "/a(b1)?/", r"/1+(\.1+)?/", r"/1+(\.1*)?(a1+)?(?![\w.])/"]
TERMINALS += ['"a"', '"b"', '"."', '"1"', r"/b1?(?!\w)/", "/a(?!é)/", "/[éa]/"]
IGNORED = ['" "', "/ +/", "/ | ?b+ /", '" "\n%ignore /b1*/']


def looking_grammar(rng: random.Random) -> tuple[str, lark.Lark]:
    """A random grammar whose terminals demand something of what follows them, and lark's parser for it."""
    while True:
        names = ["start", "x", "y"]
        items = [*names[1:], *rng.sample(["A", "B", "C", "D"], 3)]
        lines = [f"{name}: " + " | ".join(" ".join(rng.choices(items, k=rng.choice([1, 1, 2, 3]))) for _ in range(rng.randint(1, 3))) for name in names]
        lines += [f"{name}: {pattern}" for name, pattern in zip("ABCD", rng.sample(TERMINALS, 4), strict=True)]
        text = "\n".join(lines) + f"\n%ignore {rng.choice(IGNORED)}\n"
        parser = lark_parser(text)
        if parser is not None:
            try:
                if Grammar.from_lark(text).program.settlers():
                    return text, parser
            except UnsatisfiableSchema:
                continue


def by_trial(matcher: Matcher) -> list[int]:
    """The tokens that a matcher can read, each tried by itself."""
    return [t for t, data in enumerate(TOKENS.tokens) if data is not None and could_read(matcher, data)] + ([TOKENS.width - 1] if matcher.is_accepting else [])


def could_read(matcher: Matcher, data: bytes) -> bool:
    try:
        matcher.accept_bytes(data)
    except GrammarViolation:
        return False
    matcher.rollback(1)
    return True


@pytest.mark.parametrize("seed", range(25))
def test_random_terminals(seed: int) -> None:
    rng = random.Random(seed)
    text, parser = looking_grammar(rng)
    grammar = Grammar.from_lark(text)
    for candidate in [*rng.sample(TEXTS, 25), "aé", "a é", "éa"]:
        assert accepts(grammar, candidate) == takes(parser, candidate), (text, candidate)
    matcher = grammar.matcher(TOKENS)
    for _ in range(4):
        assert allowed_ids(matcher) == by_trial(matcher), text
        matcher.accept(rng.choice(allowed_ids(matcher)))
        if matcher.is_finished:
            break
    written = random_text(grammar, BYTES, np.random.default_rng(seed), 5)
    assert takes(parser, written), (text, written)


WORDS = 'start: A | A start\nA: /[ab]+/\n%ignore " "\n'


def test_a_part_ends_where_it_ends() -> None:
    """What follows a whole grammar does not break what its last terminal demands."""
    words, more = Grammar.from_lark(WORDS), Grammar.from_choices(["b", "ab1"])
    assert not wrongly_judged(words, ["a", " ab b "], ["", "1"])
    assert not wrongly_judged(words + more, ["ab", "a b", "aab1", "ab b ab"], ["b", "a", "ab1b"])
    assert not wrongly_judged(words.repeat(2, separator="1"), ["a1b", " a b1 b "], ["a", "ab", "a1"])
    assert not wrongly_judged(Grammar.from_lark('start: W "b"\n%declare W\n%ignore "1"\n', terminals={"W": words}), ["ab", "a b1", "abbb"], ["b", "a"])


def test_parts_are_as_regular_as_before() -> None:
    words, short = Grammar.from_lark("start: A B?\nA: /[ab]+/\nB: /1+/\n%ignore / /\n"), Grammar.from_regex("[^1]*|ab1")
    assert not wrongly_judged(words & short, ["a", "ab ", "ab1"], ["a1", "", "a b"])
    assert not wrongly_judged(words & ~short, ["a1", "a 1"], ["a", "ab1", "b "])


@pytest.mark.parametrize("seed", range(6))
def test_masks_of_a_part(seed: int) -> None:
    rng = random.Random(seed)
    matcher = (Grammar.from_lark(WORDS) + Grammar.from_choices(["b1", "1.", ". "])).matcher(TOKENS)
    for _ in range(4):
        assert allowed_ids(matcher) == by_trial(matcher)
        matcher.accept(rng.choice(allowed_ids(matcher)))
        if matcher.is_finished:
            break


def test_a_vocabulary_without_anything_to_put_between_is_refused() -> None:
    tokens = Vocabulary([b"a", b"b", None], stop_token_ids=[2])
    with pytest.raises(GrammarError, match="b' '"):
        Grammar.from_lark(WORDS).matcher(tokens)


def test_rules_are_split_where_nothing_is_ignored_that_settles_it() -> None:
    for ignored in ("", '%ignore "a"\n', "%ignore /#.*/\n"):
        text = f'start: A (A | "-")*\nA: /[ab]+/\n{ignored}'
        grammar, parser = Grammar.from_lark(text), lark.Lark(text, parser="earley", lexer="dynamic")
        assert not grammar.program.settlers()
        for candidate in ("a", "ab-b", "a-", "b#-", "--", "a b", "b-a"):
            assert accepts(grammar, candidate) == takes(parser, candidate), (text, candidate)


def test_endless_demands() -> None:
    """A doubled quote goes on with the text; whether one does is settled by the next terminal that could come."""
    text = "start: (S | A)+\nS: /'(?:[^']|'')*'/\nA: /[ab]+/\n%ignore \" \"\n"
    grammar, parser = Grammar.from_lark(text), lark.Lark(text, parser="earley", lexer="dynamic")
    assert grammar.program.settlers()
    for candidate in ("''", "'a'b", "'a''b'", "'a' 'b'", "'a''", "'a'''", "a'b", "''a''"):
        assert accepts(grammar, candidate) == takes(parser, candidate), candidate
