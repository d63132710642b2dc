"""What a forward on a device reads: one block of integers of fixed shape, so that a captured graph can be run over it again.

Inputs: the spans of a step, as plain integers on the host. All integers of a step travel in one copy; every field is a view of
that block, so its address never changes and a kernel (or a graph) may also write the next step's values into it. What a bucket
has beyond the real batch is padding that changes nothing: tokens that are written nowhere, requests without tokens or length.
Knows nothing of models, weights or how keys and values are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from agentkit.engine.kernels.layout import PAGE

__all__ = ["NOWHERE", "Batch", "BatchShape", "BatchSpan", "send"]

NOWHERE = -1
"""Slot of a token whose key and value are not kept: padding."""
TREE_SIZE = 63
"""Nodes of a tree at most: a node's ancestors are the bits of one signed integer."""


@dataclass(frozen=True)
class BatchSpan:
    """One request's share of a step: `tokens` follow `offset` keys that are in the pages already.

    tables: the pages of the whole sequence, new tokens included, by each of its page tables (kv_groups.py).
    rows: logits are wanted after the last so many tokens.
    parents: of the last tokens, which are a tree of guesses (-1: the last token before them); () for none. See TokenTree.
    dropped: positions before them whose keys are no longer there (H2O): by so much a token's position is beyond its place among the keys.
    """

    tables: Sequence[Sequence[int]]
    offset: int
    tokens: Sequence[int]
    rows: int = 1
    parents: Sequence[int] = ()
    dropped: int = 0

    @property
    def pages(self) -> Sequence[int]:
        """The first table: that of the layers which see farthest."""
        return self.tables[0]

    @property
    def length(self) -> int:
        """Keys when the forward is done."""
        return self.offset + len(self.tokens)


