"""Failure cases of subkind eos, with the real matcher and through the engine."""

from __future__ import annotations

from pathlib import Path

from agentkit.engine import Engine
from agentkit.grammars import Grammar, Matcher
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model
from tests.engine.tiny import STOP, Bench, ScriptedDecoder, TextsMatcher


def matcher(engine: Engine, pattern: str) -> Matcher:
    return Grammar.from_regex(pattern).matcher(engine.vocabulary)


@case("tok-terminated-matcher")
def test_tokens_after_the_end_leave_a_matcher_finished(case_id: str, tmp_path: Path) -> None:
    with Engine(loaded_model(tmp_path), threads=1) as engine:
        m = matcher(engine, "ab")
        a, b = (engine.tokenizer.encode(c)[0] for c in "ab")
        for token in (a, b, engine.vocabulary.stop_token_ids[0]):
            m.accept(token)
        for token in (a, b, engine.vocabulary.stop_token_ids[0]):
            assert m.is_finished
            assert not m.mask().any()
            assert m.forced_tokens() == []
            m.accept(token)
        assert m.is_finished


@case("tok-terminated-matcher")
def test_a_finished_request_gets_no_further_mask(case_id: str) -> None:
    m = TextsMatcher([b"ab", b"abab"], forced=False)
    bench = Bench(ScriptedDecoder([0x61, 0x62, STOP, 0x61]))
    done = bench.complete([1], m)
    masks, accepts = m.masks, m.accepts
    for _ in range(3):
        bench.step()
    assert done.outcome is not None
    assert (done.outcome.text, m.is_finished) == ("ab", True)
    assert (m.masks, m.accepts) == (masks, accepts)
    assert accepts == 3


@case("tok-split-invariance")
def test_any_split_of_the_tokens_is_accepted_alike(case_id: str, tmp_path: Path) -> None:
    with Engine(loaded_model(tmp_path), threads=1) as engine:
        stop = engine.vocabulary.stop_token_ids[0]
        tokens = [*engine.tokenizer.encode("aba"), stop]
        for cut in range(len(tokens) + 1):
            m = matcher(engine, "aba")
            for part in (tokens[:cut], tokens[cut:]):
                for token in part:
                    assert m.allows(token)
                    m.accept(token)
                m = m if m.is_finished else m.fork()  # as between two requests to the matcher
            assert m.is_finished
