"""What nearly every JSON grammar reaches, walked once per vocabulary: new arenas begin as a copy of it.

White space, the inside of strings, names of keys, numbers: their walks of the whole token trie (milliseconds) are done when the
vocabulary is first used, as peers do when they read a tokenizer. Holds no state of any user's grammar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentkit.grammars.arena import Arena

if TYPE_CHECKING:
    from agentkit.grammars.vocabulary import Vocabulary

_VALUES = {"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"}, "x": {}}
_OTHERS = {"a": {"type": "array", "items": {"type": "string"}}, "m": {"type": "string", "maxLength": 9}, "e": {"type": "string", "format": "email"}}
_SCHEMA = {"type": "object", "properties": {**_VALUES, **_OTHERS}}
_TEXT = b'{"s": "a\\\\b", "i": -12, "n": 1.5e3, "b": true, "x": {"k": [null, "s", 1]}, "y": 0, "a": ["s", "t"], "m": "s"}'


def common_arena(vocabulary: Vocabulary) -> Arena:
    """An arena in which a typical object has been written, in both kinds of white space and key order."""
    from agentkit.grammars.frontends.json_schema import compile_schema

    arena = Arena(vocabulary)
    compact = _TEXT.replace(b": ", b":").replace(b", ", b",")
    kinds: list[tuple[Literal["compact", "flexible"], Literal["declared", "any"], bytes]]
    kinds = [("compact", "declared", compact), ("compact", "any", compact), ("flexible", "any", _TEXT)]
    for whitespace, key_order, text in kinds:
        program = compile_schema(_SCHEMA, whitespace=whitespace, key_order=key_order).program
        state = arena.root(program)
        for byte in text:
            if state == 0 or not arena.mask_row_exists(state):
                break
            state = arena.advance_bytes(state, bytes([byte]))
    arena.settle()
    return arena