@dataclass(frozen=True, order=True)
class BatchShape:
    """A bucket. tokens T, requests B, pages P of one request by one table, rows R of logits; queries: tokens of one request at most (1: all decode).

    trees: whether tokens may be guesses that branch.   tables G: page tables of a request.
    """

    tokens: int
    requests: int
    pages: int
    rows: int
    queries: int
    trees: bool = False
    tables: int = 1

    @classmethod
    def of(cls, spans: Sequence[BatchSpan]) -> BatchShape:
        """The smallest that holds `spans`."""
        return cls(
            tokens=sum(len(span.tokens) for span in spans),
            requests=len(spans),
            pages=max(-(-span.length // PAGE) for span in spans),
            rows=sum(span.rows for span in spans),
            queries=max(len(span.tokens) for span in spans),
            trees=any(_branches(span.parents) for span in spans),
            tables=len(spans[0].tables),
        )

    def holds(self, other: BatchShape) -> bool:
        """Whether a batch of the shape `other` fits, with padding."""
        mine, its = ((s.tokens, s.requests, s.pages, s.rows, s.queries, s.trees) for s in (self, other))
        return self.tables == other.tables and all(a >= b for a, b in zip(mine, its, strict=True))

    @property
    def max_length(self) -> int:
        """Positions that a request can have."""
        return self.pages * PAGE


@dataclass(frozen=True)
class Batch:
    """Device tensors of one bucket; int32 but for `paths`. Made by `empty`, filled by `load` or by a kernel.

    token_ids, positions [T]: what each token is, and where it stands (rotary angle).
    slots [G, T]: the slot that takes its key and value, by each page table (page * PAGE + place in the page; NOWHERE: none).
    query_starts [B + 1]: the tokens of request b are query_starts[b] .. query_starts[b + 1].
    lengths [B]: keys of request b, those of its new tokens included; the new tokens are the last of them.
    pages [G, B, P]: key j of request b lies, for the layers of table g, in slot pages[g, b, j // PAGE] * PAGE + j % PAGE. Where nobody sees it any
        more, the page may be anything.
    rows [R]: tokens whose logits are wanted.
    tree_starts [B]: the keys from there on are a tree of guesses; = lengths where there is none.
    paths [T] int64: bit i: the token sees key tree_starts[b] + i, that is, itself or an ancestor; 0 for tokens that are no guess.
    All tokens see the keys before tree_starts[b] up to their own (window permitting). A request of length 0 is padding.
    """

    shape: BatchShape
    block: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    lengths: torch.Tensor
    pages: torch.Tensor
    rows: torch.Tensor
    tree_starts: torch.Tensor
    paths: torch.Tensor

    @classmethod
    def empty(cls, shape: BatchShape, device: torch.device | str) -> Batch:
        """All padding."""
        return cls._holding(shape, (), device)

    @classmethod
    def of(cls, spans: Sequence[BatchSpan], device: torch.device | str) -> Batch:
        """The spans in the smallest shape, without padding."""
        return cls._holding(BatchShape.of(spans), spans, device)

    @classmethod
    def _holding(cls, shape: BatchShape, spans: Sequence[BatchSpan], device: torch.device | str) -> Batch:
        host, device = torch.from_numpy(_pack(shape, spans)), torch.device(device)
        block = (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
        return cls(shape, block, **_views(shape, block))

    def divided(self, spans: Sequence[BatchSpan], count: int) -> tuple[Batch, Batch]:
        """The first `count` requests and the others, as batches over the same memory. spans: what it was made of, without padding."""
        at = sum(len(span.tokens) for span in spans[:count])
        tokens, requests = ("token_ids", "positions", "paths"), ("lengths", "tree_starts")
        halves = []
        for own, part, starts in (
            (slice(at), slice(count), self.query_starts[: count + 1]),
            (slice(at, None), slice(count, None), self.query_starts[count:] - at),
        ):
            views = {name: getattr(self, name)[own] for name in tokens} | {name: getattr(self, name)[part] for name in requests}
            views |= {"slots": self.slots[:, own], "pages": self.pages[:, part]}
            halves.append(replace(self, shape=BatchShape.of(spans[part]), query_starts=starts, **views))
        return halves[0], halves[1]

    def load(self, spans: Sequence[BatchSpan]) -> None:
        """Overwrites the batch with `spans` and padding, in one copy that the host does not wait for. Raises ValueError if they do not fit."""
        if spans and not self.shape.holds(BatchShape.of(spans)):
            raise ValueError(f"a batch of {BatchShape.of(spans)} does not fit into {self.shape}")
        send(self.block, _pack(self.shape, spans))


def send(target: torch.Tensor, values: np.ndarray) -> None:
    """Copies a host's numbers into a tensor without waiting for its device."""
    host = torch.from_numpy(values)
    target.copy_(host.pin_memory() if target.is_cuda else host, non_blocking=True)  # torch keeps pinned memory until the copy from it is over


def _sizes(shape: BatchShape) -> dict[str, tuple[int, ...]]:
    """Fields in the order they lie in the block."""
    t, b = (shape.tokens,), (shape.requests,)
    return {
        "paths": (2 * shape.tokens,), "token_ids": t, "positions": t, "slots": (shape.tables, *t), "query_starts": (shape.requests + 1,),
        "lengths": b, "tree_starts": b, "pages": (shape.tables, *b, shape.pages), "rows": (shape.rows,),
    }  # fmt: skip


def _views(shape: BatchShape, block: torch.Tensor) -> dict[str, torch.Tensor]:
    views, at = {}, 0
    for name, size in _sizes(shape).items():
        count = int(np.prod(size))
        views[name] = block[at : at + count].view(size)
        at += count
    views["paths"] = views["paths"].view(torch.int64)  # first in the block, so that it is aligned
    return views


def _pack(shape: BatchShape, spans: Sequence[BatchSpan]) -> npt.NDArray[np.int32]:
    """The block's contents for `spans`."""
    block = np.zeros(sum(int(np.prod(size)) for size in _sizes(shape).values()), np.int32)
    views = {name: view.numpy() for name, view in _views(shape, torch.from_numpy(block)).items()}
    views["slots"][:] = NOWHERE
    if not spans:
        return block
    offsets, counts, rows = np.array([(span.offset, len(span.tokens), span.rows) for span in spans], np.int64).T
    ends, lengths, total = np.cumsum(counts), offsets + counts, int(counts.sum())
    for number, span in enumerate(spans):
        count = -(-span.length // PAGE)
        views["pages"][:, number, :count] = [table[:count] for table in span.tables]
    places = _counted(offsets, counts)
    views["token_ids"][:total] = [token for span in spans for token in span.tokens]
    views["positions"][:total] = places + np.repeat([span.dropped for span in spans], counts)
    views["slots"][:, :total] = views["pages"][:, np.repeat(np.arange(len(spans)), counts), places // PAGE] * PAGE + places % PAGE
    views["query_starts"][1 : len(spans) + 1] = ends
    views["query_starts"][len(spans) + 1 :] = total
    views["lengths"][: len(spans)] = views["tree_starts"][: len(spans)] = lengths
    views["rows"][: int(rows.sum())] = _counted(ends - rows, rows)
    for number, span in enumerate(spans):
        if span.parents:
            _put_tree(views, number, slice(int(ends[number]) - len(span.parents), int(ends[number])), span)
    return block


def _counted(firsts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each first its next `count` numbers, one behind the other."""
    return np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)


def _put_tree(views: dict[str, npt.NDArray[np.int32]], number: int, nodes: slice, span: BatchSpan) -> None:
    """A tree's positions and paths; nodes: where its guesses are among the tokens."""
    depths, paths = tree_paths(span.parents)
    views["positions"][nodes] = span.dropped + span.length - depths.size - 1 + depths
    if _branches(span.parents):
        views["tree_starts"][number] = span.length - depths.size
        views["paths"][nodes] = paths


def _branches(parents: Sequence[int]) -> bool:
    """False for a chain, which is causal like any span."""
    return any(parent != i - 1 for i, parent in enumerate(parents))


def tree_paths(parents: Sequence[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of a tree's nodes the depths [N], 1 for a child of the root, and the paths [N]: bits of a node and its ancestors."""
    if len(parents) > TREE_SIZE:
        raise ValueError(f"a tree of {len(parents)} guesses; the kernels take up to {TREE_SIZE}")
    depths, paths = np.empty(len(parents), np.int64), np.empty(len(parents), np.int64)
    for i, parent in enumerate(parents):
        depths[i] = 1 if parent < 0 else depths[parent] + 1
        paths[i] = 1 << i | (0 if parent < 0 else int(paths[parent]))
    return depths, paths
