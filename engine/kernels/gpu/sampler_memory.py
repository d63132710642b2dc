"""Where the sampler's kernels leave for each other what they have found: a row of float64 per request.

In a row lie, four times, three numbers that each part measured; twice what each part weighs above sixteen candidates; for either search
the thresholds before each round and after the last; then four scalars: the row's largest logit, whether it is drawn from, and what either
search wants. Knows nothing of what is measured.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LAST", "OF_ALL", "OF_KEPT", "OF_MASSES", "OF_RANKS", "measured", "row_of", "row_size", "summed", "thresholds", "totals"]

LAST: tl.constexpr = tl.constexpr(8)  # rounds of a search, of four bits each
OF_ALL: tl.constexpr = tl.constexpr(0)  # which tokens have been measured: all, those that top-k cuts, those that top-p cuts, what is kept
OF_RANKS: tl.constexpr = tl.constexpr(1)
OF_MASSES: tl.constexpr = tl.constexpr(2)
OF_KEPT: tl.constexpr = tl.constexpr(3)
_MEASURED: tl.constexpr = tl.constexpr(4 * 3)
_TOTALS: tl.constexpr = tl.constexpr(2 * 16)
_THRESHOLDS: tl.constexpr = tl.constexpr(2 * (LAST.value + 1))


def row_size(parts: int) -> int:
    """Numbers of a row that is cut into so many parts."""
    return int((_MEASURED.value + _TOTALS.value) * parts + _THRESHOLDS.value + 4)


@triton.jit
def row_of(work, b, parts, stride):
    """Where a row begins, and where its scalars are."""
    row = work + b.to(tl.int64) * stride
    return row, row + (_MEASURED + _TOTALS) * parts + _THRESHOLDS


@triton.jit
def measured(row, which, parts):
    """Where what the parts measured is."""
    return row + which * 3 * parts


@triton.jit
def summed(row, which, parts, PARTS: tl.constexpr):
    """The three numbers that the parts have measured, added up."""
    p = tl.arange(0, PARTS)
    at = measured(row, which, parts) + 3 * p
    a, b, c = tl.load(at, mask=p < parts, other=0.0), tl.load(at + 1, mask=p < parts, other=0.0), tl.load(at + 2, mask=p < parts, other=0.0)
    return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0)


@triton.jit
def totals(row, turn, parts):
    """Where the parts' totals of a round are: the round after the next takes the same place."""
    return row + _MEASURED * parts + (turn % 2) * 16 * parts


@triton.jit
def thresholds(row, parts, MASSES: tl.constexpr):
    """Where the thresholds of the search for the cut of top-k are, or with MASSES of top-p."""
    return row + (_MEASURED + _TOTALS) * parts + MASSES * (LAST + 1)
