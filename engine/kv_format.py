"""How one row of keys or values (a position and a head) is stored: as floats, or in 8 bits with a scale of its own.

The dtype of the pool says which: float32, float16, bfloat16; int8 for whole numbers from -127 to 127; uint8 for e4m3 (torch's
float8_e4m3fn, seen as bytes). Behind the D codes of a row lies its scale in two bytes, a bfloat16: its largest amount by 127 or 448,
rounded up. A row is a page's business alone: it never changes again, whatever is written beside it, so pages in 8 bits are shared, copied and
written to files as they are. Keys in int8 are stored mixed by a Hadamard matrix, which spreads the few channels that are far larger
than the rest over all of them (as QuaRot does, arXiv:2404.00456); queries are mixed alike, so that no score changes.
These are the same bytes that the kernels write (engine/kernels/tiles.py and, with a gap behind each row, kernels/gpu). Knows nothing of pages or of attention.
"""

from __future__ import annotations

from functools import cache

import torch

from agentkit.engine.kernels.layout import SCALE_BYTES

KV_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8, "fp8": torch.uint8}
LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}
"""The largest magnitude of a code, by the type of the pool."""

GPU_TAIL = 16
"""Bytes behind the codes on a GPU, of which the scale takes the first two: rows then begin where a thread reads 16 bytes at once."""


def _tail(dtype: torch.dtype, device: torch.device) -> int:
    """Stored numbers behind the codes of a row."""
    if dtype not in LARGEST:
        return 0
    return GPU_TAIL if device.type == "cuda" else SCALE_BYTES


def row_size(dtype: torch.dtype, dim: int, device: torch.device | None = None) -> int:
    """Stored numbers of a row of `dim`.   device: None: the CPU."""
    return dim + _tail(dtype, device or torch.device("cpu"))


def row_dim(data: torch.Tensor) -> int:
    """How many numbers a row of the pool `data` [..., row] stands for."""
    return data.shape[-1] - _tail(data.dtype, data.device)


def encode(rows: torch.Tensor, dtype: torch.dtype, *, keys: bool) -> torch.Tensor:
    """rows [..., D] -> as they are stored [..., row]."""
    if dtype not in LARGEST:
        return rows.to(dtype)
    wide = mixed(rows.float()) if keys and is_mixed(dtype) else rows.float()
    scale = _rounded_up(wide.abs().amax(-1) / LARGEST[dtype])[..., None]  # bfloat16; a device's keepdim=True may leave a stride that has no view as bytes
    divisor = scale.float()
    codes = wide / torch.where(divisor > 0, divisor, 1.0)
    if dtype == torch.int8:
        stored = codes.round().nan_to_num().to(torch.int8)
    else:
        stored = codes.to(torch.float8_e4m3fn).view(torch.uint8)
    gap = torch.zeros(*rows.shape[:-1], _tail(dtype, rows.device) - SCALE_BYTES, dtype=dtype, device=rows.device)
    return torch.cat((stored, scale.view(dtype), gap), -1)


def decode(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """stored [..., row] -> [..., D] in `dtype`; keys stay mixed."""
    if stored.dtype not in LARGEST:
        return stored.to(dtype)
    codes, tail = stored[..., : row_dim(stored)], stored[..., row_dim(stored) :]
    scale = tail[..., :SCALE_BYTES].contiguous().view(torch.bfloat16).float()  # [..., 1]
    numbers = codes.float() if stored.dtype == torch.int8 else codes.contiguous().view(torch.float8_e4m3fn).float()
    return (numbers * scale).to(dtype)


def is_mixed(dtype: torch.dtype) -> bool:
    """Are keys stored mixed? Whole numbers are equally far apart, so one large channel would leave nothing for the others."""
    return dtype == torch.int8


def mixed(x: torch.Tensor) -> torch.Tensor:
    """x [..., D] times the orthonormal Hadamard matrix, in blocks of the largest power of two that divides D; its own inverse."""
    dim = x.shape[-1]
    block = dim & -dim
    matrix = _hadamard(block, x.device).to(x.dtype)
    return torch.matmul(x.reshape(*x.shape[:-1], dim // block, block), matrix).flatten(-2)


@cache
def _hadamard(size: int, device: torch.device) -> torch.Tensor:
    matrix = torch.ones(1, 1, device=device)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix.div_(size**0.5)


def _rounded_up(step: torch.Tensor) -> torch.Tensor:
    """Amounts [...] float32 as bfloat16, never smaller; NaN stays NaN."""
    bits = (step.contiguous().view(torch.int32) + 0xFFFF) >> 16
    return torch.where(step.isnan(), 0x7FC0, bits).to(torch.int16).view(torch.bfloat16)
