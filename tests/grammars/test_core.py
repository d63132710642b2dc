"""The compiled core against the slow reference matcher, over random programs of every operator."""

from __future__ import annotations

import itertools
import random

import numba
import numpy as np
import pytest

from agentkit.errors import BudgetTooSmall, GrammarViolation, UnsatisfiableSchema
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.core.nodes import mix
from agentkit.grammars.expr import Builder, Program
from tests.grammars.random_programs import random_program, random_text
from tests.grammars.reference import Reference, accepts, prefix_ok

SINGLE = [bytes([b]) for b in b'abcx(){}":,1289 ']
MORE = [bytes(p) for p in itertools.product(b"abc", repeat=2)]
MORE += [b"abc", b"abcabc", b'":', b'",', b'{"', b'{"a', b',"', b',"a":', b'":9', b'":9}', b'9,"', b"1}", b"2,", b'b":9,"c":9', b'a":9,"a"']
TOKENS: list[bytes | None] = [*SINGLE, *MORE, None, None]
END, STOP = len(TOKENS) - 2, len(TOKENS) - 1
SPELLED: list[list[int | str]] = [list(t or b"") for t in TOKENS[:END]] + [["<end>"]]
VOCABULARY = Vocabulary(TOKENS, stop_token_ids=[STOP], special_tokens={"<end>": END})
# no token that could hold two keys, as in real vocabularies: undeclared keys are then treated as texts
ONE_KEY: list[bytes | None] = [None if t == b'a":9,"a"' else t for t in TOKENS]
VOCABULARIES = [VOCABULARY, Vocabulary(ONE_KEY, stop_token_ids=[STOP], special_tokens={"<end>": END})]


def allowed(matcher: Matcher) -> set[int]:
    row = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(row).tolist())


def matcher_of(program: Program, vocabulary: Vocabulary = VOCABULARY) -> Matcher | None:
    try:
        return Grammar(program).matcher(vocabulary)
    except UnsatisfiableSchema:
        return None


@pytest.mark.parametrize("seed", range(200))
def test_texts_and_masks_equal_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    program = random_program(rng)
    reference = Reference(program)
    vocabulary = VOCABULARIES[seed % 2]
    start = matcher_of(program, vocabulary)
    if start is None:
        assert not prefix_ok(reference, b"")
        return
    for _ in range(6):
        matcher, text = start.fork(), list[int | str]()
        for _ in range(10):
            expected = {i for i, t in enumerate(SPELLED) if vocabulary.tokens[i] is not None or i == END if prefix_ok(reference, text + t)}
            if accepts(reference, text):
                expected.add(STOP)
            assert allowed(matcher) == expected, text
            assert matcher.is_accepting == (STOP in expected)
            assert {i for i in range(STOP + 1) if matcher.allows(i)} == expected
            if not expected - {STOP}:
                break
            token = rng.choice(sorted(expected - {STOP}))
            matcher.accept(token)
            text += SPELLED[token]


@pytest.mark.parametrize("seed", range(150))
def test_random_texts_are_judged_as_by_the_reference(seed: int) -> None:
    rng = random.Random(1000 + seed)
    program = random_program(rng)
    reference = Reference(program)
    start = matcher_of(program)
    for _ in range(30):
        text = random_text(rng)
        matcher = start.fork() if start else None
        try:
            if matcher:
                matcher.accept_bytes(text)
        except GrammarViolation:
            matcher = None
        assert (matcher is not None) == prefix_ok(reference, text), text
        assert bool(matcher and matcher.is_accepting) == accepts(reference, text), text


@pytest.mark.parametrize("seed", range(80))
def test_the_budget_guard_always_reaches_the_end(seed: int) -> None:
    rng = random.Random(5000 + seed)
    start = matcher_of(random_program(rng))
    if start is None:
        return
    needed = start.completion_tokens()
    for budget in (needed, needed + 1, needed + 3):
        for _ in range(4):
            matcher, left = start.fork(), budget
            while left and not (matcher.is_accepting and rng.random() < 0.1):
                row = np.unpackbits(matcher.guarded_mask(left).view(np.uint8), bitorder="little")
                choice = sorted(set(np.flatnonzero(row).tolist()) - {STOP})
                if not choice:
                    break
                token = rng.choice(choice)
                assert matcher.fits(token, left)
                matcher.accept(token)
                left -= 1
            assert matcher.is_accepting


def test_a_budget_below_the_shortest_completion_allows_nothing() -> None:
    b = Builder()
    matcher = Grammar(b.program(b.literal(b"abcabcabc"))).matcher(VOCABULARY)
    assert matcher.completion_tokens() == 2
    assert not matcher.guarded_mask(1).any()
    assert matcher.guarded_mask(2).any()


def test_a_budget_far_below_a_long_shortest_completion() -> None:
    """Texts too long to be spelled are counted by their bytes: a budget too small, not a text without tokens."""
    b = Builder()
    for count, most in ((70_000, 35_000), (300_000, 300_000)):  # a shortest text is a run of "a"; "aa" is a token
        matcher = Grammar(b.program(b.repeat(b.byte_class(b"abc"), count, count))).matcher(VOCABULARY)
        with pytest.raises(BudgetTooSmall) as caught:
            matcher.check_budget(10)
        assert caught.value.needed == most


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of numpy's numbers, where kernels run as plain Python
def test_a_hash_is_the_same_where_the_compiler_knows_the_signs_of_what_goes_in() -> None:
    """Else a kernel does not find what another one has put down: names of an object were let through a second time."""
    inlined = numba.njit(getattr(mix, "py_func", mix))

    @numba.njit
    def mix_positive(h: int, value: int) -> int:
        return inlined(h & 0x7FFFFFFFFFFFFFFF, value & 0xFF)  # type: ignore[no-any-return]

    h = 12345
    for value in range(50):
        expected = ((h ^ value) * 0x2545F4914F6CDD1D + (h >> 29)) & 0x7FFFFFFFFFFFFFFF
        assert mix_positive(h, value) == expected
        h = expected
