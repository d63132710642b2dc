"""Layers that see less than others keep pages of their own: which layers share a table, what is held, and that prefixes, forks, drafts, pins
and files stay right when either group's pages are gone. On a CPU by its kernels and by torch, and by what a device runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine.device.runner import DeviceRunner
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVSequence, KVShape
from agentkit.engine.kv_groups import PageGroups, by_window, pages_for, together
from agentkit.engine.kv_policy import Policy, Reach, Streaming, Window, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.prefix_file import load_prefixes, save_prefixes
from agentkit.engine.prefix_node import Node
from agentkit.engine.runner import Span
from agentkit.engine.speculation.tree import ROOT, TokenTree
from tests.engine.kernels.models import VARIANTS, Pool, Sequence, decoder, quantised, run, tokens
from tests.engine.test_kv_policy import Machine, in_ragged_spans, wanted_logits

WINDOWS = (40, None, 64)
LENGTH = 400


def machine_for(model: Decoder, policy: str | Policy = "auto", **options: Any) -> Machine:
    """With a group of tables for each kind of layer: two with windows, of 64 positions at most, one without."""
    return Machine(model, policy, groups=by_window(reach_of(policy, model.config), model.config.num_layers, 4096), **options)


def takes(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where the CPU's kernels cannot run, and turns them off where they shall not."""
    if route in ("torch", "device"):
        monkeypatch.setattr("agentkit.engine.attention.supported", lambda: False)
    elif not supported():
        pytest.skip("this processor has no AVX2, FMA and F16C")


def over_a_device(machine: Machine, route: str) -> Machine:
    """With the device's runner where that is the route; its kernels' references in torch."""
    if route == "device":
        machine.runner = DeviceRunner(machine.model, machine.pool, "reference")  # type: ignore[assignment]
    return machine


def gemma(layers: int, windows: int, context: int = 32_768, every: int = 6) -> PageGroups:
    return by_window(Reach(windows=tuple(None if (i + 1) % every == 0 else windows for i in range(layers))), layers, context)


@pytest.mark.parametrize(
    ("layers", "width", "far", "near"),
    [(18, 3, 1, 5), (26, 4, 1, 6), (34, 5, 1, 6), (48, 8, 1, 5), (62, 10, 1, 6)],  # Gemma 3: 270M, 1B, 4B, 12B, 27B
)
def test_groups_of_gemma_3(layers: int, width: int, far: int, near: int) -> None:
    groups = gemma(layers, 1024)
    assert (groups.width, [len(g.tables) for g in groups.groups], [g.kept for g in groups.groups]) == (width, [far, near], [None, 1024])
    assert sorted(layer for group in groups.groups for layer in group.layers) == list(range(layers))
    assert len(set(groups.places)) == layers
    assert all(table < groups.tables and place < width for table, place in groups.places)


def test_layers_stay_together_where_nothing_is_saved() -> None:
    assert gemma(18, 512, context=600).tables == 1  # the room for a chunk is as long as the texts
    assert by_window(Reach(), 4, 4096).tables == 1
    assert by_window(reach_of("auto", decoder(windows=(64,) * 3).config), 3, 4096).tables == 1
    assert by_window(reach_of(Streaming(4, 64), decoder().config), 3, 4096).tables == 1
    narrowed = by_window(reach_of(Window(2000), decoder(windows=WINDOWS).config), 3, 4096)
    assert [group.kept for group in narrowed.groups] == [2000, 64]
    halves = gemma(26, 4096, context=8192, every=2)  # Gemma 2
    assert (halves.width, halves.tables) == (13, 2)
    assert halves.most_pages(8192) == 256 + 145


def test_where_steps_are_large_a_window_needs_room_for_them() -> None:
    reach = Reach(windows=tuple(None if (i + 1) % 6 == 0 else 512 for i in range(18)))
    groups = by_window(reach, 18, 32_768).in_steps_of(8192)  # a GPU's steps
    assert groups.most_pages(32_768) == 1024 + 5 * 273
    assert groups.most_pages(32_768) * groups.width < 0.4 * 18 * 1024
    assert by_window(reach, 18, 8192).in_steps_of(8192).most_pages(8192) * groups.width == 18 * 256  # no more than together
    assert together(18, Reach(window=512)).in_steps_of(2048).most_pages(32_768) == 81
    assert groups.in_steps_of(64) == by_window(reach, 18, 32_768)


