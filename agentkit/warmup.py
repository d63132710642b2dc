"""Compile the kernels ahead of their first use: `agentkit warmup`.

Kernels are compiled by numba the first time they run and are then loaded from the cache folder. So this runs each of them
once: the grammar's with a vocabulary of single bytes, and the engine's, if a model is named, with one short constrained
generation. Knows nothing of which kernels there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.engine.models.progress import Progress

__all__ = ["compile_grammar_kernels", "warm_up"]

# One of everything that a schema can hold: each kind of expression has its own kernels.
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", 1, None]},
        "name": {"type": "string", "minLength": 1, "maxLength": 8, "pattern": "^[a-z]+$"},
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": -5, "maximum": 500},
        "share": {"type": "number"},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "children": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["kind", "name", "count"],
    "additionalProperties": False,
}
_TEXT = b'{"kind":"b","name":"abc","text":"a\\n\xc3\xa9","count":-3,"share":1.5e3,"flags":[true,false],"children":[{"kind":1,"name":"x","count":0}]}'


def compile_grammar_kernels() -> None:
    """Run every operation of a matcher once."""
    from agentkit.grammars import Grammar, Vocabulary

    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), b'":', None], stop_token_ids=[257])
    for grammar in (Grammar.from_json_schema(_SCHEMA), Grammar.from_json_schema(_SCHEMA, key_order="any")):
        matcher = grammar.matcher(vocabulary)
        for byte in _TEXT:
            matcher.mask()
            matcher.forced_tokens()
            matcher.accept(byte)
        matcher.rollback(len(_TEXT))
        budget = matcher.completion_tokens()
        matcher.mask(remaining=budget)
        matcher.fork().accept_bytes(_TEXT)


def warm_up(model: str | None = None, progress: Progress | None = None) -> None:
    """Compile all grammar kernels, and those of the engine if a model is named (it is fetched if need be).

    Args:
        model: as for `Engine`.
        progress: called with (stage, done, total); None: shown on the terminal.

    Raises:
        ModelNotFound: the model is neither here nor can it be fetched.
    """
    from agentkit.engine.models.progress import progress_or_default

    steps: list[tuple[str, Callable[[], None]]] = [("compiling the kernels of grammars", compile_grammar_kernels)]
    if model is not None:
        steps.append((f"running {model} once", lambda: _generate_once(model)))
    with progress_or_default(progress) as report:
        for stage, step in steps:
            report(stage, 0, 1)
            step()
            report(stage, 1, 1)


def _generate_once(model: str) -> None:
    from agentkit.engine import Engine

    with Engine(model) as engine:
        engine.generate("Name a colour as JSON: ", schema={"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]})
