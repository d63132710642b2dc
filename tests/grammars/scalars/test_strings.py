"""String facets: nodes against JSON decoding and re, set algebra, spelling policy."""

from __future__ import annotations

import json
import random
import re

import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars import expr
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.strings import StringFacets, string_content, string_node, string_trie
from agentkit.grammars.program import operands
from tests.grammars.reference import Reference, accepts

POOL = ["", "a", "ab", "abc", "b", "é", "😀", "😀😀", 'q"', "a\nb", "\\", "\x01", "2024-02-29", "127.0.0.1", "aaaa", "/"]
PATTERNS = ["^a", "b$", "^[ab]*$", ".{2}", "^.*$", "^(?!a)", r"\n"]


def reference(facets: StringFacets) -> Reference:
    b = Builder()
    return Reference(b.program(string_node(b, facets)))


def canonical(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def random_facets(rng: random.Random) -> StringFacets:
    def some(items: list[str], most: int) -> frozenset[str]:
        return frozenset(rng.sample(items, rng.randint(0, most)))

    lo = rng.choice([0, 0, 1, 2])
    return StringFacets(
        lo,
        rng.choice([None, lo, lo + 2]),
        some(PATTERNS, 2),
        some(PATTERNS, 1),
        some(["date", "ipv4"], 1) if rng.random() < 0.2 else frozenset(),
        some(["ipv4", "uuid"], 1) if rng.random() < 0.2 else frozenset(),
        some(POOL, 2),
    )


@pytest.mark.parametrize("seed", range(60))
def test_nodes_and_membership_agree(seed):
    facets = random_facets(random.Random(seed))
    ref = reference(facets)
    members = [t for t in POOL if facets.contains(t)]
    assert [t for t in POOL if accepts(ref, canonical(t))] == members
    assert not (members and facets.is_empty())
    by_hand = [
        t
        for t in POOL
        if facets.min_length <= len(t) <= (99 if facets.max_length is None else facets.max_length)
        and all(re.search(p, t) for p in facets.patterns)
        and not any(re.search(p, t) for p in facets.not_patterns)
        and t not in facets.excluded
        and all(t == {"date": "2024-02-29", "ipv4": "127.0.0.1"}[f] for f in facets.formats)
        and not any(t == "127.0.0.1" and f == "ipv4" for f in facets.not_formats)
    ]
    assert members == by_hand


@pytest.mark.parametrize("seed", range(40))
def test_intersection_and_complement(seed):
    rng = random.Random(seed)
    a, b = random_facets(rng), random_facets(rng)
    both = a.intersect(b)
    assert all(both.contains(t) == (a.contains(t) and b.contains(t)) for t in POOL)
    if "date" in a.formats:
        with pytest.raises(UnsupportedSchema, match="date"):
            a.complement("#/not")
        return
    others = a.complement()
    assert all(any(o.contains(t) for o in others) != a.contains(t) for t in POOL if t not in a.excluded)


def test_lengths_alone_allow_every_spelling():
    ref = reference(StringFacets.make(min_length=1, max_length=2))
    for text in (r'"\u00e9\u00E9"', '"é"', r'"\ud83d\ude00x"', r'"\/\n"', '"😀😀"', r'"\u0001"', r'"\\\\"'):
        assert accepts(ref, text.encode()), text
    for text in ('""', '"abc"', r'"\ud83d\ude00xy"', r'"\ud83d"', '"\n"', '"'):
        assert not accepts(ref, text.encode()), text


def test_constrained_content_and_keys_have_one_spelling():
    ref = reference(StringFacets.make(pattern="^[^a]"))
    assert accepts(ref, '"é/\\n"'.encode())
    for text in (r'"\u00e9"', r'"\/"', r'"\u000a"', r'"\u001F"'):
        assert not accepts(ref, text.encode()), text
    b = Builder()
    key = Reference(b.program(string_content(b, StringFacets.make(max_length=3))))
    assert accepts(key, "é/".encode())
    assert not accepts(key, rb"\u00e9")


def operators(b: Builder, node: Node) -> set[int]:
    seen, todo = set(), [node]
    while todo:
        n = b._nodes[todo.pop()]
        seen.add(n[0])
        todo += operands(n, ())
    return seen


@pytest.mark.parametrize(
    "facets",
    [
        StringFacets.make(pattern="^[a-z]+$", min_length=2, max_length=5),
        StringFacets.make(pattern=r"^\d{3}-\d{4}$", min_length=1, max_length=20),
        StringFacets.make(pattern="^(GET|POST)$", max_length=4),
        StringFacets.make(format="uuid", min_length=36),
    ],
)
def test_no_intersection_where_lengths_fold_into_the_pattern(facets):
    b = Builder()
    assert expr.OP_AND not in operators(b, string_content(b, facets))


def test_a_pattern_that_says_nothing_is_no_constraint():
    for pattern in ("", "a*", "^", "[^x]?", ".{0,3}"):
        assert StringFacets.make(pattern=pattern).unconstrained, pattern
    assert not StringFacets.make(pattern="^.*$").unconstrained  # no line ends
    assert StringFacets.make(format="made-up").unconstrained


def test_clipped_counts():
    ref = reference(StringFacets.make(pattern="^[a-z]+$", min_length=2, max_length=3))
    assert [n for n in range(6) if accepts(ref, b'"' + b"a" * n + b'"')] == [2, 3]
    assert reference(StringFacets.make(pattern="^[a-z]{5,}$", max_length=3)).root == ("empty",)


@pytest.mark.parametrize(
    "facets",
    [
        StringFacets(3, 2),
        StringFacets.make(pattern="a^"),
        StringFacets.make(pattern="^[a-z]{5}$", max_length=3),
        StringFacets.make(pattern="^a").intersect(StringFacets.make(pattern="^b")),
        StringFacets.make(format="uuid", max_length=35),
        StringFacets.make(pattern="^[ab]$").intersect(StringFacets(excluded=frozenset("ab"))),
    ],
)
def test_contradictions_are_found(facets):
    assert facets.is_empty()


def test_counting():
    assert StringFacets.make(pattern="^[ab]{1,2}$").count_up_to(100) == 6
    assert StringFacets.make(pattern="^[ab]{1,2}$").intersect(StringFacets(excluded=frozenset(["a"]))).count_up_to(100) == 5
    assert StringFacets().count_up_to(7) == 7
    assert StringFacets(max_length=0).count_up_to(7) == 1


def test_errors_name_the_place():
    with pytest.raises(InvalidGrammar, match="offset 4") as invalid:
        StringFacets.make(pattern="foo**", pointer="#/properties/a")
    assert invalid.value.pointer == "#/properties/a/pattern"
    with pytest.raises(UnsupportedSchema, match="back-reference") as unsupported:
        StringFacets.make(pattern=r"(a)\1", pointer="#/items")
    assert (unsupported.value.pointer, unsupported.value.keyword) == ("#/items/pattern", "pattern")
    with pytest.raises(UnsupportedSchema, match="look-ahead") as unsupported:
        StringFacets.make(pattern="((?=ab)a|b)*c", pointer="#/items")
    assert unsupported.value.pointer == "#/items/pattern"
    with pytest.raises(GrammarTooComplex, match="nest"):
        StringFacets.make(pattern="(" * 50_000)


def test_tries():
    b = Builder()
    assert string_trie(b, ['é"\n']) == b.literal('"é\\"\\n"'.encode())
    ref = Reference(b.program(string_trie(b, ["a", "ab", ""])))
    assert [t for t in ('"a"', '"ab"', '""', '"b"', "a") if accepts(ref, t.encode())] == ['"a"', '"ab"', '""']
    with pytest.raises(ValueError, match="surrogate"):
        string_trie(b, ["\ud800"])
