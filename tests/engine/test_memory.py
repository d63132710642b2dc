"""Memory for keys and values: what was asked for, a fraction of what is free, or a quarter of it as far as it is of use."""

from __future__ import annotations

import torch

from agentkit.engine.memory import available_host_bytes, kv_bytes, kv_type

CPU = torch.device("cpu")


def test_bytes_are_taken_as_they_are() -> None:
    assert kv_bytes(12345, CPU, 1) == 12345


def test_shares_are_of_what_is_available() -> None:
    available = available_host_bytes()
    assert 0 < available < 1 << 50
    assert abs(kv_bytes(0.5, CPU, 1) - available // 2) < available // 4
    assert abs(kv_bytes(None, CPU, 1 << 60) - available // 4) < available // 8


def test_no_more_than_is_of_use_by_default() -> None:
    assert kv_bytes(None, CPU, 1000) == 1000


def test_keys_and_values_are_held_as_told() -> None:
    assert [kv_type(kv, torch.float32, blocks=True) for kv in ("auto", "fp32", "fp16", "bf16")] == [torch.float16, torch.float32, torch.float16, torch.bfloat16]
    assert kv_type("auto", torch.bfloat16, blocks=False) == torch.bfloat16
