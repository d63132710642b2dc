"""Compile-time questions about sets of texts, against enumeration with re."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from agentkit.grammars.frontends.regex import whole_text
from agentkit.grammars.frontends.regex_ast import Tree
from agentkit.grammars.frontends.regex_parser import parse
from agentkit.grammars.frontends.texts import TextSet

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("abc", repeat=n)]
PATTERNS = ["^a", "b$", "^[ab]*$", "^(ab|c)+$", "a.?b", "^.{2,3}$", "c", "^[^b]*$", "^(?!ab)", "^$"]


def tree(pattern: str) -> Tree:
    return whole_text(parse(pattern), True)


@pytest.mark.parametrize("seed", range(40))
def test_membership_count_and_emptiness(seed):
    rng = random.Random(seed)
    wanted, unwanted = rng.sample(PATTERNS, rng.randint(0, 3)), rng.sample(PATTERNS, rng.randint(0, 2))
    lo, hi = rng.choice([(0, 4), (1, 2), (0, 0), (3, 3)])
    abc = "^[abc]*$"
    texts = TextSet(map(tree, [*wanted, abc]), map(tree, unwanted), lo, hi)
    members = [t for t in TEXTS if lo <= len(t) <= hi and all(re.search(p, t) for p in wanted) and not any(re.search(p, t) for p in unwanted)]
    assert [t for t in TEXTS if t in texts] == members
    assert texts.is_empty() == (not members)
    assert texts.count_up_to(1000) == len(members)
    assert texts.count_up_to(3) == min(3, len(members))
    shortest = texts.shortest()
    assert shortest == (None if not members else shortest)
    assert not members or (shortest in members and len(shortest) == len(members[0]))


def test_more_than_256_classes_of_characters():
    names = [chr(0x4E00 + i) + "x" for i in range(400)]
    texts = TextSet([tree("^(" + "|".join(names) + ")$")])
    assert all(n in texts for n in names)
    assert "x" not in texts
    assert chr(0x4E00 + 400) + "x" not in texts
    assert texts.count_up_to(1000) == 400


def test_surrogates_are_no_characters():
    assert "\ud800" not in TextSet([tree("")])
    assert "\U0001f600" in TextSet([tree("^.$")])


def test_infinite_sets_count_up_to_the_limit():
    assert TextSet([tree("^a+$")]).count_up_to(50) == 50
    assert TextSet([tree("^[a-z]{1,3}$")]).count_up_to(100_000) == 26 + 26**2 + 26**3


def test_a_search_beyond_the_limit_ends_and_counts_as_non_empty():
    texts = TextSet([tree("^a{1,100000}$"), tree("b")])
    assert not texts.is_empty()
    assert TextSet([tree("^a{1,1000}$"), tree("b")]).is_empty()
