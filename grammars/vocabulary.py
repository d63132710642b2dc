"""A vocabulary: what each token id spells, as the token trie that masks are walked on.

Built from a tokenizer or a plain list of byte strings. Holds no model and no grammar; owns the arena in which
grammars are stepped for it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from agentkit.errors import GrammarError
from agentkit.grammars.arena import Arena
from agentkit.grammars.compiled import stored_array, vocabulary_digest
from agentkit.grammars.core import kernels, layout
from agentkit.grammars.settings import settings
from agentkit.grammars.splitter import greedy_encoder, plain_encoder
from agentkit.grammars.template import common_arena

__all__ = ["Vocabulary"]

_LONG = re.compile(rb'".*:.+,.*"', re.DOTALL)  # a key's end, a whole member, and the beginning of another key
_QUOTED = re.compile(rb'".*,', re.DOTALL)  # a string's end and what comes after the value
MAX_WIDTH = 1 << 24
"""Columns of a mask at most: sixty times the largest vocabularies there are, and still no memory to speak of."""
MAX_TOKEN = 1 << 15
"""Bytes of a token at most: the trie's builder keeps a path of so many nodes."""
_TEMPLATE_FROM = 4096  # tokens: the trie of a smaller vocabulary is walked sooner than common states are copied


class Vocabulary:
    """Token ids and their bytes.

    Args:
        tokens: bytes of each id; None for a special token, which is never text (b"" is never allowed at all).
        stop_token_ids: ids that end a text; they are never text themselves, even if they have bytes.
        width: columns of a mask (the model's logit width), at least len(tokens). Default: len(tokens).
        special_tokens: name -> id of special tokens, for grammars that use them as symbols; they have no bytes.

    Raises:
        ValueError: width below the largest id + 1 or above MAX_WIDTH, a stop or special id outside of it, a special token with bytes, or a
            token of more than MAX_TOKEN bytes.
        TypeError: tokens that are no bytes, stop ids that are no list, a width that is no integer.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        stop_token_ids: Sequence[int] = (),
        width: int | None = None,
        *,
        special_tokens: dict[str, int] | None = None,
        tokenizer: Any = None,
    ) -> None:
        _check_types(tokens, width)
        self.stop_token_ids = _stop_ids(stop_token_ids)
        needed = max(len(tokens), max(self.stop_token_ids, default=-1) + 1)
        self.width = needed if width is None else int(width)
        if self.width < needed:
            raise ValueError(f"width {self.width} is below the largest token id + 1 ({needed}); pass the model's logit width")
        longest = max((len(data) for data in tokens if data), default=0)
        if longest > MAX_TOKEN:
            raise ValueError(f'a token of {longest} bytes is longer than the {MAX_TOKEN} that a trie holds; leave it out (b"" is never allowed)')
        if self.width > MAX_WIDTH:
            raise ValueError(f"the width {self.width} or a stop token beyond {MAX_WIDTH - 1} is more than any model's logits have; pass the model's own")
        if any(t < 0 for t in self.stop_token_ids):
            raise ValueError(f"stop_token_ids {list(self.stop_token_ids)} must lie between 0 and {self.width - 1}")
        self.words = (self.width + 31) // 32
        self.tokens: list[bytes | None] = list(tokens)
        self.special_tokens = dict(special_tokens or {})
        for name, token in self.special_tokens.items():
            if not 0 <= token < self.width or (token < len(tokens) and tokens[token] and token not in self.stop_token_ids):
                raise ValueError(f"special_tokens: {name!r} has the id {token}, which must be below {self.width} and None among the tokens")
        self.tokenizer = tokenizer
        """The tokenizers.Tokenizer this came from, if any: forced text is split the way it would."""
        self._plain: Callable[[str], list[int]] | None = None
        self._by_bytes: tuple[dict[bytes, int], int] | None = None
        self._symbols: dict[str, int] = {}
        self._lock = threading.Lock()
        options = (self.stop_token_ids, self.width, len(self.special_tokens))
        self._digest = vocabulary_digest(self.tokens, options)
        self.array = stored_array("trie", self._digest, self._build)
        self._arena: Arena | None = None
        self._template: Arena | None = None
        settings.register(self)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, stop_token_ids: Sequence[int] = (), width: int | None = None) -> Vocabulary:
        """From a `tokenizers.Tokenizer`, the path of a tokenizer.json, a tokenizer of transformers, or a tiktoken.Encoding.

        Without `stop_token_ids`, those of a transformers tokenizer (its eos token) are taken.

        Raises:
            FileNotFoundError: no tokenizer.json there.
            GrammarError: something else, or a tokenizer whose tokens do not stand for fixed bytes (WordPiece, ...).
        """
        from agentkit.grammars.token_bytes import load_tokenizer, special_ids, token_bytes

        if not stop_token_ids and getattr(tokenizer, "eos_token_id", None) is not None and not isinstance(tokenizer, str | os.PathLike):
            stop_token_ids = [tokenizer.eos_token_id]
        raw = load_tokenizer(tokenizer)
        return cls(token_bytes(raw), stop_token_ids, width, special_tokens=special_ids(raw), tokenizer=raw)

    def __len__(self) -> int:
        return len(self.tokens)

    def _build(self) -> np.ndarray:
        stops = set(self.stop_token_ids)
        text = sorted((data, i) for i, data in enumerate(self.tokens) if data and i not in stops)
        data = np.frombuffer(b"".join(t for t, _ in text), np.uint8)
        starts = np.concatenate([[0], np.cumsum([len(t) for t, _ in text], dtype=np.int64)]).astype(np.int32)
        ids = np.array([i for _, i in text], np.int32)
        none = np.empty(0, np.int32)
        count = int(kernels.build_vocabulary(data, starts, ids, none, none, none, none, none))
        byte, depth, skip, parent = (np.zeros(count, np.int32) for _ in range(4))
        first = np.zeros(count + 1, np.int32)
        kernels.build_vocabulary(data, starts, ids, byte, depth, skip, parent, first)
        root = np.full(256, -1, np.int32)
        top = np.flatnonzero(depth == 0)
        root[byte[top]] = top
        by_byte = np.argsort(byte, kind="stable").astype(np.int32)
        long = np.array([i for t, i in text if _LONG.search(t)], np.int32)
        commas = sorted((_QUOTED.search(t) is None, i) for t, i in text if b"," in t)
        present = np.unique(data)
        alphabet = np.zeros(256, np.uint8)
        alphabet[present] = 1
        bits = np.packbits(alphabet, bitorder="little").view(np.int32)
        single = {t[0] for t, _ in text if len(t) == 1}
        by_id = [b"" if d is None or i in stops else d for i, d in enumerate(self.tokens)] + [b""] * (self.width - len(self.tokens))
        token_starts = np.concatenate([[0], np.cumsum([len(t) for t in by_id], dtype=np.int64)]).astype(np.int32)
        specials = np.full(max(len(self.special_tokens), 1), -1, np.int32)
        sections = {
            layout.V_BYTE: byte, layout.V_DEPTH: depth, layout.V_SKIP: skip, layout.V_PARENT: parent, layout.V_FIRST: first, layout.V_IDS: ids,
            layout.V_START: token_starts, layout.V_BYTES: np.frombuffer(b"".join(by_id), np.uint8).astype(np.int32),
            layout.V_STOPS: np.array(self.stop_token_ids, np.int32), layout.V_ROOT: root, layout.V_ALPHABET: bits, layout.V_SPECIALS: specials,
            layout.V_AT: np.searchsorted(byte, np.arange(257), sorter=by_byte).astype(np.int32), layout.V_BY_BYTE: by_byte, layout.V_LONG: long,
            layout.V_COMMA: np.array([i for _, i in commas], np.int32),
        }  # fmt: skip
        header = np.zeros(layout.V_HEADER, np.int32)
        at = layout.V_HEADER
        for slot, section in sections.items():
            header[slot] = at
            at += len(section)
        header[layout.V_NODES], header[layout.V_MAX_DEPTH] = count, int(depth.max(initial=-1)) + 1
        header[layout.V_TOKENS], header[layout.V_WORDS] = self.width, self.words
        header[layout.V_STOP_COUNT], header[layout.V_COMPLETE] = len(self.stop_token_ids), int(len(single) == len(present))
        header[layout.V_LONG_COUNT] = len(long)
        header[layout.V_COMMA_COUNT], header[layout.V_QUOTED_COUNT] = len(commas), sum(not late for late, _ in commas)
        return np.concatenate([header, *sections.values()]).astype(np.int32)

    @cached_property
    def alphabet(self) -> frozenset[int]:
        """The bytes that occur in some token that is text."""
        return frozenset(b"".join(t for i, t in enumerate(self.tokens) if t and i not in self.stop_token_ids))

    @property
    def array_of_every_byte(self) -> np.ndarray:
        """The array as if every byte occurred in some token."""
        array = self.array.copy()
        at = array[layout.V_ALPHABET]
        array[at : at + 8] = -1
        return array

    def text_of(self, token: int) -> bytes:
        """The bytes of `token` where it is text; b"" for special and stop tokens and for ids that no token has."""
        return b"" if not 0 <= token < len(self.tokens) or token in self.stop_token_ids else self.tokens[token] or b""

    def encode_text(self, text: str) -> list[int]:
        """Ids of `text` as plain text in the middle of other text: what looks like a special token stays text. Needs a tokenizer."""
        if self._plain is None:
            self._plain = plain_encoder(self.tokenizer)
        return self._plain(text)

    def encode_bytes(self, data: bytes) -> list[int]:
        """Ids of `data` up to its last whole character; without a tokenizer greedily, up to where no token fits."""
        if self.tokenizer is None:
            return greedy_encoder(*self.by_bytes)(data)
        try:
            return self.encode_text(data.decode())
        except UnicodeDecodeError as error:
            return self.encode_text(data[: error.start].decode())

    @cached_property
    def sorted_texts(self) -> list[bytes]:
        """The bytes of all tokens that are text, sorted."""
        return sorted(self.by_bytes[0])

    @property
    def by_bytes(self) -> tuple[dict[bytes, int], int]:
        """(bytes -> lowest id, length of the longest token) over the tokens that are text."""
        if self._by_bytes is None:
            stops = set(self.stop_token_ids)
            index = {data: i for i, data in reversed(list(enumerate(self.tokens))) if data and i not in stops}
            self._by_bytes = (index, max(map(len, index), default=0))
        return self._by_bytes

    def special_symbol(self, name: str) -> int:
        """Symbol number of the special token `name` inside grammars; switched on in the masks from now on.

        Raises:
            GrammarError: this vocabulary has no such special token, or it is a stop token.
        """
        token = self.special_tokens.get(name)
        if token is None:
            raise GrammarError(f"the grammar uses the special token {name!r}, which this vocabulary does not have; it has {sorted(self.special_tokens)[:20]}")
        if token in self.stop_token_ids:
            raise GrammarError(f"the grammar uses the special token {name!r}, which ends the text here: it is among stop_token_ids")
        symbol = self._symbols.setdefault(name, len(self._symbols))
        self.array[self.array[layout.V_SPECIALS] + symbol] = token
        self.array[layout.V_SPECIAL_COUNT] = len(self._symbols)
        return symbol

    @property
    def symbol_tokens(self) -> list[int]:
        """The special tokens that grammars have used so far, by their symbol number."""
        return [self.special_tokens[name] for name in self._symbols]

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return int(self.array[layout.V_MAX_DEPTH])

    @property
    def bank(self) -> np.ndarray:
        """Mask rows of the current arena: uint32 [rows, ceil(width / 32)]."""
        return self.arena.bank

    @property
    def arena(self) -> Arena:
        """The arena that new matchers use; a fresh one is begun when the last has grown past the settings' bound."""
        with self._lock:
            if self._arena is None or self._arena.nbytes > settings.arena_bytes:
                if self._template is None and len(self.tokens) >= _TEMPLATE_FROM:
                    packed = stored_array("common arena", self._digest, lambda: common_arena(self).packed())
                    self._template = Arena.unpacked(self, packed)
                self._arena = Arena(self, self._template)
            return self._arena

    def stats(self) -> dict[str, int]:
        """What the current arena holds, and how its bank of mask rows has served.

        states, transitions, grammars; mask_rows and their mask_bytes; mask_hits: masks of states seen before, by a look-up;
        mask_walks: the others, walked or found to be a row that was there; mask_rows_evicted: rows that had to go for want of room, in
        mask_sweeps; state_bytes: in use for states; reserved_bytes: all memory taken.
        """
        return self.arena.stats()

    def clear(self) -> None:
        """Forget all states and masks; matchers in use keep theirs."""
        with self._lock:
            self._arena = None


def _stop_ids(given: Any) -> tuple[int, ...]:
    """The ids, each once. Raises TypeError for what is no list of integers."""
    ids = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else None
    if ids is None or not all(hasattr(t, "__index__") for t in ids):
        raise TypeError(f"stop_token_ids must be a list of token ids, not {given!r}")
    return tuple(dict.fromkeys(int(t) for t in ids))


def _check_types(tokens: Any, width: Any) -> None:
    """Raises TypeError for what is easily passed by mistake, such as texts for bytes."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Sequence):
        raise TypeError("tokens must be a list with the bytes of each id; see Vocabulary.from_tokenizer")
    wrong = next((i for i, data in enumerate(tokens) if not isinstance(data, bytes | None)), None)
    if wrong is not None:
        raise TypeError(f"tokens[{wrong}] is {tokens[wrong]!r}; a token is given by its bytes, or None if it is special")
    if width is not None and not hasattr(width, "__index__"):
        raise TypeError(f"width must be an integer, not {width!r}")
