"""Keys and values in 8 bits: what a row loses, that kernels and torch write the same bytes, and attention over such pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kernels.library import kernel, supported
from agentkit.engine.kernels.tiles import LANES, narrow_row, transpose_page, widen_row
from agentkit.engine.kv import KVShape
from agentkit.engine.kv_format import KV_TYPES, decode, encode, mixed, row_dim, row_size
from tests.engine.kernels.models import VARIANTS, Pool, Sequence, decoder, quantised, run, tokens
from tests.engine.slots import Slots
from tests.engine.test_attention import reference

EIGHT_BITS = [torch.int8, torch.uint8]
kernels_only = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")


def rows(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Ordinary rows, rows of very large and very small numbers, zeros, one number alone, subnormal ones."""
    made = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)) * torch.logspace(-30, 30, count).unsqueeze(1)
    made[1], made[2], made[3] = 0.0, torch.eye(dim)[5] * -3, 1e-42
    return made


@kernel
def written(source, out, dim, size):
    for i in range(source.size // dim):
        narrow_row(source, i * dim, dim // LANES, out, i * size)


@kernel
def read(stored, dim, size, out, panel):
    for i in range(PAGE):
        widen_row(stored, i * size, dim // LANES, out, i * dim)
    transpose_page(stored, 0, size, dim // LANES, panel)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_there_may_be_no_rows_at_all(dtype: torch.dtype) -> None:
    """As where a step is nothing but padding."""
    assert encode(torch.empty(2, 0, 16), dtype, keys=True).shape == (2, 0, row_size(dtype, 16))
    assert encode(torch.empty(0, 2, 16).transpose(0, 1), dtype, keys=False).shape == (2, 0, row_size(dtype, 16))


@kernels_only
@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("dim", [8, 64, 80])
def test_kernels_write_and_read_the_same_bytes_as_torch(dtype: torch.dtype, dim: int) -> None:
    source, size = rows(PAGE, dim), row_size(dtype, dim)
    mine = torch.zeros(PAGE, size, dtype=dtype)
    written(source.view(-1).numpy(), mine.view(-1).numpy(), dim, size)
    assert torch.equal(mine, encode(source, dtype, keys=False))
    out, panel = np.zeros(PAGE * dim, np.float32), np.zeros(dim * PAGE, np.float32)
    read(mine.view(-1).numpy(), dim, size, out, panel)
    assert torch.equal(torch.from_numpy(out).view(PAGE, dim), decode(mine, torch.float32))
    assert torch.equal(torch.from_numpy(panel).view(dim, PAGE).T, decode(mine, torch.float32))


@kernels_only
def test_every_code_of_e4m3_is_read_right_and_written_back() -> None:
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8)  # but for the two NaN
    numbers = codes.view(torch.float8_e4m3fn).float()
    data = torch.cat((numbers, torch.tensor([448.0, -448.0]))).view(PAGE, 8)
    data[:, 0] = 448.0  # so that all scales are 1
    stored = torch.zeros(PAGE, row_size(torch.uint8, 8), dtype=torch.uint8)
    written(data.reshape(-1).numpy(), stored.view(-1).numpy(), 8, stored.shape[1])
    assert torch.equal(decode(stored, torch.float32), data)
    assert torch.equal(stored[:, :8].view(torch.float8_e4m3fn).float(), data)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("keys", [False, True])
def test_what_a_row_loses_is_bounded(dtype: torch.dtype, keys: bool) -> None:
    """Whole numbers: half a step of the row's largest amount; e4m3: a sixteenth of each number, or half the smallest step."""
    source = torch.randn(500, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 6, 500).unsqueeze(1)
    stored = mixed(source) if keys and dtype == torch.int8 else source
    error, largest = (decode(encode(source, dtype, keys=keys), torch.float32) - stored).abs(), stored.abs().amax(-1, keepdim=True)
    step = largest / 127 * (1 + 1 / 128)
    bound = step * 0.5001 if dtype == torch.int8 else torch.maximum(stored.abs() / 16, largest / 448 * 2**-10) * 1.01
    assert (error <= bound).all()


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_nan_and_infinity_stay_visible(dtype: torch.dtype) -> None:
    source = torch.randn(4, 64)
    source[1, 9], source[2, 60] = torch.nan, torch.inf
    back = decode(encode(source, dtype, keys=True), torch.float32)
    assert back[1].isnan().all()
    assert not back[2].isfinite().any()
    assert back[[0, 3]].isfinite().all()


def test_mixing_is_its_own_inverse_and_changes_no_score() -> None:
    for dim in (8, 24, 64, 80, 128):
        q, k = torch.randn(5, dim), torch.randn(7, dim)
        assert torch.allclose(mixed(mixed(q)), q, atol=1e-5)
        assert torch.allclose(mixed(q) @ mixed(k).T, q @ k.T, atol=1e-4)


def test_memory_is_half_of_that_in_16_bits() -> None:
    sizes = {name: KVShape(30, 3, 64, dtype).bytes_per_token for name, dtype in KV_TYPES.items()}
    assert sizes["fp16"] == 30 * 2 * 3 * 64 * 2
    assert sizes["int8"] == sizes["fp8"] == 30 * 2 * 3 * 66
    assert row_dim(torch.zeros(2, 66, dtype=torch.int8)) == 64


@pytest.mark.parametrize("kernels", [pytest.param(True, marks=kernels_only), False])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_attention_equals_that_over_the_rounded_keys_and_values(dtype: torch.dtype, window: int | None, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels:
        monkeypatch.setattr("agentkit.engine.attention.supported", lambda: False)
    h, kv, dim = 6, 2, 16
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(110, n, dim, generator=generator) for n in (h, kv, kv))
    keys, values = (decode(encode(x, dtype, keys=i == 0), torch.float32) for i, x in enumerate((k, v)))
    keys = mixed(keys) if dtype == torch.int8 else keys
    pool, sequence = Slots(1, kv, dim, pages=10, dtype=dtype), Sequence([9, 2, 7, 3])
    for first, last in ((0, 33), (33, 34), (34, 96), (96, 110)):
        out = BatchAttention(pool, [(sequence, first, last - first)])(0, q[first:last], k[first:last], v[first:last], window=window, scale=0.3)
        wanted = reference(q[first:last], keys, values, first, window, None).float()
        assert (out - wanted).abs().max() < (0.02 if dtype == torch.int8 else 1e-5)  # sums in another order may round a mixed key to the next code


@kernels_only
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_grouping_changes_no_bit(variant: dict[str, Any], dtype: torch.dtype) -> None:
    """The whole forward: one token at a time, spans of 1 to 17, one prefill of all."""
    packed, plain = quantised(decoder(**variant))
    ids, order = tokens(154, packed.config.vocab_size), [9, 2, 17, 3, 0, 30]
    whole = Pool(packed, dtype=dtype)
    wanted = run(packed, whole, (Sequence(order), 0, ids))
    pool, at = Pool(packed, dtype=dtype), 0
    for count in (*range(1, 18), 1):
        assert torch.equal(run(packed, pool, (Sequence(order), at, ids[at : at + count])), wanted[at : at + count])
        at += count
    assert torch.equal(pool.data, whole.data)
    exact = run(plain, Pool(plain), (Sequence(order), 0, ids))
    assert (wanted - exact).norm() < (0.05 if dtype == torch.int8 else 0.2) * exact.norm()
