"""The default memory for keys and values is a share of what is really free."""

from __future__ import annotations

import torch

from agentkit.engine.memory import SHARE, available_host_bytes, default_kv_bytes


def test_default_is_a_share_of_what_is_available() -> None:
    available = available_host_bytes()
    assert 0 < available < 1 << 50
    assert abs(default_kv_bytes(torch.device("cpu")) - available // SHARE) < available // 2
