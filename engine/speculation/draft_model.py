"""A smaller model guesses (Leviathan et al. 2023, arXiv:2211.17192): its own weights and its own keys and values, kept in step.

Input: a model over the target's vocabulary. It decodes a few tokens ahead as the request itself would: under the request's
grammar, and where the request samples, with the request's own randomness for each position, so that two similar distributions
mostly choose the same token. Knows nothing of the target, of scheduling or of what becomes of its guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from agentkit.engine.kv import KVPool, KVSequence
from agentkit.engine.kv_groups import CHUNK
from agentkit.engine.prefix_node import common_prefix
from agentkit.engine.runner import Logits, Runner, Span
from agentkit.engine.sampling import sample
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.errors import AgentKitError

LEAST = 0.1  # probability of a guess below which a draft ends


class Guesser(Protocol):
    """Something that decodes ahead for one request: logits after the known tokens, then after each guess."""

    def known(self, tokens: Sequence[int]) -> Logits | None:
        """Logits [V] after `tokens`; None if there is no memory for it."""
        ...

    def guess(self, tokens: Sequence[int]) -> Logits | None:
        """Logits [V] after these tokens more; None as above."""
        ...

    def close(self) -> None:
        """Lets go of its keys and values."""
        ...


class SequenceGuesser:
    """A model with a pool of its own. Holds one sequence, rewound to what the request really said; where windows have left what that takes, one anew."""

    def __init__(self, runner: Runner, pool: KVPool) -> None:
        self._runner, self._pool = runner, pool
        self._sequence: KVSequence | None = None

    def known(self, tokens: Sequence[int]) -> Logits | None:
        if self._sequence is not None and not self._rewound(self._sequence, tokens):
            self.close()  # the prefix cache keeps what it computed
        if self._sequence is None:
            self._sequence = self._pool.start(list(tokens))
        sequence, logits = self._sequence, None
        while sequence.length < len(tokens):
            logits = self._append(tokens[sequence.length : sequence.length + CHUNK])
            if logits is None:
                return None
        return logits

    def _rewound(self, sequence: KVSequence, tokens: Sequence[int]) -> bool:
        """Cuts a sequence to what is known, but for the last token, where it can go on from there."""
        length = min(common_prefix(sequence.tokens, tokens), len(tokens) - 1)
        if not self._pool.can_truncate(sequence, length):
            return False
        self._pool.truncate(sequence, length)
        return True

    def guess(self, tokens: Sequence[int]) -> Logits | None:
        return self._append(tokens)

    def _append(self, tokens: Sequence[int]) -> Logits | None:
        assert self._sequence is not None
        if not self._pool.reserve(self._sequence, self._sequence.length + len(tokens)):
            return None
        rows = self._runner.execute([Span(self._sequence, tuple(tokens))])[0]  # [1, V]
        last: Logits = rows[-1]
        return last

    def close(self) -> None:
        if self._sequence is not None:
            self._pool.release(self._sequence)
            self._sequence = None


class DraftModelProposer:
    """runner, pool: of the draft model.   vocab_size: ids below it mean the same to both models.   stop_ids are never guessed.

    context: tokens that the draft model can see; where a text has become longer, nothing is guessed. None: no limit.
    """

    name = "draft"
    features = 0
    wants_choices = False

    def __init__(self, runner: Runner, pool: KVPool, vocab_size: int, stop_ids: Sequence[int], context: int | None = None) -> None:
        self._runner, self._pool = runner, pool
        self._context = context
        self._vocab_size, self._stop_ids = vocab_size, frozenset(stop_ids)

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        if self._context is not None and len(request.tokens) + limit > self._context:
            return TokenTree()
        if not isinstance(request.draft_state, SequenceGuesser):
            request.draft_state = SequenceGuesser(self._runner, self._pool)
        return decode_ahead(request.draft_state, request, limit, self._vocab_size, self._stop_ids)

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        if isinstance(request.draft_state, SequenceGuesser):
            request.draft_state.close()
        request.draft_state = None


def decode_ahead(guesser: Guesser, request: Draftable, limit: int, vocab_size: int, stop_ids: frozenset[int]) -> TokenTree:
    """A chain of at most `limit` guesses that ends where the guesser becomes unsure, at a stop token, or where memory runs out."""
    tree, node, moved = TokenTree(), ROOT, 0
    matcher, known = request.matcher, list(request.tokens)
    try:
        logits = guesser.known(known)
        while logits is not None and len(tree) < limit:
            token, sure = _choose(logits, request, len(known) - len(request.prompt), vocab_size)
            if token in stop_ids or sure < LEAST:
                break
            node = tree.add(node, token, kind=int(sure * 9.999))
            run = [token]
            if matcher is not None:
                matcher.accept(token)
                forced = matcher.forced_tokens([*known[len(request.prompt) :], token])[: limit - len(tree)]
                for more in forced:
                    matcher.accept(more)
                    node = tree.add(node, more, forced=True)
                run += forced
                moved += len(run)
            known += run
            logits = guesser.guess(run) if len(tree) < limit else None
    except AgentKitError:  # NaN, no token path ...: the target finds out for itself whether that is so
        pass
    finally:
        if matcher is not None and moved:
            matcher.rollback(moved)
    return tree


def _choose(logits: Logits, request: Draftable, position: int, vocab_size: int) -> tuple[int, float]:
    """The token that the request would choose from these logits (penalties apart), and its probability among the eight likeliest."""
    mask = None if request.matcher is None else request.matcher.mask()
    token = sample(logits, mask, request.params, vocab_size=vocab_size, seed=request.seed, position=position)
    top = np.partition(logits[:vocab_size], -8)[-8:] if vocab_size > 8 else logits[:vocab_size]
    gap = np.exp(np.minimum(top - logits[token], 50.0)).sum()
    return token, float(1.0 / max(1.0, gap))
