"""Rotary position embeddings: frequencies and their scaling, and the tables of cosines and sines.

Rotation is in halves, as in the Hugging Face checkpoints (element i pairs with i + D/2). Scaling kinds: default, linear
(position interpolation), llama3 (Llama 3.1's band-wise interpolation), yarn (arXiv 2309.00071). Kinds whose frequencies
depend on the length of the text (dynamic, longrope) are refused. Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentkit.engine.kernels.layout import FAR
from agentkit.errors import EngineError

if TYPE_CHECKING:
    import torch

__all__ = ["NotNative", "Rope", "rotary_tables", "rotate"]

_KINDS = ("default", "linear", "llama3", "yarn")


class NotNative(EngineError):
    """A model that the native decoder does not compute; transformers may (loader.py)."""


@dataclass(frozen=True)
class Rope:
    """One rotary embedding.

    inverse_frequencies: radians per position, [D/2], scaling applied. attention_factor multiplies cosines and sines (yarn).
    """

    inverse_frequencies: tuple[float, ...]
    attention_factor: float = 1.0

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any], head_dim: int, max_position: int) -> Rope:
        """From rope_theta and the fields of rope_scaling / rope_parameters. Raises NotNative for a kind that is not supported."""
        import torch

        kind = str(fields.get("rope_type") or fields.get("type") or "default")
        if kind not in _KINDS:
            raise NotNative(f"config.json: rope scaling of type {kind!r} is not supported; supported are {', '.join(_KINDS)}")
        theta = float(fields["rope_theta"])
        # fp32 arithmetic in the order of the reference implementation, so that the tables agree to the last bit
        base = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim))
        factor = 1.0
        if kind == "linear":
            base = base / float(fields["factor"])
        elif kind == "llama3":
            base = _llama3(base, fields)
        elif kind == "yarn":
            base, factor = _yarn(head_dim, theta, fields, max_position)
        return cls(tuple(base.tolist()), factor)


def _llama3(base: torch.Tensor, fields: Mapping[str, Any]) -> torch.Tensor:
    import torch

    factor, original = float(fields["factor"]), int(fields["original_max_position_embeddings"])
    low, high = float(fields["low_freq_factor"]), float(fields["high_freq_factor"])
    wavelength = 2 * math.pi / base
    scaled = torch.where(wavelength > original / low, base / factor, base)
    smooth = (original / wavelength - low) / (high - low)
    smoothed = (1 - smooth) * scaled / factor + smooth * scaled
    medium = ~(wavelength < original / high) & ~(wavelength > original / low)
    return torch.where(medium, smoothed, scaled)


def _yarn(head_dim: int, theta: float, fields: Mapping[str, Any], max_position: int) -> tuple[torch.Tensor, float]:
    import torch

    original = int(fields.get("original_max_position_embeddings") or max_position)
    factor = float(fields["factor"])
    attention = fields.get("attention_factor")
    if attention is None:
        attention = _yarn_attention(factor, fields.get("mscale"), fields.get("mscale_all_dim"))
    slow, fast = float(fields.get("beta_slow") or 1), float(fields.get("beta_fast") or 32)

    def dimension(rotations: float) -> float:
        return (head_dim * math.log(original / (rotations * 2 * math.pi))) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    keep = 1 - torch.clamp(ramp, 0, 1)
    frequencies = theta ** (torch.arange(0, head_dim, 2).to(torch.float32) / head_dim)
    return (1.0 / (factor * frequencies)) * (1 - keep) + (1.0 / frequencies) * keep, float(attention)


def _yarn_attention(factor: float, mscale: float | None, mscale_all: float | None) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)


def rotary_tables(frequencies: torch.Tensor, positions: torch.Tensor, attention_factor: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines for `rotate`: frequencies [D/2] float32, positions [T] -> two of [T, 1, D] in `dtype`."""
    import torch

    angles = positions[:, None].to(torch.float32) * frequencies  # [T, D/2]
    exact = (positions[:, None].double() * frequencies.double()).remainder(2 * math.pi)
    angles = torch.where(positions[:, None] < FAR, angles, exact.float())
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)


def rotate(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotates heads [T, H, D] by the tables of `rotary_tables`: x·cos + (x2, x1)·(-sin, sin)."""
    import torch

    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), signed_sin)
