"""Copies masks into rows that a caller owns: numpy arrays or torch tensors, on any device.

Inputs: matchers and an int32 or uint32 array. Rows may be strided, and wider than the mask: what is beyond is not allowed.
Knows nothing of grammars; imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from agentkit.grammars.matcher import Matcher

__all__ = ["fill_masks", "fill_row"]


def fill_masks(matchers: Sequence[Matcher | None], out: Any) -> None:
    """Masks of a batch into the first rows of `out`; further rows stay as they are.

    Args:
        matchers: None for a row without a grammar: every bit of it is set. A finished matcher's row is all zero.
        out: int32 or uint32 [at least len(matchers), at least ceil(width / 32)]: a numpy array, or a torch tensor on any device.

    Raises:
        TypeError: `out` is neither, or has other elements.
        ValueError: it has another shape, is too small or read-only.
        NoTokenPath: a matcher's text can go on, but no token of its vocabulary spells how.
    """
    _check(out, 2)
    if out.shape[0] < len(matchers):
        raise ValueError(f"{len(matchers)} masks do not fit into {out.shape[0]} rows; pass one row for each matcher")
    words = max((m.vocabulary.words for m in matchers if m is not None), default=0)
    if out.shape[1] < words:
        raise ValueError(f"the masks have {words} words (vocabulary width / 32), but the rows only {out.shape[1]}; pass a wider array")
    target = _host(out)
    rows = np.empty((len(matchers), out.shape[1]), np.uint32) if target is None else target
    for matcher, row in zip(matchers, rows, strict=False):
        _fill(matcher, row)
    if target is None and matchers:
        _send(rows, out[: len(matchers)])


def fill_row(matcher: Matcher, out: Any) -> None:
    """One mask into `out`: [at least ceil(width / 32)], or one row of that. Raises like `fill_masks`."""
    if getattr(out, "ndim", 1) == 2:
        if out.shape[0] != 1:
            raise ValueError(f"one mask goes into one row, not into {out.shape[0]}; use fill_masks for a batch")
        out = out[0]
    _check(out, 1)
    fill_masks([matcher], out[None])


def _check(out: Any, ndim: int) -> None:
    """Is `out` an int32 or uint32 array or tensor of so many dimensions?"""
    name = str(getattr(out, "dtype", "")).removeprefix("torch.")
    if name not in ("int32", "uint32") or not hasattr(out, "shape"):
        raise TypeError(f"masks go into an int32 or uint32 numpy array or torch tensor, not {f'{name} elements' if name else type(out).__name__}")
    if len(out.shape) != ndim:
        raise ValueError(f"masks go into an array of {'[rows, words]' if ndim == 2 else '[words]'}, not of the shape {tuple(out.shape)}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("the array for the masks is read-only; pass a writeable one (np.array makes a copy)")


def _host(out: Any) -> np.ndarray | None:
    """The memory of `out` as uint32, shared with it; None if it is not on the host."""
    if not isinstance(out, np.ndarray):
        if out.device.type != "cpu":
            return None
        out = out.detach().numpy()
    view: np.ndarray = out.view(np.uint32)
    return view


def _send(rows: np.ndarray, out: Any) -> None:
    import torch

    out.copy_(torch.from_numpy(rows.view(np.int32)).view(out.dtype))


def _fill(matcher: Matcher | None, row: np.ndarray) -> None:
    if matcher is None:
        row[:] = 0xFFFFFFFF
        return
    words = matcher.vocabulary.words
    row[:words] = matcher.mask()
    row[words:] = 0
