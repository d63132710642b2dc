"""Windows and streaming: outputs against attention with an explicit list of keys and places, and pages given back as they fall out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentkit.engine.kernels.layout import FAR, PAGE
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVSequence, KVShape, pages_for
from agentkit.engine.kv_policy import H2O, Policy, Streaming, Window, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.rope import Rope
from agentkit.engine.runner import Span, TorchRunner
from agentkit.errors import EngineError
from tests.engine.kernels.models import VARIANTS, Pool, Sequence, decoder, quantised, run, tokens

LENGTH = 190


def turned(x: torch.Tensor, places: torch.Tensor, rope: Rope) -> torch.Tensor:
    """x [S, N, D] float64, rotated by `places` [S]."""
    angles = places.double()[:, None] * torch.tensor(rope.inverse_frequencies, dtype=torch.float64)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Oracle:
    """The `attend` of one text from its beginning, token by token: which keys it sees, each at its place in the cache, the query behind them."""

    def __init__(self, model: Decoder, policy: Policy) -> None:
        self.config, self.policy = model.config, policy

    def seen(self, t: int, own: int | None) -> list[int]:
        window = self.policy.window if own is None else min(own, self.policy.window)
        sinks = self.policy.sinks if isinstance(self.policy, Streaming) else 0
        return [s for s in range(t + 1) if s < sinks or s > t - window]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None, scale: float, softcap: float | None) -> Any:
        rope, group, length = self.config.ropes[self.config.rope_of_layer[layer]], q.shape[1] // k.shape[1], q.shape[0]
        at = torch.arange(length)
        bare_q, bare_k = (turned(x.double(), -at, rope) for x in (q, k))
        out = []
        for t in range(length):
            seen = torch.tensor(self.seen(t, window))
            places = torch.arange(len(seen)) if isinstance(self.policy, Streaming) else seen
            keys = turned(bare_k[seen], places, rope).repeat_interleave(group, 1)
            query = turned(bare_q[t : t + 1], places[-1:], rope)[0]
            scores = torch.einsum("hd,shd->hs", query, keys) * scale
            scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
            out.append(torch.einsum("hs,shd->hd", scores.softmax(-1), v[seen].double().repeat_interleave(group, 1)))
        return torch.stack(out).float()


def wanted_logits(model: Decoder, policy: Policy, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model.forward(torch.tensor(ids), torch.arange(len(ids)), Oracle(model, policy))


class Machine:
    """A model with a small pool, run by hand; every invariant is checked after each step."""

    def __init__(self, model: Decoder, policy: str | Policy, *, pages: int = 40, kv: torch.dtype = torch.float32, **options: Any) -> None:
        c, self.model = model.config, model
        shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, kv)
        self.pool = KVPool(shape, pages * shape.bytes_per_page, reach=reach_of(policy, c), **options)
        if kv.is_floating_point:
            self.pool.data.fill_(torch.nan)  # what is read before it is written shows
        self.runner = TorchRunner(model, self.pool)

    def run(self, *spans: tuple[KVSequence, list[int]]) -> list[torch.Tensor]:
        for sequence, ids in spans:
            assert self.pool.reserve(sequence, sequence.length + len(ids))
        logits = self.runner.execute([Span(sequence, tuple(ids), rows=len(ids)) for sequence, ids in spans])
        self.pool.check_invariants()
        return [torch.from_numpy(rows) for rows in logits]


CASES: list[tuple[str, Window | Streaming]] = [
    *(("llama", policy) for policy in (Window(32), Window(75), Streaming(4, 32), Streaming(40, 64), Streaming(0, 50))),
    ("qwen3", Streaming(1, 70)),
    ("gemma", Window(60)),
    ("gemma", Streaming(4, 40)),
]


@pytest.mark.parametrize(("variant", "policy"), CASES, ids=str)
def test_outputs_are_those_of_explicit_attention(variant: str, policy: Window | Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel of the whole forward, by that of attention alone, and by torch."""
    options = dict(VARIANTS[variant])
    if variant == "gemma":
        options["windows"] = (None,) * 3 if isinstance(policy, Streaming) else (20, None, 90)
    packed, plain = quantised(decoder(**options))
    texts = [tokens(LENGTH, 128, 1), tokens(LENGTH - 45, 128, 2)]
    wanted = [wanted_logits(plain, policy, ids) for ids in texts]
    for model, kernels in ((packed, True), (plain, True), (plain, False)):
        if kernels and not supported():
            continue
        with monkeypatch.context() as patch:
            if not kernels:
                patch.setattr("agentkit.engine.attention.supported", lambda: False)
            machine = Machine(model, policy, pages=13, prefix_caching=False)
            found = in_ragged_spans(machine, [machine.pool.start(ids, room=LENGTH) for ids in texts], texts, lambda _: pages_seen(policy))
        for rows, logits in zip(found, wanted, strict=True):
            assert (rows - logits).abs().max() < 1e-3 * logits.abs().max()


