"""Free text up to what ends it: the automaton that searches for words (Aho and Corasick 1975), as rules of a grammar.

Every text has one path and a handful of states, so masks are those of a plain run of characters but where a word may have
begun. Input: the words, and what may follow which. Knows nothing of turns or tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.chars import SCALARS, CharSet, utf8_class

__all__ = ["spelled", "text_until"]

_START = "\ud800"  # stands before the first character in words that count only there; no text holds it


def spelled(builder: Builder, text: str, specials: Sequence[str]) -> Node:
    """`text`, in which the `specials` are markers: special tokens where the vocabulary has them."""
    return builder.seq(*(builder.marker(part) if part in specials else builder.literal(part.encode()) for part in _parts(text, specials)))


def text_until(
    builder: Builder,
    never: Sequence[str],
    ends: Sequence[tuple[str, Node]] = (),
    *,
    specials: Sequence[str] = (),
    leading: bool = False,
    empty: bool = False,
    may_end: bool = True,
) -> Node:
    """Text that holds none of the words `never`; then nothing, or an opening of `ends` and the node that goes with it.

    Each word begins with a character that occurs nowhere else in any word. A word that is a special token of the vocabulary cannot
    come about as text; the token itself then stands for it where an opening begins with it.

    leading: the ends' openings count at the very beginning only.   empty: there need not be any text before nothing.
    may_end: nothing may follow the text; otherwise one of the ends must.
    """
    after: dict[str, list[Node]] = {}
    tokens: list[Node] = []  # ends that begin with a special token
    for opening, node in ends:
        first, *rest = _parts(opening, specials)
        if first in specials:
            follows = builder.seq(spelled(builder, "".join(rest), specials), node)
            tokens.append(builder.seq(builder.special(first), follows))
            after.setdefault(_START * leading + first, []).append(builder.seq(builder.absent(first), follows))
        else:
            after.setdefault(_START * leading + opening, []).append(node)
    words = dict.fromkeys(never, builder.EMPTY) | {word: builder.alt(*nodes) for word, nodes in after.items()}
    return _automaton(builder, words, builder.alt(*tokens), leading=leading, empty=empty, may_end=may_end)


def _automaton(builder: Builder, words: dict[str, Node], tokens: Node, *, leading: bool, empty: bool, may_end: bool) -> Node:
    """One rule per beginning of a word: what may follow where that is the longest one at the end of the text."""
    start = _START * leading
    beginnings = sorted({"", start} | {word[:k] for word in words for k in range(len(word))}, key=lambda b: (len(b), b))
    rules = {beginning: builder.rule() for beginning in beginnings}
    state = {beginning: builder.call(rule) for beginning, rule in rules.items()} | words
    stop = builder.EPSILON if may_end else builder.EMPTY
    characters = sorted(set("".join(words)) - {_START})
    first = builder.EMPTY
    for beginning, rule in rules.items():
        moves = {character: _longest(beginning + character, state) for character in characters}
        onward = [builder.seq(builder.literal(character.encode()), state[to]) for character, to in moves.items() if to]
        onward += [tokens] if beginning == start or not leading else []
        idle = utf8_class(builder, SCALARS - CharSet.of(*(character for character, to in moves.items() if to)))
        ends = builder.alt(stop, *onward)
        if not beginning:  # a run of characters, which masks treat as one
            body = builder.seq(builder.repeat(idle), ends)
            some = builder.alt(builder.seq(builder.repeat(idle, 1), ends), *onward)
        else:
            some = builder.alt(builder.seq(idle, state[""]), *onward)
            body = builder.alt(stop, some)
        builder.define(rule, body)
        if beginning == start:
            first = state[start] if empty else some
    return first


def _longest(text: str, beginnings: Iterable[str]) -> str:
    """The longest of `beginnings` that ends `text`."""
    return max((b for b in beginnings if text.endswith(b)), key=len)


def _parts(text: str, specials: Sequence[str]) -> list[str]:
    """`text` cut at the `specials`, which are parts of their own."""
    if not specials:
        return [text]
    return [part for part in re.split("(" + "|".join(map(re.escape, specials)) + ")", text) if part]
