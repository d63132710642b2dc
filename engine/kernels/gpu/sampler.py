"""From a batch's logits to one token each, without sorting the vocabulary.

Inputs: logits [B, V], a row of the mask bank per request, and a SamplingBatch; the meaning of everything is that of engine/sampling.py:
penalties and biases, mask, temperature, top-k, top-p, min-p, and a draw that inverts the cumulative sum at a number from
(seed, position, stream) alone.

A first kernel, many programs to a row, masks the logits and notes the largest of each part. A second one, a program to a row, is done
there if the row is greedy. Else it searches for the cut: what top-k or top-p keep is the tokens above some logit, and of those equal
to it the lowest ids. Floats keep their order as integers, so the cut is found three bits at a time, each round counting (or weighing)
the tokens above seven candidates at once. Weights are float64, as on the CPU. Knows nothing of requests or grammars.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.sampling_batch import Sampled, SamplingBatch

__all__ = ["sample"]

PART = 4096  # columns of a program of the first kernel
BLOCK = 1024  # columns that the second one looks at together
LOWEST: tl.constexpr = tl.constexpr(-(1 << 31))  # below the bits of every number


@triton.jit
def _ordered(x):
    """int32 with the order of the float32 `x`; both zeros are equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _philox_round(c0, c1, c2, c3, k0, k1):
    m0, m1 = tl.full((), 0xD2511F53, tl.uint32), tl.full((), 0xCD9E8D57, tl.uint32)
    return tl.umulhi(m1, c2) ^ c1 ^ k0, m1 * c2, tl.umulhi(m0, c0) ^ c3 ^ k1, m0 * c0


@triton.jit
def _uniform(seed, position, stream):
    """sampling.uniform: 53 random bits in [0, 1). seed, position: int64."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    c2, c3 = stream.to(tl.uint32), tl.full((), 0, tl.uint32)
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = _philox_round(c0, c1, c2, c3, k0, k1)
        k0 += tl.full((), 0x9E3779B9, tl.uint32)
        k1 += tl.full((), 0xBB67AE85, tl.uint32)
    high, low = (c0 >> 5).to(tl.float64), (c1 >> 6).to(tl.float64)
    return (high * 67108864.0 + low) / 9007199254740992.0


@triton.jit
def _penalise(logits, stride, history, numbers, size, width, PART: tl.constexpr):
    """Penalties in place, as sampling.adjust. logits: float32."""
    b, at = tl.program_id(0), tl.program_id(1) * PART + tl.arange(0, PART)
    repetition = tl.load(numbers + 3 * size + b)
    presence, frequency = tl.load(numbers + 4 * size + b), tl.load(numbers + 5 * size + b)
    seen = tl.load(history + b.to(tl.int64) * width + at, mask=at < width, other=0)
    there = (at < width) & (seen > 0)
    x = tl.load(logits + b.to(tl.int64) * stride + at, mask=there, other=0.0)
    factor = repetition.to(tl.float32)
    x = tl.where(repetition == 1.0, x, tl.where(x > 0, tl.math.div_rn(x, factor), x * factor))
    counted = x.to(tl.float64) - (presence + frequency * (seen >> 1).to(tl.float64))
    x = tl.where((seen >> 1) > 0, counted.to(tl.float32), x)
    tl.store(logits + b.to(tl.int64) * stride + at, x, mask=there)


@triton.jit
def _add_biases(logits, stride, ids, biases, count, width, COUNT: tl.constexpr):
    b, k = tl.program_id(0), tl.arange(0, COUNT)
    token = tl.load(ids + b * count + k, mask=k < count, other=-1)
    there = (token >= 0) & (token < width)
    place = logits + b.to(tl.int64) * stride + token
    x = tl.load(place, mask=there, other=0.0)
    tl.store(place, x + tl.load(biases + b * count + k, mask=there, other=0.0), mask=there)


@triton.jit
def _mask(logits, stride, bank, words, rows, values, tops, bests, flags, width, vocab_size, PART: tl.constexpr):
    """values [B, width]: float32 logits, -inf where the mask says no. Per part: the largest, the lowest id that has it, and what else
    there is: 1 NaN, 2 +inf, 4 a number or +inf, 8 a token that the mask allows.
    """
    b, part = tl.program_id(0), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    x = tl.load(logits + b.to(tl.int64) * stride + at, mask=at < width, other=-float("inf")).to(tl.float32)
    allowed = at < vocab_size
    row = tl.load(rows + b)
    if row >= 0:
        word = tl.load(bank + row.to(tl.int64) * words + (at >> 5), mask=allowed & (at >> 5 < words), other=0)
        allowed = allowed & (((word >> (at & 31)) & 1) != 0)
    found = tl.where(x != x, 1, 0) | tl.where(x == float("inf"), 2, 0) | tl.where(x > -float("inf"), 4, 0)
    kept = tl.where(allowed & (x == x), x, -float("inf"))
    tl.store(values + b.to(tl.int64) * width + at, kept, mask=at < width)
    top = tl.max(kept, 0)
    place = b * tl.num_programs(1) + part
    tl.store(tops + place, top)
    tl.store(bests + place, tl.min(tl.where(kept == top, at, 0x7FFFFFFF), 0))
    bits = tl.max(found & 1, 0) | tl.max(found & 2, 0) | tl.max(found & 4, 0) | tl.max(tl.where(allowed, 8, 0), 0)
    tl.store(flags + place, bits)


@triton.jit
def _weights(row, at, width, top, temperature):
    """Ordered bits and weights exp((x - top) / temperature) of columns `at`; beyond the row: LOWEST and 0."""
    x = tl.load(row + at, mask=at < width, other=-float("inf"))
    w = tl.exp((x.to(tl.float64) - top) / temperature)
    return tl.where(at < width, _ordered(x), LOWEST), tl.where(x == -float("inf"), 0.0, w)


@triton.jit
def _search(row, width, top, temperature, wanted, BY_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest ordered bits t such that the tokens with at least t weigh (or are) as much as wanted."""
    t = tl.full((), LOWEST, tl.int64)
    digits = tl.arange(0, 8).to(tl.int64)
    for turn in tl.static_range(11):
        candidates = tl.minimum(t + (digits << (30 - 3 * turn)), 0x7FFFFFFF).to(tl.int32)
        total = tl.zeros((BLOCK, 8), tl.float64)
        for start in range(0, width, BLOCK):
            key, weight = _weights(row, start + tl.arange(0, BLOCK), width, top, temperature)
            if not BY_WEIGHT:
                weight = tl.where(key > LOWEST, 1.0, 0.0).to(tl.float64)
            total += tl.where(key[:, None] >= candidates[None, :], weight[:, None], 0.0)
        reached = tl.where((tl.sum(total, 0) >= wanted) & (digits > 0), digits, 0)
        t += tl.max(reached, 0) << (30 - 3 * turn)
    return t.to(tl.int32)


