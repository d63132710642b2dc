"""How keys and values are held, and how much memory they may take.

Inputs: what the caller said, and the device. This module knows nothing of models or caches.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from agentkit.engine.kv_format import KV_TYPES

DEFAULT_SHARE = 0.25  # of what is free


def kv_type(wanted: str, model: torch.dtype, *, blocks: bool) -> torch.dtype:
    """wanted: "auto" or one of KV_TYPES.   model: the type it computes in.   blocks: whether its matrices are blocks of 8 or 4 bits.

    Beside blocks half precision costs less than their rounding (docs/performance.md) and spares half the reading.
    """
    if wanted == "auto":
        return torch.float16 if blocks else model
    return KV_TYPES[wanted]


def kv_bytes(wanted: int | float | None, device: torch.device, enough: int) -> int:
    """Bytes for keys and values. wanted: bytes, a fraction of the free memory, or None: a quarter of it, at most `enough` bytes."""
    if isinstance(wanted, int):
        return wanted
    free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_host_bytes()
    return min(int(free * DEFAULT_SHARE), enough) if wanted is None else int(free * wanted)


def available_host_bytes() -> int:
    """Memory that can be had without swapping, in bytes: the least of what the kernel and the control group say."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        limits.append(max(0, int(text) - int(used.read_text())))
    return min(limits)
