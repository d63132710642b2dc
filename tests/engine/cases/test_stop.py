"""Failure cases of subkind stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkit import Engine
from agentkit.engine.request import FinishEvent, TokenEvent
from agentkit.grammars import Grammar
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model, raw_tokenizer
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


THOUGHT = "well, END is one word ... END ..."
ASIDE = ("<think>", "</think>")


def thinking(folder: Path, output: str, prompt: str = "ask", specials: tuple[str, ...] = ()) -> Engine:
    """An engine whose model writes `output` after the prompt."""
    raw = raw_tokenizer(specials)
    script = raw.encode(output).ids
    return Engine(loaded_model(folder, script=script, prompt=len(raw.encode(prompt).ids), specials=list(specials)), seed=1)


@case("eng-stop-not-in-reasoning")
@pytest.mark.parametrize("specials", [(), ASIDE], ids=["markers that are text", "markers that are special tokens"])
def test_a_stop_string_does_not_cut_the_reasoning(tmp_path: Path, case_id: str, specials: tuple[str, ...]) -> None:
    with thinking(tmp_path, f"<think>{THOUGHT}</think>\n\nok END x", specials=specials) as engine:
        options = {"stop": ["END"], "stop_outside": ASIDE, "max_tokens": 120}
        made = engine.generate("ask", **options)
        thought, answer = (THOUGHT, "\n\nok ") if specials else (f"<think>{THOUGHT}</think>", "\n\nok ")
        assert (made.text, made.stop_string, made.finish_reason) == (thought + answer, "END", "stop")
        events = list(engine.stream("ask", **options))
        assert "".join(e.text for e in events if isinstance(e, TokenEvent)) == made.text
        assert isinstance(events[-1], FinishEvent)
        assert "ok END" not in engine.generate("ask", stop=["END"], max_tokens=120).text
        assert engine.generate("ask", stop=["END"], max_tokens=120).text.endswith("well, ")  # without the option every match counts


@case("eng-stop-not-in-reasoning")
def test_reasoning_that_the_prompt_has_begun(tmp_path: Path, case_id: str) -> None:
    with thinking(tmp_path, f"{THOUGHT}</think>ok END x", prompt="ask<think>\n") as engine:
        made = engine.generate("ask<think>\n", stop="END", stop_outside=ASIDE, max_tokens=120)
        assert (made.text, made.stop_string) == (f"{THOUGHT}</think>ok ", "END")


@case("eng-stop-not-in-reasoning")
@pytest.mark.parametrize(
    ("begin", "prompt"), [("<think>\n", "ask<think>\n"), ("<think>\n", "ask<think>\n\n"), ("\n\n", "ask\n\n"), ("«思考»", "ask«思考» ")], ids=repr
)
def test_what_begins_reasoning_may_end_in_blanks_and_be_of_any_letters(begin: str, prompt: str, tmp_path: Path, case_id: str) -> None:
    with thinking(tmp_path, f"{THOUGHT}</think>ok END x", prompt=prompt) as engine:
        made = engine.generate(prompt, stop="END", stop_outside=(begin, "</think>"), max_tokens=120)
        assert (made.text, made.stop_string) == (f"{THOUGHT}</think>ok ", "END")
        never = engine.generate(prompt, stop="END", stop_outside=("\ud800", "</think>"), max_tokens=120)
        assert never.stop_string == "END"


@case("eng-stop-not-in-reasoning")
def test_under_the_grammar_of_a_turn(tmp_path: Path, case_id: str) -> None:
    grammar = Grammar.from_tools([{"name": "f", "parameters": {}}], format="qwen", reasoning="allowed")
    with thinking(tmp_path, f"<think>{THOUGHT}</think>ok END x") as engine:
        made = engine.generate("ask", grammar=grammar, stop=["END"], stop_outside=ASIDE, max_tokens=120)
        assert (made.text, made.stop_string) == (f"<think>{THOUGHT}</think>ok ", "END")


@case("eng-stop-not-in-reasoning")
@pytest.mark.parametrize("wrong", ["<think>", ("<think>",), ("<a>", "<a>"), ("", "x"), ("a", 1), 3])
def test_what_is_no_pair_of_texts_is_refused(case_id: str, wrong: object) -> None:
    from agentkit.engine.config import SamplingParams

    with pytest.raises(ValueError, match="stop_outside must be two different texts"):
        SamplingParams(stop_outside=wrong)  # type: ignore[arg-type]
