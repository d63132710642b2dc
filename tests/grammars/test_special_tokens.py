"""Special tokens as symbols of the alphabet: only `special` matches them, text never does, and a marker is one or the other."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from agentkit.errors import GrammarError, GrammarViolation
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.chars import SCALARS, utf8_class
from tests.grammars.reference import Reference, accepts

CALL, END, STOP = 256, 257, 258
WITH = Vocabulary([bytes([byte]) for byte in range(256)] + [None] * 3, [STOP], special_tokens={"<|call|>": CALL, "<|end|>": END, "<|stop|>": STOP})
WITHOUT = Vocabulary([bytes([byte]) for byte in range(256)] + [b"<|call|>", b"x<|c", None], [STOP])


def allowed(matcher: Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist()


def grammar_of(root: Node, builder: Builder) -> Grammar:
    return Grammar(builder.program(root))


def test_all_byte_strings_do_not_swallow_a_special_token() -> None:
    builder = Builder()
    called = builder.seq(builder.special("<|call|>"), builder.literal(b"x"))
    matcher = grammar_of(builder.alt(builder.complement(builder.EMPTY), called, builder.literal(b"text")), builder).matcher(WITH)
    assert matcher.allows(CALL)
    assert CALL in allowed(matcher)
    written = matcher.fork()
    written.accept_bytes(b"te")
    assert not written.allows(CALL)
    assert written.is_accepting
    matcher.accept(CALL)
    assert allowed(matcher) == [ord("x")]


def test_a_special_token_is_no_text_and_text_is_no_special_token() -> None:
    builder = Builder()
    anything = builder.repeat(utf8_class(builder, SCALARS), 0, 12)
    matcher = grammar_of(builder.seq(anything, builder.special("<|call|>"), builder.literal(b"!")), builder).matcher(WITH)
    looks_alike = matcher.fork()
    looks_alike.accept_bytes(b"<|call|>")
    assert not looks_alike.allows(END)
    looks_alike.accept_bytes(b"!")
    assert not looks_alike.is_accepting
    assert looks_alike.allows(CALL)
    matcher.accept(CALL)
    assert allowed(matcher) == [ord("!")]
    with pytest.raises(GrammarViolation):
        matcher.accept(CALL)


@pytest.mark.parametrize("kind", ["class", "complement", "dot"])
def test_classes_and_complements_never_match_it(kind: str) -> None:
    builder = Builder()
    every = {
        "class": builder.repeat(builder.byte_class(range(1, 256))),
        "complement": builder.complement(builder.literal(b"a")),
        "dot": builder.repeat(utf8_class(builder, SCALARS)),
    }[kind]
    matcher = grammar_of(builder.alt(every, builder.special("<|end|>")), builder).matcher(WITH)
    assert matcher.allows(END)
    assert not matcher.allows(CALL)
    matcher.accept_bytes(b"b")
    assert not matcher.allows(END)
    assert END not in allowed(matcher)


def test_a_grammar_that_needs_a_token_the_vocabulary_lacks_is_refused_by_name() -> None:
    builder = Builder()
    grammar = grammar_of(builder.special("<|call|>"), builder)
    with pytest.raises(GrammarError, match=r"'<\|call\|>', which this vocabulary does not have"):
        grammar.matcher(WITHOUT)
    assert grammar.matcher(WITH).forced_tokens() == [CALL]


def test_a_stop_token_is_no_symbol() -> None:
    builder = Builder()
    with pytest.raises(GrammarError, match="among stop_token_ids"):
        grammar_of(builder.special("<|stop|>"), builder).matcher(WITH)


def test_a_marker_is_the_token_or_else_its_text() -> None:
    builder = Builder()
    grammar = grammar_of(builder.seq(builder.literal(b"x"), builder.marker("<|call|>"), builder.literal(b"y")), builder)
    matcher = grammar.matcher(WITH)
    assert matcher.forced_bytes() == b"x"
    assert matcher.forced_tokens() == [ord("x")]
    matcher.accept(ord("x"))
    assert matcher.forced_tokens() == [CALL]
    matcher = grammar.matcher(WITHOUT)
    assert matcher.forced_bytes() == b"x<|call|>y"
    assert allowed(matcher) == [ord("x"), 257]
    assert accepts(Reference(grammar.program), [b"x"[0], "<|call|>", ord("y")])
    assert not accepts(Reference(grammar.program), b"x<|call|>y")
    assert accepts(Reference(grammar.program, present=()), b"x<|call|>y")


def test_one_program_serves_both_vocabularies_at_random() -> None:
    rng = random.Random(7)
    for _ in range(40):
        builder = Builder()
        leaves = [builder.marker("<|call|>"), builder.marker("<|end|>"), builder.literal(b"<|"), builder.literal(b"a"), builder.byte_class(b"ab")]
        nodes = list(leaves)
        for _ in range(6):
            one, other = rng.choice(nodes), rng.choice(nodes)
            nodes.append(rng.choice([builder.seq(one, other), builder.alt(one, other), builder.optional(one), builder.repeat(one, 0, 2)]))
        grammar = grammar_of(nodes[-1], builder)
        for vocabulary, present in ((WITH, ("<|call|>", "<|end|>")), (WITHOUT, ())):
            reference = Reference(grammar.program, present)
            names = {CALL: "<|call|>", END: "<|end|>"} if vocabulary is WITH else {}
            text: list[int | str] = []
            matcher = grammar.matcher(vocabulary)
            while True:
                assert matcher.is_accepting == accepts(reference, text)
                tokens = [t for t in allowed(matcher) if t != STOP]
                if not tokens or len(text) > 20:
                    break
                token = rng.choice(tokens)
                matcher.accept(token)
                text += [names[token]] if token in names else list(vocabulary.tokens[token] or b"")


def test_a_special_token_counts_as_one_in_the_budget() -> None:
    builder = Builder()
    root = builder.seq(builder.special("<|call|>"), builder.special("<|end|>"), builder.literal(b"ab"))
    assert grammar_of(root, builder).matcher(WITH).completion_tokens() == 4


@pytest.mark.parametrize("wrong", [{"x": 259}, {"x": 5}])
def test_ids_of_special_tokens_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="special_tokens: 'x'"):
        Vocabulary([bytes([byte]) for byte in range(256)] + [None] * 3, special_tokens=wrong)


def test_names_come_with_the_tokenizer() -> None:
    raw = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|call|>", special=True)])
    raw.add_tokens([AddedToken("<tool_call>", special=False)])
    vocabulary = Vocabulary.from_tokenizer(raw)
    assert vocabulary.special_tokens == {"<|call|>": 256}
    builder = Builder()
    matcher = grammar_of(builder.seq(builder.marker("<|call|>"), builder.marker("<tool_call>"), builder.literal(b"{}")), builder).matcher(vocabulary)
    assert matcher.forced_tokens() == [256]
    matcher.accept(256)
    assert matcher.forced_tokens([256])[:1] == [257]
