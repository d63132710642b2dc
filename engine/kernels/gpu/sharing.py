"""Which requests of a batch begin with the same pages, so that those can be attended to once for all of them.

Inputs: the spans of a step. Groups are by the first page: agents' requests differ behind a system prompt that all of them share. Requests
of a group must lie side by side in the batch, so an order comes with the groups. Knows nothing of tensors' contents or kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from agentkit.engine.kernels.gpu.batch import BatchSpan
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.engine.kernels.layout import PAGE

__all__ = ["LEAST_PAGES", "arranged", "common_pages"]

LEAST_PAGES = 16
"""Shared pages below which a merge of two parts costs more than reading them for each request."""


def arranged(spans: Sequence[BatchSpan], device: torch.device) -> tuple[list[int], Prefix | None]:
    """The order [B] in which the spans should lie in the batch, and what they then share; None where nothing is worth it."""
    by_page: dict[int, list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        if span.offset >= LEAST_PAGES * PAGE:
            by_page[span.pages[0]].append(number)
    groups = []
    for numbers in by_page.values():
        pages = common_pages([spans[number] for number in numbers])
        if len(numbers) > 1 and len(pages) >= LEAST_PAGES:
            groups.append((numbers, pages))
    if not groups:
        return list(range(len(spans))), None
    grouped = {number for numbers, _ in groups for number in numbers}
    alone = [number for number in range(len(spans)) if number not in grouped]
    order = [number for numbers, _ in groups for number in numbers] + alone
    return order, _prefix([([spans[number] for number in numbers], pages) for numbers, pages in (*groups, (alone, []))], device)


def common_pages(spans: Sequence[BatchSpan]) -> Sequence[int]:
    """The pages that all begin with, as far as each had them full before this step."""
    first = spans[0].pages
    count = min(span.offset // PAGE for span in spans)
    for span in spans[1:]:
        if span.pages[:count] != first[:count]:
            count = next(i for i in range(count) if span.pages[i] != first[i])
    return first[:count]


def _prefix(groups: Sequence[tuple[Sequence[BatchSpan], Sequence[int]]], device: torch.device) -> Prefix:
    sizes = [sum(len(span.tokens) for span in spans) for spans, _ in groups]
    widest = max(len(pages) for _, pages in groups)
    tables = (
        [sum(sizes[:i]) for i in range(len(sizes) + 1)],
        [len(pages) * PAGE for _, pages in groups],
        [[*pages, *[0] * (widest - len(pages))] for _, pages in groups],
        [len(pages) * PAGE for spans, pages in groups for _ in spans],
    )
    starts, lengths, pages, first_keys = (torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
    return Prefix(starts, lengths, pages, first_keys, max(sizes))
