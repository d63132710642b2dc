"""The sampler of sampler.py in torch, by sorting: what the kernels are compared with, and what runs where there is no GPU.

Inputs and results are the same. Knows nothing of requests or grammars.
"""

from __future__ import annotations

import torch

from agentkit.engine.kernels.gpu.sampling_batch import FINE, INFINITE, NAN, NOTHING, ONLY_MINUS_INFINITY, STUCK, Sampled, SamplingBatch
from agentkit.engine.sampling import uniform

__all__ = ["sample"]

LOWEST = -(1 << 31)


def sample(
    logits: torch.Tensor, bank: torch.Tensor, rows: torch.Tensor, batch: SamplingBatch, out: Sampled, *, vocab_size: int, logprobs: bool = False
) -> None:
    """See sampler.sample."""
    if batch.history is not None:
        _penalise(logits, batch)
    if batch.bias_ids is not None and batch.biases is not None:
        for row, ids, biases in zip(logits, batch.bias_ids.long(), batch.biases, strict=True):
            there = (ids >= 0) & (ids < row.numel())
            row[ids[there]] += biases[there]
    allowed = _unpack(bank, rows, logits.shape[1])
    allowed[:, vocab_size:] = False
    for b in range(logits.shape[0]):
        _sample_row(logits[b].float(), allowed[b], batch, out, b, logprobs)


def _penalise(logits: torch.Tensor, batch: SamplingBatch) -> None:
    assert batch.history is not None
    _, _, _, repetition, presence, frequency = batch.numbers[:, :, None]
    seen, times = batch.history > 0, batch.history >> 1
    factor = repetition.float()
    logits.copy_(torch.where(seen & (repetition != 1), torch.where(logits > 0, logits / factor, logits * factor), logits))
    logits.copy_(torch.where(times > 0, (logits.double() - (presence + frequency * times)).float(), logits))


def _unpack(bank: torch.Tensor, rows: torch.Tensor, width: int) -> torch.Tensor:
    """bool [B, width]: which tokens the rows allow; all where a row is negative, none beyond the bank's width."""
    columns = torch.arange(width, device=bank.device)
    words = bank[rows.clamp(min=0).long()][:, (columns >> 5).clamp(max=bank.shape[1] - 1)]
    bits = (words >> (columns & 31).int()) & 1 != 0
    return (bits & (columns >> 5 < bank.shape[1])) | (rows < 0)[:, None]


def _sample_row(x: torch.Tensor, allowed: torch.Tensor, batch: SamplingBatch, out: Sampled, b: int, logprobs: bool) -> None:
    status = _status(x, allowed)
    out.status[b], out.tokens[b], out.logprobs[b] = status, 0, 0.0
    out.cuts[b, 0], out.cuts[b, 1] = LOWEST, 0
    if status != FINE:
        return
    x = torch.where(allowed, x, -torch.inf)
    token = int(x.argmax()) if batch.numbers[0, b] == 0 else _draw(x, batch, out, b)
    out.tokens[b] = token
    if logprobs:
        out.logprobs[b] = torch.log_softmax(x.double(), 0)[token]


def _status(x: torch.Tensor, allowed: torch.Tensor) -> int:
    if x.isnan().any():
        return NAN
    top = float(x.max())
    if abs(top) == torch.inf:
        return INFINITE if top > 0 else NOTHING
    if not allowed.any():
        return STUCK
    return FINE if float(x[allowed].max()) > -torch.inf else ONLY_MINUS_INFINITY


def _draw(x: torch.Tensor, batch: SamplingBatch, out: Sampled, b: int) -> int:
    temperature, top_p, min_p = batch.numbers[:3, b].tolist()
    weights = ((x.double() - x.max().double()) / temperature).exp()
    order = torch.argsort(x, descending=True, stable=True)[: int((x > -torch.inf).sum())]
    if batch.top_k[b] > 0:
        order = order[: int(batch.top_k[b])]
    if top_p < 1.0:
        cumulative = weights[order].cumsum(0)
        order = order[: int(torch.searchsorted(cumulative, top_p * cumulative[-1])) + 1]
    if batch.top_k[b] > 0 or top_p < 1.0:
        last = x[order[-1]]
        out.cuts[b, 0], out.cuts[b, 1] = _ordered(last), (x[order] == last).sum()
    kept = order[weights[order] >= min_p].sort().values
    cumulative = weights[kept].cumsum(0)
    seed = int(batch.seeds[b]) % (1 << 64)
    u = uniform(seed, int(batch.positions[b]), int(batch.streams[b]))
    return int(kept[min(int(torch.searchsorted(cumulative, u * cumulative[-1], right=True)), kept.numel() - 1)])


def _ordered(x: torch.Tensor) -> torch.Tensor:
    bits = torch.where(x == 0, 0.0, x).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
