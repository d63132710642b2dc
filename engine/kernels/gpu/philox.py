"""Random numbers on a device that depend on seed, position and stream alone: those of engine/sampling.py, bit for bit.

Philox4x32-10 (Salmon et al., SC 2011). Knows nothing of what they are drawn for.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["uniform"]


@triton.jit
def _philox_round(c0, c1, c2, c3, k0, k1):
    m0, m1 = tl.full((), 0xD2511F53, tl.uint32), tl.full((), 0xCD9E8D57, tl.uint32)
    return tl.umulhi(m1, c2) ^ c1 ^ k0, m1 * c2, tl.umulhi(m0, c0) ^ c3 ^ k1, m0 * c0


@triton.jit
def uniform(seed, position, stream):
    """sampling.uniform: 53 random bits in [0, 1). seed, position: int64."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    c2, c3 = stream.to(tl.uint32), tl.full((), 0, tl.uint32)
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = _philox_round(c0, c1, c2, c3, k0, k1)
        k0 += tl.full((), 0x9E3779B9, tl.uint32)
        k1 += tl.full((), 0xBB67AE85, tl.uint32)
    high, low = (c0 >> 5).to(tl.float64), (c1 >> 6).to(tl.float64)
    return (high * 67108864.0 + low) / 9007199254740992.0