@pytest.mark.parametrize(("pages", "step"), [(6000, 8192), (4000, 4096), (1300, 2048), (300, 512)])
def test_steps_are_smaller_where_a_window_has_little_room(pages: int, step: int) -> None:
    window = by_window(Reach(windows=tuple(None if (i + 1) % 6 == 0 else 512 for i in range(18))), 18, 32_768)
    fitting = window.in_steps_up_to(8192, 32_768, pages)
    assert fitting.chunk == step
    assert fitting == window.in_steps_of(step)
    assert together(18).in_steps_up_to(8192, 32_768, pages).chunk == 8192


@pytest.mark.parametrize("route", ["whole forward", "attention", "torch", "device"])
def test_logits_and_pages_of_long_texts(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ragged spans side by side, in a memory where freed pages are used again; the widest window alone counts."""
    takes(route, monkeypatch)
    packed, plain = quantised(decoder(**{**VARIANTS["gemma"], "windows": WINDOWS}))
    texts = [tokens(LENGTH, 128, 1), tokens(LENGTH - 45, 128, 2)]
    machine = over_a_device(machine_for(packed if route == "whole forward" else plain, pages=13, prefix_caching=False), route)
    sequences = [machine.pool.start(ids, room=LENGTH) for ids in texts]
    found = in_ragged_spans(machine, sequences, texts, lambda length: pages_for(length) + 2 * (64 // 32 + 1))
    for rows, ids in zip(found, texts, strict=True):
        wanted = wanted_logits(plain, Window(4096), ids)
        assert (rows - wanted).abs().max() < 1e-3 * wanted.abs().max()


def alone(model: Decoder, ids: list[int], policy: str | Policy = "auto") -> torch.Tensor:
    """Logits of a text as one, in pages that hold all layers."""
    return run(model, Pool(model, policy=policy), (Sequence(list(range(pages_for(len(ids))))), 0, ids)).float()


def right(machine: Machine, model: Decoder, sequence: KVSequence, ids: list[int]) -> None:
    """The rest of a text after what a sequence has."""
    start = sequence.length
    rows = machine.run((sequence, ids[start:]))[0]
    wanted = alone(model, ids)[start:]
    assert (rows - wanted).abs().max() < 1e-3 * wanted.abs().max()


def begun(count: int, **options: Any) -> tuple[Decoder, list[int], Machine, KVSequence]:
    """A model with windows, a text, a machine for it, and a sequence of the first `count` tokens."""
    model, ids = decoder(windows=WINDOWS), tokens(330, 128)
    machine = machine_for(model, **options)
    sequence = machine.pool.start(ids)
    machine.run((sequence, ids[:count]))
    return model, ids, machine, sequence


def test_a_prefix_counts_as_far_as_the_windows_before_its_end_are_there() -> None:
    model, ids = decoder(windows=WINDOWS), tokens(320, 128)
    machine = machine_for(model, pages=12)  # 36 pages of one layer
    pool = machine.pool
    first = pool.start(ids)
    for at in range(0, 310, 31):
        machine.run((first, ids[at : at + 31]))
    pool.release(first)
    middle = pool.start([*ids[:170], 1, 2])
    assert middle.length == 170  # nothing had to be evicted
    assert len(middle.held) == 6 + 2 * 3
    right(machine, model, middle, [*ids[:170], 1, 2])
    pool.release(middle)
    pool.tree.evict(pool.tree.evictable - 17)  # of the first text all ten blocks of the far layer, of the near ones some
    whole = pool.start([*ids[:310], 3])
    right(machine, model, whole, [*ids[:310], 3])
    pool.release(whole)
    pool.check_invariants()


def test_parts_that_were_let_go_first_are_evicted_first_and_come_back() -> None:
    model, ids, machine, first = begun(320, pages=12)
    pool, nodes = machine.pool, list(first.nodes)
    pool.tree.evict(14)  # the near layers' pages of the first seven of the eight blocks behind the window, while it runs
    assert [node.whole for node in nodes] == [False] * 7 + [True] * 3
    pool.release(first)
    again = pool.start([*ids[:320], 1])
    assert again.length == 320
    pool.release(again)
    early = pool.start([*ids[:100], 1])
    assert early.length == 0  # the far layer has it, the others have not
    right(machine, model, early, [*ids[:100], 1])
    assert all(node.whole for node in nodes[:3])  # lent by the sequence that computed them again
    assert pool.release(early) is not None
    assert pool.start([*ids[:100], 2]).length == 100
    pool.check_invariants()


def test_what_failed_lends_nothing() -> None:
    _, ids, machine, first = begun(320, pages=12)
    pool, nodes = machine.pool, list(first.nodes)
    pool.tree.evict(14)
    pool.release(first)
    failed = pool.start([*ids[:100], 1])
    machine.run((failed, ids[:100]))
    assert nodes[0].whole
    pool.release(failed, keep=False)
    assert not nodes[0].whole
    assert pool.start([*ids[:100], 2]).length == 0
    pool.check_invariants()


def test_pins_keep_the_window_at_their_end() -> None:
    model, ids, machine, first = begun(300, pages=16)
    pool = machine.pool
    node = pool.release(first)
    assert node is not None
    assert pool.tree.unpinned(node) == pool.tree.pin_size(300) == 10 + 2 * 4
    pool.tree.pin(node)
    pool.tree.pin(node)
    pool.tree.clear()
    assert pool.tree.pinned == 18
    for length in (300, 299, 275):
        again = pool.start([*ids[:length], 5])
        assert again.length == length
        right(machine, model, again, [*ids[:length], 5])
        pool.release(again, keep=False)
    pool.tree.unpin(node)
    assert pool.tree.pinned == 18
    pool.tree.unpin(node)
    pool.tree.clear()
    assert pool.free_pages == pool.page_count
    pool.check_invariants()


def test_others_take_over_what_was_computed_meanwhile() -> None:
    model, ids = decoder(windows=WINDOWS), tokens(330, 128)
    machine = machine_for(model)
    pool = machine.pool
    early, later = pool.start(ids), pool.start(ids)
    machine.run((early, ids[:64]), (later, ids[:40]))
    machine.run((early, ids[64:320]))
    assert pool.adopt(later, ids) == 320 - 40
    assert len(later.held) == 10 + 2 * 2
    right(machine, model, later, ids)


@pytest.mark.parametrize("route", ["kernels", "torch", "device"])
def test_trees_of_guesses(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    takes(route, monkeypatch)
    model, ids, machine = decoder(windows=WINDOWS), tokens(200, 128), over_a_device(machine_for(decoder(windows=WINDOWS)), route)
    sequence = machine.pool.start(ids)
    machine.run((sequence, ids[:150]))
    draft = TokenTree.chain((7, 9))
    draft.extend(ROOT, ids[151:153])
    machine.pool.reserve(sequence, 151 + len(draft))
    rows = torch.from_numpy(machine.runner.execute([Span(sequence, (ids[150],), draft=draft)])[0])
    wanted = alone(model, ids)
    assert (rows[[0, 3, 4]] - wanted[150:153]).abs().max() < 1e-3 * wanted.abs().max()
    machine.pool.keep(sequence, [2, 3], [ids[151], ids[152]])
    machine.pool.check_invariants()
    right(machine, model, sequence, ids)


def test_a_file_holds_the_windows_that_are_needed(tmp_path: Path) -> None:
    model, ids, machine, first = begun(300)
    pool = machine.pool
    node = pool.release(first)
    assert node is not None
    pool.tree.pin(node)
    assert save_prefixes(pool, tmp_path / "pinned", "m", pinned_only=True) == 300
    assert save_prefixes(pool, tmp_path / "all", "m", pinned_only=False) == 300
    assert (tmp_path / "pinned").stat().st_size < 0.7 * (tmp_path / "all").stat().st_size
    for name in ("pinned", "all"):
        fresh = machine_for(model)
        assert load_prefixes(fresh.pool, tmp_path / name, "m") == 300
        fresh.pool.check_invariants()
        again = fresh.pool.start([*ids[:300], 5])
        assert again.length == 300
        right(fresh, model, again, [*ids[:300], 5])
        assert load_prefixes(fresh.pool, tmp_path / "all", "m") == 300  # what is there already is not written again
        fresh.pool.check_invariants()
    assert fresh.pool.start([*ids[:150], 5]).length == 150
    small = machine_for(model, pages=3)
    assert load_prefixes(small.pool, tmp_path / "all", "m") == 96
    small.pool.check_invariants()


def test_a_file_lends_what_is_missing(tmp_path: Path) -> None:
    model, ids, machine, first = begun(320, pages=14)
    pool = machine.pool
    save_prefixes(pool, tmp_path / "all", "m", pinned_only=False)
    pool.tree.evict(14)
    pool.release(first)
    assert pool.start([*ids[:100], 5]).length == 0
    load_prefixes(pool, tmp_path / "all", "m")
    again = pool.start([*ids[:100], 5])
    assert again.length == 100
    right(machine, model, again, [*ids[:100], 5])


@pytest.mark.parametrize("apart", [True, False])
def test_a_partly_filled_block_in_a_file_gives_way_to_a_longer_one(apart: bool, tmp_path: Path) -> None:
    """A pin keeps the shorter of two blocks in the tree, and so both are written; whoever reads them has no such pin."""
    model, ids = decoder(windows=WINDOWS), tokens(110, 128)
    machine = machine_for(model) if apart else Machine(model, "auto")
    for length in (40, 100):
        sequence = machine.pool.start(ids)
        machine.run((sequence, ids[sequence.length : length]))
        node = machine.pool.release(sequence)
        assert node is not None
        machine.pool.tree.pin(node)
    save_prefixes(machine.pool, tmp_path / "both", "m", pinned_only=False)
    fresh = machine_for(model) if apart else Machine(model, "auto")
    load_prefixes(fresh.pool, tmp_path / "both", "m")
    fresh.pool.check_invariants()
    again = fresh.pool.start([*ids[:100], 5])
    assert again.length == 100
    right(fresh, model, again, [*ids[:100], 5])
    fresh.pool.release(again)
    fresh.pool.tree.clear()
    assert fresh.pool.free_pages == fresh.pool.page_count


def test_admission_counts_windows_once() -> None:
    shape = KVShape(18, 1, 16)
    groups = gemma(18, 512)
    pool = KVPool(shape, 1300 * 3 * shape.bytes_per_page // 18, groups=groups)
    assert pool.page_count == 1300
    assert pool.peak(32_000) == 1000 + 5 * 33
    assert pool.fits(32_000)
    assert pool.can_start(list(range(32_000)), spare=135 // 6)
    assert not pool.can_start(list(range(32_000)), spare=135 // 6 + 1)
    assert not pool.fits(37_000)
    assert pool.capacity == (1300 - 5 * 33) * 32


@pytest.mark.parametrize(
    ("route", "policy"), [("kernels", "auto"), ("torch", "auto"), ("device", "auto"), ("kernels", Window(150)), ("device", Window(150))], ids=str
)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events(seed: int, route: str, policy: str | Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that begin alike grow, fork, end, are pinned and cut back in a memory too small for them; every logit is that of plain attention."""
    takes(route, monkeypatch)
    model, chance = decoder(windows=WINDOWS, hidden=32, dim=16, heads=2, kv=1, inner=32), random.Random(seed)
    stem = tokens(260, 128, 9)
    texts = [[*stem[:cut], *tokens(LENGTH - cut, 128, cut)] for cut in (0, 37, 128, 200, 260)]
    wanted = [alone(model, ids, policy) for ids in texts]
    machine = over_a_device(machine_for(model, policy, pages=14), route)
    pool = machine.pool
    live: list[tuple[KVSequence, int]] = []
    pins: list[Node] = []
    for _ in range(120):
        event = chance.random()
        if not live or (event < 0.15 and len(live) < 4):
            number = chance.randrange(len(texts))
            live.append((pool.start(texts[number][: chance.randrange(1, LENGTH)], room=LENGTH), number))
        elif event < 0.25:
            sequence, number = live.pop(chance.randrange(len(live)))
            node = pool.release(sequence, keep=chance.random() < 0.8)
            if node is not None and chance.random() < 0.4 and pool.tree.pinned + pool.tree.unpinned(node) <= pool.page_count // 3:
                pool.tree.pin(node)
                pins.append(node)
        elif event < 0.3 and pins:
            pool.tree.unpin(pins.pop(chance.randrange(len(pins))))
        elif event < 0.4 and len(live) < 4:
            sequence, number = chance.choice(live)
            live.append((pool.fork(sequence), number))
        elif event < 0.45:
            sequence, number = chance.choice(live)
            with_room = max(0, sequence.length - chance.randrange(20))
            if all(g.first_block(with_room) >= first for g, first in zip(pool.groups.groups, sequence.first_blocks, strict=True)):
                pool.truncate(sequence, with_room)
        elif event < 0.55:
            sequence, number = chance.choice(live)
            pool.adopt(sequence, texts[number])
        else:
            sequence, number = chance.choice(live)
            start, end = sequence.length, min(LENGTH, sequence.length + chance.choice((1, 1, 2, 7, 33, 64, 100)))
            if end > start and pool.reserve(sequence, end):
                rows = machine.run((sequence, texts[number][start:end]))[0]
                assert (rows - wanted[number][start:end]).abs().max() < 1e-3 * wanted[number].abs().max()
            elif end == start or len(live) > 1:
                pool.release(live.pop(live.index((sequence, number)))[0])
        pool.check_invariants()
    assert pool.tree.evicted > 0
