"""Small tokenizers of every family, trained on a few tool calls: no file, no download.

Each is made as the well-known models of its family make theirs: pre-tokenizer, normalizer, decoder, added tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    '{"name":"get_weather","arguments":{"city":"Oslo","unit":"celsius","days":12345}}',
    '{"name":"search_flights","arguments":{"from":"Paris","to":"New York","passengers":2,"price":1234.56}}',
    '<tool_call>\n{"name":"add_note","arguments":{"text":"don\'t forget the milk, we\'re out","tags":["home","shopping list"]}}\n</tool_call>',
    "The weather in Oslo isn't good; it's -3 degrees.  Flights to New York cost 1200 to 34567 euro.\n\n    return total\n\tif x:\n",
    '[{"id":100,"value":true},{"id":101,"value":false},{"id":102,"value":null}]',
    "naïve café über 東京の天気 Привет мир 😀 e\u0301",
    "2024-11-30 2025-01-01 192.168.0.1 10.0.0.255 kilometres miles celsius fahrenheit positive negative neutral",
]
SPECIALS = ["<s>", "</s>"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS_FROM_THE_RIGHT = r"\d{1,3}(?=(?:\d{3})*(?!\d))| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"


def byte_level(pattern: str | None, *, normalizer: Any = None, **model: Any) -> Tokenizer:
    """Byte-level BPE; pattern: how text is cut beforehand (None: a ByteLevel pre-tokenizer's own, GPT-2's)."""
    raw = Tokenizer(models.BPE(**model))
    if pattern is None:
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        raw.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if normalizer is not None:
        raw.normalizer = normalizer
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(TEXTS * 4, trainers.BpeTrainer(vocab_size=560, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False))
    return raw


def smollm() -> Tokenizer:
    """Digits one by one, then GPT-2's pattern."""
    raw = byte_level(None)
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return raw


def hermes() -> Tokenizer:
    """With the markers of tool calls as added tokens that are text."""
    raw = byte_level(QWEN, normalizer=normalizers.NFC())
    raw.add_tokens([AddedToken("<tool_call>", special=False, normalized=False), AddedToken("</tool_call>", special=False, normalized=False)])
    return raw


def prefixing_byte_level() -> Tokenizer:
    raw = byte_level(None)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return raw


def sentencepiece(prefix: str, **model: Any) -> Tokenizer:
    """SentencePiece BPE with byte fallback. prefix: "normalizer" (Llama 2), "first" or "always" (Metaspace), "never" (Gemma)."""
    raw = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", **model))
    if prefix == "normalizer":
        raw.normalizer = normalizers.Replace(" ", "▁")
    elif prefix == "never":
        raw.normalizer, raw.pre_tokenizer = normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace("▁", prefix, split=True)
    stripped = [] if prefix == "never" else [decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *stripped])
    raw.train_from_iterator(TEXTS * 4, _pieces(trainers.BpeTrainer))
    if prefix == "normalizer":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _finished(raw)


def unigram() -> Tokenizer:
    """Unigram with byte fallback, the blank in front of every text."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    raw.train_from_iterator(TEXTS * 4, _pieces(trainers.UnigramTrainer, unk_token="<unk>"))
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return _finished(raw, byte_fallback=True)


def _pieces(trainer: Callable[..., Any], **options: Any) -> Any:
    tokens = ["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))]
    return trainer(vocab_size=560, special_tokens=tokens, show_progress=False, **options)


def _finished(raw: Tokenizer, **model: Any) -> Tokenizer:
    """A trainer marks every token it is told to keep as special; the bytes are none. model: settings that no constructor takes."""
    state = json.loads(raw.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    state["model"].update(model)
    return Tokenizer.from_str(json.dumps(state))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(None),
    "gpt2, prefix": prefixing_byte_level,
    "smollm": smollm,
    "llama3": lambda: byte_level(LLAMA3, ignore_merges=True),
    "qwen": lambda: byte_level(QWEN, normalizer=normalizers.NFC()),
    "hermes": hermes,
    "o200k": lambda: byte_level(O200K),
    "digits from the right": lambda: byte_level(DIGITS_FROM_THE_RIGHT),
    "llama2": lambda: sentencepiece("normalizer"),
    "metaspace first": lambda: sentencepiece("first"),
    "metaspace always": lambda: sentencepiece("always"),
    "gemma": lambda: sentencepiece("never"),
    "unigram": unigram,
}
