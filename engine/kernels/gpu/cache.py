"""One layer's keys and values as the kernels of a device see them, whole or quantised.

A quantised number is stored with a scale per token and key head: number = stored * scale. int8 spreads the largest magnitude of a
head's vector over 127 steps; fp8 (e4m3) puts it at the type's largest number, 448. Knows nothing of pages or of who owns them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["LARGEST", "KVLayer"]

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""What the largest magnitude of a vector becomes, by stored type."""


@dataclass(frozen=True)
class KVLayer:
    """keys, values [KV, S, D]: rows without gaps, equal strides.   key_scales, value_scales [KV, S] float32: where those are int8 or fp8."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.keys.dtype != self.values.dtype or self.keys.stride() != self.values.stride() or self.keys.stride(-1) != 1:
            raise ValueError("keys and values must have one type, equal strides and rows without gaps")
        if (self.keys.dtype in LARGEST) != (self.key_scales is not None) or (self.key_scales is None) != (self.value_scales is None):
            raise ValueError(f"keys and values of {self.keys.dtype} {'need' if self.keys.dtype in LARGEST else 'take no'} scales")

    @classmethod
    def empty(cls, kv_heads: int, slots: int, head_dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> KVLayer:
        """Zeros, with scales where the type needs them."""
        keys, values = torch.zeros(2, kv_heads, slots, head_dim, dtype=dtype, device=device)
        if dtype not in LARGEST:
            return cls(keys, values)
        scales = torch.zeros(2, kv_heads, slots, device=device)
        return cls(keys, values, scales[0], scales[1])

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[0]

    @property
    def head_dim(self) -> int:
        return self.keys.shape[2]

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [KV, N, D] of these slots in float32: what the kernels compute with."""
        keys, values = self.keys[:, slots].float(), self.values[:, slots].float()
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        return keys * self.key_scales[:, slots, None], values * self.value_scales[:, slots, None]
