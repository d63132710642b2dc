"""The block of integers that a forward on a device reads: every field against the spans it was packed from."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from agentkit.engine.kernels.gpu.batch import NOWHERE, Batch, BatchShape, BatchSpan
from agentkit.engine.kernels.layout import PAGE

CHAIN, FORK = (-1, 0), (-1, -1, 1)
SPANS = [
    BatchSpan(tables=[[7, 2, 9], [-1, 22, 29]], offset=PAGE + 3, tokens=[11, 12], rows=1),
    BatchSpan(tables=[[4], [24]], offset=0, tokens=[5, 6, 7], rows=0),
    BatchSpan(tables=[[1, 3], [21, 23]], offset=PAGE - 2, tokens=[21, 22, 23, 24], rows=4, parents=FORK),
    BatchSpan(tables=[[0], [20]], offset=4, tokens=[31, 32, 33], rows=3, parents=CHAIN),
]
EXACT = BatchShape.of(SPANS)


def loaded(shape: BatchShape) -> Batch:
    batch = Batch.empty(shape, "cpu")
    batch.block.random_(0, 1 << 20)  # whatever an earlier step has left there
    batch.load(SPANS)
    return batch


def test_every_field_of_a_batch_without_padding() -> None:
    assert BatchShape(tokens=12, requests=4, pages=2, rows=8, queries=4, trees=True, tables=2) == EXACT
    batch = loaded(EXACT)
    assert batch.token_ids.tolist() == [11, 12, 5, 6, 7, 21, 22, 23, 24, 31, 32, 33]
    assert batch.query_starts.tolist() == [0, 2, 5, 9, 12]
    assert batch.lengths.tolist() == [PAGE + 5, 3, PAGE + 2, 7]
    slots = [2 * PAGE + 3, 2 * PAGE + 4, 4 * PAGE, 4 * PAGE + 1, 4 * PAGE + 2, PAGE + 30, PAGE + 31, 3 * PAGE, 3 * PAGE + 1, 4, 5, 6]
    assert batch.slots.tolist() == [slots, [slot + 20 * PAGE for slot in slots]]
    assert batch.pages.tolist() == [[[7, 2], [4, 0], [1, 3], [0, 0]], [[-1, 22], [24, 0], [21, 23], [20, 0]]]
    assert batch.rows.tolist() == [1, 5, 6, 7, 8, 9, 10, 11]


def test_guesses_stand_where_their_depth_says_and_see_their_ancestors() -> None:
    batch = loaded(EXACT)
    assert batch.positions[5:9].tolist() == [PAGE - 2, PAGE - 1, PAGE - 1, PAGE]
    assert batch.positions[9:].tolist() == [4, 5, 6]
    assert batch.tree_starts.tolist() == [PAGE + 5, 3, PAGE - 1, 7]
    assert batch.paths.tolist() == [0] * 6 + [0b001, 0b010, 0b110] + [0] * 3


def test_padding_writes_nowhere_and_belongs_to_no_request() -> None:
    batch = loaded(BatchShape(tokens=16, requests=6, pages=5, rows=10, queries=8, trees=True, tables=2))
    exact = loaded(EXACT)
    for name in ("token_ids", "positions", "slots", "paths"):
        assert torch.equal(getattr(batch, name)[..., :12], getattr(exact, name)), name
    assert batch.slots[:, 12:].tolist() == [[NOWHERE] * 4] * 2
    assert batch.query_starts.tolist() == [0, 2, 5, 9, 12, 12, 12]
    assert batch.lengths[4:].tolist() == [0, 0]
    assert batch.rows[8:].tolist() == [0, 0]
    assert batch.pages[:, :4, :2].tolist() == exact.pages.tolist()


def test_an_empty_batch_is_all_padding() -> None:
    batch = Batch.empty(BatchShape(2, 2, 1, 2, 1), "cpu")
    assert batch.slots.tolist() == [[NOWHERE] * 2]
    assert batch.lengths.tolist() == [0, 0]


def test_fields_stay_where_they_are_when_a_batch_is_loaded_again() -> None:
    batch = Batch.empty(EXACT, "cpu")
    before = {f.name: getattr(batch, f.name).data_ptr() for f in dataclasses.fields(batch) if f.name != "shape"}
    batch.load(SPANS)
    batch.load(SPANS[:1])
    assert before == {name: getattr(batch, name).data_ptr() for name in before}
    assert batch.lengths.tolist() == [PAGE + 5, 0, 0, 0]


@pytest.mark.parametrize("field", ["tokens", "requests", "pages", "rows", "queries", "trees", "tables"])
def test_what_does_not_fit_is_refused(field: str) -> None:
    small = dataclasses.replace(EXACT, **{field: getattr(EXACT, field) - 1 if field != "trees" else False})
    with pytest.raises(ValueError, match="does not fit"):
        Batch.empty(small, "cpu").load(SPANS)


def test_a_tree_that_needs_more_bits_than_there_are_is_refused() -> None:
    span = BatchSpan([[0, 1, 2]], 0, list(range(70)), 1, [-1, -1, *range(1, 65)])
    with pytest.raises(ValueError, match="up to 63"):
        Batch.empty(BatchShape.of([span]), "cpu").load([span])
