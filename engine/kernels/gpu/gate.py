"""The gate of a gated MLP: activation(gate) * up, in one pass (SwiGLU and its kin, arXiv:2002.05202).

Input: both projections side by side. The arithmetic is in float32, rounded once. Knows nothing of the matrices around it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["KINDS", "gated"]

KINDS = ("silu", "gelu", "gelu_tanh")
BLOCK = 1024


@triton.jit
def _gated(gate_up, out, row, out_row, F, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (T, blocks of F). gate_up [T, 2 F] -> out [T, F]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(gate_up + token * row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + token * row + F + column, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        gate = gate * tl.sigmoid(gate)
    elif KIND == "gelu":
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:  # 0.5 * (1 + tanh(x)) = sigmoid(2 x)
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out + token * out_row + column, (gate * up).to(out.dtype.element_ty), mask=inside)


def gated(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """gate_up [T, 2 F], gate first -> [T, F].   kind: one of KINDS."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}")
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    _gated[(tokens, triton.cdiv(width, BLOCK))](gate_up, out, gate_up.stride(0), out.stride(0), width, KIND=kind, BLOCK=BLOCK, num_warps=4)
    return out
