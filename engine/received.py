"""The attention that each slot has received: by it H2O (arXiv:2306.14048) chooses which positions a request keeps.

Inputs: what forwards add up, the slots of a sequence, and where its next token goes. Knows nothing of pages, policies or how attention is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Received:
    """By key head, which the kernels of a device sum up apart; a CPU's kernels add all heads up in sums[0].

    sums [KV, S] float32: what counts.   fresh [KV, S] float32: of the last forward over a slot's sequence, set apart, and ends [KV, S] int32: the place
    at which that forward ended (0: nothing is set apart). It counts once the sequence goes on there. A forward that computes the same tokens
    again, because a step has failed, is taken anew or came too early, puts what it finds in its place: so every token counts once, without
    a word from the host.
    """

    sums: torch.Tensor
    fresh: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def empty(cls, kv_heads: int, slots: int, device: torch.device | str = "cpu") -> Received:
        """Nothing received."""
        size = (kv_heads, slots)
        return cls(torch.zeros(size, device=device), torch.zeros(size, device=device), torch.zeros(size, dtype=torch.int32, device=device))

    def heads_at(self, slots: torch.Tensor, place: int) -> torch.Tensor:
        """[KV, N] of `slots` [N], all of one sequence whose next token goes to `place`."""
        return self.sums[:, slots] + torch.where(self.ends[:, slots] == place, self.fresh[:, slots], 0.0)

    def at(self, slots: torch.Tensor, place: int) -> torch.Tensor:
        """[N]: the same over all heads."""
        return self.heads_at(slots, place).sum(0)

    def move(self, sources: torch.Tensor, targets: torch.Tensor, place: int) -> None:
        """Positions move to other slots of their sequence, whose next token goes to `place`; nothing of them is set apart any more."""
        self.sums[:, targets] = self.heads_at(sources, place)
        self.ends[:, targets] = 0
