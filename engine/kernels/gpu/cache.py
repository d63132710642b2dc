"""One layer's keys and values as the kernels of a device see them: views of the pool's rows, whole numbers apart from their scales.

Input: the rows as kv_format.py lays them out. Knows nothing of pages or of who owns them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agentkit.engine import kv_format
from agentkit.engine.kernels.layout import SCALE_BYTES
from agentkit.engine.kv_format import row_dim, row_size

__all__ = ["LARGEST", "KVLayer"]

LARGEST = {torch.int8: kv_format.LARGEST[torch.int8], torch.float8_e4m3fn: kv_format.LARGEST[torch.uint8]}
"""What the largest magnitude of a vector becomes at most, by stored type."""


@dataclass(frozen=True)
class KVLayer:
    """keys, values [KV, S, D], of equal strides; key_scales, value_scales [KV, S] bfloat16 where those are int8 or fp8, else None.

    A number is what is stored times its scale. Keys in int8 are mixed, and queries must be, too: see kv_format.mixed.
    table: which of a request's page tables says in what slots its keys and values are.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    table: int = 0

    @classmethod
    def of(cls, rows: torch.Tensor, table: int = 0) -> KVLayer:
        """Views of rows [2, KV, S, row], keys first."""
        dim = row_dim(rows)
        stored = rows.view(torch.float8_e4m3fn) if rows.dtype == torch.uint8 else rows
        keys, values = stored[..., :dim]
        if stored.dtype not in LARGEST:
            return cls(keys, values, table=table)
        if dim % SCALE_BYTES:
            raise ValueError(f"keys of {dim} bytes: the scale behind them would lie across two of its kind; 8 bits need an even number")
        key_scales, value_scales = rows.view(torch.bfloat16)[..., dim // SCALE_BYTES]
        return cls(keys, values, key_scales, value_scales, table)

    @classmethod
    def empty(cls, kv_heads: int, slots: int, head_dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> KVLayer:
        """Zeros.   dtype: as for the pool, so uint8 for fp8."""
        device = torch.device(device)
        return cls.of(torch.zeros(2, kv_heads, slots, row_size(dtype, head_dim, device), dtype=dtype, device=device))

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[0]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2]

    @property
    def is_mixed(self) -> bool:
        """See kv_format.is_mixed."""
        return self.keys.dtype == torch.int8

    @property
    def scale_strides(self) -> tuple[int, int]:
        """Of key_scales and value_scales; (0, 0) where there are none."""
        return (0, 0) if self.key_scales is None else (self.key_scales.stride(0), self.key_scales.stride(1))

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (mixed, if they are) and values [KV, N, D] of these slots in float32: what the kernels compute with."""
        keys, values = _rows(self.keys, slots).float(), _rows(self.values, slots).float()
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        return keys * self.key_scales[:, slots, None].float(), values * self.value_scales[:, slots, None].float()


def _rows(stored: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """stored [KV, S, D] at slots [N]; fp8 as bytes, which every device can pick."""
    picked = (stored.view(torch.uint8) if stored.itemsize == 1 else stored)[:, slots]
    return picked.view(stored.dtype)
