"""Languages over bytes, and the token masks that keep a model inside them.

A `Grammar` is compiled from JSON Schema, Pydantic models, regular expressions, choices or whole turns; a
`Vocabulary` says what a tokenizer's ids spell; a `Matcher` follows one text and yields, step by step, the mask of
tokens that may come next. Knows nothing of models.
"""

from agentkit.grammars.grammar import Grammar
from agentkit.grammars.matcher import Matcher, fill_masks
from agentkit.grammars.settings import clear_caches, configure
from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["Grammar", "Matcher", "Vocabulary", "clear_caches", "configure", "fill_masks"]
