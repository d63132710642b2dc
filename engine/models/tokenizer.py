"""Text to tokens and back, straight from `tokenizers`.

Job: encode with special tokens recognised or not, decode, and stream-decode without ever cutting a character. Input: a
tokenizer.json. Special tokens are found here rather than by the tokenizer, so that one tokenizer object serves both ways of
encoding from any thread, and so that a chat template can say which occurrences are its own (chat_template.py).
Decoding goes by the bytes of tokens (agentkit.grammars.token_bytes), which is what the grammars see too. Knows nothing of models.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentkit.errors import EngineError, GrammarError
from agentkit.grammars.token_bytes import load_tokenizer, token_bytes, token_convention

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Detokenizer", "Tokenizer"]


class Tokenizer:
    """A model's tokenizer.

    raw: the tokenizers.Tokenizer; it is set to treat special tokens as plain text, so encode through this class.
    token_bytes: bytes of each id, None for special tokens and unused ids. special_ids: ids of the special tokens.
    """

    def __init__(
        self, raw: tokenizers.Tokenizer, *, stop_token_ids: Sequence[int] = (), bos_token_id: int | None = None, named_tokens: dict[str, str] | None = None
    ) -> None:
        """named_tokens: such as {"bos_token": "<s>"}, for chat templates."""
        raw.encode_special_tokens = True
        raw.no_padding()
        raw.no_truncation()
        self.raw = raw
        self.stop_token_ids = tuple(stop_token_ids)
        self.bos_token_id = bos_token_id
        self.named_tokens = dict(named_tokens or {})
        self._convention = token_convention(raw)
        added = raw.get_added_tokens_decoder()
        self.special_tokens = {token.content: index for index, token in added.items() if token.special}
        self.special_ids = frozenset(self.special_tokens.values())
        self._special_pattern = _special_pattern([token for token in added.values() if token.special])

    @classmethod
    def from_folder(cls, folder: Path, *, stop_token_ids: Sequence[int] = (), bos_token_id: int | None = None) -> Tokenizer:
        """From a folder in Hugging Face layout. The tokenizer's own eos_token is a stop token too.

        Raises EngineError where tokenizer.json is missing, damaged, or of a kind whose tokens do not stand for fixed bytes.
        """
        try:
            raw = load_tokenizer(folder)
            named = _named_tokens(folder)
            stops = list(stop_token_ids)
            eos = raw.token_to_id(named["eos_token"]) if "eos_token" in named else None
            if eos is not None and eos not in stops:
                stops.append(eos)
            return cls(raw, stop_token_ids=stops, bos_token_id=bos_token_id, named_tokens=named)
        except FileNotFoundError as error:
            raise EngineError(f"{folder} holds no tokenizer.json; save the model's fast tokenizer there (tokenizer.save_pretrained)") from error
        except GrammarError as error:
            raise EngineError(f"{folder}: {error}") from error

    @cached_property
    def token_bytes(self) -> list[bytes | None]:
        """Bytes of each id up to the largest; None for special tokens and for ids that no token has."""
        return token_bytes(self.raw)

    @property
    def vocab_size(self) -> int:
        """Largest id + 1. A model's logits may be wider (padding)."""
        return len(self.token_bytes)

    def encode(self, text: str, special: bool = False, *, bos: bool = False) -> list[int]:
        """Token ids of `text`.

        special: True: special tokens in the text are recognised; False: text that looks like one stays text.
        Added tokens that the tokenizer itself does not call special are text, and recognised either way.
        bos: put the model's first token in front (nothing where it has none, or where the text already begins with it).
        """
        pieces = self.split_special(text) if special else [text]
        ids = self.encode_pieces(pieces)
        if bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def split_special(self, text: str) -> list[str | int]:
        """The text cut at its special tokens: plain pieces as str, special tokens as their ids."""
        pieces: list[str | int] = []
        start = 0
        for match in self._special_pattern.finditer(text) if self._special_pattern else ():
            if match.start() > start:
                pieces.append(text[start : match.start()])
            content = next(group for group in match.groups() if group is not None)
            pieces.append(self.special_tokens[content])
            start = match.end()
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def encode_pieces(self, pieces: Iterable[str | int]) -> list[int]:
        """Token ids of what `split_special` gives: str is plain text whatever it looks like, int is a token id.

        Raises EngineError for text that is not Unicode (lone surrogates).
        """
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if isinstance(piece, int):
                ids.append(piece)
                continue
            ids.extend(self._plain(piece, self.raw if index == 0 else self._inner))
        return ids

    def _plain(self, text: str, raw: tokenizers.Tokenizer) -> list[int]:
        """Plain text to ids, none of them special even where the vocabulary's own merges would spell a special token."""
        try:
            ids: list[int] = raw.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError) as error:
            where = next((index for index, letter in enumerate(text) if "\ud800" <= letter <= "\udfff"), None)
            if where is None:
                raise
            raise EngineError(f"the text holds a lone surrogate at character {where}; remove it, or decode the text anew") from error
        if self.special_ids.isdisjoint(ids) or self._special_pattern is None:
            return ids
        match = self._special_pattern.search(text)
        if match is None:
            return ids  # the tokenizer's own sign for unknown text
        cut = match.start(next(group for group, found in enumerate(match.groups(), 1) if found is not None)) + 1
        return self._plain(text[:cut], raw) + self._plain(text[cut:], self._inner)

    def decode(self, ids: Iterable[int], *, continuation: bool = False) -> str:
        """The text of tokens, without special ones; bytes that are no UTF-8 become U+FFFD.

        continuation: the tokens go on a text, as generated ones do. Otherwise the blank that some (SentencePiece) tokenizers put
        before a whole text is taken off again, so that decode(encode(text)) is the text.
        """
        data = b"".join(self._bytes_of(token) for token in ids)
        text = data.decode("utf-8", "replace")
        return text if continuation else _strip(text, self._convention.strip_start)

    def detokenizer(self, *, continuation: bool = False) -> Detokenizer:
        """A stream decoder whose pieces together are what `decode` gives."""
        return Detokenizer(self, 0 if continuation else self._convention.strip_start)

    def _bytes_of(self, token: int) -> bytes:
        if not 0 <= token < len(self.token_bytes):
            return b""  # padding ids of the model's logits that no token has
        return self.token_bytes[token] or b""

    @cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        """The tokenizer for text after the first piece: the same, except where only a text's very start gets a blank put before it."""
        from tokenizers import Tokenizer as RawTokenizer

        state = json.loads(self.raw.to_str()) if _prepends_first(self.raw) else None
        if state is None:
            return self.raw
        _never_prepend(state["pre_tokenizer"])
        raw = RawTokenizer.from_str(json.dumps(state))
        raw.encode_special_tokens = True
        return raw


