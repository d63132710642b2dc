"""From a batch's logits to one token each, without sorting the vocabulary.

Inputs: logits [B, V], a row of the mask bank per request, and a SamplingBatch; the meaning of everything is that of engine/sampling.py:
penalties and biases, mask, temperature, top-k, top-p, min-p, and a draw that inverts the cumulative sum at a number from
(seed, position, stream) alone.

A row is cut into parts, a program to each, so that one row keeps many processors busy. A first kernel masks the logits and notes the
largest of each part; where the row is greedy a second one, a program to a row, has the token. Else the cut is searched for: what top-k
or top-p keep is the tokens above some logit, and of those equal to it the lowest ids. Floats keep their order as integers, so the cut is
found four bits at a time, each round counting (or weighing) the tokens above fifteen candidates at once. What a round finds in each part
is added up by every program of the next one, in the same order: no program waits for another, and results are the same each time. The
draw sees in which part it falls, and looks at that part alone. Weights are float64, as on the CPU. Kernels are the same for any number of rows,
so that a batch of another size need not wait for a compiler. Knows nothing of requests or grammars.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from agentkit.engine.kernels.gpu.philox import uniform
from agentkit.engine.kernels.gpu.sampler_memory import LAST, OF_ALL, OF_KEPT, OF_MASSES, OF_RANKS, measured, row_of, row_size, summed, thresholds, totals
from agentkit.engine.kernels.gpu.sampling_batch import Sampled, SamplingBatch

__all__ = ["sample"]

PART = 2048  # columns of a program
BLOCK = 512  # columns that it looks at together
LOWEST: tl.constexpr = tl.constexpr(-(1 << 31))  # below the bits of every number


@triton.jit
def _ordered(x):
    """int32 with the order of the float32 `x`; both zeros are equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["size"])
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


