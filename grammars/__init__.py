"""Languages over bytes, and the token masks that keep a model inside them.

A `Grammar` is compiled from JSON Schema, Pydantic models, regular expressions, choices or whole turns; a
`Vocabulary` says what a tokenizer's ids spell; a `Matcher` follows one text and yields, step by step, the mask of
tokens that may come next. Knows nothing of models.

Importing this package is cheap: numba is loaded when one of its names is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.grammars.grammar import Grammar
    from agentkit.grammars.matcher import Matcher
    from agentkit.grammars.rows import fill_masks
    from agentkit.grammars.settings import clear_caches, configure
    from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Grammar", "Matcher", "Vocabulary", "clear_caches", "configure", "fill_masks"]

_HOMES = {
    "Grammar": "agentkit.grammars.grammar",
    "Matcher": "agentkit.grammars.matcher",
    "Vocabulary": "agentkit.grammars.vocabulary",
    "clear_caches": "agentkit.grammars.settings",
    "configure": "agentkit.grammars.settings",
    "fill_masks": "agentkit.grammars.rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
