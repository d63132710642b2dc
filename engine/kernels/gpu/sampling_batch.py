"""What a batch's sampling reads on the device: temperatures, cuts, penalties, biases and random streams, one entry per request.

Inputs: SamplingParams of the requests. Everything has a fixed address, so that a captured graph reads what the host has loaded last.
Knows nothing of logits, masks or kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentkit.engine.config import SamplingParams
from agentkit.engine.kernels.gpu.batch import send

__all__ = ["FINE", "INFINITE", "NAN", "NOTHING", "NO_MASK", "ONLY_MINUS_INFINITY", "STUCK", "Draw", "Sampled", "SamplingBatch", "kinds_of", "needs_history"]

FINE, NAN, INFINITE, NOTHING, STUCK, ONLY_MINUS_INFINITY = range(6)
"""Status of a row: sampled | its logits have NaN | +inf | nothing but -inf | the mask leaves no token | no allowed token has a finite logit."""
NO_MASK = -1
"""Row number of a request without a grammar."""


@dataclass(frozen=True)
class Draw:
    """One request's draw. written: output tokens so far, for penalties; prompt: as well, for the repetition penalty."""

    params: SamplingParams
    seed: int = 0
    position: int = 0
    stream: int = 0
    prompt: Sequence[int] = ()
    written: Sequence[int] = ()


@dataclass(frozen=True)
class Sampled:
    """What came out, per request. tokens [B] int64 (0 where status is not FINE), status [B] int32, logprobs [B] float64 (see sampling.log_probabilities),
    cuts [B, 2] int32: the order-preserving bits of the least logit that is kept, and how many of those equal to it are, the lowest ids first.
    """

    tokens: torch.Tensor
    status: torch.Tensor
    logprobs: torch.Tensor
    cuts: torch.Tensor

    @classmethod
    def empty(cls, size: int, device: torch.device | str) -> Sampled:
        ints = torch.zeros((4, size), dtype=torch.int32, device=device)
        return cls(torch.zeros(size, dtype=torch.int64, device=device), ints[0], torch.zeros(size, dtype=torch.float64, device=device), ints[2:].view(size, 2))


@dataclass(frozen=True)
class SamplingBatch:
    """B requests. numbers [6, B] float64: temperature (0: greedy), top_p, min_p, repetition, presence and frequency penalty.
    top_k [B] int32, 0: off. seeds, positions [B] int64, streams [B] int32: see sampling.philox.

    history [B, V] int32, or None where nobody has penalties: 2 x occurrences in the output, + 1 if the prompt has the token.
    bias_ids [B, K] int32 (-1: none), biases [B, K] float32, or None.
    draws, ranks, masses: may anybody draw at a temperature, with top_k, with top_p? What nobody does costs nothing.
    """

    numbers: torch.Tensor
    top_k: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
    streams: torch.Tensor
    history: torch.Tensor | None = None
    bias_ids: torch.Tensor | None = None
    biases: torch.Tensor | None = None
    draws: bool = True
    ranks: bool = True
    masses: bool = True

    @classmethod
    def empty(
        cls, size: int, device: torch.device | str, *, history: int = 0, biases: int = 0, draws: bool = True, ranks: bool = True, masses: bool = True
    ) -> SamplingBatch:
        """All greedy. history: width of the logits, if penalties shall be possible; biases: so many per request; draws, ranks, masses: as the fields."""

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        numbers = zeros(6, size, dtype=torch.float64)
        numbers[1] = numbers[3] = 1.0
        return cls(
            numbers,
            zeros(size, dtype=torch.int32),
            zeros(size, dtype=torch.int64),
            zeros(size, dtype=torch.int64),
            zeros(size, dtype=torch.int32),
            zeros(size, history, dtype=torch.int32) if history else None,
            zeros(size, biases, dtype=torch.int32) - 1 if biases else None,
            zeros(size, biases, dtype=torch.float32) if biases else None,
            draws,
            draws and ranks,
            draws and masses,
        )

    @classmethod
    def of(cls, draws: Sequence[Draw], width: int, device: torch.device | str) -> SamplingBatch:
        """Just large enough for `draws` over logits of `width` columns."""
        params = [draw.params for draw in draws]
        history, biases = width if any(map(needs_history, params)) else 0, max((len(p.logit_bias) for p in params), default=0)
        batch = cls.empty(len(draws), device, history=history, biases=biases, **kinds_of(params))
        for place, draw in enumerate(draws):
            batch.load(place, draw)
        return batch

    @property
    def size(self) -> int:
        return self.top_k.numel()

    def holds(self, params: SamplingParams) -> bool:
        """Is there room for what these parameters need?"""
        biases = 0 if self.bias_ids is None else self.bias_ids.shape[1]
        kinds = all(getattr(self, name) or not needed for name, needed in kinds_of([params]).items())
        return kinds and len(params.logit_bias) <= biases and (self.history is not None or not needs_history(params))

    def load(self, place: int, draw: Draw) -> None:
        """Overwrites one request's entries. Raises ValueError where `holds` is false."""
        p = draw.params
        if not self.holds(p):
            raise ValueError("this batch has no room for what the request asks of sampling; make one with history=, biases=, draws=, ranks= and masses=")
        temperature = 0.0 if p.greedy else p.temperature
        row = [temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty]
        send(self.numbers[:, place], np.asarray(row, np.float64))
        self.top_k[place] = min(p.top_k, (1 << 31) - 1)
        self.seeds[place] = (draw.seed + (1 << 63)) % (1 << 64) - (1 << 63)  # as a signed number
        self.positions[place], self.streams[place] = draw.position, draw.stream
        if self.history is not None:
            self._load_history(self.history[place], draw)
        if self.bias_ids is not None and self.biases is not None:
            self.bias_ids[place] = -1
            ids = list(p.logit_bias)
            send(self.bias_ids[place, : len(ids)], np.asarray(ids, np.int32))
            send(self.biases[place, : len(ids)], np.asarray(list(p.logit_bias.values()), np.float32))

    @staticmethod
    def _load_history(history: torch.Tensor, draw: Draw) -> None:
        if needs_history(draw.params):
            row = 2 * np.bincount(np.asarray(draw.written, np.int64), minlength=history.numel())[: history.numel()]
            prompt = np.asarray(draw.prompt, np.int64)
            row[prompt[prompt < row.size]] |= 1
            send(history, row.astype(np.int32))
        else:
            history.zero_()


def needs_history(params: SamplingParams) -> bool:
    """Do these parameters look at what has been written?"""
    return params.repetition_penalty != 1.0 or bool(params.presence_penalty or params.frequency_penalty)


def kinds_of(params: Sequence[SamplingParams]) -> dict[str, bool]:
    """See SamplingBatch: draws, ranks, masses."""
    drawn = [p for p in params if not p.greedy]
    return {"draws": bool(drawn), "ranks": any(p.top_k > 0 for p in drawn), "masses": any(p.top_p < 1.0 for p in drawn)}
