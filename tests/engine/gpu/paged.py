"""Random ragged batches over paged keys and values, and what attention over them is, computed term by term in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from agentkit.engine.kernels.gpu.batch import Batch, BatchShape, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.layout import PAGE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def spans_of(sizes: Sequence[tuple[int, int]], trees: Sequence[int] = (), seed: int = 0) -> list[BatchSpan]:
    """One span per (tokens computed before, tokens now) in scattered pages; the last trees[i] tokens of span i are a random tree."""
    rng = random.Random(seed)
    pages = list(range(sum(-(-(a + b) // PAGE) for a, b in sizes) + 3))
    rng.shuffle(pages)
    spans = []
    for number, (offset, count) in enumerate(sizes):
        own = [pages.pop() for _ in range(-(-(offset + count) // PAGE))]
        guesses = trees[number] if trees else 0
        parents = [rng.randrange(-1, i) if i else -1 for i in range(guesses)]
        spans.append(BatchSpan([own], offset, [rng.randrange(100) for _ in range(count)], 1, parents))
    return spans


def batch_of(spans: Sequence[BatchSpan], padding: int = 0) -> Batch:
    """With so many tokens, requests, pages and rows of padding."""
    s = BatchShape.of(spans)
    batch = Batch.empty(replace(s, tokens=s.tokens + padding, requests=s.requests + padding, pages=s.pages + padding, rows=s.rows + padding), DEVICE)
    batch.load(spans)
    return batch


def random_layer(spans: Sequence[BatchSpan], kv_heads: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> KVLayer:
    """A cache with room for the spans; quantised ones have scales that make numbers of about one of what is stored."""
    slots = (max(page for span in spans for page in span.pages) + 1) * PAGE
    layer, generator = KVLayer.empty(kv_heads, slots, dim, dtype, DEVICE), torch.Generator().manual_seed(seed)
    for part, scales in ((layer.keys, layer.key_scales), (layer.values, layer.value_scales)):
        numbers = torch.randn(part.shape, generator=generator)
        part.copy_(numbers.mul(40).round().clamp(-127, 127) if dtype == torch.int8 else numbers)
        if scales is not None:
            scales.copy_((torch.rand(scales.shape, generator=generator) + 0.5) / (40 if dtype == torch.int8 else 1))
    return layer


def queries(batch: Batch, heads: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[T, H, D], a view with gaps, as the projections of a model are."""
    wide = torch.randn(batch.shape.tokens, heads + 2, dim, generator=torch.Generator().manual_seed(7))
    return wide.to(DEVICE, dtype)[:, :heads]


def oracle(
    q: torch.Tensor,
    layer: KVLayer,
    spans: Sequence[BatchSpan],
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """out [T, H, D] and log-sum-exp [T, H] of the spans' tokens, from the spans themselves and not from the batch's tables."""
    keys, values = (x.double().cpu().numpy() for x in layer.read(torch.arange(layer.keys.shape[1], device=layer.keys.device)))
    numbers, group = q.double().cpu().numpy(), q.shape[1] // layer.kv_heads
    out, lse = np.zeros((sum(len(s.tokens) for s in spans), *q.shape[1:])), np.zeros((sum(len(s.tokens) for s in spans), q.shape[1]))
    row = 0
    for span in spans:
        known = span.length - len(span.parents)
        for index in range(span.offset, span.length):
            seen = visible(span, index, known, window)
            slots = [span.pages[j // PAGE] * PAGE + j % PAGE for j in seen]
            for head in range(q.shape[1]):
                scores = keys[head // group, slots] @ numbers[row, head] * scale
                scores = scores if softcap is None else np.tanh(scores / softcap) * softcap
                sink = -np.inf if sinks is None else float(sinks[head])
                top = max(scores.max(), sink)
                total = np.exp(scores - top).sum() + np.exp(sink - top)
                out[row, head] = np.exp(scores - top) @ values[head // group, slots] / total
                lse[row, head] = top + np.log(total)
            row += 1
    return out, lse


def visible(span: BatchSpan, index: int, known: int, window: int | None) -> list[int]:
    """Keys that the token at key `index` sees."""
    path: list[int] = []
    node = index - known
    while node >= 0:
        path.append(node)
        node = span.parents[node]
    depth = len(path)
    positions = {j: j for j in range(min(known, index + 1))}
    positions.update({known + n: known + depth - 1 - i for i, n in enumerate(path)})
    place = positions[index]
    return [j for j in sorted(positions) if window is None or positions[j] > place - window]
