"""Failure cases of subkind detok, through the engine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentkit.engine import Engine, TokenEvent
from agentkit.engine.models.tokenizer import Tokenizer
from agentkit.engine.text import OutputText
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model, raw_tokenizer
from tests.engine.tiny import STOP, Bench, ScriptedDecoder, TextsMatcher

HALF = [0x61, 0xC3]  # "a" and the first byte of a two-byte character
WAYS = {
    "end by eos": ([*HALF, STOP], {}, "a\ufffd"),
    "end by max_tokens": ([*HALF, 0xA9], {"max_tokens": 2}, "a\ufffd"),
    "end by stop string": ([*HALF, 0x62, 0x63], {"stop": ("b",)}, "a\ufffd"),
    "end by stop string before the tail": ([0x61, 0x62, 0xC3, STOP], {"stop": ("b",)}, "a"),
    "end by grammar": ([*HALF], {}, "a\ufffd"),
}


@case("tok-tail-flush-at-end")
@pytest.mark.parametrize("way", WAYS)
def test_streamed_text_equals_the_text(case_id: str, way: str) -> None:
    script, options, wanted = WAYS[way]
    bench = Bench(ScriptedDecoder(script))
    matcher = TextsMatcher([bytes(HALF), b"zz"], forced=False) if way == "end by grammar" else None
    done = bench.complete([1], matcher, **options)
    assert done.outcome is not None
    assert done.outcome.text == wanted
    assert "".join(bench.deltas(done)) == wanted


@case("tok-tail-flush-at-end")
def test_an_open_stop_string_is_released_at_every_other_end(case_id: str) -> None:
    bench = Bench(ScriptedDecoder([0x61, 0x62]))
    done = bench.complete([1], stop=("bc",))
    assert done.outcome is not None
    assert done.outcome.text == "".join(bench.deltas(done)) == "ab"


@case("tok-real-fffd")
def test_true_replacement_characters_keep_coming(case_id: str, tmp_path: Path) -> None:
    raw = raw_tokenizer()
    ids = raw.encode("\ufffd" * 500).ids
    assert len(ids) == 1500  # three bytes each
    with Engine(loaded_model(tmp_path, script=ids), threads=1) as engine:
        events = [e for e in engine.stream("p", max_tokens=1500) if isinstance(e, TokenEvent)]
        shown = [e.text for e in events if e.text]
    assert shown == ["\ufffd"] * 500


@case("tok-real-fffd")
def test_the_cost_per_token_stays_constant(case_id: str) -> None:
    """Time for the last thousand characters against the first thousand of thirty; quadratic work would make it 59 times."""
    raw = raw_tokenizer()
    output = OutputText(Tokenizer(raw).detokenizer(continuation=True), stop=("never",))
    ids = raw.encode("\ufffd" * 1000).ids

    def push() -> float:
        start = time.perf_counter()
        for token in ids:
            output.push(token)
        return time.perf_counter() - start

    times = [push() for _ in range(30)]
    assert min(times[-10:]) < 5 * min(times[:10])
    assert output.text == "\ufffd" * 30000
