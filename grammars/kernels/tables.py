"""A Pushdown's tables on a device, the states of a batch of requests, and what the kernels say about them.

Every tensor keeps its address, so that a captured graph reads what was handed over last. Knows nothing of sampling or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from agentkit.grammars.device import SPECIALS, SYMBOLS, Pushdown
from agentkit.grammars.place import Place
from agentkit.grammars.vocabulary import Vocabulary

__all__ = ["FINE", "FREE", "LOCAL", "LOST", "MISSED", "NO_ROW", "STOPPED", "States", "Tables"]

FREE = -1
"""Head of a request without a grammar."""
NO_ROW = -1
"""Row of a request without a grammar: everything is allowed."""
LOCAL = 6
"""Frames that one token may leave behind; a token that would leave more is a miss."""
FINE, MISSED, STOPPED, LOST = 0, 64, 65, 66
"""Status of a request: goes on | its mask is not known and could not be built: the step does not count | a stop token came |
its token counts, but the tables do not say where it leads."""


@dataclass(frozen=True)
class Tables:
    """Device tensors, int32 but for `keys`.

    moves [S, SYMBOLS, 2], nullable [S], keys, row_of [H]: see Pushdown.
    bank [R + B, W]: mask rows; from `rows` = R on one per request, for a mask that is built on the device.
    starts [V + 1], symbols: token t writes symbols[starts[t] : starts[t + 1]]; the last SPECIALS are the special tokens' symbols.
    order [N]: tokens that write something, sorted by it.   stops [K]: the stop tokens, then -1; K is a power of two.
    specials [1 + SPECIALS]: how many special tokens grammars have used, and which, then -1. More than SPECIALS: no mask can be built.
    """

    moves: torch.Tensor
    nullable: torch.Tensor
    keys: torch.Tensor
    row_of: torch.Tensor
    bank: torch.Tensor
    rows: int
    starts: torch.Tensor
    symbols: torch.Tensor
    order: torch.Tensor
    stops: torch.Tensor
    specials: torch.Tensor
    handed_over: list[int] = field(default_factory=list)
    """The special tokens on the device."""

    @classmethod
    def of(cls, pushdown: Pushdown, requests: int, device: torch.device | str) -> Tables:
        """Tables for a pushdown and batches of up to `requests`, with nothing handed over yet."""
        vocabulary = pushdown.vocabulary
        starts, symbols, order, stops = (torch.from_numpy(a).to(device) for a in _vocabulary(vocabulary))

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array.copy()).to(device)

        tables = cls(
            moves=tensor(pushdown.moves),
            nullable=tensor(pushdown.nullable),
            keys=tensor(pushdown.keys),
            row_of=tensor(pushdown.row_of),
            bank=torch.zeros((len(pushdown.bank) + requests, vocabulary.words), dtype=torch.int32, device=device),
            rows=len(pushdown.bank),
            starts=starts,
            symbols=symbols,
            order=order,
            stops=stops,
            specials=torch.full((1 + SPECIALS,), -1, dtype=torch.int32, device=device),
        )
        tables.hand_over(pushdown, everything=True)
        return tables

    def hand_over(self, pushdown: Pushdown, *, everything: bool = False) -> None:
        """Copy what has changed in `pushdown` since the last time; everything: after `pushdown.clear()`."""
        changes = pushdown.take_changes()
        if everything:
            self.keys.copy_(torch.from_numpy(pushdown.keys))
            self.moves.copy_(torch.from_numpy(pushdown.moves))
            self.nullable.copy_(torch.from_numpy(pushdown.nullable))
        heads = np.fromiter(changes.heads, np.int64)
        keys, rows = (np.asarray(c, np.int64) for c in (changes.keys, changes.rows))
        device = self.moves.device
        for target, source, places in (
            (self.moves, pushdown.moves, heads),
            (self.nullable, pushdown.nullable, heads),
            (self.bank, pushdown.bank.view(np.int32), rows),
            (self.row_of, pushdown.row_of, keys),
            (self.keys, pushdown.keys, keys),
        ):
            if len(places):
                target.index_copy_(0, _sent(places, device), _sent(source[places], device))
        if everything or pushdown.vocabulary.symbol_tokens != self.handed_over:
            known = self.handed_over[:] = pushdown.vocabulary.symbol_tokens
            row = [len(known), *known[:SPECIALS], *[-1] * (SPECIALS - len(known))]
            self.specials.copy_(_sent(np.asarray(row, np.int32), device), non_blocking=True)


@dataclass(frozen=True)
class States:
    """Where the texts of B requests stand. heads, depths [B], stacks [B, D]: frames, the deepest first. All int32."""

    heads: torch.Tensor
    depths: torch.Tensor
    stacks: torch.Tensor

    @classmethod
    def empty(cls, requests: int, depth: int, device: torch.device | str) -> States:
        """Requests without a grammar."""
        heads = torch.full((requests,), FREE, dtype=torch.int32, device=device)
        return cls(heads, torch.zeros_like(heads), torch.zeros((requests, depth), dtype=torch.int32, device=device))

    def load(self, request: int, place: Place | None) -> None:
        """Set where a request stands; None: it has no grammar."""
        head, frames = (FREE, ()) if place is None else place
        self.heads[request], self.depths[request] = head, len(frames)
        if frames:
            self.stacks[request, : len(frames)].copy_(_sent(np.asarray(frames, np.int32), self.heads.device), non_blocking=True)

    def place(self, request: int) -> Place:
        """Where a request stands; waits for the device."""
        return Place(int(self.heads[request]), tuple(self.stacks[request, : int(self.depths[request])].tolist()))


def _sent(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A host's array on the device; the host does not wait for the copy."""
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _vocabulary(vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """starts, symbols, order, stops: see Tables."""
    texts = [vocabulary.text_of(token) for token in range(vocabulary.width)]
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int32)
    symbols = np.concatenate([np.frombuffer(b"".join(texts), np.uint8), np.arange(256, SYMBOLS)]).astype(np.int32)
    order = np.asarray(sorted((t for t, text in enumerate(texts) if text), key=texts.__getitem__), np.int32)
    ids = vocabulary.stop_token_ids
    stops = np.full(1 << max(len(ids) - 1, 0).bit_length(), -1, np.int32)
    stops[: len(ids)] = ids
    return starts, symbols, order, stops
