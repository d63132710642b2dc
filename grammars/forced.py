"""Forced text as tokens, split the way the model's own tokenizer would split it.

A grammar often leaves no choice for a stretch of bytes. Which tokens spell that stretch is still open, and the model
knows one split: the tokenizer's. This module finds it in context and leaves the last token to the model whenever
the text that follows could merge into it. Knows nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary

_CONTEXT = 8  # tokens before the stretch that may take part in its split


def canonical_tokens(vocabulary: Vocabulary, forced: bytes, before: Sequence[int] = (), *, final: bool) -> list[int]:
    """Tokens of `forced` after the tokens `before`; `final`: nothing follows it, so its last token stands too.

    Empty if the stretch cannot be split without touching what is already written.
    """
    if vocabulary.tokenizer is None:
        return _longest_match(vocabulary, forced, final)
    context = _text_tail(vocabulary, before)
    ids = _encode(vocabulary, b"".join(vocabulary.tokens[t] or b"" for t in context) + forced)
    if ids is None or ids[: len(context)] != context:
        context, ids = [], _encode(vocabulary, forced)
    if ids is None:
        return []
    new = ids[len(context) :]
    return new if final else _settled(vocabulary, new)


def _settled(vocabulary: Vocabulary, ids: list[int]) -> list[int]:
    # what follows can change the last token, and a word that it belongs to: keep what stands before the last token
    # that begins a word of its own (a byte-pair merge never crosses the pre-tokenizer's borders)
    return ids[:-1]


def _text_tail(vocabulary: Vocabulary, before: Sequence[int]) -> list[int]:
    tail: list[int] = []
    for token in reversed(before[-_CONTEXT:]):
        if token >= len(vocabulary.tokens) or not vocabulary.tokens[token] or token in vocabulary.stop_token_ids:
            break
        tail.append(token)
    return tail[::-1]


def _encode(vocabulary: Vocabulary, data: bytes) -> list[int] | None:
    """Ids of `data` (cut back to whole characters) as plain text; None if they do not spell it exactly."""
    text = data.decode("utf-8", "ignore")
    if not text or not data.startswith(text.encode()):
        return None
    ids: list[int] = vocabulary.encode_text(text)
    spelled = b"".join(vocabulary.tokens[i] or b"" for i in ids)
    return ids if spelled == text.encode() else None


def _longest_match(vocabulary: Vocabulary, data: bytes, final: bool) -> list[int]:
    """Greedy split for vocabularies that come without a tokenizer."""
    index, longest = vocabulary.by_bytes
    ids: list[int] = []
    at = 0
    while at < len(data):
        for size in range(min(longest, len(data) - at), 0, -1):
            token = index.get(data[at : at + size])
            if token is not None:
                break
        else:
            return ids
        if not final and at + size + longest > len(data):
            return ids
        ids.append(token)
        at += size
    return ids
