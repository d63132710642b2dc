"""Forced text as tokens, split the way the model's own tokenizer would split it.

A grammar often leaves no choice for a stretch of bytes. Which tokens spell that stretch is still open, and the model
knows one split: the tokenizer's. What follows the stretch is not known yet and may merge with its end, so the tokens
returned are those that the tokenizer gives *whatever* comes next. They are found as the common beginning of

- the split of the text up to each place from which some token reaches past its end, the end itself included. In byte-pair
  and unigram models a split is made of splits: whatever follows, the text before the last such place is split as if it
  ended there. So these are all the splits that merging can lead to;
- the splits of the text together with one continuation of each kind (letter, digit, blank, line break ...), because a
  pre-tokenizer looks at characters, not at tokens.

Only what the grammar lets follow is considered. Input: a vocabulary, bytes, and a test of what may follow. Knows nothing
of grammars or models.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["CONTEXT", "Follows", "canonical_tokens"]

Follows = Callable[[bytes], bool]
"""Could these bytes come next, as the beginning of what follows?"""

CONTEXT = 8  # accepted units before the stretch that may take part in its split
_WINDOW = 16  # tokens at the end of a stretch that what follows may change
# One of each kind that pre-tokenizers tell apart; the first that may follow speaks for its kind.
_KINDS = [bytes(kind) for kind in (range(97, 123), range(65, 91), b"0123456789", b" ", b"\n", b"\r", b"\t", b"'", range(0xC2, 0xE0), range(0xE0, 0xF0))]
_KINDS += [bytes(range(0xF0, 0xF5)), bytes(range(0x80, 0xC0)), bytes(b for b in range(33, 127) if not chr(b).isalnum() and b != 39)]
_TEXTS = [t.encode() for t in ("00", "000", " a", "  ", " \n", "\n\n", "\n ", "'s", "re", "a\u0301", "A", "é", "中", "\u0301", "\u00a0", "\u3000", "🏽")]


def canonical_tokens(vocabulary: Vocabulary, forced: bytes, before: Sequence[int | bytes], follows: Follows | None) -> list[int]:
    """Tokens that the tokenizer gives for `forced` whatever comes next; possibly fewer bytes than `forced` has.

    Empty if the next token depends on what follows, or if no tokens of the tokenizer spell it.

    Args:
        before: what is written so far, tokens or bytes. Where the tokenizer would not have split it like this (a sampled
            token that no tokenizer would choose), only as much of it as agrees counts.
        follows: which bytes may come after `forced`; None if the text ends with it.
    """
    context = _text_tail(vocabulary, before)
    for start in range(len(context) + 1):
        stretch = _Stretch(vocabulary, context[start:], forced)
        if stretch.agrees:
            return stretch.ids if follows is None and stretch.whole else stretch.settled(follows)
    return []


class _Stretch:
    """A written text and what must follow it, split together.

    data: bytes, of which ids, after the `written` units, spell data[head:end].   agrees: the split keeps the written units.
    whole: the ids spell all of it (else a character is incomplete, or the tokenizer changes the text).
    """

    def __init__(self, vocabulary: Vocabulary, written: Sequence[int | bytes], forced: bytes) -> None:
        self.vocabulary, self.written = vocabulary, written
        head = b"".join(_bytes_of(vocabulary, unit) for unit in written)
        self.data = head + forced
        every = self._split(self.data)
        ids = self._after_written(every)
        self.agrees = ids is not None
        self.ids = ids or []
        self.end = sum(len(vocabulary.text_of(token)) for token in every)
        self.whole = self.end == len(self.data)
        self.head = len(head)

    def settled(self, follows: Follows | None) -> list[int]:
        """The ids that stay whatever comes next."""
        kept = self._fixed_beginning()
        common = self.ids[kept:]
        for other in self._other_splits(follows):
            ids = self._after_written(other)
            if ids is not None:  # else what follows belongs to a text that would have begun with other tokens
                common = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(common, ids, strict=False))]
        return self.ids[:kept] + common

    def _fixed_beginning(self) -> int:
        """Makes the first ids of a long stretch its written part, so that only its end is split again; their number."""
        kept = max(len(self.ids) - _WINDOW, 0)
        tail = [self.vocabulary.text_of(token) for token in self.ids[max(kept - CONTEXT, 0) :]]
        context = min(kept, CONTEXT)
        start = self.end - sum(map(len, tail))
        if context == 0 or self._split(self.data[start : self.end]) != self.ids[kept - context :]:
            return 0
        self.written = self.ids[kept - context : kept]
        self.head = sum(map(len, tail[:context]))
        self.data, self.end = self.data[start:], self.end - start
        return kept

    def _other_splits(self, follows: Follows | None) -> Iterator[list[int]]:
        """Splits of the text up to each place from which a token may reach past the end, and with each kind of continuation."""
        rest = self.data[self.end :]

        def may_follow(more: bytes) -> bool:
            inside = more[: len(rest)] == rest[: len(more)]
            return inside and (len(more) <= len(rest) or (follows is not None and follows(more[len(rest) :])))

        known: dict[int, bool] = {}
        for at in range(max(self.head, self.end - self.vocabulary.longest + 1), self.end):
            if self._reaches_on(self.data[at : self.end], may_follow, known):
                yield from self._splits_before(at, set())
        if self.vocabulary.tokenizer is not None and follows is not None:
            for more in _continuations(follows):
                yield self._split(self.data + more)

    def _reaches_on(self, begun: bytes, may_follow: Follows, known: dict[int, bool]) -> bool:
        """Does a token begin with `begun` and go on with a byte that may follow?"""
        texts = self.vocabulary.sorted_texts
        index = bisect_left(texts, begun + b"\0")
        while index < len(texts) and texts[index].startswith(begun):
            byte = texts[index][len(begun)]
            if byte not in known:
                known[byte] = may_follow(bytes([byte]))
            if known[byte]:
                return True
            if byte == 255:
                return False
            index = bisect_left(texts, begun + bytes([byte + 1]), index)
        return False

    def _splits_before(self, at: int, seen: set[int]) -> Iterator[list[int]]:
        """Splits that may stand before a token at `at`; inside a character, those before the tokens that can end there."""
        if at in seen or at < self.head:
            return
        seen.add(at)
        if at == len(self.data) or self.data[at] & 0xC0 != 0x80:
            yield self._split(self.data[:at])
            return
        index, longest = self.vocabulary.by_bytes
        for start in range(max(at - longest, 0), at):
            if self.data[start:at] in index:
                yield from self._splits_before(start, seen)

    def _split(self, data: bytes) -> list[int]:
        """Ids that spell `data` or, where its end is no whole character or the tokenizer changes the text, its beginning."""
        spelled, ids = 0, []
        for token in self.vocabulary.encode_bytes(data):
            piece = self.vocabulary.text_of(token)
            if not piece or not data.startswith(piece, spelled):
                break
            spelled += len(piece)
            ids.append(token)
        while ids and spelled < len(data) and data[spelled] & 0xC0 == 0x80:  # end on a whole character
            spelled -= len(self.vocabulary.text_of(ids.pop()))
        return ids

    def _after_written(self, ids: list[int]) -> list[int] | None:
        """The ids after those of the written units; None if these are split in another way."""
        at = 0
        for unit in self.written:
            if isinstance(unit, int):
                if ids[at : at + 1] != [unit]:
                    return None
                at += 1
                continue
            left = len(unit)
            while left > 0 and at < len(ids):
                left -= len(self.vocabulary.text_of(ids[at]))
                at += 1
            if left:
                return None
        return ids[at:]


def _continuations(follows: Follows) -> Iterator[bytes]:
    """What may follow: one text of each kind, completed to whole characters."""
    for kind in _KINDS:
        first = next((byte for byte in kind if follows(bytes([byte]))), None)
        if first is not None:
            yield _completed(bytes([first]), follows)
    for text in _TEXTS:
        if follows(text):
            yield text


def _completed(begun: bytes, follows: Follows) -> bytes:
    """`begun` with the continuation bytes (UTF-8) that it needs and the grammar allows, first ones first."""
    while begun[0] >= 0x80 and len(begun) < 4:
        byte = next((byte for byte in range(0x80, 0xC0) if follows(begun + bytes([byte]))), None)
        if byte is None:
            break
        begun += bytes([byte])
    return begun


def _bytes_of(vocabulary: Vocabulary, unit: int | bytes) -> bytes:
    return unit if isinstance(unit, bytes) else vocabulary.text_of(unit)


def _text_tail(vocabulary: Vocabulary, before: Sequence[int | bytes]) -> list[int | bytes]:
    """The last units of `before` that are text."""
    tail = list(takewhile(lambda unit: _bytes_of(vocabulary, unit), reversed(before[-CONTEXT:])))
    return tail[::-1]
