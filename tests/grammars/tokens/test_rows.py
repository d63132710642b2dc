"""fill_mask and fill_masks: where masks go, what stands beside them, and which arrays are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agentkit.grammars import Grammar, Matcher, Vocabulary, fill_masks
from agentkit.grammars.integrations.logits import apply_mask

TOKENS: list[bytes | None] = [bytes([97 + i % 26]) * (1 + i // 26) for i in range(70)]
VOCABULARY = Vocabulary([*TOKENS, None], stop_token_ids=[70], width=100)
WORDS = 4
EVERY = [torch.int32, torch.uint32, np.int32, np.uint32]


def matchers() -> list[Matcher]:
    return [Grammar.from_regex(pattern).matcher(VOCABULARY) for pattern in ("a+", "(bb)?", "zz")]


def empty(dtype: Any, *shape: int) -> Any:
    return torch.full(shape, 7, dtype=torch.int32).view(dtype) if isinstance(dtype, torch.dtype) else np.full(shape, 7, dtype)


def as_uint32(out: Any) -> Any:
    return (out.numpy() if isinstance(out, torch.Tensor) else out).view(np.uint32)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_rows_are_the_masks(dtype: Any) -> None:
    batch = matchers()
    out = empty(dtype, 5, WORDS + 2)
    fill_masks([batch[0], None, *batch[1:]], out)
    rows = as_uint32(out)
    for row, matcher in zip(rows[[0, 2, 3]], batch, strict=True):
        assert (row[:WORDS] == matcher.mask()).all()
        assert not row[WORDS:].any()
    assert (rows[1] == 0xFFFFFFFF).all()
    assert (rows[4] == 7).all()  # not asked for
    single = empty(dtype, WORDS)
    batch[0].fill_mask(single)
    assert (as_uint32(single) == batch[0].mask()).all()


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_rows_may_be_strided(dtype: Any) -> None:
    batch = matchers()
    for view in (lambda a: a[::2, 1 : WORDS + 1], lambda a: a.T[: len(batch), :WORDS]):
        out = empty(dtype, 6, 6)
        fill_masks(batch, view(out))
        assert (as_uint32(view(out)) == np.stack([m.mask() for m in batch])).all()
        assert (as_uint32(out) == 7).sum() == 36 - as_uint32(view(out)).size


def test_a_row_of_a_batch_is_a_row() -> None:
    (first, *_) = matchers()
    out = np.zeros((3, WORDS), np.int32)
    first.fill_mask(out[1])
    first.fill_mask(out[2:3])
    assert (out[1].view(np.uint32) == first.mask()).all()
    assert (out[1] == out[2]).all()
    assert not out[0].any()


def test_finished_matchers_allow_nothing() -> None:
    matcher = matchers()[1]
    matcher.accept(70)
    out = np.full((1, WORDS), -1, np.int32)
    fill_masks([matcher], out)
    assert not out.any()
    matcher.rollback(1)
    fill_masks([matcher], out)
    assert out.any()


def test_an_empty_batch_and_a_batch_without_grammars() -> None:
    fill_masks([], np.zeros((0, WORDS), np.int32))
    out = np.zeros((2, 1), np.uint32)
    fill_masks([None, None], out)
    assert (out == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.zeros((3, WORDS), np.int64), TypeError, "int64"),
        (torch.zeros(3, WORDS), TypeError, "float32"),
        ([[0] * WORDS] * 3, TypeError, "list"),
        (np.zeros((2, WORDS), np.int32), ValueError, "3 masks do not fit into 2 rows"),
        (np.zeros((3, WORDS - 1), np.int32), ValueError, "4 words"),
        (np.zeros(WORDS, np.int32), ValueError, "shape"),
        (np.zeros((3, WORDS, 1), np.int32), ValueError, "shape"),
        (np.broadcast_to(np.zeros(WORDS, np.int32), (3, WORDS)), ValueError, "read-only"),
    ],
)
def test_other_arrays_are_refused(out: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fill_masks(matchers(), out)


def test_one_mask_goes_into_one_row() -> None:
    (first, *_) = matchers()
    for out, error in ((np.zeros((2, WORDS), np.int32), ValueError), (np.zeros(2, np.int32), ValueError), (np.zeros(WORDS), TypeError), (None, TypeError)):
        with pytest.raises(error):
            first.fill_mask(out)


@pytest.mark.parametrize("width", [100, 96, 128, 140, 71])
@pytest.mark.parametrize("batch", [True, False])
def test_masks_are_applied_to_logits(width: int, batch: bool) -> None:
    rows = np.stack([m.mask() for m in matchers()])
    wanted = np.array([[bool(row[i // 32] >> (i % 32) & 1) if i < 32 * WORDS else False for i in range(width)] for row in rows])
    logits = np.arange(3 * width, dtype=np.float32).reshape(3, width)
    kept = np.where(wanted, logits, -np.inf)
    if not batch:
        rows, logits, kept = rows[0], logits[0], kept[0]
    for given in (rows, rows.view(np.int32), torch.from_numpy(rows.view(np.int32)), torch.from_numpy(rows)):
        tensor = torch.from_numpy(logits.copy())
        assert apply_mask(tensor, given) is tensor
        assert (tensor.numpy() == kept).all()
        array = logits.copy()
        assert apply_mask(array, given) is array
        assert (array == kept).all()
    assert (apply_mask(torch.from_numpy(logits.copy()).bfloat16(), rows).isinf().numpy() == ~np.isfinite(kept)).all()


def test_logits_and_rows_must_fit() -> None:
    rows = np.zeros((3, WORDS), np.uint32)
    with pytest.raises(ValueError, match=r"\(2, 100\)"):
        apply_mask(np.zeros((2, 100), np.float32), rows)
    with pytest.raises(TypeError, match="float64"):
        apply_mask(np.zeros((3, 100), np.float32), rows.astype(np.float64))
    with pytest.raises(TypeError, match="list"):
        apply_mask([[0.0] * 100] * 3, rows)
    with pytest.raises(TypeError, match="int64"):
        apply_mask(np.zeros((3, 100), np.int64), rows)
