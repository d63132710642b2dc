"""Free text in which, after a trigger, one of several tags must follow: begin, content, end; then free text again.

Input: tags with the nodes of their contents; output: a node of a Builder. Knows nothing of what the contents are.

The text is spelled as the automaton that searches for the triggers (Aho and Corasick 1975), so that each text has one path:
one rule per beginning of a trigger, for what may follow where that is the longest one at the end of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentkit.errors import InvalidGrammar
from agentkit.grammars.expr import Builder, Node
from agentkit.grammars.frontends.chars import SCALARS, CharSet, utf8_class


@dataclass(frozen=True)
class Tag:
    """begin, then a text of `content`, then end."""

    begin: str
    content: Node
    end: str


def tagged_text(builder: Builder, tags: Sequence[Tag], triggers: Sequence[str], *, at_least_one: bool = False, stop_after_first: bool = False) -> Node:
    """Free text without triggers, except where a tag begins.

    at_least_one: a text without any tag does not match. stop_after_first: the text ends with its first tag.
    Raises InvalidGrammar for a tag that no trigger begins, or a trigger that begins no tag or holds another one.
    """
    _check(tags, triggers)
    follow = {
        trigger: builder.alt(
            *(
                builder.seq(_literal(builder, tag.begin[len(trigger) :]), tag.content, _literal(builder, tag.end))
                for tag in tags
                if tag.begin.startswith(trigger)
            )
        )
        for trigger in triggers
    }
    again = builder.EPSILON if stop_after_first else _scanner(builder, follow, None, may_end=True)
    return _scanner(builder, follow, again, may_end=not at_least_one) if stop_after_first or at_least_one else again


def _literal(builder: Builder, text: str) -> Node:
    return builder.literal(text.encode())


def _check(tags: Sequence[Tag], triggers: Sequence[str]) -> None:
    if not tags:
        raise InvalidGrammar("there are no tags; give at least one")
    for text in (*triggers, *(part for tag in tags for part in (tag.begin, tag.end))):
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidGrammar(f"{text!r} has no UTF-8 form; give valid Unicode")
    for tag in tags:
        if not any(trigger and tag.begin.startswith(trigger) for trigger in triggers):
            raise InvalidGrammar(f"the tag {tag.begin!r} begins with none of the triggers {list(triggers)}; every tag must")
    for trigger in triggers:
        if not any(tag.begin.startswith(trigger) for tag in tags) or not trigger:
            raise InvalidGrammar(f"the trigger {trigger!r} begins no tag; leave it out")
        inner = next((other for other in triggers if other in trigger and other != trigger), None)
        if inner is not None:
            raise InvalidGrammar(f"the trigger {trigger!r} holds the trigger {inner!r}, which comes first; leave one of them out")


def _scanner(builder: Builder, follow: dict[str, Node], then: Node | None, *, may_end: bool) -> Node:
    """Free text up to a tag, the tag, and `then` (None: all of this again)."""
    beginnings = sorted({trigger[:k] for trigger in follow for k in range(len(trigger))}, key=lambda text: (len(text), text))
    rules = {beginning: builder.rule() for beginning in beginnings}
    state = {beginning: builder.call(rule) for beginning, rule in rules.items()}
    after = state[""] if then is None else then
    state |= {trigger: builder.seq(tag, after) for trigger, tag in follow.items()}
    letters = sorted(set("".join(follow)))
    for beginning, rule in rules.items():
        moves = {letter: max((known for known in state if (beginning + letter).endswith(known)), key=len) for letter in letters}
        onward = [builder.seq(_literal(builder, letter), state[to]) for letter, to in moves.items() if to]
        idle = utf8_class(builder, SCALARS - CharSet.of("".join(letter for letter, to in moves.items() if to)))
        if beginning:
            body = builder.alt(builder.seq(idle, state[""]), *onward)
            builder.define(rule, builder.optional(body) if may_end else body)
        else:  # a run of characters, which masks treat as one
            away = builder.alt(*onward)
            builder.define(rule, builder.seq(builder.repeat(idle), builder.optional(away) if may_end else away))
    return state[""]
