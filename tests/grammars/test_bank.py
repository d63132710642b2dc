"""The bank of mask rows: bounded, what somebody holds stays, what goes is walked again to the same mask."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agentkit.grammars import Grammar, Matcher, Vocabulary, configure
from agentkit.grammars.arena import Arena
from agentkit.grammars.core import layout
from agentkit.grammars.settings import settings

ROWS = 48
LETTERS = b"abcdefghij"


def tokens() -> list[bytes | None]:
    rng = random.Random(7)
    words = {bytes(rng.choices(LETTERS + b'"{}:, 01', k=n)) for n in (2, 2, 3, 3, 4) for _ in range(60)}
    return [None, *(bytes([b]) for b in range(256)), *sorted(words)]


@pytest.fixture
def small_bank() -> Iterator[None]:
    before = settings.bank_bytes
    words = (len(tokens()) + 31) // 32
    configure(bank_bytes=ROWS * 4 * words)
    yield
    configure(bank_bytes=before)


def fresh() -> Vocabulary:
    return Vocabulary(tokens(), [0])


def words_of(rng: random.Random) -> list[str]:
    return sorted({"".join(rng.choices("abcdefghij", k=rng.randrange(4, 9))) for _ in range(12)})


def write(matcher: Matcher, text: str) -> list[np.ndarray]:
    """The masks on the way through a text, byte by byte; the matcher is back at its beginning afterwards."""
    masks = [matcher.mask().copy()]
    for byte in text.encode():
        matcher.accept_bytes(bytes([byte]))
        masks.append(matcher.mask().copy())
    matcher.rollback(len(text.encode()))
    return masks


def test_masks_stay_right_while_rows_come_and_go(small_bank: None) -> None:
    rng, vocabulary = random.Random(1), fresh()
    for round_ in range(30):
        chosen = words_of(rng)
        schema: Any = {"type": "object", "properties": {w: {"type": "string", "maxLength": rng.randrange(2, 6)} for w in chosen}}
        grammars = [Grammar.from_choices(chosen), Grammar.from_json_schema(schema, key_order="any")]
        for grammar, text in zip(grammars, (chosen[0], f'{{"{chosen[1]}":"ab","x":[1,"j"]}}'), strict=True):
            used, alone = write(grammar.matcher(vocabulary), text), write(grammar.matcher(fresh()), text)
            for mine, theirs in zip(used, alone, strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"round {round_}, {text}")
    figures = vocabulary.stats()
    assert figures["mask_rows"] <= ROWS == len(vocabulary.bank)
    assert figures["mask_sweeps"] > 3
    assert figures["mask_rows_evicted"] >= figures["mask_sweeps"]


def others(vocabulary: Vocabulary, seed: int, count: int = 12) -> None:
    """Grammars that come once and are dropped."""
    rng = random.Random(seed)
    for _ in range(count):
        chosen = words_of(rng)
        matcher = Grammar.from_choices(chosen).matcher(vocabulary)
        for text in chosen[:4]:
            write(matcher, text)
    del matcher
    gc.collect()


def rows_of(arena: Arena, states: list[int]) -> list[int]:
    """1 + the row of each state's mask, 0 where it has none now."""
    mem = arena._mem
    return [int(mem[mem[layout.H_NODES] + layout.STRIDE * state + layout.N_MASK]) for state in states]


def test_rows_of_a_grammar_that_is_held_stay(small_bank: None) -> None:
    vocabulary = fresh()
    held = Grammar.from_choices(["abcdefg", "abcxyz", "bcd"])
    write(held.matcher(vocabulary), "abcdefg")
    arena = vocabulary.arena
    states = list(arena.masks)
    numbers = {s: arena.bank[arena.mask_row(s)].copy() for s in states}
    others(vocabulary, 2)
    assert vocabulary.stats()["mask_sweeps"] > 0
    kept = rows_of(arena, states)
    assert all(kept), "a row of a grammar that is held has gone"
    assert all((arena.bank[row - 1] == numbers[s]).all() for row, s in zip(kept, states, strict=True))
    del held
    gc.collect()
    others(vocabulary, 3, 30)
    kept = rows_of(arena, states)
    assert not all(kept), "nothing of a grammar that nobody holds has gone"


def test_a_mask_that_was_given_out_stays_what_it_was(small_bank: None) -> None:
    vocabulary = fresh()
    matcher = Grammar.from_choices(["abc", "abd"]).matcher(vocabulary)
    given = matcher.mask()
    before = given.copy()
    others(vocabulary, 4)
    np.testing.assert_array_equal(given, before)
    np.testing.assert_array_equal(matcher.mask(), before)
    assert not given.flags.writeable


def test_more_rows_at_once_than_the_bound(small_bank: None) -> None:
    configure(bank_bytes=1)
    vocabulary = fresh()
    matcher = Grammar.from_json_schema({"type": "string", "maxLength": 30}).matcher(vocabulary)
    alone = fresh()
    expected = write(Grammar.from_json_schema({"type": "string", "maxLength": 30}).matcher(alone), '"abcab"')
    for mine, theirs in zip(write(matcher, '"abcab"'), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_figures() -> None:
    vocabulary = fresh()
    matcher = Grammar.from_choices(["abc", "abd"]).matcher(vocabulary)
    for _ in range(3):
        matcher.mask()
    figures = vocabulary.stats()
    assert (figures["mask_walks"], figures["mask_hits"], figures["mask_rows"]) == (1, 2, 1)
    assert figures["mask_bytes"] == 4 * vocabulary.words
    assert (figures["mask_sweeps"], figures["mask_rows_evicted"]) == (0, 0)
    assert figures["reserved_bytes"] >= figures["state_bytes"] + figures["mask_bytes"]


def test_a_bound_holds_from_now_on(small_bank: None) -> None:
    vocabulary = fresh()
    others(vocabulary, 5)
    assert len(vocabulary.bank) == ROWS
    configure(bank_bytes=settings.bank_bytes // 2)
    others(vocabulary, 6)
    assert len(vocabulary.bank) == ROWS // 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan"), float("inf"), "1", True], ids=repr)
def test_what_is_no_bound_is_refused_and_changes_nothing(wrong: Any) -> None:
    before = (settings.bank_bytes, settings.arena_bytes, settings.disk)
    with pytest.raises(ValueError, match="arena_bytes must be a positive integer"):
        configure(bank_bytes=1, arena_bytes=wrong)
    with pytest.raises(ValueError, match="disk_cache must be the path"):
        configure(bank_bytes=1, disk_cache=5)  # type: ignore[arg-type]
    assert (settings.bank_bytes, settings.arena_bytes, settings.disk) == before
