"""The kernels of pushdown.py in plain Python over the same tensors: what they are compared with, and what runs where there is no GPU.

Knows nothing of sampling or models.
"""

from __future__ import annotations

import numpy as np
import torch

from agentkit.grammars.device import DEAD, MISS, SPECIALS
from agentkit.grammars.kernels.tables import FINE, FREE, LOCAL, LOST, MISSED, NO_ROW, STOPPED, States, Tables
from agentkit.grammars.place import Place, key_of

__all__ = ["advance", "build_rows", "find_rows"]


class _Missed(Exception):
    """The tables do not say how it goes on."""


class _Walker:
    """Reads symbols as the kernels do."""

    def __init__(self, tables: Tables) -> None:
        self.moves, self.nullable = tables.moves.numpy(), tables.nullable.numpy()

    def read(self, place: Place, symbols: list[int], depth: int) -> Place | None:
        """The place after `symbols`, None if they are not allowed. Raises _Missed."""
        head, frames, base = place.head, list(place.frames), len(place.frames)
        for symbol in symbols:
            while self.moves[head, symbol, 0] == DEAD and self.nullable[head] and frames:
                head = frames.pop()
                base = min(base, len(frames))
            following, pushed = self.moves[head, symbol].tolist()
            if following == DEAD:
                return None
            if following == MISS or (self.nullable[head] and not self._is_alone(frames, symbol)):
                raise _Missed
            head = following
            if pushed >= 0:
                if len(frames) == depth or len(frames) - base == LOCAL:
                    raise _Missed
                frames.append(pushed)
        return Place(head, tuple(frames))

    def _is_alone(self, frames: list[int], symbol: int) -> bool:
        for frame in reversed(frames):
            if self.moves[frame, symbol, 0] != DEAD:
                return False
            if not self.nullable[frame]:
                break
        return True

    def accepts(self, place: Place) -> bool:
        return all(self.nullable[part] for part in (place.head, *place.frames))


def find_rows(tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor) -> None:
    """See pushdown.find_rows."""
    keys, mask = tables.keys.numpy(), tables.keys.numel() - 1
    for b in range(rows.numel()):
        if status[b] != FINE or states.heads[b] == FREE:
            rows[b] = NO_ROW
            continue
        key = key_of(states.place(b))
        slot = (key >> 3) & mask
        while keys[slot] not in (0, key):
            slot = (slot + 1) & mask
        rows[b] = int(tables.row_of[slot]) if keys[slot] else tables.rows + b
        if not keys[slot]:
            tables.bank[tables.rows + b] = 0


def build_rows(tables: Tables, states: States, status: torch.Tensor, rows: torch.Tensor) -> None:
    """See pushdown.build_rows."""
    walker, depth = _Walker(tables), states.stacks.shape[1]
    symbols, starts = tables.symbols.tolist(), tables.starts.tolist()
    specials = [(token, [256 + k]) for k, token in enumerate(tables.specials[1:].tolist()) if token >= 0]
    texts = [(token, symbols[starts[token] : starts[token + 1]]) for token in tables.order.tolist()]
    for b in np.flatnonzero(rows.numpy() >= tables.rows).tolist():
        place = states.place(b)
        allowed = [token for token in tables.stops.tolist() if token >= 0 and walker.accepts(place)]
        try:
            if tables.specials[0] > SPECIALS:
                raise _Missed
            allowed += [token for token, written in texts + specials if walker.read(place, written, depth) is not None]
        except _Missed:
            status[b] = MISSED
        bits = np.zeros(32 * tables.bank.shape[1], np.uint8)
        bits[allowed] = 1
        tables.bank[int(rows[b])] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def advance(tables: Tables, states: States, status: torch.Tensor, tokens: torch.Tensor) -> None:
    """See pushdown.advance."""
    walker, depth = _Walker(tables), states.stacks.shape[1]
    stops, specials = tables.stops.tolist(), tables.specials[1:].tolist()
    for b in np.flatnonzero(status.numpy() == FINE).tolist():
        token = int(tokens[b])
        free = states.heads[b] == FREE
        if token in stops:
            status[b] = STOPPED if free or walker.accepts(states.place(b)) else LOST
        elif not free:
            written = tables.symbols[int(tables.starts[token]) : int(tables.starts[token + 1])].tolist()
            if not written and token in specials:
                written = [256 + specials.index(token)]
            try:
                following = walker.read(states.place(b), written, depth) if written else None
            except _Missed:
                following = None
            if following is None:
                status[b] = LOST
            else:
                states.load(b, following)
