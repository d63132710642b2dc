"""Drafts change nothing about outputs: whatever is guessed, tokens and events are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from agentkit.engine.request import Request, TokenEvent
from agentkit.engine.scheduler import Limits
from agentkit.engine.speculation.lookahead import LookaheadProposer
from agentkit.engine.speculation.ngram import NgramProposer
from agentkit.engine.speculation.pace import Pace, StepCosts
from agentkit.engine.speculation.proposer import Draftable, Proposer
from agentkit.engine.speculation.speculator import Speculator
from agentkit.engine.speculation.tree import ROOT, TokenTree
from tests.engine.tiny import STOP, TOKENS, Bench, ScriptedDecoder, TextsMatcher, TinyDecoder, tokenize


class Eager(Pace):
    """Takes every guess it is offered."""

    def reach(self, most: int, base: int = 1) -> int:
        return most

    def depth(self, kind: Any, chances: Sequence[float], forced: Sequence[bool] = (), *, base: int = 1, beside: int = 1) -> int:
        return len(chances)


class Noisy:
    """Guesses a tree around known continuations, with mistakes."""

    name = "noisy"
    features = 0
    wants_choices = False

    def __init__(self, right: Sequence[Sequence[int]], wrong: float, seed: int = 0) -> None:
        self._right, self._wrong, self._rng = [list(r) for r in right], wrong, random.Random(seed)
        self.released = 0

    def propose(self, request: Draftable, limit: int) -> TokenTree:
        rng, tree = self._rng, TokenTree()
        for text in self._right:
            if text[: len(request.tokens)] == request.tokens and len(tree) < limit:
                size = rng.randrange(limit - len(tree) + 1)
                tree.extend(ROOT, [rng.randrange(STOP) if rng.random() < self._wrong else t for t in text[len(request.tokens) :][:size]])
        while len(tree) < limit and rng.random() < 0.5:
            tree.add(rng.randrange(-1, len(tree)), rng.randrange(STOP + 1))
        return tree

    def observe(self, request: Draftable, tree: TokenTree, chosen: Sequence[int]) -> None:
        raise AssertionError("not asked for")

    def release(self, request: Draftable) -> None:
        self.released += 1


def bench(proposer: Proposer | None = None, *, branches: bool = True, **options: Any) -> Bench:
    speculator = Speculator(proposer, Eager(StepCosts()), most=7, branches=branches) if proposer is not None else None
    return Bench(TinyDecoder(3), speculator=speculator, **options)


def heard(bench: Bench, request: Request) -> list[tuple[int, str, bool]]:
    """Each token with the text and the mark it came with."""
    tokens: list[tuple[int, str, bool]] = []
    for event in bench.heard(request):
        if isinstance(event, TokenEvent):
            tokens += [(token, event.text if i == 0 else "", event.forced) for i, token in enumerate(event.token_ids)]
    return tokens


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 1.3, "top_p": 0.8, "top_k": 40, "seed": 6},
    {"repetition_penalty": 1.4},
    {"stop": ["e", "AB"]},
    {"stop": ["a"], "include_stop": True, "temperature": 0.7, "seed": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=[",".join(o) or "greedy" for o in OPTIONS])
@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.7])
def test_outputs_and_events_are_those_of_plain_decoding(options: dict[str, Any], wrong: float) -> None:
    prompts = [b"hello hello", b"AB" * 20, b"q"]
    plain = bench()
    expected = [plain.complete(prompt, max_tokens=40, **options) for prompt in prompts]
    texts = [r.tokens for r in expected]
    for proposer in (Noisy(texts, wrong), NgramProposer(), LookaheadProposer(window=2, ngram=3)):
        drafting = bench(proposer)
        requests = [drafting.submit(prompt, max_tokens=40, **options) for prompt in prompts]
        drafting.run(*requests)
        for request, wanted in zip(requests, expected, strict=True):
            assert request.tokens == wanted.tokens
            assert request.outcome is not None
            assert wanted.outcome is not None
            assert (request.outcome.text, request.outcome.finish_reason) == (wanted.outcome.text, wanted.outcome.finish_reason)
            assert heard(drafting, request) == heard(plain, wanted)
            assert request.accepted <= request.drafted
            assert request.draft_state is None
    if wrong == 0.0 and not options:
        drafting = bench(Noisy(texts, 0.0))
        request = drafting.complete(prompts[0], max_tokens=40)
        assert request.accepted > 0
        assert request.forwards < expected[0].forwards


TEXTS = [b'{"AB":true,"x":"' + bytes([97 + i % 5]) * (1 + i % 4) + b'C DEF"}' for i in range(6)] + [b'{"AB":true}', b'{"AB":"EFEF"}']


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 2}, {"max_tokens": 9}], ids=["greedy", "sampled", "short"])
@pytest.mark.parametrize("wrong", [0.0, 0.4])
def test_under_a_grammar_too_with_its_forced_runs(options: dict[str, Any], wrong: float) -> None:
    options = {"max_tokens": 40, **options}
    plain = bench()
    prompt = tokenize(b"call")
    wanted = plain.complete(prompt, TextsMatcher(TEXTS), **options)
    assert wanted.outcome is not None
    assert wanted.outcome.complete
    assert wanted.forced > 0
    for seed in range(3):
        drafting = bench(Noisy([[*prompt, *tokenize(t)] for t in TEXTS[:4]] + [wanted.tokens], wrong, seed))
        request = drafting.complete(prompt, TextsMatcher(TEXTS), **options)
        assert request.tokens == wanted.tokens
        assert request.forced == wanted.forced
        assert request.forwards <= wanted.forwards


def test_many_requests_with_little_memory_come_out_the_same() -> None:
    rng = random.Random(4)
    prompts = [[rng.randrange(len(TOKENS) - 1) for _ in range(rng.randrange(1, 90))] for _ in range(14)]
    plain = bench()
    expected = [plain.complete(p, max_tokens=30, temperature=0.8, seed=i).tokens for i, p in enumerate(prompts)]
    drafting = bench(Noisy(expected, 0.2), pages=9, limits=Limits(max_running=5))
    requests = [drafting.submit(p, max_tokens=30, temperature=0.8, seed=i) for i, p in enumerate(prompts)]
    drafting.run(*requests)
    assert [r.tokens for r in requests] == expected
    assert sum(r.accepted for r in requests) > 0


def test_a_cancelled_request_lets_go_of_its_notes() -> None:
    proposer = Noisy([], 1.0)
    drafting = bench(proposer)
    request = drafting.submit(b"hello", max_tokens=100)
    drafting.step()
    request.cancel()
    drafting.step()
    assert request.error is not None
    assert proposer.released == 1


def test_nan_behind_a_draft_ends_that_request_only() -> None:
    script: list[int | None] = [*tokenize(b"abcdefgh"), None]
    model = ScriptedDecoder(script, prompt=1)
    speculator = Speculator(Noisy([[65, *tokenize(b"abcdefghijk")]], 0.0), Eager(StepCosts()))
    drafting = Bench(model, speculator=speculator)
    request = drafting.complete([65], max_tokens=30)
    assert request.error is not None
    assert request.tokens[1:] == script[:-1]


def test_an_end_token_inside_a_draft_ends_the_output_there() -> None:
    model = ScriptedDecoder([*tokenize(b"ace"), STOP, *tokenize(b"b")], prompt=1)
    guesses = [65, *tokenize(b"ace"), STOP, *tokenize(b"bbb")]
    drafting = Bench(model, speculator=Speculator(Noisy([guesses] * 40, 0.0), Eager(StepCosts())))
    request = drafting.complete([65], max_tokens=30)
    assert request.outcome is not None
    assert (request.outcome.text, request.outcome.finish_reason) == ("ace", "stop")
    assert request.tokens == [65, *tokenize(b"ace")]
    assert request.drafted > request.accepted > 0  # the end and what follows it had been guessed, too
