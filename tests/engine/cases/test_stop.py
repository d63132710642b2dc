"""Failure cases of subkind stop."""

from __future__ import annotations

import pytest

from tests.engine.cases.support import case
from tests.engine.tiny import TOKENS, Bench, ScriptedDecoder

SCRIPT = [TOKENS.index(t) for t in (b"AB", b"C D", b"EF", b"G")]


def run(*stop: str, include_stop: bool = False, script: list[int] | None = None) -> tuple[str, list[str], str | None, str]:
    """Text, deltas, the stop string found, and the finish reason."""
    bench = Bench(ScriptedDecoder(script or SCRIPT))
    done = bench.complete([1], stop=stop, include_stop=include_stop)
    assert done.outcome is not None
    deltas = bench.deltas(done)
    assert "".join(deltas) == done.outcome.text
    return done.outcome.text, deltas, done.outcome.stop_string, done.outcome.finish_reason


@case("eng-stop-string-across-tokens")
def test_a_stop_inside_tokens_ends_the_text_before_it(case_id: str) -> None:
    text, deltas, found, reason = run("DE")
    assert (text, found, reason) == ("ABC ", "DE", "stop")
    assert not any("D" in delta for delta in deltas)


@case("eng-stop-string-across-tokens")
def test_held_text_is_released_when_it_cannot_match(case_id: str) -> None:
    text, deltas, found, _ = run("FGX")
    assert (text, found) == ("ABC DEFG", None)
    assert deltas[2] == "E"  # "EF" came: F might begin the stop string, E cannot


@case("eng-stop-string-across-tokens")
def test_include_stop(case_id: str) -> None:
    assert run("DE", include_stop=True)[0] == "ABC DE"


@case("eng-stop-string-across-tokens")
@pytest.mark.parametrize("stop", [("DEFG", "CD", "C D"), ("C D", "DEFG", "B"), ("G", "EF", "BC")])
def test_the_earliest_end_wins(case_id: str, stop: tuple[str, ...]) -> None:
    full = "ABC DEFG"
    end = min(full.index(s) + len(s) for s in stop if s in full)
    text, _, found, _ = run(*stop, include_stop=True)
    assert text == full[:end]
    assert found is not None
    assert text.endswith(found)


@case("eng-stop-string-across-tokens")
def test_of_equal_ends_the_longest_stop_counts(case_id: str) -> None:
    assert run("DE", "C DE", "E")[:1] == ("AB",)


@case("eng-stop-string-across-tokens")
def test_generation_ends_with_the_token_that_completed_the_stop(case_id: str) -> None:
    bench = Bench(ScriptedDecoder(SCRIPT))
    done = bench.complete([1], stop=("DE",))
    assert done.outcome is not None
    assert list(done.outcome.token_ids) == SCRIPT[:3]
    assert done.forwards == 3


@case("eng-stop-string-across-tokens")
def test_characters_in_pieces_and_overlapping_starts(case_id: str) -> None:
    script = [0x61, 0xC3, 0xA9, 0x61, 0x61, 0x62]  # a é(two tokens) a a b
    assert run("éaab", script=script)[0] == "a"
    assert run("aab", script=script)[0] == "aé"
    assert run("aac", script=script)[0] == "aéaab"
