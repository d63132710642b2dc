"""What a step computes beside the one token of each place: forced text, the end of a prompt, prompts and guesses of those without a place.

Inputs: spans of tokens, and whose next token is drawn from the logits after the last of them. They are a batch of their own that lies
behind the places' in one forward, so that weights are read once for both. Knows nothing of sampling, grammars or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from agentkit.engine.kernels.gpu.batch import NOWHERE, Batch, BatchShape, BatchSpan, send
from agentkit.engine.kernels.gpu.plan import Part, Prefix
from agentkit.engine.kernels.gpu.sharing import arranged

__all__ = ["Beside", "Ragged"]


@dataclass(frozen=True)
class Beside:
    """A span beside the places. place: the one whose next token is drawn after the span's last token; None: the logits of its last rows are the host's."""

    span: BatchSpan
    place: int | None = None


@dataclass(frozen=True)
class Ragged:
    """Spans of one launch on the device. places [B] int32: for each place the row of the whole forward that its logits come from, first the B places' own.

    parts: of the batch, as attention takes it.
    """

    batch: Batch
    places: torch.Tensor
    parts: Sequence[Part]

    @classmethod
    def of(cls, beside: Sequence[Beside], size: int, device: torch.device) -> tuple[Ragged, list[slice]]:
        """Of just the shape of the spans, for a step of `size` places; and where each span's logits for the host are among those."""
        arrangement = arranged([each.span for each in beside], device)
        ordered = [beside[number] for number in arrangement.order]
        spans = [_without_rows(each) for each in ordered]
        batch = Batch.of(spans, device)
        places = torch.empty(size, dtype=torch.int32, device=device)
        send(places, _places(ordered, size))
        ends = np.cumsum([span.rows for span in spans]).tolist()
        rows = dict(zip(arrangement.order, [slice(end - span.rows, end) for span, end in zip(spans, ends, strict=True)], strict=True))
        return cls(batch, places, arrangement.parts(batch, spans)), [rows[number] for number in range(len(beside))]

    @classmethod
    def room(cls, tokens: int, own: BatchShape, device: torch.device) -> Ragged:
        """Room for spans of places with up to so many tokens together, of fixed address; `load` fills it.   own: shape of the places' batch."""
        batch = Batch.empty(replace(own, tokens=tokens, requests=min(tokens, own.requests), rows=0, queries=tokens), device)
        return cls(batch, torch.arange(own.requests, dtype=torch.int32, device=device), (Part(batch),))

    def holds(self, beside: Sequence[Beside]) -> bool:
        """Do the spans fit, and does nothing of them go to the host?"""
        return all(each.place is not None for each in beside) and self.batch.shape.holds(BatchShape.of([_without_rows(each) for each in beside]))

    def load(self, beside: Sequence[Beside]) -> None:
        """Overwrites the room with spans of places."""
        self.batch.load([_without_rows(each) for each in beside])
        send(self.places, _places(beside, self.places.numel()))

    def behind(self, own: Batch, prefix: Prefix | None) -> tuple[Batch, tuple[Part, ...]]:
        """One forward over the places' own batch, which begins with `prefix`, and this one; a place with a span here computes nothing there."""
        numbers = own.query_starts[:-1]
        alone = self.places == numbers
        lengths = torch.where(alone, own.lengths, 0)
        first = replace(own, lengths=lengths, tree_starts=lengths, slots=torch.where(alone, own.slots, NOWHERE))
        both = {name: torch.cat((getattr(first, name), getattr(self.batch, name)), -1) for name in ("token_ids", "positions", "slots")}
        rows = torch.cat((self.places, self.batch.rows + own.shape.requests))
        a, b = own.shape, self.batch.shape
        shape = BatchShape(a.tokens + b.tokens, a.requests + b.requests, max(a.pages, b.pages), a.rows + b.rows, max(a.queries, b.queries), b.trees, a.tables)
        return replace(first, shape=shape, rows=rows, **both), (Part(first, prefix), *self.parts)


def _without_rows(each: Beside) -> BatchSpan:
    return each.span if each.place is None else replace(each.span, rows=0)


def _places(ordered: Sequence[Beside], size: int) -> np.ndarray:
    """int32 [B]: see Ragged."""
    places = np.arange(size, dtype=np.int32)
    end = size
    for each in ordered:
        end += len(each.span.tokens)
        if each.place is not None:
            places[each.place] = end - 1
    return places
