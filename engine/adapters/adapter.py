"""An adapter as a forward needs it: for each matrix of the decoder two thin ones, and how strongly a request wants them.

Inputs: tensors that fit the decoder's fused matrices. Knows nothing of files, names of checkpoints or batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

__all__ = ["MATRICES", "Adapter", "AdapterForm", "AdapterUse", "Change", "Layered", "LowRank", "Part", "Place"]

MATRICES = ("qkv", "out", "gate_up", "down")
"""Those of a layer, in the order in which a forward multiplies by them."""
Place = tuple[int, str]
"""A layer's number, and one of its MATRICES."""


class Change(Protocol):
    """What an adapter adds to the product of one place, in the form in which its engine computes it."""

    @property
    def nbytes(self) -> int: ...

    def add(self, x: torch.Tensor, out: torch.Tensor, rows: slice, scale: float) -> None:
        """out[rows] += scale * change(x[rows]), for x [T, in] and out [T, of the fused matrix]; `rows` have a start and a stop."""
        ...


class Part(NamedTuple):
    """What one of the matrices that are fused in a place gets: up [columns, rank], the scaling of the file multiplied in.

    rank: where its ranks begin among those of the place.   column: where its outputs begin among those of the fused matrix.
    """

    up: torch.Tensor
    rank: int
    column: int


@dataclass(frozen=True, eq=False)
class LowRank:
    """The change of one place by torch: x @ down.T, then each part's ranks @ up.T. down [R, in]: the ranks of all parts, one behind the other."""

    down: torch.Tensor
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.down, *(part.up for part in self.parts)))

    def add(self, x: torch.Tensor, out: torch.Tensor, rows: slice, scale: float) -> None:
        """See Change."""
        h = F.linear(x[rows], self.down)  # [n, R]
        for up, rank, column in self.parts:
            out[rows, column : column + up.shape[0]].addmm_(h[:, rank : rank + up.shape[1]], up.T, alpha=scale)


class AdapterForm(Protocol):
    """An adapter's matrices as its engine computes with them: `Layered`, or `whole.WholeAdapter` where a forward is one kernel."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Layered:
    """What is added to each product, place by place."""

    places: Mapping[Place, Change]

    @property
    def nbytes(self) -> int:
        return sum(change.nbytes for change in self.places.values())


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that was loaded. It lives as long as somebody holds it: the engine by its name, and each request that chose it.

    load_number: another one for each load, so that keys and values of a file that was replaced are never taken for those of the new one.
    source: the folder or hub repository.   rank: the largest of its ranks.
    """

    name: str
    load_number: int
    source: str
    rank: int
    form: AdapterForm

    @property
    def nbytes(self) -> int:
        """Memory of its matrices in bytes."""
        return self.form.nbytes

    def __repr__(self) -> str:
        return f"Adapter({self.name!r}, rank {self.rank}, {self.nbytes / 1e6:.1f} MB from {self.source})"


class AdapterUse(NamedTuple):
    """What a request chose. scale: multiplies what the adapter adds; never 0, which is the base model and no adapter at all."""

    adapter: Adapter
    scale: float
