"""Bytes of tokens: read from the tokenizer's own decoder, added tokens raw, special tokens None."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentkit.errors import GrammarError
from agentkit.grammars.token_bytes import load_tokenizer, token_bytes, token_convention


def byte_level(vocab: list[str]) -> Tokenizer:
    raw = Tokenizer(models.BPE({text: i for i, text in enumerate(vocab)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return raw


def metaspace(vocab: list[str]) -> Tokenizer:
    raw = Tokenizer(models.BPE({text: i for i, text in enumerate(vocab)}, [], byte_fallback=True))
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return raw


def test_byte_level_letters_cover_all_bytes() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = token_bytes(byte_level(alphabet))
    assert sorted(b for b in table if b is not None) == [bytes((i,)) for i in range(256)]


def test_byte_level_token_with_a_foreign_letter_is_text() -> None:
    assert token_bytes(byte_level(["Ġa", "日", "a b"])) == [b" a", "日".encode(), b"a b"]


def test_metaspace_vocabulary_may_own_the_letters_of_byte_level() -> None:
    table = token_bytes(metaspace(["▁the", "Ġ", "ĉ", "\n", "<0xF0>", "<0xZZ>", "x<0x0A>"]))
    assert table == [b" the", "Ġ".encode(), "ĉ".encode(), b"\n", b"\xf0", b"<0xZZ>", b"x<0x0A>"]


def test_without_byte_fallback_a_byte_token_is_text() -> None:
    raw = metaspace(["<0x0A>"])
    raw.decoder = decoders.Metaspace()
    assert token_bytes(raw) == [b"<0x0A>"]


def test_added_tokens_are_raw_and_special_ones_none() -> None:
    raw = byte_level(["a", "Ġ"])
    raw.add_tokens([AddedToken("é Ġ\n", special=False)])
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    assert token_bytes(raw) == [b"a", b" ", "é Ġ\n".encode(), None]


def test_a_metaspace_vocabularys_own_added_token_keeps_its_spelling() -> None:
    raw = metaspace(["a", "▁▁"])
    raw.add_tokens([AddedToken("▁▁", special=False), AddedToken("▁x", special=False)])
    assert token_bytes(raw) == [b"a", b"  ", "▁x".encode()]


def test_ids_beyond_the_vocabulary_leave_gaps() -> None:
    raw = Tokenizer(models.BPE({"a": 0, "Ġb": 120}, []))
    raw.decoder = decoders.ByteLevel()
    assert token_bytes(raw) == [b"a", *[None] * 119, b" b"]


def test_convention_falls_back_to_the_pre_tokenizer() -> None:
    raw = byte_level(["Ġa"])
    raw.decoder = None
    assert token_bytes(raw) == [b" a"]
    plain = Tokenizer(models.BPE({"Ġa": 0}, []))
    assert token_bytes(plain) == ["Ġa".encode()]


def test_prefix_blank_is_a_matter_of_the_whole_text() -> None:
    raw = metaspace(["▁a"])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    assert token_convention(raw).strip_start == 1
    assert token_bytes(raw) == [b" a"]


def test_decoders_without_fixed_bytes_are_refused() -> None:
    raw = byte_level(["a"])
    raw.decoder = decoders.WordPiece()
    with pytest.raises(GrammarError, match="WordPiece"):
        token_bytes(raw)


def test_load_tokenizer_takes_paths_folders_and_wrappers(tmp_path: Path) -> None:
    raw = byte_level(["a"])
    raw.save(str(tmp_path / "tokenizer.json"))

    class Wrapper:
        backend_tokenizer = raw

    for source in (raw, tmp_path, tmp_path / "tokenizer.json", str(tmp_path), Wrapper()):
        assert load_tokenizer(source).get_vocab() == {"a": 0}
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(GrammarError, match=r"bad\.json"):
        load_tokenizer(tmp_path / "bad.json")
    with pytest.raises(GrammarError, match="int"):
        load_tokenizer(7)
