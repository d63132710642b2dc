"""Applies mask rows to logits, for any decoding loop: numpy (llama.cpp's bindings) or torch (transformers, vLLM, your own).

    rows = np.zeros((len(matchers), vocabulary.words), np.uint32)
    fill_masks(matchers, rows)
    apply_mask(logits, rows)            # in place: what is not allowed becomes -inf
    token = logits.argmax(-1)

Knows nothing of grammars or models.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["apply_mask"]


def apply_mask(logits: Any, rows: Any) -> Any:
    """Sets the logits of all tokens that are not allowed to -inf, in place, and returns them.

    Args:
        logits: floating-point numpy array or torch tensor [..., V], V the width of the model's logits. Columns beyond the rows' bits
            are not allowed.
        rows: mask rows as `Matcher.mask`, `fill_mask` and `fill_masks` give them: uint32 or int32 [..., words], array or tensor.

    Raises:
        TypeError: elements of other types.
        ValueError: the leading dimensions differ.
    """
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(logits, torch.Tensor)
    if not is_tensor and not isinstance(logits, np.ndarray):
        raise TypeError(f"logits must be a numpy array or a torch tensor, not {type(logits).__name__}")
    if "float" not in str(logits.dtype):
        raise TypeError(f"logits must be floating-point numbers, not {logits.dtype}")
    if str(getattr(rows, "dtype", type(rows).__name__)).removeprefix("torch.") not in ("int32", "uint32"):
        raise TypeError(f"mask rows must be int32 or uint32, not {getattr(rows, 'dtype', type(rows).__name__)}")
    if tuple(logits.shape[:-1]) != tuple(rows.shape[:-1]):
        raise ValueError(f"logits of the shape {tuple(logits.shape)} need one mask row each, not rows of the shape {tuple(rows.shape)}")
    return _apply_torch(logits, rows) if is_tensor else _apply_numpy(logits, rows)


def _apply_numpy(logits: np.ndarray, rows: Any) -> np.ndarray:
    rows = np.ascontiguousarray(rows if isinstance(rows, np.ndarray) else rows.cpu().numpy())
    allowed = np.unpackbits(rows.view(np.uint8), axis=-1, bitorder="little")[..., : logits.shape[-1]]
    logits[..., : allowed.shape[-1]][allowed == 0] = -np.inf
    logits[..., allowed.shape[-1] :] = -np.inf
    return logits


def _apply_torch(logits: Any, rows: Any) -> Any:
    import torch

    words = torch.from_numpy(np.array(rows)) if isinstance(rows, np.ndarray) else rows  # a copy: masks are read-only views
    words = words.view(torch.int32).to(logits.device, non_blocking=True)
    bits = words.unsqueeze(-1) >> torch.arange(32, device=logits.device, dtype=torch.int32)
    allowed = (bits & 1).bool().flatten(-2)[..., : logits.shape[-1]]
    logits[..., : allowed.shape[-1]].masked_fill_(~allowed, -torch.inf)
    logits[..., allowed.shape[-1] :] = -torch.inf
    return logits
