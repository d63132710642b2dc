"""The target's own first layers guess (Zhang et al. 2023, arXiv:2309.08168): no second model, no second cache.

Input: the target and its pool of keys and values. What the first k layers store for a guess is what the whole model stores for it,
so guesses are written to the slots behind the request's sequence, to be overwritten with the same values when they are checked.
Knows nothing of scheduling or of what becomes of its guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kv import KVPool, KVSequence
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.runner import Logits, Model
from agentkit.engine.speculation.draft_model import decode_ahead
from agentkit.engine.speculation.proposer import Draftable
from agentkit.engine.speculation.tree import TokenTree


def first_layers(decoder: Decoder, count: int) -> Decoder:
    """A decoder of the first `count` layers, the last norm and the head; shares all weights. Raises ValueError for a count that is not less than all."""
    config = decoder.config
    if not 0 < count < config.num_layers:
        raise ValueError(f"a draft by the model's own first layers needs 1 to {config.num_layers - 1} of them, not {count}")
    less = replace(config, num_layers=count, windows=config.windows[:count], rope_of_layer=config.rope_of_layer[:count])
    return Decoder(less, decoder.embedding, decoder.layers[:count], decoder.final_norm, decoder.head)


class LayerGuesser:
    """Decodes ahead of one sequence without making it longer."""

    def __init__(self, model: Model, pool: KVPool, sequence: KVSequence, device: torch.device) -> None:
        self._model, self._pool, self._sequence, self._device = model, pool, sequence, device
        self._end = sequence.length

    def known(self, tokens: Sequence[int]) -> Logits | None:
        return self.guess(tokens[self._sequence.length :])

    def guess(self, tokens: Sequence[int]) -> Logits | None:
        start, count = self._end, len(tokens)
        if not self._pool.reserve(self._sequence, start + count):
            return None
        self._end += count
        attend = BatchAttention(self._pool, [(self._sequence, start, count)])
        with torch.inference_mode():
            ids = torch.tensor(tokens, dtype=torch.long, device=self._device)
            places = torch.arange(start, start + count, device=self._device)
            logits: Logits = self._model.forward(ids, places, attend, torch.tensor([count - 1], device=self._device))[0].float().cpu().numpy()
        return logits

    def close(self) -> None:
        """Nothing is held."""


class SelfDraftProposer:
    """model: see `first_layers`.   pool, vocab_size, stop_ids: the target's."""

    name = "self"
    features = 0
    wants_choices = False

    def __init__(self, model: Model, pool: KVPool, device: torch.device, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._model, self._pool, self._device = model, pool, device
        self._vocab_size, self._stop_ids = vocab_size, frozenset(stop_ids)

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        assert request.sequence is not None
        guesser = LayerGuesser(self._model, self._pool, request.sequence, self._device)
        return decode_ahead(guesser, request, limit, self._vocab_size, self._stop_ids)

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        """Learns nothing."""

    def release(self, request: Draftable) -> None:
        """Nothing is kept."""
