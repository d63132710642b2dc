"""How a model's own tokenizer splits text that stands in the middle of other text.

Job: text -> token ids with nothing added: no blank in front, no special tokens, no padding, and what looks like a special
token stays text. Input: a `tokenizers.Tokenizer` or an object with `encode_ordinary` (tiktoken); it is never changed, and
its vocabulary is shared, not copied. A vocabulary without a tokenizer is split greedily, longest token first.
Knows nothing of grammars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["greedy_encoder", "plain_encoder"]


def plain_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """The function text -> ids of a tokenizer; safe from any thread."""
    if hasattr(tokenizer, "encode_ordinary"):
        return lambda text: list(tokenizer.encode_ordinary(text))
    twin = _twin(tokenizer)
    specials = {index: token.content for index, token in twin.get_added_tokens_decoder().items() if token.special and len(token.content) > 1}

    def encode(text: str) -> list[int]:
        ids: list[int] = twin.encode(text, add_special_tokens=False).ids
        found = [text.find(specials[token]) for token in ids if token in specials]
        at = min((place for place in found if place >= 0), default=None)
        if at is None:
            return ids
        return encode(text[: at + 1]) + encode(text[at + 1 :])  # the model's own pieces hold it: cut it, it is text here

    return encode


def greedy_encoder(index: Mapping[bytes, int], longest: int) -> Callable[[bytes], list[int]]:
    """The function bytes -> ids that takes the longest token each time, up to where no token fits.

    index: bytes -> id. longest: bytes of the longest token.
    """

    def encode(data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            sizes = range(min(longest, len(data) - at), 0, -1)
            size = next((size for size in sizes if data[at : at + size] in index), 0)
            if size == 0:
                break
            ids.append(index[data[at : at + size]])
            at += size
        return ids

    return encode


def _twin(raw: Any) -> Any:
    """A tokenizer that shares `raw`'s model and adds nothing to a text."""
    from tokenizers import Tokenizer

    twin = Tokenizer(raw.model)
    added = raw.get_added_tokens_decoder()
    twin.add_tokens([added[index] for index in sorted(added)])
    if twin.get_added_tokens_decoder().keys() != added.keys():  # ids with holes between them cannot be given out anew
        twin = Tokenizer.from_str(raw.to_str())
        twin.no_padding()
        twin.no_truncation()
    twin.encode_special_tokens = True
    for part in ("normalizer", "pre_tokenizer"):
        component = getattr(raw, part)
        if component is not None:
            setattr(twin, part, _without_prefix(component, part))
    return twin


def _without_prefix(component: Any, part: str) -> Any:
    """The same component, except that it puts no blank in front of a text."""
    state = json.loads(component.__getstate__())
    changed = _strip_prefix(state)
    if changed == state:
        return component
    from tokenizers import normalizers, pre_tokenizers

    fresh: Any = normalizers.NFC() if part == "normalizer" else pre_tokenizers.Whitespace()
    fresh.__setstate__(json.dumps(changed).encode())  # a component becomes whatever its state says
    return fresh


def _strip_prefix(state: Mapping[str, Any]) -> dict[str, Any]:
    """A component's state (as in tokenizer.json) without its steps that begin a text with a blank."""
    kind, changed = state["type"], dict(state)
    if kind == "Sequence":
        name = "normalizers" if "normalizers" in state else "pretokenizers"
        members: Sequence[Mapping[str, Any]] = state[name]
        changed[name] = [_strip_prefix(member) for member in members]
    elif kind == "Metaspace":
        changed["prepend_scheme"] = "never"
    elif kind == "ByteLevel":
        changed["add_prefix_space"] = False
    elif kind == "Prepend":
        changed = {"type": "Sequence", "normalizers": []}
    return changed