@triton.jit
def _measure(row, width, top, temperature, cut, least, BLOCK: tl.constexpr):
    """Of the tokens whose weight is at least `least`: weight and number of those above `cut`, number of those equal to it."""
    above, count, equal = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32)
    for start in range(0, width, BLOCK):
        key, weight = _weights(row, start + tl.arange(0, BLOCK), width, top, temperature)
        heavy = weight >= least
        above += tl.where((key > cut) & heavy, weight, 0.0)
        count += tl.where((key > cut) & heavy, 1, 0)
        equal += tl.where((key == cut) & heavy, 1, 0)
    return tl.sum(above, 0), tl.sum(count, 0), tl.sum(equal, 0)


@triton.jit
def _weight_of(cut, top, temperature):
    """Weight of a token whose ordered bits are `cut`."""
    x = (cut ^ ((cut >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.exp((x.to(tl.float64) - top) / temperature)


@triton.jit
def _draw(row, width, top, temperature, cut, ties, least, u, BLOCK: tl.constexpr):
    """The first kept token whose cumulative weight passes the fraction u of all."""
    above, _, _ = _measure(row, width, top, temperature, cut, least, BLOCK)
    tied = _weight_of(cut, top, temperature) if ties > 0 else tl.full((), 0.0, tl.float64)
    target = u * (above + tl.where(tied >= least, ties.to(tl.float64) * tied, 0.0))
    passed, before, token, last = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32), tl.full((), 0x7FFFFFFF, tl.int32), tl.full((), 0, tl.int32)
    start = tl.full((), 0, tl.int32)
    while (start < width) & (token == 0x7FFFFFFF):
        at = start + tl.arange(0, BLOCK)
        key, weight = _weights(row, at, width, top, temperature)
        equal = tl.where(key == cut, 1, 0)
        kept = ((key > cut) | ((key == cut) & (before + tl.cumsum(equal, 0) <= ties))) & (weight >= least) & (weight > 0.0)
        weight = tl.where(kept, weight, 0.0)
        token = tl.min(tl.where(kept & (passed + tl.cumsum(weight, 0) > target), at, 0x7FFFFFFF), 0)
        last = tl.maximum(last, tl.max(tl.where(kept, at, 0), 0))
        passed += tl.sum(weight, 0)
        before += tl.sum(equal, 0)
        start += BLOCK
    return tl.where(token == 0x7FFFFFFF, last, token)


@triton.jit
def _pick(
    values, tops, bests, flags, numbers, top_ks, seeds, positions, streams, tokens, status, logprobs, cuts, size, width, parts,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, LOGPROBS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    row, part = values + b.to(tl.int64) * width, tl.arange(0, PARTS)
    largest = tl.load(tops + b * parts + part, mask=part < parts, other=-float("inf"))
    flag = tl.load(flags + b * parts + part, mask=part < parts, other=0)
    top32 = tl.max(largest, 0)
    best = tl.min(tl.where(largest == top32, tl.load(bests + b * parts + part, mask=part < parts, other=0x7FFFFFFF), 0x7FFFFFFF), 0)
    nan, infinite, number, allowed = tl.max(flag & 1, 0), tl.max(flag & 2, 0), tl.max(flag & 4, 0), tl.max(flag & 8, 0)
    outcome = tl.where(nan > 0, 1, tl.where(infinite > 0, 2, tl.where(number == 0, 3, tl.where(allowed == 0, 4, tl.where(top32 == -float("inf"), 5, 0)))))
    top, temperature = top32.to(tl.float64), tl.load(numbers + b)
    token, cut, ties = best, tl.full((), LOWEST, tl.int32), tl.full((), 0, tl.int32)
    if (outcome == 0) & (temperature > 0.0):
        top_p, least, top_k = tl.load(numbers + size + b), tl.load(numbers + 2 * size + b), tl.load(top_ks + b)
        mass, count, _ = _measure(row, width, top, temperature, LOWEST, 0.0, BLOCK)
        if (top_k > 0) & (top_k < count):
            cut = _search(row, width, top, temperature, top_k, False, BLOCK)
            above, over, _ = _measure(row, width, top, temperature, cut, 0.0, BLOCK)
            ties = top_k - over
            mass = above + ties.to(tl.float64) * _weight_of(cut, top, temperature)
        if top_p < 1.0:
            nucleus = _search(row, width, top, temperature, top_p * mass, True, BLOCK)
            above, _, equal = _measure(row, width, top, temperature, nucleus, 0.0, BLOCK)
            tied = _weight_of(nucleus, top, temperature)
            needed = tl.ceil((top_p * mass - above) / tied)
            few = tl.minimum(tl.maximum(needed, 1.0), equal.to(tl.float64)).to(tl.int32)
            ties = tl.where((nucleus == cut) & (top_k > 0), tl.minimum(few, ties), tl.where(nucleus >= cut, few, ties))
            cut = tl.maximum(cut, nucleus)
        u = _uniform(tl.load(seeds + b), tl.load(positions + b), tl.load(streams + b))
        token = _draw(row, width, top, temperature, cut, ties, least, u, BLOCK)
    if LOGPROBS:
        above, _, _ = _measure(row, width, top, 1.0, LOWEST, 0.0, BLOCK)
        chosen = tl.load(row + token, mask=outcome == 0, other=0.0).to(tl.float64)
        tl.store(logprobs + b, tl.where(outcome == 0, chosen - top - tl.log(above), 0.0))
    tl.store(tokens + b, tl.where(outcome == 0, token, 0).to(tl.int64))
    tl.store(status + b, outcome)
    tl.store(cuts + 2 * b, cut)
    tl.store(cuts + 2 * b + 1, ties)


def sample(
    logits: torch.Tensor, bank: torch.Tensor, rows: torch.Tensor, batch: SamplingBatch, out: Sampled, *, vocab_size: int, logprobs: bool = False,
    part: int = PART, block: int = BLOCK,
) -> None:  # fmt: skip
    """Fills `out`. Penalties and biases change `logits` in place, which must then be float32.

    logits [B, V]: float32, float16 or bfloat16, contiguous in V.   bank int32 [rows, words]: packed masks.   rows int32 [B]: NO_MASK or a
    row of the bank.   vocab_size: columns from here on are padding.   logprobs: also fill out.logprobs.
    """
    size, width = logits.shape
    parts = triton.cdiv(width, part)
    values = torch.empty((size, width), dtype=torch.float32, device=logits.device)
    tops = torch.empty((size, parts), dtype=torch.float32, device=logits.device)
    bests, flags = torch.empty((2, size, parts), dtype=torch.int32, device=logits.device)
    stride = logits.stride(0)
    if batch.history is not None:
        _penalise[(size, parts)](logits, stride, batch.history, batch.numbers, size, width, PART=part)
    if batch.bias_ids is not None:
        count = batch.bias_ids.shape[1]
        _add_biases[(size,)](logits, stride, batch.bias_ids, batch.biases, count, width, COUNT=triton.next_power_of_2(count))
    _mask[(size, parts)](logits, stride, bank, bank.shape[1], rows, values, tops, bests, flags, width, vocab_size, PART=part)
    _pick[(size,)](
        values, tops, bests, flags, batch.numbers, batch.top_k, batch.seeds, batch.positions, batch.streams,
        out.tokens, out.status, out.logprobs, out.cuts, size, width, parts,
        PARTS=triton.next_power_of_2(parts), BLOCK=block, LOGPROBS=logprobs, num_warps=8,
    )  # fmt: skip