def in_ragged_spans(machine: Machine, sequences: list[KVSequence], texts: list[list[int]], most: Callable[[int], int]) -> list[torch.Tensor]:
    """Logits of texts of unequal length side by side, in spans that end within, at and beyond pages, in a memory where freed pages are used again.

    most: pages that a sequence of so many tokens may hold between spans.
    """
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for size in itertools.cycle((33, 1, 31, 64, 1, 30, 2)):
        spans = []
        for sequence, ids, count in zip(sequences, texts, (size, size // 2 + 1), strict=True):
            if sequence.length < len(ids):
                room = machine.pool.room(sequence)
                spans.append((sequence, ids[sequence.length : sequence.length + (count if room is None else min(count, room))]))
        if not spans:
            break
        for (sequence, _), rows in zip(spans, machine.run(*spans), strict=True):
            found[sequences.index(sequence)].append(rows)
        assert all(len(s.held) <= most(s.length) for s in sequences)
    return [torch.cat(rows) for rows in found]


def pages_seen(policy: Window | Streaming) -> int:
    """Pages that hold all that a token sees, wherever in a page its window begins."""
    return pages_for(getattr(policy, "sinks", 0)) + pages_for(policy.window) + 1


def test_windows_of_the_model_itself_need_no_more_pages_than_they_see() -> None:
    """Mistral: all layers have a window. Where one layer sees everything, everything stays."""
    model = decoder(windows=(40, 40, 64))
    machine = Machine(model, "auto", pages=20, prefix_caching=False)
    sequence, ids = machine.pool.start([1], room=2000), tokens(900, 128)
    for at in range(0, 900, 30):
        machine.run((sequence, ids[at : at + 30]))
        assert len(sequence.held) <= 3
    machine = Machine(decoder(windows=(40, None, 64)), "auto", prefix_caching=False)
    sequence = machine.pool.start([1])
    machine.run((sequence, ids[:300]))
    assert len(sequence.held) == 10


@pytest.mark.skipif(not supported(), reason="this processor has no AVX2, FMA and F16C")
@pytest.mark.parametrize("kv", [torch.float32, torch.int8, torch.uint8])
@pytest.mark.parametrize("policy", [Window(70), Streaming(4, 70)], ids=str)
def test_grouping_changes_no_bit(policy: Policy, kv: torch.dtype) -> None:
    packed, _ = quantised(decoder())
    ids, logits = tokens(400, 128), []
    for sizes in ((400,), (1, 33, 100, 2, 3, 97, 64, 1, 99)):
        machine = Machine(packed, policy, kv=kv)
        sequence = machine.pool.start(ids)
        rows = [machine.run((sequence, ids[sum(sizes[:i]) : sum(sizes[: i + 1])]))[0] for i in range(len(sizes))]
        logits.append(torch.cat(rows))
    assert torch.equal(*logits)


@pytest.mark.parametrize("policy", [Window(64), Streaming(4, 64)], ids=str)
@pytest.mark.parametrize("kernels", [True, False])
def test_ten_million_tokens_later_angles_are_as_exact(kernels: bool, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer, so that a token sees its window and nothing behind it: after the same tokens the same logits, wherever they stand."""
    if not kernels:
        monkeypatch.setattr("agentkit.engine.attention.supported", lambda: False)
    elif not supported():
        pytest.skip("this processor has no AVX2, FMA and F16C")
    packed, plain = quantised(decoder(layers=1, dim=64))
    model, ids = packed if kernels else plain, tokens(104, 128)
    pool, far = Pool(model, policy=policy), 10_000_000
    pool.data.zero_()
    near = run(model, pool, (Sequence([1, 2, 3, 4]), 0, ids))
    late = Sequence([6] + [5] * (far // PAGE - 1) + [7, 8, 9, 10])
    run(model, pool, (late, 0, ids[:4]))
    later = run(model, pool, (late, far, ids[4:]))
    assert far > FAR
    assert (later[70:] - near[74:]).abs().max() < 1e-3 * near.abs().max()


def test_prefixes_are_found_as_far_as_they_are_held_and_give_the_same() -> None:
    model, policy = decoder(), Streaming(4, 64)
    ids = tokens(300, 128)
    wanted = wanted_logits(model, policy, ids)
    machine = Machine(model, policy, pages=30)
    first = machine.pool.start(ids)
    machine.run((first, ids[:290]))
    second = machine.pool.start(ids)
    assert second.length == 288
    assert len(second.held) <= 4
    rows = machine.run((second, ids[288:]))[0]
    assert (rows - wanted[288:]).abs().max() < 1e-3 * wanted.abs().max()
    machine.pool.check_invariants()


def test_pages_above_those_in_use_can_be_evicted_and_pinned_ones_stay() -> None:
    model, ids = decoder(), tokens(2000, 128)
    machine = Machine(model, Window(64), pages=12)
    pool = machine.pool
    sequence = pool.start(ids[:97])
    machine.run((sequence, ids[:96]))
    node = pool.release(sequence)
    assert node is not None
    pool.tree.pin(node)
    sequence = pool.start(ids, room=2000)
    assert sequence.length == 96
    while sequence.length < 2000:
        machine.run((sequence, ids[sequence.length : sequence.length + 50]))
    assert len(sequence.held) <= 3
    assert pool.free_pages + pool.tree.evictable + len(sequence.held) + 3 == 12
    pool.release(sequence)
    assert pool.start([*ids[:96], 5]).length == 96
    pool.check_invariants()


def test_a_sequence_that_lost_pages_cannot_be_cut_back_into_them() -> None:
    machine = Machine(decoder(), Window(64), prefix_caching=False)
    sequence = machine.pool.start([1])
    machine.run((sequence, tokens(200, 128)))
    machine.pool.truncate(sequence, 199)
    with pytest.raises(IndexError, match="are gone"):
        machine.pool.truncate(sequence, 90)


def test_forks_share_what_is_left() -> None:
    model, policy = decoder(), Streaming(4, 40)
    ids, more = tokens(150, 128), [tokens(60, 128, seed) for seed in (1, 2)]
    machine = Machine(model, policy, prefix_caching=False)
    first = machine.pool.start(ids)
    machine.run((first, ids))
    second = machine.pool.fork(first)
    assert second.held == first.held
    found = machine.run((first, more[0]), (second, more[1]))
    for rows, rest in zip(found, more, strict=True):
        wanted = wanted_logits(model, policy, ids + rest)[150:]
        assert (rows - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_policies_that_do_not_suit_a_model_are_refused_by_name() -> None:
    config = decoder(windows=(40, None, 64)).config
    with pytest.raises(EngineError, match="windows of their own"):
        reach_of(Streaming(4, 64), config)
    with pytest.raises(EngineError, match="trained for 4096"):
        reach_of(Streaming(4, 5000), decoder().config)
    with pytest.raises(EngineError, match="attention='flash'"):
        reach_of(H2O(128), decoder().config, standard=True)
    assert reach_of(Window(50), config).kept == 50
    assert reach_of(Window(10**30), decoder().config).kept == decoder().config.max_position
    assert reach_of("auto", config).kept is None


@pytest.mark.parametrize("wrong", [{"window": 31}, {"window": 0}, {"window": 2.5}, {"window": True}, {"sinks": -1}, {"sinks": 257}, {"format": "int4"}])
def test_values_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"kv: .*{next(iter(wrong))}"):
        Streaming(**wrong)


def test_a_prefix_that_lost_its_beginning_meanwhile_is_not_offered_for_pinning() -> None:
    """Whole pages, computed and then cut off from the tree because others needed the room."""
    machine = Machine(decoder(), Window(64), pages=8)
    pool, ids = machine.pool, tokens(192, 128)
    sequence = pool.start(ids)
    machine.run((sequence, ids))
    other = pool.start([1])
    assert pool.reserve(other, 5 * PAGE)
    assert pool.tree.evictable == 1  # of the four pages that fell out of the window
    assert pool.release(sequence) is None
    pool.check_invariants()
    assert pool.start([*ids, 1]).length == PAGE
