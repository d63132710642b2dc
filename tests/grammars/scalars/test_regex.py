"""Regular expressions against Python's re and the regex package on small texts; constructs one by one."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import time

import pytest

from agentkit.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.chars import JSON, JSON_FULL, UTF8, json_escape
from agentkit.grammars.frontends.regex import compile_regex, regex_node
from agentkit.grammars.frontends.regex_parser import parse
from tests.grammars.reference import Reference, accepts

TEXTS = ["".join(t) for n in range(6) for t in itertools.product("ab ", repeat=n)]
LINES = ["a\n", "\n", "a\nb", "b a\n", "ab\n a", "\n\n", "a \n"]


def random_pattern(rng: random.Random, depth: int, looks: bool) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(["a", "b", ".", "[ab]", "[^a]", " ", r"\w", r"\W", "", "ab", r"\s"])

    def part(with_looks: bool = looks) -> str:
        return random_pattern(rng, depth - 1, with_looks)

    if kind < 0.5:
        return part() + part()
    if kind < 0.62:
        return f"(?:{part()}|{part()})"
    if kind < 0.8:
        return f"(?:{part()})" + rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?"])
    if kind < 0.9 or not looks:
        return rng.choice(["^", "$", r"\b", r"\B", r"\A", r"\Z"])
    return f"(?{rng.choice(['=', '!', '<=', '<!'])}{part(False)})"


def compiled(pattern: str, **options) -> Reference:
    b = Builder()
    return Reference(b.program(compile_regex(b, pattern, **options)))


@pytest.mark.parametrize("looks", [False, True], ids=["anchors", "look-around"])
@pytest.mark.parametrize("search", [False, True], ids=["full", "search"])
@pytest.mark.parametrize("seed", range(6))
def test_random_patterns(seed, search, looks):
    module = pytest.importorskip("regex") if looks else re
    rng = random.Random(seed)
    tried = 0
    while tried < 12:
        pattern = random_pattern(rng, 4, looks)
        try:
            oracle = module.compile(pattern)
        except module.error:  # such as a look-behind without a fixed width
            continue
        if len(pattern) > 40:
            continue
        try:
            ref = compiled(pattern, dialect="python", search=search)
        except (UnsupportedSchema, GrammarTooComplex):
            assert looks or r"\b" in pattern.lower() or "$" in pattern  # Python's $ looks ahead
            continue
        tried += 1
        for text in [*rng.sample(TEXTS, 25), *LINES]:
            if text == "" and r"\B" in pattern:
                continue  # before 3.14, re has no \B in the empty text
            want = (oracle.search(text) if search else oracle.fullmatch(text)) is not None
            assert accepts(ref, text.encode()) == want, (pattern, text)


@pytest.mark.parametrize("alphabet", [UTF8, JSON, JSON_FULL], ids=lambda a: a.name)
@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1.50", "-0.1", "+7"], ["-", "", "abc", "1E-7", "+."]),
        ("^a|b$", ["a", "abc", "xxb", "b"], ["xc", "", "ba c"]),
        (r"^[A-Z]{2}-\d{3}$", ["AB-123"], ["AB-12", "xAB-123", "AB-1234", "ab-123", "AB-123\n", "AB-١٢٣"]),
        ("^(?!pattern$).*$", ["x", "pattern1", ""], ["pattern"]),
        ("^((?!foo).)*$", ["bar", "fo", ""], ["xfoo", "foo"]),
        ("^((?=[ab]).)*$", ["", "ab"], ["abc"]),
        (r"^(?=.*[A-Z])(?=.*\d)(?=.{8,}).*$", ["Abcdefg1"], ["abcdefg1", "Abc1", "ABCDEFGH"]),
        ("^[xy]*x[xy]{16}$", ["xyyyyyyyyyyyyyyyy", "yyxxxxxxxxxxxxxxxxx"], ["yyyyyyyyyyyyyyyyy", "x"]),
        ("(?<=a)b", ["ab", "xab"], ["b", "a", "cb"]),
        ("(?<!ab)c", ["c", "ac", "abcc"], ["abc", ""]),
        ("(?<!a)(?<!b)c", ["c", "xc"], ["ac", "bc"]),
        (r"\bfoo\b", ["foo", "a foo", "foo.", "foo foos"], ["foos", "afoo", "foo_"]),
        (r"^(\bfoo\b ?)*$", ["", "foo", "foo foo "], ["foofoo"]),
        ("a^", [], ["a", "", "a^"]),
        ("$a", [], ["a", "", "$a"]),
        ("(^a|b)c", ["ac", "xbc", "acx"], ["xac", "c"]),
        ("a(b$|c)", ["ab", "xab", "acd"], ["abx", "a"]),
        (r"[\p{Lu}\d]\P{L}", ["É1", "1 "], ["é1", "ÉÉ"]),
        (r"^\u{1F600}\ud83d\ude00$", ["😀😀"], ["😀"]),
        (r"^[\u{1F600}-\u{1F64F}]+$", ["😀🙏"], ["😀a", "🚀"]),
        (r"^[^\"\\]$", ["é", "\n", "/"], ['"', "\\", ""]),
        (r"^\cJ\t\x41\0$", ["\n\tA\0"], ["cJtA0"]),
        (".", ["x", "\n."], ["", "\n", "\r\u2028"]),
        ("^(?:a|bb|ccc|d[ef])$", ["a", "bb", "ccc", "de", "df"], ["b", "cc", "d", "ad"]),
        (r"^[^]$", ["\n", "x"], [""]),
        (r"[]", [], ["", "a", "]"]),
        (r"^[\w-]+$", ["a-b", "-", "_"], ["", "a b", "é"]),
        (r"^[a\-z]$", ["a", "-", "z"], ["b"]),
        (r"^hi\!\@\-\_\ \"\/$", ['hi!@-_ "/'], ["hi"]),
        (r"^{a}$", ["{a}"], ["a"]),
    ],
)
def test_json_schema_patterns(pattern, good, bad, alphabet):
    ref = compiled(pattern, search=True, alphabet=alphabet)

    def spelled(text: str) -> bytes:
        return text.encode() if alphabet is UTF8 else json_escape(text)

    assert [t for t in good if not accepts(ref, spelled(t))] == []
    assert [t for t in bad if accepts(ref, spelled(t))] == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^hi\!$", ["hi!"], ["hi", "hello!", "hi\\!"]),
        ("(([a-z0-9_. -]*)*:)?[a-z]+", ["abc", "a b:c", "..:x", ":x"], ["", "A", ": "]),
        ("a(?:b|)(?P<n>c|d)", ["abc", "ac", "abd"], ["ab", "a", "bc"]),
        ("(?i)straße|k", ["STRAßE", "stra\u1e9ee", "K", "\u212a"], ["strasse"]),
        ("(?ai)k", ["K", "k"], ["\u212a"]),
        ("(?i:a)b", ["Ab", "ab"], ["AB"]),
        ("(?i)a(?-i:b)[^c]", ["Abd"], ["ABd", "abC"]),
        ("(?s).", ["\n"], [""]),
        ("(?x) a  b # comment\n c", ["abc"], ["a b c"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab", "a\n"]),
        (r"a(?#comment)b", ["ab"], []),
        (r"\d\s\w", ["٣\u2003é"], ["a b"]),
        (r"(?a)\d\s\w", ["3 e"], ["٣ e", "3 é"]),
        (r"[]a]+", ["]a"], [""]),
        (r"[^]a]", ["b"], ["]"]),
        (r"\N{BULLET}\U0001F600\a\101\012", ["•😀\aA\n"], []),
        ("a{,2}b{}", ["b{}", "aab{}"], ["aaab{}"]),
        ("(?P<x>a)(?<y>b)", ["ab"], []),
        ("a*?b+?c??", ["b", "aabbc"], ["a"]),
        (r"(?=\w+\Z)[a-z]{1,3}", ["abc"], ["abcd"]),
    ],
)
def test_python_patterns_match_in_full(pattern, good, bad):
    ref = compiled(pattern, dialect="python")
    assert [t for t in good if not accepts(ref, t.encode())] == []
    assert [t for t in bad if accepts(ref, t.encode())] == []


@pytest.mark.parametrize(
    ("pattern", "dialect", "position"),
    [
        ("foo**", "ecma", 4),
        ("(", "ecma", 0),
        ("a)", "python", 1),
        (r"^hi \p{Foo}$", "ecma", 4),
        ("[b-a]", "ecma", 1),
        ("a{3,2}", "python", 1),
        ("[a", "ecma", 0),
        ("\\", "ecma", 0),
        ("^*", "ecma", 1),
        ("a{,3}", "ecma", 1),
        (r"\A", "ecma", 0),
        (r"a\y", "python", 1),
        (r"\xg0", "ecma", 0),
        (r"\u{110000}", "ecma", 0),
        ("(?z)", "ecma", 0),
        ("a(?i)b", "python", 1),
        ("(?P<a>x)(?P<a>y)", "python", 8),
        ("(?P<1>x)", "python", 0),
        ("(?<1a>x)", "ecma", 0),
        (r"[\w-z]", "python", 1),
        ("a*+", "ecma", 2),
        ("(?'a'b)", "ecma", 0),
    ],
)
def test_malformed_patterns_name_their_offset(pattern, dialect, position):
    with pytest.raises(InvalidGrammar) as caught:
        parse(pattern, dialect, pointer="#/properties/a/pattern")
    assert caught.value.position == position
    assert caught.value.pointer == "#/properties/a/pattern"


@pytest.mark.parametrize(
    ("pattern", "dialect", "construct"),
    [
        (r"(a)\1", "ecma", "back-reference"),
        (r"(?<n>a)\k<n>", "ecma", "back-reference"),
        ("(?P<n>a)(?P=n)", "python", "back-reference"),
        ("a*+", "python", "possessive"),
        ("(?>a|ab)c", "python", "atomic"),
        ("(a)(?(1)b|c)", "python", "conditional"),
        ("(?L)a", "python", "flag L"),
        (r"\p{scx=Greek}", "ecma", "scx"),
        ("((?=ab)a|b)*c", "ecma", "look-ahead"),
        ("((?!foo).)*bar", "ecma", "look-ahead"),
        ("(?=ab)ab(?<=xy)", "ecma", "look-behind"),
    ],
)
def test_what_is_not_regular_is_refused_by_name(pattern, dialect, construct):
    with pytest.raises(UnsupportedSchema, match=construct) as caught:
        compiled(pattern, dialect=dialect, search=True)
    assert construct in caught.value.keyword
    with pytest.raises(UnsupportedSchema, match=construct) as caught:
        compiled(pattern, dialect=dialect, search=True, pointer="#/pattern")
    assert (caught.value.pointer, caught.value.keyword) == ("#/pattern", "pattern")


@pytest.mark.parametrize("pattern", ["(" * 50_000, "(" * 50_000 + "a" + ")" * 50_000, "(?:" * 200 + ")" * 200, "(?=" * 200 + ")" * 200])
def test_deep_nesting_is_refused_at_once(pattern):
    start = time.perf_counter()
    with pytest.raises(GrammarTooComplex, match="nest") as caught:
        compiled(pattern)
    assert caught.value.limit == "nesting"
    assert time.perf_counter() - start < 1


def test_nesting_below_the_limit_and_many_shallow_groups():
    assert accepts(compiled("(?:" * 120 + "a" + ")?" * 120), b"a")
    assert compiled("()" * 5_000 + "a").root == compiled("a").root
    assert accepts(compiled("(?=" * 20 + "a" + ")" * 20 + "a"), b"a")
    assert compile_regex(Builder(), "(?=" * 120 + "a" + ")" * 120 + "a") != Builder.EMPTY


def test_large_counts_stay_counters():
    b = Builder()
    compile_regex(b, "a{100000}(?:b[cd]{1,100000}){5,}")
    assert len(b._nodes) < 20
    with pytest.raises(GrammarTooComplex, match="repeat"):
        compile_regex(b, "a{99999999999}")


@pytest.mark.parametrize("pattern", [r"(\bx{0,3}){40}", r"((((\b.\B){9}){9}){9}){9}", r"((((^a|b$)*c)*|\B)*d)*", r"(?:(?:(?:a?\b){16}){16}){16}"])
def test_hostile_conditions_end_soon(pattern):
    start = time.perf_counter()
    with contextlib.suppress(GrammarTooComplex):
        compile_regex(Builder(), pattern, search=True)
    assert time.perf_counter() - start < 10


def test_fixed_alternatives_become_one_trie():
    b = Builder()
    words = [f"word{i}" for i in range(500)]
    assert compile_regex(b, "|".join(words)) == b.trie(w.encode() for w in words)


def test_flags_of_re():
    def node(pattern: str, flags: int) -> Reference:
        b = Builder()
        return Reference(b.program(regex_node(b, pattern, flags=flags)))

    assert accepts(node("a.b", re.IGNORECASE | re.DOTALL), b"A\nB")
    assert accepts(node("a b", re.VERBOSE), b"ab")
    assert not accepts(node(r"\d", re.ASCII), "٣".encode())
    assert accepts(node("a$\nb", re.MULTILINE | re.UNICODE), b"a\nb")
    with pytest.raises(UnsupportedSchema, match="LOCALE"):
        node("a", re.LOCALE)
