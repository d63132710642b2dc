"""The smallest kernel with a loop whose end is known only when it runs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _count(end, out):
    total = tl.zeros([16], tl.int32)
    for _ in range(0, tl.load(end), 1):
        total += 1
    tl.store(out + tl.arange(0, 16), total)


def count(number: int) -> int:
    out = torch.zeros(16, dtype=torch.int32)
    _count[(1,)](torch.tensor([number], dtype=torch.int32), out)
    return int(out[3])
