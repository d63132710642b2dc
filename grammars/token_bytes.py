"""Which bytes each token of a tokenizer stands for.

Job: turn a `tokenizers.Tokenizer` into a list `id -> bytes`, so that masks, matchers and detokenizers work on bytes
and never on a tokenizer's own spelling of them. Input: the tokenizer (or a path, or a wrapper around one).
The convention is read from the tokenizer's own decoder (or, where it has none, its pre-tokenizer), never guessed
from how single tokens look: a metaspace vocabulary may well own the letter "Ġ".

    ByteLevel            each letter of a token is one byte, by GPT-2's table (a token with any other letter is UTF-8 text)
    Replace / Metaspace  "▁" (or whatever the decoder replaces) is a blank; with ByteFallback, "<0x0A>" is the byte 0A
    none of them         a token is its own UTF-8 text

Knows nothing of models, grammars or masks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.errors import GrammarError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Convention", "load_tokenizer", "special_ids", "token_bytes", "token_convention"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_NOT_A_BYTE = 0xFFFF


class _ByteLetters(dict[int, int]):
    """GPT-2's letters -> bytes for str.translate; any other letter becomes one that latin-1 cannot encode."""

    def __missing__(self, letter: int) -> int:
        return _NOT_A_BYTE


@cache
def _byte_letters() -> _ByteLetters:
    """The table of byte-level BPE (GPT-2, `bytes_to_unicode`): printable bytes stand for themselves, the others for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    letters = _ByteLetters({byte: byte for byte in printable})
    letters.update({0x100 + index: byte for index, byte in enumerate(others)})
    return letters


@dataclass(frozen=True)
class Convention:
    """How a tokenizer spells bytes in its tokens.

    byte_level: letters are bytes by GPT-2's table.
    replacements: (spelling, text) pairs applied in order, such as ("▁", " ").
    byte_fallback: "<0xNN>" is one byte.
    strip_start: blanks that the decoder takes from the very start of a whole text, because the encoder put them there.
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip_start: int = 0


def token_convention(raw: tokenizers.Tokenizer) -> Convention:
    """Reads the convention from the tokenizer's decoder, or from its pre-tokenizer where there is no decoder.

    Raises GrammarError for a decoder whose tokens do not stand for fixed bytes (WordPiece, CTC, a regular expression ...).
    """
    decoder = _state(raw.decoder)
    if decoder is None:
        parts = [part for part in _flatten(_state(raw.pre_tokenizer), "pretokenizers") if part["type"] in ("ByteLevel", "Metaspace")]
    else:
        parts = _flatten(decoder, "decoders")
    convention = Convention()
    for part in parts:
        convention = _with_part(convention, part)
    return convention


def special_ids(raw: Any) -> dict[str, int]:
    """Name -> id of the special tokens."""
    if hasattr(raw, "encode_ordinary"):
        return {name: raw.encode_single_token(name) for name in raw.special_tokens_set}
    return {token.content: index for index, token in raw.get_added_tokens_decoder().items() if token.special}


def token_bytes(raw: Any) -> list[bytes | None]:
    """Bytes of every token: list [largest id + 1]; None for special tokens and for ids that no token has.

    Added tokens with special=False are text: their content as it is written, in UTF-8 (they are stored raw, not in the
    vocabulary's spelling), except that a token which a metaspace vocabulary itself owns keeps that vocabulary's spelling.
    Raises GrammarError like `token_convention`.
    """
    if hasattr(raw, "encode_ordinary"):
        return _tiktoken_bytes(raw)
    convention = token_convention(raw)
    spell = _speller(convention)
    own = raw.get_vocab(with_added_tokens=False)
    added = raw.get_added_tokens_decoder()
    size = max([*own.values(), *added], default=-1) + 1
    table: list[bytes | None] = [None] * size
    for text, token in own.items():
        table[token] = spell(text)
    for token, entry in added.items():
        if entry.special:
            table[token] = None
        elif convention.byte_level or own.get(entry.content) != token:
            table[token] = entry.content.encode()
    return table


