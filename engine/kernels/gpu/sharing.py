"""In which order the requests of a step lie in the batch, so that attention can treat alike what is alike.

Inputs: the spans of a step. Requests that begin with the same pages attend to those once for all; groups are by the first page, since
agents' requests differ behind a system prompt that all of them share. Else requests of few tokens come first: they want small tiles and
their keys split, long prompts want neither. Knows nothing of tensors' contents or kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.plan import Part, Prefix
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_sequence import GONE

__all__ = ["LEAST_PAGES", "Arrangement", "arranged", "common_blocks"]

FEW_TOKENS = 16
LEAST_PAGES = 16
"""Shared pages below which a merge of two parts costs more than reading them for each request."""


@dataclass(frozen=True)
class Arrangement:
    """order [B]: of the spans in the batch.   prefix: what they then share; None: nothing that is worth it.

    few: so many requests at the beginning have few tokens, the others many; 0: they are not to be told apart.
    """

    order: list[int]
    prefix: Prefix | None = None
    few: int = 0

    def parts(self, batch: Batch, ordered: Sequence[BatchSpan]) -> tuple[Part, ...]:
        """What is attended to one by one.   batch: of the spans, ordered like this."""
        if self.few:
            return tuple(Part(half) for half in batch.divided(ordered, self.few))
        return (Part(batch, self.prefix),)


def arranged(spans: Sequence[BatchSpan], device: torch.device) -> Arrangement:
    """The tensors of `prefix` are on `device`."""
    by_page: dict[int, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        if span.offset >= LEAST_PAGES * PAGE:
            by_page[span.pages[0]].append(number)
    groups = []
    for numbers in by_page.values():
        blocks = common_blocks([spans[number] for number in numbers])
        if len(numbers) > 1 and blocks >= LEAST_PAGES:
            groups.append((numbers, blocks))
    if not groups:
        return _by_size(spans)
    grouped = {number for numbers, _ in groups for number in numbers}
    alone = [number for number in range(len(spans)) if number not in grouped]
    order = [number for numbers, _ in groups for number in numbers] + alone
    return Arrangement(order, _prefix([([spans[number] for number in numbers], blocks) for numbers, blocks in (*groups, (alone, 0))], device))


def _by_size(spans: Sequence[BatchSpan]) -> Arrangement:
    few = [number for number, span in enumerate(spans) if len(span.tokens) <= FEW_TOKENS]
    if len(few) in (0, len(spans)):
        return Arrangement(list(range(len(spans))))
    rest = [number for number, span in enumerate(spans) if len(span.tokens) > FEW_TOKENS]
    return Arrangement(few + rest, few=len(few))


def common_blocks(spans: Sequence[BatchSpan]) -> int:
    """How many blocks all begin with, as far as each had them full before this step.

    By the first table: who shares a page there shares the block's pages in all tables of layers that see equally far.
    """
    first = spans[0].pages
    count = min(span.offset // PAGE for span in spans)
    if GONE in first[:count]:
        count = first.index(GONE)
    for span in spans[1:]:
        if span.pages[:count] != first[:count]:
            count = next(i for i in range(count) if span.pages[i] != first[i])
    return count


def _prefix(groups: Sequence[tuple[Sequence[BatchSpan], int]], device: torch.device) -> Prefix:
    """groups: requests, and how many blocks they begin with."""
    sizes = [sum(len(span.tokens) for span in spans) for spans, _ in groups]
    pages = np.zeros((len(groups[0][0][0].tables), len(groups), max(blocks for _, blocks in groups)), np.int32)
    for number, (spans, blocks) in enumerate(groups):
        if blocks:
            pages[:, number, :blocks] = [table[:blocks] for table in spans[0].tables]
    tables = (
        [sum(sizes[:i]) for i in range(len(sizes) + 1)],
        [blocks * PAGE for _, blocks in groups],
        pages,
        [blocks * PAGE for spans, blocks in groups for _ in spans],
    )
    starts, lengths, shared, first_keys = (torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
    return Prefix(starts, lengths, shared, first_keys, max(sizes))
