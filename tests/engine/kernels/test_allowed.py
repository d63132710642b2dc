"""The head under masks: what is allowed has the bits of the whole product, and blocks of which nothing is allowed are not computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agentkit.engine.advance import pack_ids
from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.library import supported
from agentkit.engine.models.decoder import Allowed, Decoder
from agentkit.engine.sampling import unpack_mask
from tests.engine.kernels.models import VARIANTS, Pool, Sequence, decoder, quantised, tokens

VOCABULARY = 1100  # no whole number of blocks
PAGES = list(range(1, 9))


def forward(model: Decoder, ids: list[int], chosen: list[int], logits: int, allowed: Allowed | None) -> tuple[torch.Tensor, torch.Tensor]:
    attend = BatchAttention(Pool(model), [(Sequence(PAGES), 0, len(ids))])
    with torch.inference_mode():
        return model.forward_with_states(torch.tensor(ids), torch.arange(len(ids)), attend, torch.tensor(chosen), logits, allowed)


def masks(count: int) -> list[Any]:
    """Of every kind: none, no token, one, all, rows that are wider or narrower than the logits, and random ones from sparse to full."""
    rng = np.random.default_rng(count)
    kinds = [
        None, np.zeros(0, np.uint32), pack_ids([VOCABULARY - 1]), pack_ids(range(VOCABULARY)), np.full(99, 0xFFFFFFFF, np.uint32), pack_ids([3]),
        *(pack_ids(np.flatnonzero(rng.random(VOCABULARY) < share)) for share in (0.002, 0.02, 0.3, 0.9)),
    ]  # fmt: skip
    return [kinds[i] for i in rng.permutation(np.arange(count) % len(kinds))]


def ids_of(mask: Any) -> torch.Tensor:
    return torch.from_numpy(np.ones(VOCABULARY, np.bool_) if mask is None else unpack_mask(mask, VOCABULARY).copy())


@pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_allowed_logits_have_the_bits_of_the_whole_head(variant: dict[str, Any]) -> None:
    """For one row, some, and more than a chunk of the kernel; with states of further rows."""
    model, _ = quantised(decoder(**{**variant, "vocabulary": VOCABULARY}))
    ids = tokens(140, VOCABULARY)
    for rows, further in ((1, 0), (1, 2), (10, 0), (16, 3), (120, 0)):
        chosen = np.random.default_rng(rows).permutation(140)[: rows + further].tolist()
        whole, states = forward(model, ids, chosen, rows, None)
        for allowed in (masks(rows), [pack_ids([7])] * rows, [np.zeros(35, np.uint32)] * rows, [None] * rows):
            logits, own = forward(model, ids, chosen, rows, allowed)
            assert torch.equal(own, states)
            for row, mask in enumerate(allowed):
                wanted = ids_of(mask)
                assert torch.equal(logits[row][wanted], whole[row][wanted])
                blocks = torch.nn.functional.pad(wanted, (0, -VOCABULARY % 32)).view(-1, 32).any(1)
                unwanted = ~blocks.repeat_interleave(32)[:VOCABULARY]
                assert (logits[row][unwanted] == -torch.inf).all()
                assert torch.equal(logits[row][~unwanted], whole[row][~unwanted])


@pytest.mark.parametrize("variant", [VARIANTS["biases, one key head, odd sizes"], VARIANTS["gemma"]], ids=["biases", "gemma"])
def test_plain_matrices_are_multiplied_for_the_few_that_are_allowed(variant: dict[str, Any]) -> None:
    model = decoder(**{**variant, "vocabulary": VOCABULARY})
    ids = tokens(20, VOCABULARY)
    whole, _ = forward(model, ids, [4, 19, 7], 3, None)
    few = [pack_ids([3, 70]), np.zeros(2, np.uint32), pack_ids([1099])]
    logits, _ = forward(model, ids, [4, 19, 7], 3, few)
    assert (logits - whole)[:, [3, 70, 1099]].abs().max() < 1e-5
    assert logits.isneginf().sum() == 3 * (VOCABULARY - 3)
    for many in ([few[0], None, few[2]], [few[0], pack_ids(range(400)), few[2]]):
        assert torch.equal(forward(model, ids, [4, 19, 7], 3, many)[0], whole)
