"""The device's sampler: kernels (in the interpreter) and torch reference beside the sampler of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from agentkit.engine import sampling
from agentkit.engine.config import SamplingParams
from agentkit.engine.kernels.gpu import sampler, sampler_reference
from agentkit.engine.kernels.gpu.sampling_batch import FINE, INFINITE, NAN, NO_MASK, NOTHING, ONLY_MINUS_INFINITY, STUCK, Draw, Sampled, SamplingBatch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 77  # more than one part and one block
LOWEST = -(1 << 31)

BACKENDS = pytest.mark.parametrize("backend", [sampler_reference, sampler], ids=["reference", "kernels"])
Bits = np.ndarray


def run(backend: object, logits: np.ndarray, masks: list[Bits | None], draws: list[Draw], vocab_size: int | None = None, **options: object) -> Sampled:
    """Samples one token per row of `logits`; masks: bool [width of the vocabulary] per row."""
    packed = [np.packbits(np.pad(m, (0, -len(m) % 32)), bitorder="little").view(np.int32) for m in masks if m is not None]
    bank = torch.from_numpy(np.stack(packed) if packed else np.zeros((1, 1), np.int32)).to(DEVICE)
    numbers = iter(range(len(packed)))
    rows = torch.tensor([NO_MASK if m is None else next(numbers) for m in masks], dtype=torch.int32, device=DEVICE)
    batch = SamplingBatch.of(draws, logits.shape[1], DEVICE)
    out = Sampled.empty(len(draws), DEVICE)
    if backend is sampler:
        options = {"part": 64, "block": 32} | options
    backend.sample(torch.from_numpy(logits.copy()).to(DEVICE), bank, rows, batch, out, vocab_size=vocab_size or logits.shape[1], **options)  # type: ignore[attr-defined]
    return out


def host(logits: np.ndarray, mask: Bits | None, draw: Draw, vocab_size: int | None = None) -> int:
    packed = None if mask is None else np.packbits(np.pad(mask, (0, -len(mask) % 32)), bitorder="little").view(np.uint32)
    seen, written = [*draw.prompt, *draw.written], draw.written
    place = {"seed": draw.seed, "position": draw.position, "stream": draw.stream}
    return sampling.sample(logits, packed, draw.params, vocab_size=vocab_size or logits.size, seen=seen, written=written, **place)


def params(**options: object) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0} | options))  # type: ignore[arg-type]


CUTS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3, "top_k": 5},
    {"top_p": 0.8},
    {"top_p": 0.05, "temperature": 2.0},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.7, "min_p": 0.05},
    {"top_k": 1000, "top_p": 0.999},
    {"top_k": 1},
]
PENALTIES = {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": -0.3, "logit_bias": {3: 2.5, 9: -4.0, 500: 1.0}}


@pytest.mark.parametrize(
    ("backend", "chosen"),
    [(sampler_reference, slice(None)), (sampler, slice(1, None, 3)), (sampler, slice(6, 7)), pytest.param(sampler, slice(None), marks=pytest.mark.slow)],
)
def test_tokens_are_those_of_the_cpu(backend: object, chosen: slice) -> None:
    """Cuts, with and without masks and penalties, ragged widths, in one batch each."""
    rng = np.random.default_rng(1)
    logits = (3 * rng.standard_normal((len(CUTS), WIDTH))).astype(np.float32)[chosen]
    masks = [None if i % 3 == 0 else rng.random(70 + 7 * (i % 2)) < 0.4 for i in range(len(CUTS))][chosen]
    cuts = CUTS[chosen]
    for penalties in ({}, PENALTIES):
        if penalties:
            logits, masks, cuts = logits[:2], masks[:2], cuts[:2]
        draws = [Draw(params(**cut, **penalties), 77 << 50 | i, i, i % 2, [1, 3, 60], [3, 3, 9, 11]) for i, cut in enumerate(cuts)]
        out = run(backend, logits, masks, draws, 75)
        assert out.tokens.tolist() == [host(x, m, d, 75) for x, m, d in zip(logits, masks, draws, strict=True)]
        assert out.status.tolist() == [FINE] * len(cuts)


def kept_on_the_host(x: np.ndarray, p: SamplingParams) -> set[int]:
    """The ids that `_draw` keeps by top-k and top-p, as it does it."""
    ids = np.arange(x.size)
    weights = np.exp((x.astype(np.float64) - x.max()) / p.temperature)
    if 0 < p.top_k < ids.size:
        kept = np.sort(sampling._heaviest(weights, p.top_k)[: p.top_k])
        ids, weights = ids[kept], weights[kept]
    if p.top_p < 1.0:
        ids = ids[sampling._nucleus(weights, p.top_p * weights.sum())]
    return set(ids.tolist())


def kept_by(cut: list[int], x: np.ndarray) -> set[int]:
    bits = np.where(x == 0, 0.0, x).astype(np.float32).view(np.int32)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return {*np.flatnonzero(order > cut[0]).tolist(), *np.flatnonzero(order == cut[0])[: cut[1]].tolist()}


TIES = [
    np.zeros(9, np.float32),
    np.array([1, 2, 2, 2, 0, 2, -1, 1, 1], np.float32),
    np.array([0.0, -0.0, 0.0, -0.0, -1e-3, 1e-3, -5, 3, 3], np.float32),
    np.array([-1e30, 1e30, 1e30, -1e30, 0, 0, 1e-30, -1e-30, 1e30], np.float32),
]


@BACKENDS
def test_the_same_tokens_are_kept_at_every_boundary(backend: object) -> None:
    """Ties go to the lowest ids, zeros of both signs are equal, and every k and p gives the set of the CPU."""
    rng = np.random.default_rng(5)
    for number, x in enumerate([*TIES, rng.integers(-3, 3, 9).astype(np.float32), rng.standard_normal(9).astype(np.float32)]):
        cuts = [params(top_k=k) for k in range(1, 9)] + [params(top_p=p, top_k=k) for p in (0.05, 0.25, 0.5, 0.75, 0.97) for k in (0, 3, 5)]
        if backend is sampler:
            cuts = cuts[number::23]  # the interpreter is slow
        out = run(backend, np.stack([x] * len(cuts)), [None] * len(cuts), [Draw(p) for p in cuts])
        for cut, p in zip(out.cuts.tolist(), cuts, strict=True):
            heavy = kept_by(cut, x)
            assert {i for i in heavy if np.exp(x[i] - x.max()) > 0} == {i for i in kept_on_the_host(x, p) if np.exp(x[i] - x.max()) > 0}, (x, p)


@BACKENDS
def test_what_cannot_be_sampled_is_flagged_and_neighbours_are_not(backend: object) -> None:
    x = np.zeros((7, 40), np.float32)
    x[0, 39], x[1, 2], x[2], x[4, :8] = np.nan, np.inf, -np.inf, -np.inf
    x[6, 39], x[6, 5] = 9, 8
    eight = np.arange(40) < 8
    masks = [None, None, None, np.zeros(40, bool), eight, None, None]
    out = run(backend, x, masks, [Draw(params(temperature=t)) for t in (0, 1, 0, 1, 0, 1, 0)], vocab_size=39)
    assert out.status.tolist() == [NAN, INFINITE, NOTHING, STUCK, ONLY_MINUS_INFINITY, FINE, FINE]
    assert out.tokens[6] == 5  # column 39 is padding


def test_rows_are_the_same_however_they_are_cut_into_parts() -> None:
    """One part, or several of one block or more; what nobody asks for is left out."""
    x = np.random.default_rng(2).standard_normal((2, WIDTH)).astype(np.float32)
    draws = [Draw(params(top_p=0.6), 5), Draw(params(top_k=9, temperature=0.5), 6, 3)]
    found = [run(sampler, x, [None] * 2, draws, part=part, block=block) for part, block in ((128, 128), (16, 16))]
    assert found[0].tokens.tolist() == found[1].tokens.tolist() == [host(row, None, draw) for row, draw in zip(x, draws, strict=True)]
    assert found[0].cuts.tolist() == found[1].cuts.tolist()
    greedy = SamplingBatch.of([Draw(params(temperature=0.0))], WIDTH, "cpu")
    assert (greedy.draws, greedy.ranks, greedy.masses) == (False, False, False)


@BACKENDS
def test_greedy_takes_the_lowest_of_equals(backend: object) -> None:
    x = np.zeros((2, 90), np.float32)
    x[:, [7, 40, 41, 88]] = 2.0
    out = run(backend, x, [None, np.arange(90) > 39], [Draw(params(temperature=0.0))] * 2)
    assert out.tokens.tolist() == [7, 40]


@BACKENDS
def test_a_row_depends_on_nothing_beside_it(backend: object) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((4, WIDTH)).astype(np.float32)
    draws = [Draw(params(min_p=0.01), seed, 4) for seed in (1, 2, (1 << 64) - 1, 5)]
    together = run(backend, x, [None] * 4, draws)
    for i in (0, 2):
        alone = run(backend, x[i : i + 1], [None], draws[i : i + 1])
        assert alone.tokens.tolist() == together.tokens[i : i + 1].tolist()
    later = run(backend, x, [None] * 4, [Draw(d.params, d.seed, 5) for d in draws])
    assert later.tokens.tolist() != together.tokens.tolist()


@BACKENDS
def test_log_probabilities_are_of_the_constrained_distribution(backend: object) -> None:
    rng = np.random.default_rng(3)
    x, mask = rng.standard_normal((2, WIDTH)).astype(np.float32), rng.random(WIDTH) < 0.5
    draws = [Draw(params(temperature=0.7, top_k=3, presence_penalty=1.0), 3, 1, 0, [], [4, 5]), Draw(params(temperature=0.0))]
    out = run(backend, x, [mask, None], draws, logprobs=True)
    packed = np.packbits(np.pad(mask, (0, -WIDTH % 32)), bitorder="little").view(np.uint32)
    for i, m in enumerate((packed, None)):
        token, d = int(out.tokens[i]), draws[i]
        expected, _ = sampling.log_probabilities(x[i], m, d.params, token, vocab_size=WIDTH, seen=[], written=d.written)
        assert float(out.logprobs[i]) == pytest.approx(expected, abs=1e-9)


def _chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    expected = chances * counts.sum()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


@pytest.mark.parametrize("backend", [sampler_reference, pytest.param(sampler, marks=pytest.mark.slow)], ids=["reference", "kernels"])
def test_the_distribution(backend: object) -> None:
    """Many seeds of one row: chi-square against the truncated softmax."""
    rng = np.random.default_rng(7)
    x, n = rng.standard_normal(12).astype(np.float32), 600
    p = params(temperature=0.8, top_k=7, top_p=0.95)
    kept = sorted(kept_on_the_host(x, p))
    weights = np.zeros(12)
    weights[kept] = np.exp(x[kept].astype(np.float64) / 0.8)
    out = run(backend, np.stack([x] * n), [None] * n, [Draw(p, seed, 0) for seed in range(n)])
    counts = np.bincount(out.tokens.cpu().numpy(), minlength=12)
    assert _chi_square(counts, weights / weights.sum()) < 22.5  # 6 degrees of freedom: 1 in 1000; the seeds are fixed


def test_half_precision_logits_are_read_as_they_are() -> None:
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2)).bfloat16()
    results = []
    for backend in (sampler, sampler_reference):
        out = Sampled.empty(2, DEVICE)
        bank, rows = torch.zeros((1, 3), dtype=torch.int32, device=DEVICE), torch.full((2,), NO_MASK, dtype=torch.int32, device=DEVICE)
        call: Callable[..., None] = backend.sample
        call(x.to(DEVICE), bank, rows, SamplingBatch.of([Draw(params(), 5), Draw(params(temperature=0.0))], WIDTH, DEVICE), out, vocab_size=WIDTH)
        results.append(out.tokens.tolist())
    assert results[0] == results[1]


def test_penalties_without_room_are_refused() -> None:
    batch = SamplingBatch.empty(1, "cpu")
    for options in ({"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}):
        with pytest.raises(ValueError, match="no room"):
            batch.load(0, Draw(params(**options)))
    batch = SamplingBatch.empty(1, "cpu", ranks=False)
    batch.load(0, Draw(params(top_p=0.5)))
    for options in ({"top_k": 3},):
        with pytest.raises(ValueError, match="no room"):
            batch.load(0, Draw(params(**options)))
