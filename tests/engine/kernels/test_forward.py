"""The forward in one kernel: equal to the plain decoder of the same values, and the same bits however tokens are grouped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine.kernels.library import supported
from agentkit.engine.weights.blocks import eight_bits, four_bits
from tests.engine.kernels.models import VARIANTS, Pool, Sequence, decoder, quantised, run, tokens

pytestmark = pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
SCATTERED = [9, 2, 17, 3, 0, 30, 31, 32, 33, 21, 22, 5]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("rounded", [four_bits, eight_bits])
def test_equal_to_the_plain_decoder(variant: dict[str, Any], rounded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, plain = quantised(decoder(**variant), rounded)
    ids = tokens(75, packed.config.vocab_size)
    pools = Pool(packed), Pool(packed)
    for offset, count in ((0, 33), (33, 1), (34, 40), (74, 1)):
        span = Sequence(SCATTERED), offset, ids[offset : offset + count]
        got = run(packed, pools[0], span)
        with monkeypatch.context() as patch:
            patch.setattr("agentkit.engine.attention.supported", lambda: False)
            wanted = run(plain, pools[1], span)
        assert (got - wanted).abs().max() < 2e-4 * wanted.abs().max()
    written = ~pools[1].data.isnan()
    assert (pools[0].data[written] - pools[1].data[written]).abs().max() < 6e-4


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("dtype", "narrow"), [(torch.float32, False), (torch.float16, True), (torch.bfloat16, False)])
def test_grouping_changes_no_bit(variant: dict[str, Any], dtype: torch.dtype, narrow: bool) -> None:
    """One token at a time, spans of 1 to 17, one prefill of all: the same logits and the same cache."""
    packed, _ = quantised(decoder(**variant), narrow=narrow)
    ids = tokens(154, packed.config.vocab_size)
    whole = Pool(packed, dtype=dtype)
    wanted = run(packed, whole, (Sequence(SCATTERED), 0, ids))
    pool, at = Pool(packed, dtype=dtype), 0
    for count in (*range(1, 18), 1):
        got = run(packed, pool, (Sequence(SCATTERED), at, ids[at : at + count]))
        assert torch.equal(got, wanted[at : at + count]), f"{count} tokens at {at}"
        at += count
    assert at == 154
    assert torch.equal(pool.data.nan_to_num(7), whole.data.nan_to_num(7))


@pytest.mark.parametrize("window", [None, 300])
def test_sharing_pages_changes_no_bit(window: int | None) -> None:
    """Three sequences over one prefix of 17 pages (two ranges of 256 keys and a rest) in one batch, and each alone."""
    packed, _ = quantised(decoder(windows=(None, window, window)))
    prefix, shared = tokens(544, 128), list(range(17))
    pool = Pool(packed)
    run(packed, pool, (Sequence(shared), 0, prefix), rows=slice(0, 0))
    spans = [(Sequence([*shared, 20 + i]), 544, tokens(count, 128, i)) for i, count in enumerate((1, 4, 16))]
    together = run(packed, pool, *spans)
    alone = torch.cat([run(packed, pool, span) for span in spans])
    assert torch.equal(together, alone)


def test_chosen_rows() -> None:
    packed, _ = quantised(decoder())
    span = Sequence(SCATTERED), 0, tokens(100, 128)
    everything = run(packed, Pool(packed), span)
    for rows in (slice(99, 100), slice(0, 0), torch.tensor([3, 98, 50])):
        assert torch.equal(run(packed, Pool(packed), span, rows=rows), everything[rows])


def test_linear_layers_of_one_decoder_stand_alone() -> None:
    """With another `attend` the same matrices serve the plain decoder: rows 1 to 17 and a ragged hundred."""
    packed, plain = quantised(decoder(bias=True, hidden=40, inner=50, vocabulary=77))
    generator = torch.Generator().manual_seed(3)
    for name, width in (("qkv", 40), ("out", 96), ("gate_up", 40), ("down", 50)):
        ours: Any = getattr(packed.layers[1], name)
        theirs: Any = getattr(plain.layers[1], name)
        for count in (*range(1, 18), 100):
            x = torch.randn(count, width, generator=generator)
            wanted = x.double() @ theirs.weight.double().T + (0 if theirs.bias is None else theirs.bias)
            assert (ours(x) - wanted).abs().max() < 3e-4  # activations have 16 bits
            assert torch.equal(ours(x)[-1:], ours(x[-1:])), "a row depends on its neighbours"


@pytest.mark.parametrize("narrow", [False, True])
def test_nan_stays_in_its_sequence(narrow: bool) -> None:
    packed, _ = quantised(decoder(), narrow=narrow)
    pool, clean = Pool(packed), ((Sequence([1]), 0, [1, 2, 3]))
    wanted = run(packed, Pool(packed), clean)
    packed.embedding[5] = torch.nan
    out = run(packed, pool, (Sequence([0]), 0, [1, 2, 5, 3]), clean)
    assert out[2:4].isnan().all()
    assert torch.equal(out[4:], wanted)
