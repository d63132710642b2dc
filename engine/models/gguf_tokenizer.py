"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer.json.

Input: the file's tokenizer.ggml.* metadata. Two kinds: "gpt2", byte-level BPE whose pre-tokenizer is named, and "llama",
SentencePiece BPE with scores and byte fallback (Llama 2, Mistral, Gemma). Output: plain dicts for tokenizer.json and
tokenizer_config.json, the chat template, and the tokens that end a turn. An unknown pre-tokenizer is refused, because a
guessed one would split text in ways the model has never seen. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkit.engine.models.gguf_file import GgufFile
from agentkit.errors import EngineError

__all__ = ["chat_templates", "stop_token_ids", "tokenizer_config", "tokenizer_json"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type (1 is normal, 6 a byte)

# Control tokens that end a turn in the families that use them; files name only one of them as eos.
_ENDS = {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "<|eot|>"}

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def _split(pattern: str) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, _byte_level(False)]


_GPT2: list[dict[str, Any]] = [_byte_level(True)]
_DIGITS: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}, _byte_level(True)]
# tokenizer.ggml.pre -> steps of the pre-tokenizer, normaliser, whether words that are tokens skip the merges
_PRE_TOKENIZERS: dict[str, tuple[list[dict[str, Any]], str | None, bool]] = {
    "gpt-2": (_GPT2, None, False),
    "smollm": (_DIGITS, None, False),
    "starcoder": (_DIGITS, None, False),
    "refact": (_DIGITS, None, False),
    "llama-bpe": (_split(_LLAMA3), None, True),
    "llama3": (_split(_LLAMA3), None, True),
    "llama-v3": (_split(_LLAMA3), None, True),
    "qwen2": (_split(_QWEN2), "NFC", False),
    "deepseek-r1-qwen": (_split(_QWEN2), "NFC", False),
    "tekken": (_split(_TEKKEN), None, True),
}


def tokenizer_json(file: GgufFile) -> dict[str, Any]:
    """tokenizer.json as a dict. Raises EngineError for a kind of tokenizer or pre-tokenizer that is not known."""
    kind = file.get("tokenizer.ggml.model")
    tokens: list[str] = file.get("tokenizer.ggml.tokens") or []
    types: list[int] = file.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens:
        raise EngineError(f"{file.path}: the file holds no tokenizer; convert the model anew with its vocabulary")
    if kind == "gpt2":
        parts = _byte_level_bpe(file, tokens, types)
    elif kind == "llama":
        parts = _sentencepiece_bpe(file, tokens, types)
    else:
        raise EngineError(f"{file.path}: the tokenizer model {kind!r} is not supported; supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)")
    spelled = _spelling(kind, tokens, types)
    named = [index for index in range(len(tokens)) if types[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    added = [_added(index, spelled[index], types[index] != _USER_DEFINED) for index in named]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _post_processor(file, kind, tokens),
        **parts,
    }


def _added(index: int, content: str, special: bool) -> dict[str, Any]:
    return {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}


def _spelling(kind: str, tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """Tokens as the vocabulary spells them: GGUF writes the blanks of SentencePiece's user-defined tokens out."""
    if kind != "llama":
        return list(tokens)
    return [token.replace(" ", "▁") if kind_ == _USER_DEFINED else token for token, kind_ in zip(tokens, types, strict=True)]


def _bpe(vocab: dict[str, int], merges: list[list[str]], *, unk: str | None, byte_fallback: bool, ignore_merges: bool) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    }


def _vocab(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens) if types[index] != _UNUSED}


def _byte_level_bpe(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    name = str(file.get("tokenizer.ggml.pre", "default"))
    if name not in _PRE_TOKENIZERS:
        raise EngineError(f"{file.path}: the pre-tokenizer {name!r} is not known; known are {', '.join(_PRE_TOKENIZERS)}")
    steps, normalizer, ignore_merges = _PRE_TOKENIZERS[name]
    merges = [merge.split(" ") for merge in file.get("tokenizer.ggml.merges") or []]
    return {
        "normalizer": None if normalizer is None else {"type": normalizer},
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "decoder": _byte_level(True),
        "model": _bpe(_vocab(tokens, types), merges, unk=None, byte_fallback=False, ignore_merges=ignore_merges),
    }


def _sentencepiece_bpe(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    pieces = _spelling("llama", tokens, types)
    scores = file.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    vocab = _vocab(pieces, types)
    unknown = int(file.get("tokenizer.ggml.unknown_token_id", 0))
    return {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]} if prefix else replace,
        "pre_tokenizer": None if prefix else {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocab, _merges(pieces, types, scores, vocab), unk=pieces[unknown], byte_fallback=True, ignore_merges=False),
    }


def _merges(pieces: Sequence[str], types: Sequence[int], scores: Sequence[float], vocab: dict[str, int]) -> list[list[str]]:
    """SentencePiece joins the adjacent pair whose piece scores best: every split of every piece, best score first.

    User-defined and control pieces carry no score in a GGUF file; SentencePiece gives them 0, above all others.
    """
    found: list[tuple[float, int, int, int, int, str, str]] = []
    for index, piece in enumerate(pieces):
        if types[index] == _UNUSED or len(piece) < 2:
            continue
        score = scores[index] if types[index] == 1 else 0.0
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                found.append((-score, -cut, cut - len(piece), index, vocab[left], left, right))
    found.sort(key=lambda entry: entry[:5])
    return [[left, right] for *_, left, right in found]


def _post_processor(file: GgufFile, kind: str, tokens: Sequence[str]) -> dict[str, Any] | None:
    """Puts the first token before a text where the file says so (by default SentencePiece does, byte-level BPE does not)."""
    bos = file.get("tokenizer.ggml.bos_token_id")
    if bos is None or not file.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        return None
    name = tokens[bos]
    single = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"SpecialToken": {"id": name, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {name: {"id": name, "ids": [bos], "tokens": [name]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json: the named special tokens."""
    tokens = file.get("tokenizer.ggml.tokens") or []
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        index = file.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and index < len(tokens):
            fields[name] = tokens[index]
    fields["add_bos_token"] = bool(file.get("tokenizer.ggml.add_bos_token", file.get("tokenizer.ggml.model") == "llama"))
    return fields


def stop_token_ids(file: GgufFile) -> list[int]:
    """Tokens that end a turn: those the file names (eos, eot, eom), then the control tokens that do so by name."""
    tokens, types = file.get("tokenizer.ggml.tokens") or [], file.get("tokenizer.ggml.token_type") or []
    named = [file.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    by_name = [index for index, kind in enumerate(types) if kind == _CONTROL and tokens[index] in _ENDS]
    return list(dict.fromkeys(index for index in (*named, *by_name) if index is not None))


def chat_templates(file: GgufFile) -> tuple[str | None, str | None]:
    """The chat template, and the other one for tools where the file has two."""
    return file.get("tokenizer.chat_template"), file.get("tokenizer.chat_template.tool_use")
