"""Encoding and decoding: special tokens on and off, streams equal to the whole, and the real SmolLM2 tokenizer."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from agentkit.engine.models.tokenizer import Tokenizer
from agentkit.errors import EngineError
from tests.engine.models.corpus import texts
from tests.engine.models.synthetic import VOCABULARY, byte_tokenizer

IM_START, IM_END = VOCABULARY.index("<|im_start|>"), VOCABULARY.index("<|im_end|>")


def metaspace(scheme: str) -> RawTokenizer:
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    raw = RawTokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme == "legacy":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    raw.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return raw


def test_special_tokens_are_recognised_only_when_asked() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    text = "hello<|im_end|> a<|im_start|>"
    assert tokenizer.encode(text, special=True)[1:2] == [IM_END]
    assert tokenizer.encode(text, special=True).count(IM_START) == 1
    plain = tokenizer.encode(text, special=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == "hello a"


def test_added_tokens_that_are_not_special_are_text_either_way() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    for special in (True, False):
        assert tokenizer.encode("<tool_call>", special) == [VOCABULARY.index("<tool_call>")]
    assert tokenizer.decode([VOCABULARY.index("<tool_call>")]) == "<tool_call>"


def test_equal_to_the_tokenizers_own_encoding_with_special_tokens() -> None:
    theirs, ours = byte_tokenizer(), Tokenizer(byte_tokenizer())
    draw = random.Random(1)
    for text in texts():
        words = text.split(" ")
        words.insert(draw.randrange(len(words) + 1), "<|im_end|>")
        mixed = " ".join(words)
        assert ours.encode(mixed, special=True) == theirs.encode(mixed, add_special_tokens=False).ids


@pytest.mark.parametrize("scheme", ["legacy", "first", "always", "never"])
def test_blanks_before_a_text_follow_the_tokenizers_own_rule(scheme: str) -> None:
    theirs, ours = metaspace(scheme), Tokenizer(metaspace(scheme))
    for text in ["a", " a", "a<s>a", "<s>a", "<s> a b", "a <s>b<s>", "é a"]:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("scheme", ["legacy", "first", "always"])
def test_text_comes_back_without_the_blank_put_before_it(scheme: str) -> None:
    tokenizer = Tokenizer(metaspace(scheme))
    # a Metaspace step puts no blank before a text that begins with one, so there " a" and "a" are the same tokens
    for text in ["a b", "b", "日本 a", "", *([" a", "  a"] if scheme == "legacy" else [])]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert "".join(tokenizer.detokenizer().stream(ids)) == text
        assert tokenizer.decode(ids, continuation=True) == (" " + text if ids else "")


def test_stripping_flags_of_special_tokens_are_heeded() -> None:
    def build() -> RawTokenizer:
        raw = byte_tokenizer()
        raw.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False)])
        return raw

    for text in ["a  <mask>  b", "<mask>", " <mask><|im_end|> <mask>"]:
        assert Tokenizer(build()).encode(text, special=True) == build().encode(text, add_special_tokens=False).ids


def test_merges_that_spell_a_special_token_do_not_make_one() -> None:
    vocab = {"<s>": 0, "<": 1, "s": 2, ">": 3, "<s": 4}
    raw = RawTokenizer(models.BPE(vocab, [("<", "s"), ("<s", ">")]))
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer = Tokenizer(raw)
    assert raw.encode("<s>", add_special_tokens=False).ids == [0]  # the trap
    for text in ["<s>", "s<s><s>s", "<<s>>"]:
        ids = tokenizer.encode(text)
        assert 0 not in ids
        assert tokenizer.decode(ids) == text


def test_first_token_is_put_in_front_only_when_asked() -> None:
    tokenizer = Tokenizer(byte_tokenizer(), bos_token_id=IM_START)
    assert tokenizer.encode("a") == tokenizer.encode("a", bos=True)[1:]
    assert tokenizer.encode("<|im_start|>a", special=True, bos=True).count(IM_START) == 1
    assert Tokenizer(byte_tokenizer()).encode("a", bos=True) == tokenizer.encode("a")


def test_lone_surrogates_are_refused_by_name() -> None:
    with pytest.raises(EngineError, match="lone surrogate at character 1"):
        Tokenizer(byte_tokenizer()).encode("a\ud800")


@pytest.mark.parametrize("build", [byte_tokenizer, lambda: metaspace("legacy")])
def test_streams_equal_the_whole_for_any_tokens(build: object) -> None:
    tokenizer = Tokenizer(build())  # type: ignore[operator]
    draw = random.Random(0)
    for _ in range(300):
        ids = [draw.randrange(tokenizer.vocab_size + 3) for _ in range(draw.randint(0, 30))]
        for continuation in (True, False):
            stream = tokenizer.detokenizer(continuation=continuation)
            pieces = [stream.push(token) for token in ids] + [stream.finish()]
            assert "".join(pieces) == tokenizer.decode(ids, continuation=continuation)


def test_a_stream_never_shows_half_a_character_and_flushes_at_the_end() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    ids = tokenizer.encode("é😀")
    stream = tokenizer.detokenizer()
    assert [stream.push(token) for token in ids] == ["", "é", "", "", "", "😀"]
    cut = tokenizer.detokenizer()
    assert "".join(cut.push(token) for token in ids[:-1]) == "é"
    assert cut.finish() == "\ufffd"
    assert tokenizer.decode(ids[:-1]) == "é\ufffd"


def test_real_replacement_characters_keep_coming_at_constant_cost() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    ids = tokenizer.encode("\ufffd")
    stream = tokenizer.detokenizer()
    assert [stream.push(token) for token in ids * 500] == ["", "", "\ufffd"] * 500

    def cost(tokens: int) -> float:
        stream = tokenizer.detokenizer()
        start = time.process_time()
        for _ in range(tokens):
            stream.push(ids[0])
        return time.process_time() - start

    cost(1000)
    assert cost(100_000) < 40 * max(cost(10_000), 1e-4)  # quadratic cost would be 100 times


def test_missing_and_unsupported_tokenizers_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    raw = byte_tokenizer()
    raw.decoder = decoders.CTC()
    raw.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(EngineError, match="CTC"):
        Tokenizer.from_folder(tmp_path)


def test_the_tokenizers_own_eos_is_a_stop_token(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}))
    tokenizer = Tokenizer.from_folder(tmp_path, stop_token_ids=(0,))
    assert tokenizer.stop_token_ids == (0, IM_END)
    assert tokenizer.named_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


def test_smollm2_text_comes_back(smollm2_folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(smollm2_folder)
    for text in texts():
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_smollm2_equals_the_reference_tokenizer(smollm2_folder: Path, shared: Path) -> None:
    """The reference file lacks the Digits step of the published SmolLM2 tokenizer (pre-tokenizer "smollm": single digits first).

    With the step put back all encodings are equal; without it all those of texts that hold no number.
    """
    ours = Tokenizer.from_folder(smollm2_folder)
    theirs = RawTokenizer.from_file(str(shared / "maskbench/tok/smollm2/tokenizer.json"))
    assert ours.raw.get_vocab() == theirs.get_vocab()
    numberless = [text for text in texts() if not any(letter.isnumeric() for letter in text)]
    assert len(numberless) > 100
    for text in numberless:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), theirs.pre_tokenizer])
    for text in [*texts(), "<|im_start|>user\nhi<|im_end|>\n"]:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False).ids, text
