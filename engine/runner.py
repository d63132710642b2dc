"""Executes a step's plan: spans of tokens in, rows of logits out.

Inputs: spans, each a sequence and the token ids to append to it. Prefill chunks, single tokens, forced runs and drafts
are all spans. A Runner is one backend; this one runs any model with the native `forward` contract through torch, on the
CPU or a GPU. It knows nothing of requests, grammars or sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from agentkit.engine.adapters.adapter import AdapterUse
from agentkit.engine.adapters.rows import adapted
from agentkit.engine.attention import BatchAttention
from agentkit.engine.kv import KVPool, KVSequence
from agentkit.engine.models.decoder import Allowed, Attend, Decoder
from agentkit.engine.speculation.tree import TokenTree

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Span:
    """`tokens` follow what `sequence` holds; the logits after the last `rows` of them are wanted (0: none).

    draft: guesses that follow `tokens`; the logits after each of its nodes are wanted, too. Their keys and values are written to the
    slots behind `tokens`, in the order of the nodes, and do not count until `KVPool.keep`.
    allowed: which tokens may follow after each of the rows + len(draft) places; no other logits are needed. None: all are.
    states: the hidden states of the last so many tokens, and of the draft's nodes, are told to `on_states` as float32
    [states + len(draft), E] when the forward is done.
    adapter: what the products of all its tokens have beside them; None: nothing.
    """

    sequence: KVSequence
    tokens: tuple[int, ...]
    rows: int = 1
    draft: TokenTree | None = None
    allowed: Allowed | None = None
    states: int = 0
    on_states: Callable[[torch.Tensor], None] | None = None
    adapter: AdapterUse | None = None

    @property
    def size(self) -> int:
        """Tokens that a forward over it computes."""
        return len(self.tokens) + (len(self.draft) if self.draft else 0)


class Model(Protocol):
    """What a runner needs of a model."""

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, logits_for: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class GivesStates(Protocol):
    """A model that also gives its hidden states, for spans that want them, and spares logits that nobody wants; see Decoder.forward_with_states."""

    def forward_with_states(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, states_for: torch.Tensor, logits: int, allowed: Allowed | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class Runner(Protocol):
    """A backend. `execute` appends every span to its sequence and returns float32 logits [rows + len(draft), V] on the host per span.

    Of what a span does not allow they may be -inf.

    Each sequence occurs once, and its slots are reserved. A span either counts wholly (its sequence is longer by its tokens)
    or, when execute raises, not at all.
    """

    def execute(self, spans: Sequence[Span]) -> list[Logits]: ...


class TorchRunner:
    """Runs all spans in one forward. threads: CPU threads for this process, set here once; None: torch's choice."""

    def __init__(self, model: Model, pool: KVPool, device: torch.device | str = "cpu", threads: int | None = None) -> None:
        self._model = model
        self._spares = isinstance(model, GivesStates)
        self._pool = pool
        self._device = torch.device(device)
        if threads is not None:
            torch.set_num_threads(threads)

    def execute(self, spans: Sequence[Span]) -> list[Logits]:
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for span in spans:
            start, count = span.sequence.length, len(span.tokens)
            rows.extend(range(len(tokens) + count - span.rows, len(tokens) + span.size))
            tokens.extend(span.tokens)
            positions.extend(range(start, start + count))
            if span.draft is not None:
                tokens.extend(span.draft.tokens)
                positions.extend(start + count - 1 + depth for depth in span.draft.depths)
        trees = [span.draft.parents if span.draft is not None else () for span in spans]
        attend = BatchAttention(self._pool, [(span.sequence, span.sequence.place, span.size) for span in spans], trees)
        with torch.inference_mode():
            ids, places = (torch.tensor(x, dtype=torch.long, device=self._device) for x in (tokens, positions))
            logits = self._forward(spans, ids, places, attend, rows)
        for span in spans:
            self._pool.commit(span.sequence, span.tokens)
        ends = np.cumsum([span.rows + span.size - len(span.tokens) for span in spans])
        return np.split(logits, ends[:-1])

    def _forward(self, spans: Sequence[Span], ids: torch.Tensor, places: torch.Tensor, attend: BatchAttention, rows: list[int]) -> Logits:
        """Logits of `rows`; hands out states where a span wants them."""
        wanted: list[range] = []
        at = 0
        for span in spans:
            first = at + len(span.tokens) - span.states
            wanted.append(range(first, at + span.size) if span.on_states is not None else range(0))
            at += span.size
        allowed = _allowed(spans) if self._spares else None
        if allowed is None and not any(wanted):
            return _to_host(self._model_for(spans, rows).forward(ids, places, attend, torch.tensor(rows, dtype=torch.long, device=self._device)))
        place_of = {row: i for i, row in enumerate(rows)}
        further = [row for own in wanted for row in own if row not in place_of]
        place_of.update((row, len(rows) + i) for i, row in enumerate(further))
        chosen, model = torch.tensor([*rows, *further], dtype=torch.long, device=self._device), self._model_for(spans, [*rows, *further])
        assert isinstance(model, GivesStates), "states are wanted of models with the native decoder only"
        logits, states = model.forward_with_states(ids, places, attend, chosen, len(rows), allowed)
        for span, own in zip(spans, wanted, strict=True):
            if span.on_states is not None:
                span.on_states(states[[place_of[row] for row in own]].float())
        return _to_host(logits)

    def _model_for(self, spans: Sequence[Span], chosen: Sequence[int]) -> Model:
        """The model, with adapters beside its products where a span has one. chosen: the rows that come out at the end."""
        if all(span.adapter is None for span in spans):
            return self._model
        assert isinstance(self._model, Decoder), "adapters are loaded for models with the native decoder only"
        uses = [span.adapter for span in spans for _ in range(span.size)]
        return adapted(self._model, uses, chosen)


def _allowed(spans: Sequence[Span]) -> Allowed | None:
    """Of all rows of a step; None where each wants all logits."""
    if all(span.allowed is None for span in spans):
        return None
    return [row for span in spans for row in span.allowed or [None] * (span.rows + len(span.draft or ()))]


def _to_host(logits: torch.Tensor) -> Logits:
    """The one place where the host waits for the device. [N, V] -> numpy float32 [N, V]."""
    host: Logits = logits.float().cpu().numpy()
    return host