@triton.jit(do_not_specialize=["words"], do_not_specialize_on_alignment=["rows", "tops", "bests", "flags"])
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
def _weight_of(cut, top, temperature):
    """Weight of a token whose ordered bits are `cut`."""
    x = (cut ^ ((cut >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.exp((x.to(tl.float64) - top) / temperature)


@triton.jit
def _threshold(work, parts, turn, wanted, MASSES: tl.constexpr, PARTS: tl.constexpr):
    """The largest ordered bits, as far as `turn` rounds have found them, such that the tokens with at least these weigh (or are) as much as wanted."""
    t = tl.full((), LOWEST, tl.int64)
    if turn > 0:
        p, digit = tl.arange(0, PARTS)[:, None], tl.arange(0, 16)[None, :]
        above = tl.load(totals(work, turn - 1, parts) + 16 * p + digit, mask=p < parts, other=0.0)
        digits = tl.arange(0, 16).to(tl.int64)
        reached = tl.where((tl.sum(above, 0) >= wanted) & (digits > 0), digits, 0)
        t = tl.load(thresholds(work, parts, MASSES) + turn - 1).to(tl.int64) + (tl.max(reached, 0) << (32 - 4 * turn).to(tl.int64))
    return t


@triton.jit
def _ranked(work, top_k, top, temperature, parts, RANKS: tl.constexpr, PARTS: tl.constexpr):
    """After top-k: the cut, how many of those equal to it are kept, and what all that is kept weighs."""
    mass, count, _ = summed(work, OF_ALL, parts, PARTS)
    cut, ties = tl.full((), LOWEST, tl.int32), tl.full((), 0, tl.int32)
    if RANKS:
        if (top_k > 0) & (top_k < count):
            cut = tl.load(thresholds(work, parts, False) + LAST).to(tl.int64).to(tl.int32)
            above, over, _ = summed(work, OF_RANKS, parts, PARTS)
            ties = top_k - over.to(tl.int32)
            mass = above + ties.to(tl.float64) * _weight_of(cut, top, temperature)
    return cut, ties, mass


@triton.jit
def _wanted(work, top_k, top_p, top, temperature, parts, RANKS: tl.constexpr, MASSES: tl.constexpr, PARTS: tl.constexpr):
    """How many tokens top-k keeps, or with MASSES what those weigh together that top-p keeps; 0 where all are kept."""
    if MASSES:
        _, _, mass = _ranked(work, top_k, top, temperature, parts, RANKS, PARTS)
        wanted = tl.where(top_p < 1.0, top_p * mass, 0.0)
    else:
        _, count, _ = summed(work, OF_ALL, parts, PARTS)
        wanted = tl.where(top_k < count, top_k.to(tl.float64), 0.0)
    return wanted


@triton.jit
def _kept(work, top_k, top_p, top, temperature, parts, RANKS: tl.constexpr, MASSES: tl.constexpr, PARTS: tl.constexpr):
    """After top-k and top-p: the cut, and how many of those equal to it are kept."""
    cut, ties, mass = _ranked(work, top_k, top, temperature, parts, RANKS, PARTS)
    if MASSES:
        if top_p < 1.0:
            nucleus = tl.load(thresholds(work, parts, True) + LAST).to(tl.int64).to(tl.int32)
            above, _, equal = summed(work, OF_MASSES, parts, PARTS)
            needed = tl.ceil((top_p * mass - above) / _weight_of(nucleus, top, temperature))
            few = tl.minimum(tl.maximum(needed, 1.0), equal).to(tl.int32)
            ties = tl.where((nucleus == cut) & (top_k > 0), tl.minimum(few, ties), tl.where(nucleus >= cut, few, ties))
            cut = tl.maximum(cut, nucleus)
    return cut, ties


@triton.jit(do_not_specialize_on_alignment=["tops", "bests", "flags", "tokens", "status", "cuts"])
def _begin(tops, bests, flags, numbers, work, tokens, status, cuts, parts, stride, PARTS: tl.constexpr):
    """What can be said of a row at once: its largest token, and what is wrong with it."""
    b, part = tl.program_id(0), tl.arange(0, PARTS)
    largest = tl.load(tops + b * parts + part, mask=part < parts, other=-float("inf"))
    flag = tl.load(flags + b * parts + part, mask=part < parts, other=0)
    top = tl.max(largest, 0)
    best = tl.min(tl.where(largest == top, tl.load(bests + b * parts + part, mask=part < parts, other=0x7FFFFFFF), 0x7FFFFFFF), 0)
    nan, infinite, number, allowed = tl.max(flag & 1, 0), tl.max(flag & 2, 0), tl.max(flag & 4, 0), tl.max(flag & 8, 0)
    outcome = tl.where(nan > 0, 1, tl.where(infinite > 0, 2, tl.where(number == 0, 3, tl.where(allowed == 0, 4, tl.where(top == -float("inf"), 5, 0)))))
    _, scalars = row_of(work, b, parts, stride)
    tl.store(scalars, top.to(tl.float64))
    tl.store(scalars + 1, tl.where((outcome == 0) & (tl.load(numbers + b) > 0.0), 1.0, 0.0).to(tl.float64))
    tl.store(tokens + b, tl.where(outcome == 0, best, 0).to(tl.int64))
    tl.store(status + b, outcome)
    tl.store(cuts + 2 * b, LOWEST)
    tl.store(cuts + 2 * b + 1, 0)


@triton.jit(do_not_specialize_on_alignment=["status"])
def _weigh(values, work, numbers, status, width, parts, stride, PART: tl.constexpr, BLOCK: tl.constexpr, LOGPROBS: tl.constexpr):
    """Measures a part: what its tokens weigh, how many there are, and what they weigh at temperature 1."""
    b, part = tl.program_id(0), tl.program_id(1)
    work, scalars = row_of(work, b, parts, stride)
    drawn, top, temperature = tl.load(scalars + 1) > 0.0, tl.load(scalars), tl.load(numbers + b)
    temperature = tl.where(drawn, temperature, 1.0)
    if drawn | (LOGPROBS & (tl.load(status + b) == 0)):
        row = values + b.to(tl.int64) * width
        mass, count, plain = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        end = tl.minimum((part + 1) * PART, width)
        for start in range(part * PART, end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            key, weight = _weights(row, at, end, top, temperature)
            mass += weight
            count += tl.where(key > _ordered(tl.full((), -float("inf"), tl.float32)), 1.0, 0.0)
            if LOGPROBS:
                _, weight = _weights(row, at, end, top, tl.full((), 1.0, tl.float64))
                plain += weight
        own = measured(work, OF_ALL, parts) + 3 * part
        tl.store(own, tl.sum(mass, 0))
        tl.store(own + 1, tl.sum(count, 0))
        tl.store(own + 2, tl.sum(plain, 0))


@triton.jit(do_not_specialize=["turn", "size"], do_not_specialize_on_alignment=["tops", "top_ks"])
def _search(
    values, tops, work, numbers, top_ks, size, width, parts, stride, turn,
    RANKS: tl.constexpr, MASSES: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A round of the search for the cut of top-k, or with MASSES of top-p; after the last one a part is measured: what is above the cut, and equal to it."""
    b, part = tl.program_id(0), tl.program_id(1)
    work, scalars = row_of(work, b, parts, stride)
    if tl.load(scalars + 1) > 0.0:
        top, temperature = tl.load(scalars), tl.load(numbers + b)
        wanted = tl.full((), 0.0, tl.float64)
        if turn > 0:
            wanted = tl.load(scalars + 2 + MASSES)
        else:
            wanted = _wanted(work, tl.load(top_ks + b), tl.load(numbers + size + b), top, temperature, parts, RANKS, MASSES, PARTS)
            if part == 0:
                tl.store(scalars + 2 + MASSES, wanted)
        if wanted > 0.0:
            t = _threshold(work, parts, turn, wanted, MASSES, PARTS)
            if part == 0:
                tl.store(thresholds(work, parts, MASSES) + turn, t.to(tl.float64))
            row, largest = values + b.to(tl.int64) * width, _ordered(tl.load(tops + b * parts + part))
            if turn < LAST:
                digits = tl.arange(0, 16).to(tl.int64)
                candidates = tl.minimum(t + (digits << (28 - 4 * turn).to(tl.int64)), 0x7FFFFFFF).to(tl.int32)
                total = tl.zeros((BLOCK, 16), tl.float64)
                if largest > t:  # else nothing here is above any candidate
                    end = tl.minimum((part + 1) * PART, width)
                    for start in range(part * PART, end, BLOCK):
                        key, weight = _weights(row, start + tl.arange(0, BLOCK), end, top, temperature)
                        if not MASSES:
                            weight = tl.where(key > LOWEST, 1.0, 0.0).to(tl.float64)
                        total += tl.where(key[:, None] >= candidates[None, :], weight[:, None], 0.0)
                tl.store(totals(work, turn, parts) + 16 * part + tl.arange(0, 16), tl.sum(total, 0))
            else:
                _measure(row, measured(work, OF_RANKS + MASSES, parts) + 3 * part, part, width, top, temperature, t.to(tl.int32), 0.0, PART, BLOCK)


@triton.jit
def _measure(row, out, part, width, top, temperature, cut, least, PART: tl.constexpr, BLOCK: tl.constexpr):
    """Of a part's tokens that weigh at least `least`: weight and number of those above `cut`, number of those equal to it."""
    above, count, equal = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    end = tl.minimum((part + 1) * PART, width)
    for start in range(part * PART, end, BLOCK):
        key, weight = _weights(row, start + tl.arange(0, BLOCK), end, top, temperature)
        heavy = weight >= least
        above += tl.where((key > cut) & heavy, weight, 0.0)
        count += tl.where((key > cut) & heavy, 1.0, 0.0)
        equal += tl.where((key == cut) & heavy, 1.0, 0.0)
    tl.store(out, tl.sum(above, 0))
    tl.store(out + 1, tl.sum(count, 0))
    tl.store(out + 2, tl.sum(equal, 0))


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["top_ks", "cuts"])
def _measure_kept(
    values, work, numbers, top_ks, cuts, size, width, parts, stride,
    RANKS: tl.constexpr, MASSES: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same of what is kept after top-k, top-p and min-p."""
    b, part = tl.program_id(0), tl.program_id(1)
    work, scalars = row_of(work, b, parts, stride)
    if tl.load(scalars + 1) > 0.0:
        top, temperature = tl.load(scalars), tl.load(numbers + b)
        cut, ties = _kept(work, tl.load(top_ks + b), tl.load(numbers + size + b), top, temperature, parts, RANKS, MASSES, PARTS)
        row, least = values + b.to(tl.int64) * width, tl.load(numbers + 2 * size + b)
        _measure(row, measured(work, OF_KEPT, parts) + 3 * part, part, width, top, temperature, cut, least, PART, BLOCK)
        if part == 0:
            tl.store(cuts + 2 * b, cut)
            tl.store(cuts + 2 * b + 1, ties)


@triton.jit
def _draw(row, work, width, top, temperature, cut, ties, least, u, parts, PARTS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr):
    """The first kept token whose cumulative weight passes the fraction u of all: the part first, then the token in it."""
    p = tl.arange(0, PARTS)
    own = measured(work, OF_KEPT, parts) + 3 * p
    above, equal = tl.load(own, mask=p < parts, other=0.0), tl.load(own + 2, mask=p < parts, other=0.0).to(tl.int32)
    earlier = tl.cumsum(equal, 0) - equal
    tied = tl.full((), 0.0, tl.float64)
    if ties > 0:
        tied = _weight_of(cut, top, temperature)
    mass = above + tl.minimum(tl.maximum(ties - earlier, 0), equal).to(tl.float64) * tied
    target = u * tl.sum(mass, 0)
    here = tl.min(tl.where(tl.cumsum(mass, 0) > target, p, PARTS), 0)
    here = tl.where(here == PARTS, tl.max(tl.where(mass > 0.0, p, 0), 0), here)  # where rounding leaves nothing, the last
    passed, before = tl.sum(tl.where(p < here, mass, 0.0), 0), tl.sum(tl.where(p < here, equal, 0), 0)
    token, last, start = tl.full((), 0x7FFFFFFF, tl.int32), tl.full((), 0, tl.int32), here * PART
    end = tl.minimum(start + PART, width)
    while (start < end) & (token == 0x7FFFFFFF):
        at = start + tl.arange(0, BLOCK)
        key, weight = _weights(row, at, end, top, temperature)
        same = tl.where((key == cut) & (weight >= least), 1, 0)
        kept = ((key > cut) | ((key == cut) & (before + tl.cumsum(same, 0) <= ties))) & (weight >= least) & (weight > 0.0)
        weight = tl.where(kept, weight, 0.0)
        token = tl.min(tl.where(kept & (passed + tl.cumsum(weight, 0) > target), at, 0x7FFFFFFF), 0)
        last = tl.maximum(last, tl.max(tl.where(kept, at, 0), 0))
        passed += tl.sum(weight, 0)
        before += tl.sum(same, 0)
        start += BLOCK
    return tl.where(token == 0x7FFFFFFF, last, token)


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["seeds", "positions", "streams", "tokens", "status", "logprobs", "cuts"])
def _finish(
    values, work, numbers, seeds, positions, streams, tokens, status, logprobs, cuts, size, width, parts, stride,
    PARTS: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr, DRAWS: tl.constexpr, LOGPROBS: tl.constexpr,
):  # fmt: skip
    """Draws, a program to a row, and says what the token's log-probability is."""
    b = tl.program_id(0)
    row = values + b.to(tl.int64) * width
    work, scalars = row_of(work, b, parts, stride)
    top, token = tl.load(scalars), tl.load(tokens + b).to(tl.int32)
    if DRAWS:
        if tl.load(scalars + 1) > 0.0:
            u = uniform(tl.load(seeds + b), tl.load(positions + b), tl.load(streams + b))
            cut, ties, least = tl.load(cuts + 2 * b), tl.load(cuts + 2 * b + 1), tl.load(numbers + 2 * size + b)
            token = _draw(row, work, width, top, tl.load(numbers + b), cut, ties, least, u, parts, PARTS, PART, BLOCK)
            tl.store(tokens + b, token.to(tl.int64))
    if LOGPROBS:
        _, _, total = summed(work, OF_ALL, parts, PARTS)
        fine = tl.load(status + b) == 0
        chosen = tl.load(row + token, mask=fine, other=0.0).to(tl.float64)
        tl.store(logprobs + b, tl.where(fine, chosen - top - tl.log(tl.where(fine, total, 1.0)), 0.0))


def sample(
    logits: torch.Tensor, bank: torch.Tensor, rows: torch.Tensor, batch: SamplingBatch, out: Sampled, *, vocab_size: int, logprobs: bool = False,
    part: int = PART, block: int = BLOCK,
) -> None:  # fmt: skip
    """Fills `out`. Penalties and biases change `logits` in place, which must then be float32.

    logits [B, V]: float32, float16 or bfloat16, contiguous in V.   bank int32 [rows, words]: packed masks.   rows int32 [B]: NO_MASK or a
    row of the bank.   vocab_size: columns from here on are padding.   logprobs: also fill out.logprobs, else left as they are.
    part, block: columns of a program, and that it looks at together.
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
    work = torch.empty((size, row_size(parts)), dtype=torch.float64, device=logits.device)
    sizes: dict[str, int] = {"PARTS": triton.next_power_of_2(parts), "PART": part, "BLOCK": block}
    row = (width, parts, work.shape[1])
    _begin[(size,)](tops, bests, flags, batch.numbers, work, out.tokens, out.status, out.cuts, parts, work.shape[1], PARTS=sizes["PARTS"])
    if batch.draws or logprobs:
        _weigh[(size, parts)](values, work, batch.numbers, out.status, *row, PART=part, BLOCK=block, LOGPROBS=logprobs)
    if batch.draws:
        cuts = {"RANKS": batch.ranks, "num_warps": 8, **sizes}
        for masses in (False,) * batch.ranks + (True,) * batch.masses:
            for turn in range(LAST.value + 1):
                _search[(size, parts)](values, tops, work, batch.numbers, batch.top_k, size, *row, turn, MASSES=masses, **cuts)
        _measure_kept[(size, parts)](values, work, batch.numbers, batch.top_k, out.cuts, size, *row, MASSES=batch.masses, **cuts)
    if batch.draws or logprobs:
        _finish[(size,)](
            values, work, batch.numbers, batch.seeds, batch.positions, batch.streams, out.tokens, out.status, out.logprobs, out.cuts, size, *row,
            DRAWS=batch.draws, LOGPROBS=logprobs, **sizes,
        )  # fmt: skip
