"""Matrices as rows of quantised groups of 32, in the block formats of GGUF files, and float32 matrices rounded to them.

Q8_0: weight = d·q, q in -127..127. Q4_1: weight = d·q + m, q in 0..15. d and m are half-precision numbers, one per group.
This module knows nothing of models or of how kernels lay the blocks out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from agentkit.engine.kernels.repack import BLOCK_BYTES, Q4_0, Q4_1, Q8_0
from agentkit.errors import EngineError

GROUP = 32
KINDS = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Blocks:
    """A matrix [rows, columns] as raw uint8 [rows, groups · bytes of a block]; columns beyond the last whole group are zeros."""

    kind: int
    raw: Array
    columns: int

    @property
    def rows(self) -> int:
        return int(self.raw.shape[0])

    @property
    def groups(self) -> int:
        return -(-self.columns // GROUP)


def eight_bits(weight: Array) -> Blocks:
    """float32 [rows, columns] rounded to Q8_0: the largest of a group becomes ±127. Raises EngineError where a scale leaves half precision."""
    groups = _grouped(weight)
    d = _half(np.abs(groups).max(-1) / 127)
    q = np.clip(np.rint(groups * _inverse(d)), -127, 127).astype(np.int8)
    return _joined(Q8_0, [d], q.view(np.uint8), weight.shape[1])


def four_bits(weight: Array) -> Blocks:
    """float32 [rows, columns] rounded to Q4_1: 16 evenly spaced values between a group's least and largest."""
    groups = _grouped(weight)
    m = _half(groups.min(-1))
    d = _half((groups.max(-1) - m.astype(np.float32)) / 15)
    q = np.clip(np.rint((groups - m.astype(np.float32)[..., None]) * _inverse(d)), 0, 15).astype(np.uint8)
    return _joined(Q4_1, [d, m], q[..., :16] | q[..., 16:] << 4, weight.shape[1])


def widened(blocks: Blocks) -> Array:
    """The values that blocks stand for, float32 [rows, columns], each rounded once."""
    parts = blocks.raw.reshape(blocks.rows, blocks.groups, BLOCK_BYTES[blocks.kind])
    d = np.ascontiguousarray(parts[..., :2]).view(np.float16).astype(np.float32)
    if blocks.kind == Q8_0:
        values = np.ascontiguousarray(parts[..., 2:]).view(np.int8) * d
    else:
        packed = parts[..., -16:]
        q = np.concatenate((packed & 15, packed >> 4), -1).astype(np.float32)
        m = np.ascontiguousarray(parts[..., 2:4]).view(np.float16).astype(np.float32) if blocks.kind == Q4_1 else -8 * d
        values = (q * d).astype(np.float32) + m
    return np.asarray(values, np.float32).reshape(blocks.rows, -1)[:, : blocks.columns]


def _grouped(weight: Array) -> Array:
    rows, columns = weight.shape
    padded = np.zeros((rows, -(-columns // GROUP) * GROUP), np.float32)
    padded[:, :columns] = weight
    return padded.reshape(rows, -1, GROUP)


def _inverse(d: Array) -> Array:
    wide = d.astype(np.float32)[..., None]
    return np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0)


def _half(scales: Array) -> Array:
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise EngineError("weights: a matrix holds values too large to be quantised (or NaN); use weights='fp32'")
    return rounded


def _joined(kind: int, scales: list[Array], codes: Array, columns: int) -> Blocks:
    rows = codes.shape[0]
    parts = [np.ascontiguousarray(s[..., None]).view(np.uint8) for s in scales]
    return Blocks(kind, np.concatenate([*parts, codes], -1).reshape(rows, -1), columns)