def _tiktoken_bytes(encoding: Any) -> list[bytes | None]:
    table: list[bytes | None] = [None] * encoding.n_vocab
    special = set(special_ids(encoding).values())
    for index in range(encoding.n_vocab):
        if index not in special:
            with contextlib.suppress(KeyError):  # a hole between the ids
                table[index] = encoding.decode_single_token_bytes(index)
    return table


def load_tokenizer(source: Any) -> Any:
    """The `tokenizers.Tokenizer` (or tiktoken.Encoding) behind `source`.

    source: one of these; a path of tokenizer.json or of a folder that holds one; a tokenizer of transformers (one of the slow
    kind is converted as transformers itself would); or an object whose `raw` is a tokenizers.Tokenizer.
    Raises FileNotFoundError for a path without tokenizer.json, GrammarError for an unreadable file or anything else.
    """
    from tokenizers import Tokenizer

    if isinstance(source, Tokenizer) or all(hasattr(source, name) for name in ("encode_ordinary", "decode_single_token_bytes", "n_vocab")):
        return source
    if isinstance(source, str | os.PathLike):
        return _load_file(Path(source))
    for name in ("backend_tokenizer", "raw", "_tokenizer"):
        inner = getattr(source, name, None)
        if isinstance(inner, Tokenizer):
            return inner
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    reason = ""
    if "transformers" in sys.modules and hasattr(source, "convert_ids_to_tokens"):
        from transformers.convert_slow_tokenizer import convert_slow_tokenizer

        try:
            return convert_slow_tokenizer(source)
        except Exception as error:  # noqa: BLE001  each kind of tokenizer fails in its own way; what it said is passed on
            reason = f" (transformers cannot convert it: {error})"
    raise GrammarError(
        f"cannot read a vocabulary from {kind}{reason}: pass a tokenizers.Tokenizer, the path of a tokenizer.json, a tiktoken.Encoding, a "
        "transformers tokenizer that is backed by `tokenizers`, or the bytes of its tokens to Vocabulary itself"
    )


def _load_file(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; pass the path of a tokenizer.json, or of a folder that holds one")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises bare Exception
        raise GrammarError(f"{file}: not a tokenizer.json that `tokenizers` can read: {error}") from error


def _state(component: Any) -> dict[str, Any] | None:
    """A decoder or pre-tokenizer as the JSON it has in tokenizer.json, without serialising the vocabulary."""
    if component is None:
        return None
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _flatten(part: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for member in part[members] for leaf in _flatten(member, members)]
    return [part]


def _with_part(convention: Convention, part: Mapping[str, Any]) -> Convention:
    """The convention with one more decoder step applied; step names and fields are those of tokenizer.json."""
    kind = part["type"]
    changes: dict[str, Any] = {}
    if kind == "ByteLevel":
        changes = {"byte_level": True}
    elif kind == "ByteFallback":
        changes = {"byte_fallback": True}
    elif kind == "Replace" and "String" in part["pattern"]:
        changes = {"replacements": (*convention.replacements, (part["pattern"]["String"], part["content"]))}
    elif kind == "Metaspace":
        stripped = 0 if part.get("prepend_scheme", "always") == "never" else 1
        changes = {"replacements": (*convention.replacements, (part["replacement"], " ")), "strip_start": stripped}
    elif kind == "Strip" and part["content"] == " " and not part["stop"]:
        changes = {"strip_start": part["start"]}
    elif kind != "Fuse":
        raise GrammarError(
            f"the tokenizer's decoder has a step {kind!r} ({json.dumps(dict(part), ensure_ascii=False)}), under which tokens do not stand for "
            "fixed bytes; byte-level and SentencePiece-like tokenizers are supported"
        )
    return Convention(**{**convention.__dict__, **changes})


def _speller(convention: Convention) -> Callable[[str], bytes]:
    letters = _byte_letters()

    def byte_level(text: str) -> bytes:
        try:
            return text.translate(letters).encode("latin-1")
        except UnicodeEncodeError:
            return text.encode()

    def replaced(text: str) -> bytes:
        for spelling, meaning in convention.replacements:
            text = text.replace(spelling, meaning)
        if convention.byte_fallback and (match := _BYTE_TOKEN.match(text)):
            return bytes((int(match.group(1), 16),))
        return text.encode()

    return byte_level if convention.byte_level else replaced
