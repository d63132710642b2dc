"""The target's hidden states that a request has left behind, for proposers that guess from them.

Input: after each forward the states of the tokens it computed. They are kept as one run without gaps, the newest last; what lies
before a gap (tokens whose states nobody asked for) is dropped. Knows nothing of models or of who reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Features:
    """states [N, E] float32: what the output layer read at the tokens end - N, ..., end - 1 of a request."""

    states: torch.Tensor
    end: int

    def until(self, end: int) -> Features:
        """Without the states at `end` and after."""
        return self if self.end <= end else Features(self.states[: max(0, self.states.shape[0] - (self.end - end))], end)


def extended(old: Features | None, states: torch.Tensor, start: int, most: int) -> Features:
    """`old` with the states [M, E] at the tokens from `start` on, cut to the last `most`."""
    end = start + states.shape[0]
    before = old.until(start) if old is not None else None
    if before is not None and before.end == start:
        states = torch.cat((before.states, states))
    return Features(states[-most:], end)
