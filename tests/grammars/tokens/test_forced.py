"""Forced tokens are those of the tokenizer's own split of the whole text, for tokenizers of every family."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from agentkit.errors import BudgetTooSmall, NoTokenPath
from agentkit.grammars import Grammar, Vocabulary
from agentkit.grammars.expr import Builder
from tests.grammars.tokens.built import FAMILIES, SPECIALS
from tests.grammars.tokens.canonical import Replay, compact, instances, replay, tool_calls, usable

ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "on": {"type": "boolean"}},
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_weather"},
        "arguments": ARGUMENTS,
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
WE = ["we're out", "we'll go", "we've been", "we'x", "we 're"]
CALL = {"name": "get_weather", "arguments": {"city": "New York", "days": 12345, "unit": "celsius", "on": True}}
KEYS = ["naïve café", "don't", "  two blanks", "x1234y", "Ελλάδα", "東京", "😀"]

TEXTS: dict[str, tuple[Grammar, list[str]]] = {
    "call": (Grammar.from_json_schema(TOOL), [compact(CALL)]),
    "turn": (Grammar.from_tools([{"name": "get_weather", "parameters": ARGUMENTS}], "required"), [f"<tool_call>\n{compact(CALL)}\n</tool_call>"]),
    "keys": (
        Grammar.from_json_schema({"type": "object", "properties": {key: {"type": "boolean"} for key in KEYS}, "required": KEYS, "additionalProperties": False}),
        [compact({key: index % 2 == 0 for index, key in enumerate(KEYS)})],
    ),
    "flexible": (Grammar.from_json_schema(TOOL, whitespace="flexible"), [compact(CALL), compact(CALL).replace(",", ", ").replace(":", ": ")]),
    "contractions": (Grammar.from_choices(WE), WE),
    "digits": (Grammar.from_regex(r"id 1234\d*(\.5)?"), ["id 1234", "id 12345", "id 123456", "id 1234567", "id 1234.5", "id 12345678.5"]),
    "dates": (Grammar.from_regex(r"2024-1[0-2]-\d\d"), ["2024-11-30", "2024-10-01"]),
    "blanks": (Grammar.from_regex(r"x  ( *|\n*)(return|\nx)?"), ["x  ", "x   return", "x  return", "x  \n\nreturn", "x  \nx", "x      "]),
    "line breaks": (Grammar.from_regex(r"if x:\n(\n|\t| )*return\n?"), ["if x:\nreturn", "if x:\n    return\n", "if x:\n\n\treturn", "if x:\n \n return"]),
    "accents": (Grammar.from_regex("cafe(\u0301|s)? e"), ["cafe e", "cafes e", "café e"]),
    "capitals": (Grammar.from_regex("ABC(d|DE|東)?"), ["ABC", "ABCd", "ABCDE", "ABC東"]),
    "half characters": (Grammar.from_choices(["東京", "東ア", "来る"]), ["東京", "東ア", "来る"]),
    "whole": (Grammar.from_choices(["The weather isn't good; 34567 euro"]), ["The weather isn't good; 34567 euro"]),
}


@cache
def vocabulary(family: str) -> Vocabulary:
    raw = FAMILIES[family]()
    return Vocabulary.from_tokenizer(raw, [raw.token_to_id(SPECIALS[1])])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("what", TEXTS)
def test_forced_tokens_are_those_of_the_whole_text(family: str, what: str) -> None:
    grammar, texts = TEXTS[what]
    total = Replay()
    for text in texts:
        if usable(grammar, vocabulary(family), text):
            total += replay(grammar, vocabulary(family), text)
    assert total.wrong == []
    assert total.tokens > 0
    if what in ("call", "turn", "keys"):
        assert total.forced >= 0.25 * total.tokens
    if what == "whole":
        assert total.forced == total.tokens


def test_a_last_token_that_could_grow_is_left_out() -> None:
    v = vocabulary("smollm")
    for after, forced in ((r"[a-z]+", []), (r"[0-9]+", ["get"]), (r"", ["get"])):
        matcher = Grammar.from_regex("get" + after).matcher(v)
        assert matcher.forced_tokens() == [v.encode_text(t)[0] for t in forced]


def test_a_run_that_begins_inside_a_word_goes_on_from_the_sampled_token() -> None:
    v = vocabulary("smollm")
    matcher = Grammar.from_choices(["weather;", "weird"]).matcher(v)
    (we,) = (i for i, t in enumerate(v.tokens) if t == b"we")
    matcher.accept(we)
    (a,) = (i for i, t in enumerate(v.tokens) if t == b"a")
    matcher.accept(a)
    forced = matcher.forced_tokens()  # no tokenizer writes we|a|..., but the rest is still split as it would be
    assert b"".join(map(v.text_of, forced)) == b"ther;"
    assert forced == v.encode_text("ther;")


def test_what_was_accepted_is_the_context_and_can_be_given_instead() -> None:
    v = vocabulary("llama3")
    grammar = Grammar.from_regex(r"\d\d-1234567;")
    text = "12-1234567;"
    ids = v.encode_text(text)
    matcher = grammar.matcher(v)
    matcher.accept(ids[0])
    assert matcher.forced_tokens() == matcher.forced_tokens(ids[:1]) == ids[1:]
    bytewise = grammar.matcher(v)
    bytewise.accept_bytes(b"12")
    assert bytewise.forced_tokens() == ids[1:]
    assert bytewise.fork().forced_tokens() == ids[1:]
    bytewise.rollback(1)
    assert bytewise.forced_tokens() == []


def test_forced_tokens_move_nothing_and_can_be_changed_by_the_caller() -> None:
    matcher = Grammar.from_choices(["weather"]).matcher(vocabulary("smollm"))
    first = matcher.forced_tokens()
    first.append(0)
    assert matcher.forced_tokens() == first[:-1]
    for token in first[:-1]:
        matcher.accept(token)
    assert matcher.is_accepting
    assert matcher.forced_tokens() == []
    matcher.accept(matcher.vocabulary.stop_token_ids[0])
    assert matcher.forced_tokens() == []


def test_a_text_that_the_tokenizer_would_change_is_forced_only_up_to_there() -> None:
    v = vocabulary("qwen")  # writes e + accent as one character
    matcher = Grammar.from_choices(["get cafe\u0301"]).matcher(v)
    spelled = b"".join(map(v.text_of, matcher.forced_tokens()))
    assert spelled.startswith(b"get")
    assert b"get cafe".startswith(spelled)
    assert not matcher.allows(v.encode_text("é")[0])


def test_text_that_looks_like_a_special_token_stays_text() -> None:
    v = vocabulary("smollm")
    matcher = Grammar.from_choices(["a</s>b"]).matcher(v)
    forced = matcher.forced_tokens()
    assert b"".join(map(v.text_of, forced)) == b"a</s>b"
    assert not set(forced) & set(v.special_tokens.values())


def test_long_stretches_are_split_as_a_whole() -> None:
    v = vocabulary("smollm")
    text = "The weather in Oslo isn't good; it's 1234 degrees. " * 60 + "e"
    matcher = Grammar.from_regex(text.replace(".", r"\.") + "[a-z]").matcher(v)
    ids = v.encode_text(text)
    forced = matcher.forced_tokens()
    assert forced == ids[: len(forced)]
    assert len(ids) - len(forced) <= 2


def test_without_a_tokenizer_the_longest_tokens_are_taken() -> None:
    v = Vocabulary([b"a", b"ab", b"abc", b"b", b"c", b"cd", None], stop_token_ids=[6])
    forced = {pattern: Grammar.from_regex(pattern).matcher(v).forced_tokens() for pattern in ("abcab", "abca(b|c)", "ab(c|a)", "abcc[ad]", "abcb[ad]")}
    assert forced == {"abcab": [2, 1], "abca(b|c)": [2], "ab(c|a)": [], "abcc[ad]": [2], "abcb[ad]": [2, 3]}


SHORT = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False}


def test_a_budget_is_counted_as_the_tokenizer_counts() -> None:
    v = Vocabulary([b"{", b'"', b"t", b":", b"}", b'{"', b'":', b'""', b'""}', None], stop_token_ids=[9])  # greedy: {" t ": ""}
    matcher = Grammar.from_json_schema(SHORT).matcher(v)
    assert matcher.completion_tokens() == 4
    matcher.check_budget(4)
    with pytest.raises(BudgetTooSmall, match="4 tokens"):
        matcher.check_budget(3)
    v = Vocabulary([b"ab", b"abc", b"cd", b"c", b"d", b"e", b"de", None], stop_token_ids=[7])
    matcher = Grammar.from_choices(["abcde"]).matcher(v)
    assert matcher.completion_tokens() == 2
    matcher.check_budget(2)
    matcher = Grammar.from_choices(["abcd"]).matcher(v)  # ab|cd would fit, but the split is abc|d: both take two
    matcher.check_budget(2)


def test_a_budget_that_only_an_odd_split_would_meet_is_refused() -> None:
    v = Vocabulary([b"a", b"b", b"c", b"aab", b"aa", b"bcc", b"cc", None], stop_token_ids=[7])
    matcher = Grammar.from_choices(["aabcc"]).matcher(v)  # greedy aab|cc; fewest is two as well
    assert matcher.completion_tokens() == 2
    v = Vocabulary([b"a", b"b", b"c", b"d", b"aab", b"aa", b"bcd", None], stop_token_ids=[7])
    matcher = Grammar.from_choices(["aabcd"]).matcher(v)  # greedy aab|c|d; fewest aa|bcd
    assert matcher.completion_tokens() == 2
    with pytest.raises(BudgetTooSmall) as caught:
        matcher.check_budget(2)
    assert (caught.value.needed, caught.value.budget) == (3, 2)
    matcher.check_budget(3)


def test_a_budget_for_what_no_token_spells() -> None:
    v = Vocabulary([b"ab", b"c", None], stop_token_ids=[2])
    with pytest.raises(NoTokenPath):
        Grammar.from_regex("bc|ca").matcher(v).check_budget(10)


def test_special_tokens_count_one_and_nothing_merges_with_them() -> None:
    v = vocabulary("smollm")
    b, marker = Builder(), v.special_tokens["<s>"]
    parts = b.special("<s>"), b.literal(b"get"), b.special("<s>"), b.literal(b"a"), b.trie([b"b", b"c"])
    matcher = Grammar(b.program(b.seq(*parts))).matcher(v)
    assert matcher.forced_tokens() == [marker]
    with pytest.raises(BudgetTooSmall) as caught:
        matcher.check_budget(4)
    assert caught.value.needed == 5
    matcher.accept(marker)
    assert matcher.forced_tokens() == v.encode_text("get")


@pytest.fixture(scope="module")
def smollm2(smollm2_folder: Path) -> Vocabulary:
    return Vocabulary.from_tokenizer(smollm2_folder, [2])


def test_the_embedded_model_counts_five(smollm2: Vocabulary) -> None:
    matcher = Grammar.from_json_schema(SHORT).matcher(smollm2)
    with pytest.raises(BudgetTooSmall) as caught:
        matcher.check_budget(4)
    assert caught.value.needed == 5
    matcher.check_budget(5)


def sweep(v: Vocabulary, shared: Path, count: int) -> None:
    for source in (tool_calls, instances):
        total, texts = Replay(), 0
        for grammar, text in source(shared, count):
            if len(text) < 3000 and usable(grammar, v, text):
                total += replay(grammar, v, text)
                texts += 1
        assert total.wrong == []
        assert texts >= 0.8 * count
        assert total.forced >= (0.3 if source is tool_calls else 0.03) * total.tokens


def test_the_corpora_on_the_embedded_model(smollm2: Vocabulary, shared: Path) -> None:
    sweep(smollm2, shared, 12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_corpora_on_large_tokenizers(smollm2: Vocabulary, shared: Path) -> None:
    """AGENTKIT_TOKENIZERS: paths of tokenizer.json files (or their folders), separated as in PATH."""
    paths = os.environ.get("AGENTKIT_TOKENIZERS", "").split(os.pathsep)
    for v in (smollm2, *(Vocabulary.from_tokenizer(path, [2]) for path in paths if path)):
        sweep(v, shared, 200)
