"""Keys and values into their slots, whole and quantised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentkit.engine.kernels.gpu import reference
from agentkit.engine.kernels.gpu.batch import NOWHERE
from agentkit.engine.kernels.gpu.cache import LARGEST, KVLayer
from agentkit.engine.kernels.gpu.store import write
from agentkit.engine.kv_format import decode, encode, row_size
from tests.engine.gpu.paged import DEVICE

BOTH = pytest.mark.parametrize("kernel", [write, reference.write], ids=["triton", "reference"])


def written(kernel: Callable[..., Any], dtype: torch.dtype, tokens: int, dim: int = 24) -> tuple[torch.Tensor, torch.Tensor, KVLayer, torch.Tensor]:
    """k, v [T, KV, D] and the layer that took them, with the slots used; slots of odd tokens are padding."""
    qkv = torch.randn(tokens, 7, dim, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    qkv[2, 3] = 0
    k, v = qkv[:, 2:4], qkv[:, 4:6]
    layer = KVLayer.empty(2, 2 * tokens, dim, dtype, DEVICE)
    slots = torch.randperm(2 * tokens, generator=torch.Generator().manual_seed(2))[:tokens].to(DEVICE, torch.int32)
    slots[1::2] = NOWHERE
    kernel(k, v, layer, slots)
    return k[::2].transpose(0, 1), v[::2].transpose(0, 1), layer, slots[::2].long()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_whole_numbers_arrive_and_padding_does_not(kernel: Callable[..., Any], dtype: torch.dtype) -> None:
    k, v, layer, slots = written(kernel, dtype, 6)
    assert torch.equal(layer.keys[:, slots], k.to(dtype))
    assert torch.equal(layer.values[:, slots], v.to(dtype))
    others = torch.ones(layer.keys.shape[1], dtype=torch.bool, device=DEVICE)
    others[slots] = False
    assert not layer.keys[:, others].any()
    assert not layer.values[:, others].any()


@BOTH
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_in_8_bits_the_same_is_written_as_by_the_cpu(kernel: Callable[..., Any], dtype: torch.dtype) -> None:
    if kernel is write and dtype == torch.uint8 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter loses the carry when rounding to fp8 reaches the next power of two")
    k, v, layer, slots = written(kernel, dtype, 6)
    for want, got in zip((k, v), layer.read(slots), strict=True):
        assert torch.equal(got, decode(encode(want, dtype, keys=False), torch.float32))
    assert layer.key_scales is not None
    assert layer.key_scales.ne(0).sum() == 2 * slots.numel() - 1  # one row is all zeros


@BOTH
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_what_8_bits_hold_exactly_comes_back_exactly(kernel: Callable[..., Any], dtype: torch.dtype) -> None:
    layer = KVLayer.empty(1, 8, 16, dtype, DEVICE)
    steps = torch.arange(-112.0, 128.0, 16.0) if dtype == torch.int8 else 2.0 ** torch.arange(-6.0, 9.0)
    most = LARGEST[layer.keys.dtype]
    rows = torch.stack([torch.cat((steps, torch.tensor([most]))) * size for size in (0.5, 4.0)])[:, None].to(DEVICE)
    kernel(rows, -rows, layer, torch.tensor([5, 2], dtype=torch.int32, device=DEVICE))
    for want, got in zip((rows, -rows), layer.read(torch.tensor([5, 2], device=DEVICE)), strict=True):
        assert torch.equal(got, want.transpose(0, 1))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rows_begin_where_a_gpu_reads_many_bytes_at_once(device: str) -> None:
    sizes = [row_size(dtype, 128, torch.device(device)) for dtype in (torch.int8, torch.uint8, torch.float16)]
    assert sizes == ([130, 130, 128] if device == "cpu" else [144, 144, 128])


@BOTH
def test_many_tokens_go_in_blocks(kernel: Callable[..., Any]) -> None:
    k, v, layer, slots = written(kernel, torch.float32, 261, dim=16)
    assert torch.equal(layer.keys[:, slots], k)
    assert torch.equal(layer.values[:, slots], v)


def test_a_row_of_odd_size_has_no_place_for_its_scale() -> None:
    with pytest.raises(ValueError, match="keys of 5 bytes"):
        KVLayer.empty(1, 4, 5, torch.int8)
