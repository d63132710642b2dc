"""How much memory keys and values may take when the caller does not say.

Input: the device. This module knows nothing of models or caches.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

SHARE = 4  # a quarter of what is free


def default_kv_bytes(device: torch.device) -> int:
    """A quarter of the device's free memory, in bytes; on the CPU no more than the control group leaves."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) // SHARE
    return available_host_bytes() // SHARE


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
