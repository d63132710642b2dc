"""Grammars in `model.generate` of transformers: a logits processor.

    from agentkit.grammars import Grammar, Vocabulary
    from agentkit.grammars.integrations.transformers import GrammarLogitsProcessor

    vocabulary = Vocabulary.from_tokenizer(tokenizer, width=model.config.vocab_size)
    processor = GrammarLogitsProcessor(Grammar.from_json_schema(schema), vocabulary)
    model.generate(**inputs, logits_processor=[processor])

Greedy, sampling, beams, several sequences per prompt, batches of prompts, assisted and prompt-lookup generation. Every call
of the processor gets all the tokens so far, so what a row has written is looked up by its tokens: a beam that moved to
another row, or drafts that were taken back, need no word from the caller.
Knows nothing of particular models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.generation.logits_process import LogitsProcessor

from agentkit.errors import GrammarError, GrammarViolation
from agentkit.grammars.grammar import Grammar
from agentkit.grammars.integrations.logits import apply_mask
from agentkit.grammars.matcher import Matcher
from agentkit.grammars.rows import fill_row
from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["GrammarLogitsProcessor"]

_History = tuple[int, ...]
_Key = tuple[int, _History]


class GrammarLogitsProcessor(LogitsProcessor):
    """Keeps each generated sequence inside its grammar. May serve one `generate` after another, not two at a time.

    A row that has ended is only allowed stop tokens. So is a row outside of its grammar: drafts that will be refused, and
    beams beyond the number of texts that there are (their score is -inf).

    Args:
        grammar: one for all prompts, or one for each prompt of the batch (None: unconstrained). With beams or
            num_return_sequences each serves all the sequences of its prompt.
        vocabulary: that of the model's tokenizer. Its stop tokens must be among those that end `generate` (eos_token_id).
        max_new_tokens: the limit given to `generate`, if sequences shall be complete when they meet it: only tokens stay after
            which the text can still be completed in time. This looks at every token at every step (about 10 ms at 49k tokens
            inside a string), which the engine of agentkit avoids by drawing again.

    Raises:
        TypeError: something else than grammars and a Vocabulary.
        GrammarError: the vocabulary has no stop token, or a grammar does not fit it.
        BudgetTooSmall: not even the shortest text fits into max_new_tokens.
    """

    supports_continuous_batching = False

    def __init__(self, grammar: Grammar | Sequence[Grammar | None], vocabulary: Vocabulary, *, max_new_tokens: int | None = None) -> None:
        grammars: list[Any] = [grammar] if isinstance(grammar, Grammar) else list(grammar)
        wrong = next((g for g in grammars if not isinstance(g, Grammar | None)), None)
        if wrong is not None or not grammars:
            raise TypeError(
                f"GrammarLogitsProcessor needs a Grammar, or a list with one for each prompt, not {type(wrong).__name__ if grammars else 'nothing'}"
            )
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"GrammarLogitsProcessor needs a Vocabulary, not {type(vocabulary).__name__}; see Vocabulary.from_tokenizer")
        if not vocabulary.stop_token_ids:
            raise GrammarError("the vocabulary has no stop token, so no text could end; pass stop_token_ids=[tokenizer.eos_token_id] to Vocabulary")
        self._vocabulary = vocabulary
        self._limit = max_new_tokens
        self._roots = [None if g is None else g.matcher(vocabulary) for g in grammars]
        for root in self._roots:
            if root is not None and max_new_tokens is not None:
                root.check_budget(max_new_tokens)
        self._stop_row = np.zeros(vocabulary.words, np.uint32)
        for token in vocabulary.stop_token_ids:
            self._stop_row[token // 32] |= np.uint32(1 << token % 32)
        self._prompts: torch.Tensor | None = None  # [rows, prompt length]: of the generation under way
        self._written: dict[_Key, Matcher | None] = {}  # by prompt and tokens; None: outside of the grammar

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """input_ids: [rows, length], prompt and all tokens so far; scores: [rows, V]. Returns the scores with -inf for what is not allowed."""
        histories = self._histories(input_ids)
        bits = np.full((len(histories), self._vocabulary.words), 0xFFFFFFFF, np.uint32)
        written: dict[_Key, Matcher | None] = {}
        constrained = []
        for row, key in enumerate(histories):
            if self._roots[key[0]] is None:
                continue
            if key not in written:
                written[key] = self._matcher(*key)
            self._fill(written[key], len(key[1]), bits[row])
            constrained.append(row)
        self._written = written
        masked = scores.clone()
        if len(constrained) == len(histories):
            return apply_mask(masked, bits)  # type: ignore[no-any-return]
        masked[constrained] = apply_mask(scores[constrained], bits[constrained])
        return masked  # type: ignore[return-value]

    def reset(self) -> None:
        """Forget the generation under way. Needed only before a prompt that is the last one with (some of) its output and one more token."""
        self._prompts = None

    def _histories(self, input_ids: torch.Tensor) -> list[_Key]:
        """Of each row the prompt's number and the tokens written, at the first call of a generation none."""
        rows, length = input_ids.shape
        each = rows // len(self._roots)
        if each * len(self._roots) != rows:
            raise ValueError(f"{len(self._roots)} grammars were given, but generate has {rows} sequences; give one grammar, or one for each prompt")
        known = self._prompts
        if known is not None and known.shape[0] == rows and known.shape[1] <= length and torch.equal(input_ids[:, : known.shape[1]], known):
            keys = [(row // each, tuple(tokens)) for row, tokens in enumerate(input_ids[:, known.shape[1] :].tolist())]
            if all(self._goes_on(*key) for key in keys):
                return keys
        self._prompts, self._written = input_ids.clone(), {}
        return [(row // each, ()) for row in range(rows)]

    def _goes_on(self, prompt: int, history: _History) -> bool:
        """Is this at most one token more than a row of the last call, or than a part of it (drafts taken back)?"""
        before = history[:-1]
        return self._roots[prompt] is None or not before or any(p == prompt and tokens[: len(before)] == before for p, tokens in self._written)

    def _matcher(self, prompt: int, history: _History) -> Matcher | None:
        """The matcher after `history`: moved on by a token from the last call's, or by whatever is new since then."""
        if (prompt, history) in self._written:
            return self._written[prompt, history]
        parent = (prompt, history[:-1])
        if parent in self._written:
            return _moved(self._written[parent], history[-1:])
        root = self._roots[prompt]
        assert root is not None
        near, shared = root, 0
        for (other, tokens), matcher in self._written.items():
            common = next((i for i, (a, b) in enumerate(zip(tokens, history, strict=False)) if a != b), min(len(tokens), len(history)))
            if other == prompt and matcher is not None and common > shared:
                near, shared = matcher.fork(), common
                near.rollback(len(tokens) - common)
        return _moved(near, history[shared:])

    def _fill(self, matcher: Matcher | None, length: int, row: np.ndarray) -> None:
        if matcher is None or matcher.is_finished:
            row[:] = self._stop_row
        elif self._limit is None:
            fill_row(matcher, row)
        elif length >= self._limit:
            row[:] = self._stop_row
        else:
            row[:] = matcher.guarded_mask(self._limit - length)


def _moved(matcher: Matcher | None, tokens: Sequence[int]) -> Matcher | None:
    """A copy of the matcher after `tokens`; None if they are not allowed."""
    if matcher is None:
        return None
    copy = matcher.fork()
    try:
        for token in tokens:
            copy.accept(int(token))
    except GrammarViolation:
        return None
    return copy