class Detokenizer:
    """Turns tokens into text as they come: constant work per token, never half a character.

    Bytes of an unfinished character are held back until it is whole, or until `finish`.
    """

    def __init__(self, tokenizer: Tokenizer, strip_start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_start

    def push(self, token: int) -> str:
        """The text that this token completes, often empty or one word."""
        return self._stripped(self._decoder.decode(self._tokenizer._bytes_of(token)))

    def finish(self) -> str:
        """The rest: U+FFFD for an unfinished character, else empty. The detokenizer is then at the start of a new text's bytes."""
        return self._stripped(self._decoder.decode(b"", True))

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Non-empty pieces of text for `tokens`, the rest at the end included."""
        for token in tokens:
            if piece := self.push(token):
                yield piece
        if piece := self.finish():
            yield piece

    def _stripped(self, piece: str) -> str:
        if not self._strip or not piece:
            return piece
        stripped = _strip(piece, self._strip)
        taken = len(piece) - len(stripped)
        self._strip = self._strip - taken if not stripped else 0
        return stripped


def _strip(text: str, count: int) -> str:
    """Without up to `count` leading blanks."""
    taken = 0
    while taken < count and text[taken : taken + 1] == " ":
        taken += 1
    return text[taken:]


def _special_pattern(tokens: Sequence[tokenizers.AddedToken]) -> re.Pattern[str] | None:
    """Matches a special token, longest first; one group per token, its content. Their stripping flags take white space beside them."""
    parts = []
    for token in sorted(tokens, key=lambda token: -len(token.content)):
        left, right = (r"\s*" if token.lstrip else ""), (r"\s*" if token.rstrip else "")
        before, after = (r"(?<!\w)", r"(?!\w)") if token.single_word else ("", "")
        parts.append(f"{left}{before}({re.escape(token.content)}){after}{right}")
    return re.compile("|".join(parts)) if parts else None


def _named_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token ... of tokenizer_config.json and special_tokens_map.json as plain strings."""
    from agentkit.engine.models.loader import read_json

    fields = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    named = {}
    for name, value in fields.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named


def _metaspaces(part: dict[str, object] | None) -> list[dict[str, object]]:
    if part is None:
        return []
    members = part["pretokenizers"] if part["type"] == "Sequence" else [part]
    return [leaf for leaf in members if leaf["type"] == "Metaspace"]  # type: ignore[attr-defined]


def _prepends_first(raw: tokenizers.Tokenizer) -> bool:
    if raw.pre_tokenizer is None:
        return False
    return any(part.get("prepend_scheme") == "first" for part in _metaspaces(json.loads(raw.pre_tokenizer.__getstate__())))


def _never_prepend(pre_tokenizer: dict[str, object]) -> None:
    for part in _metaspaces(pre_tokenizer):
        if part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
