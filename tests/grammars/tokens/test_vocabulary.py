"""Vocabularies of every kind of tokenizer: what is text, what never is, widths, holes, duplicates, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentkit.errors import GrammarError, NoTokenPath
from agentkit.grammars import Grammar, Vocabulary
from tests.grammars.tokens.built import FAMILIES, QWEN, SPECIALS

TEXT = '{"name":"get_weather","days":[1,22,333]}\n  naïve 東京 😀 Ġ </s>'


def allowed(vocabulary: Vocabulary, pattern: str, text: bytes = b"") -> set[int]:
    matcher = Grammar.from_regex(pattern).matcher(vocabulary)
    matcher.accept_bytes(text)
    return set(np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_spell_texts(family: str) -> None:
    """What a tokenizer writes is spelled by the bytes of its tokens, and what its decoder reads back is the same."""
    raw = FAMILIES[family]()
    v = Vocabulary.from_tokenizer(raw, [raw.token_to_id(SPECIALS[1])])
    ids = v.encode_text(TEXT)
    assert b"".join(map(v.text_of, ids)) == TEXT.encode()
    plain = TEXT.replace("</s>", "")
    assert raw.decode(raw.encode(plain).ids).removeprefix(" ") == plain
    matcher = Grammar.from_regex(r"[\s\S]*").matcher(v)
    for token in ids:
        matcher.accept(token)
    assert matcher.is_accepting
    assert not {raw.token_to_id(s) for s in SPECIALS} & allowed(v, r"[\s\S]+")


@pytest.mark.parametrize("family", ["hermes", "gemma", "unigram"])
def test_a_tokenizers_settings_do_not_leak_in_and_are_left_alone(family: str) -> None:
    raw = FAMILIES[family]()
    plain = Vocabulary.from_tokenizer(Tokenizer.from_str(raw.to_str()), [1]).encode_text(TEXT)
    raw.enable_truncation(3)
    raw.enable_padding(length=50)
    before = raw.to_str()
    v = Vocabulary.from_tokenizer(raw, [1])
    assert v.encode_text(TEXT) == plain
    assert raw.to_str() == before
    assert len(raw.encode(TEXT).ids) == 50


def test_special_tokens_are_never_text_and_other_added_ones_are() -> None:
    raw = FAMILIES["hermes"]()
    v = Vocabulary.from_tokenizer(raw, [1])
    (marker,) = (raw.token_to_id("<tool_call>"),)
    assert v.tokens[marker] == b"<tool_call>"
    assert marker in allowed(v, "<tool_call>x")
    assert marker not in allowed(v, "<tool_cal>x")
    assert marker in allowed(v, ".*")
    assert raw.token_to_id("<s>") not in allowed(v, ".*")
    assert raw.token_to_id("<s>") not in allowed(v, "<s>")


def test_several_stop_ids_some_with_bytes_some_beyond_the_tokens() -> None:
    v = Vocabulary([b"a", b"b", b"ab", None], stop_token_ids=[1, 3, 3, 6], width=9)
    assert v.stop_token_ids == (1, 3, 6)
    assert allowed(v, "a+b?") == {0, 2}  # "b" is a stop token, never text
    assert allowed(v, "a+b?", b"a") == {0, 1, 2, 3, 6}
    assert allowed(v, "(ab)+", b"ab") == {0, 1, 2, 3, 6}
    for stop in (1, 3, 6):
        matcher = Grammar.from_regex("a").matcher(v)
        matcher.accept(0)
        matcher.accept(stop)
        assert matcher.is_finished


def test_duplicates_empty_tokens_and_holes() -> None:
    v = Vocabulary([b"x", b"", b"x", None, b"xy", b"", b"y", b"y", None], stop_token_ids=[8], width=64)
    assert allowed(v, "xy") == {0, 2, 4}
    assert allowed(v, "xy", b"x") == {6, 7}
    matcher = Grammar.from_regex("xy").matcher(v)
    assert [i for i in range(64) if matcher.allows(i)] == [0, 2, 4]
    matcher.accept(2)
    matcher.accept(7)
    assert matcher.is_accepting


def test_widths() -> None:
    for width in (5, 31, 32, 33, 64, 1000):
        v = Vocabulary([b"a", b"b", b"c", b"d", None], stop_token_ids=[4], width=width)
        assert v.words == (width + 31) // 32
        assert allowed(v, "[a-c]+", b"a") == {0, 1, 2, 4}
        matcher = Grammar.from_regex("a").matcher(v)
        assert not matcher.allows(width)
        assert not matcher.allows(-1)


def test_ids_may_come_from_anywhere() -> None:
    v = Vocabulary([b"a", b"b", None], stop_token_ids=(i for i in (2,)))
    matcher = Grammar.from_regex("a(b|c)?").matcher(v)
    assert matcher.allows(np.int64(0))
    matcher.accept(torch.tensor([0.0, -1.0]).argmax())
    matcher.accept(np.int32(1))
    matcher.accept(torch.tensor(2))
    assert matcher.is_finished
    for no_id in ("a", None, 1.0, torch.tensor(0.5)):
        with pytest.raises(TypeError):
            matcher.allows(no_id)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            Grammar.from_regex("a").matcher(v).accept(no_id)  # type: ignore[arg-type]


def test_bytes_of_any_kind_are_taken_as_they_are_now() -> None:
    v = Vocabulary([b"a", b"b", None], stop_token_ids=[2])
    matcher = Grammar.from_regex("abc").matcher(v)
    data = bytearray(b"a")
    matcher.accept_bytes(data)
    data[:] = b"zz"
    matcher.accept(np.int64(1))
    matcher.accept_bytes(memoryview(b"c"))  # a byte that no token has: the text so far is read again
    assert matcher.is_accepting
    with pytest.raises(TypeError):
        matcher.accept_bytes("c")  # type: ignore[arg-type]


def test_a_vocabulary_without_text() -> None:
    for tokens in ([None], [b"", None]):
        v = Vocabulary(tokens, stop_token_ids=[len(tokens) - 1])
        assert allowed(v, "a?") == {len(tokens) - 1}
        with pytest.raises(NoTokenPath):
            Grammar.from_regex("a").matcher(v).mask()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"tokens": ["a", "b"]}, TypeError, r"tokens\[0\] is 'a'"),
        ({"tokens": [b"a", 7]}, TypeError, r"tokens\[1\] is 7"),
        ({"tokens": b"ab"}, TypeError, "list"),
        ({"tokens": [b"a"], "stop_token_ids": 0}, TypeError, "list of token ids"),
        ({"tokens": [b"a"], "stop_token_ids": ["</s>"]}, TypeError, "</s>"),
        ({"tokens": [b"a"], "stop_token_ids": None}, TypeError, "list of token ids"),
        ({"tokens": {"a": 0}}, TypeError, "list"),
        ({"tokens": [b"a"], "width": "8"}, TypeError, "'8'"),
        ({"tokens": [b"a"], "width": 10**9}, ValueError, "1000000000"),
        ({"tokens": [b"a"], "stop_token_ids": [10**9]}, ValueError, "1000000001"),
        ({"tokens": [b"a" * 70_000]}, ValueError, "70000 bytes"),
        ({"tokens": [b"a"], "stop_token_ids": [-1]}, ValueError, "-1"),
        ({"tokens": [b"a", b"b"], "stop_token_ids": [4], "width": 4}, ValueError, "5"),
        ({"tokens": [b"a", b"b"], "width": 1}, ValueError, "2"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Vocabulary(**arguments)


def test_wrong_tokenizers(tmp_path: Path) -> None:
    word_piece = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    word_piece.decoder = decoders.WordPiece()
    with pytest.raises(GrammarError, match="WordPiece"):
        Vocabulary.from_tokenizer(word_piece)
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(GrammarError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer(tmp_path)
    for other in (None, 7, object(), [b"a"]):
        with pytest.raises(GrammarError, match="Vocabulary itself"):
            Vocabulary.from_tokenizer(other)


def test_ids_with_holes_keep_their_ids_when_text_is_split() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({**{letter: i for i, letter in enumerate(letters)}, "added": 900}, []))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_tokens([AddedToken("added", special=False), AddedToken("later", special=False)])
    raw.add_special_tokens(["<end>"])
    v = Vocabulary.from_tokenizer(raw, [raw.token_to_id("<end>")])
    ids = v.encode_text("xaddedlater<end>")
    assert ids[1:3] == [900, raw.token_to_id("later")]
    assert b"".join(map(v.text_of, ids)) == b"xaddedlater<end>"
    assert Grammar.from_choices(["addedlater"]).matcher(v).forced_tokens() == ids[1:3]


def test_tiktoken() -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed")
    ranks = {bytes([b]): b for b in range(256)} | {b"ge": 256, b"get": 257, b"we": 258, b'{"': 260}
    encoding = tiktoken.Encoding("small", pat_str=QWEN, mergeable_ranks=ranks, special_tokens={"<|end|>": 270})
    v = Vocabulary.from_tokenizer(encoding, [270])
    assert (len(v), v.tokens[257], v.tokens[259], v.tokens[270], v.special_tokens) == (271, b"get", None, None, {"<|end|>": 270})
    matcher = Grammar.from_choices(['{"get"}', '{"get<|end|>"}']).matcher(v)
    assert matcher.forced_tokens() == [260, 257]
    assert 270 not in v.encode_text("<|end|>")
