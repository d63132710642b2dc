"""Grammars followed by tables: the host's walk against the arena, the kernels (in the interpreter) and their reference against both."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest
import torch

from agentkit.errors import NoTokenPath
from agentkit.grammars import Grammar, Vocabulary
from agentkit.grammars.ahead import Ahead
from agentkit.grammars.device import MISS, OVER, Pushdown, token_symbols
from agentkit.grammars.expr import Builder
from agentkit.grammars.kernels import pushdown as kernels
from agentkit.grammars.kernels import pushdown_reference as reference
from agentkit.grammars.kernels.tables import FINE, LOST, MISSED, NO_ROW, STOPPED, States, Tables
from agentkit.grammars.matcher import Matcher
from agentkit.grammars.place import Place, key_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = pytest.mark.parametrize("backend", [reference, kernels], ids=["reference", "kernels"])

TEXTS = ['{"', '":', '":"', '",', '","', '"}', "[[", "[]", "]]", "]}", ", ", "12", "true", "null", "ab", "abc", "a", "bc", "((", "))", "()", '"a":', "é", "xyz"]
TOKENS = [bytes([b]) for b in range(0x20, 0x7F)] + [t.encode() for t in TEXTS] + [bytes([0xC3]), bytes([0xA9])]
VOCABULARY = Vocabulary([*TOKENS, None, None], [len(TOKENS)], special_tokens={"<call>": len(TOKENS) + 1})
STOP, CALL = len(TOKENS), len(TOKENS) + 1

CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}, "c": {"enum": ["abc", "a", None]}},
    "required": ["a"],
    "additionalProperties": False,
}


def called() -> Grammar:
    b = Builder()
    word = b.repeat(b.byte_class(range(0x61, 0x7B)), 1)
    return Grammar(b.program(b.seq(word, b.special("<call>"), b.literal(b"(a)"))))


GRAMMARS = {
    "closed": Grammar.from_json_schema(CLOSED),
    "flexible": Grammar.from_json_schema(CLOSED, whitespace="flexible", key_order="any"),
    "deep": Grammar.from_json_schema({"type": "array", "items": {"$ref": "#"}}),
    "nested": Grammar.from_lark('start: "[" (start ("," start)*)? "]" | /[0-9]{1,3}/'),
    "brackets": Grammar.from_lark('start: "(" start* ")" | /[a-c]+/'),
    "looking": Grammar.from_lark('start: A ("," A | "(" start ")")*\nA: /[a-c]+/\n%ignore " "\n'),
    "ambiguous": Grammar.from_regex("[a-z]*abc|a{2,9}b?"),
}


def moved(matcher: Matcher) -> tuple[object, int]:
    return matcher._arena, matcher.state


def allowed(row: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")).tolist()


def random_walk(grammar: Grammar, seed: int, length: int) -> list[tuple[Matcher, int]]:
    """Matchers along a random text and the token that comes next in each."""
    rng, matcher, out = random.Random(seed), grammar.matcher(VOCABULARY), []
    for _ in range(length):
        choices = [t for t in allowed(matcher.mask()) if t != STOP]
        if not choices:
            break
        token = rng.choice(choices)
        out.append((matcher.fork(), token))
        matcher.accept(token)
    return [*out, (matcher, STOP)]


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_host_follows_a_text_as_the_arena_does(name: str) -> None:
    """Wherever the walk over tables gets, what it can read from there is what the arena allows; where it does not get on, it is placed anew."""
    host, misses, steps = Pushdown(VOCABULARY, states=2000), 0, 0
    for seed in range(4):
        place: Place | None = None
        for matcher, token in random_walk(GRAMMARS[name], seed, 14):
            arena, node = matcher._arena, matcher.state
            if place is None:
                place = host.place(arena, node)
                assert place is not None
            for other in range(len(TOKENS)):
                after = arena.advance_token(node, other)
                if not after:
                    assert host.follow(place, token_symbols(VOCABULARY, other)) is None
            place = host.follow(place, token_symbols(VOCABULARY, token)) if token != STOP else None
            steps += 1
            misses += place is None and token != STOP
    assert misses <= (steps // 4 if name in ("brackets", "ambiguous") else 0)


def prepared(grammar: Grammar, requests: int = 4, *, known: bool, heads: int = 400, depth: int = 16) -> tuple[Pushdown, Tables, States, Matcher, Place]:
    """A pushdown handed over with its heads expanded, and a request that stands at the beginning."""
    host, matcher = Pushdown(VOCABULARY, states=1000, rows=32, depth=depth), grammar.matcher(VOCABULARY)
    place = host.place(matcher._arena, matcher.state)
    assert place is not None
    host.expand_near(place, heads)
    if known:
        host.know(place, matcher._arena, matcher.state)
    tables, states = Tables.of(host, requests, DEVICE), States.empty(requests, depth, DEVICE)
    states.load(1, place)
    return host, tables, states, matcher, place


def zeros(requests: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(requests, dtype=torch.int32, device=DEVICE), torch.zeros(requests, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    ("name", "backend"),
    [pytest.param(n, b, marks=pytest.mark.slow if b is kernels and n not in ("closed", "deep") else ()) for n in GRAMMARS for b in (reference, kernels)],
)
def test_masks_built_from_the_tables_are_those_of_the_arena(name: str, backend: ModuleType) -> None:
    """Along a random text: the mask that is built equals the arena's, and the state after the token leads on; no mask is known beforehand."""
    host, tables, states, _, _ = prepared(GRAMMARS[name], known=False)
    status, rows = zeros()
    built = 0
    for matcher, token in random_walk(GRAMMARS[name], 3, 4 if backend is kernels else 12):
        status.zero_()
        if not built:
            place = host.place(matcher._arena, matcher.state)
            assert place is not None
            host.expand_near(place, 400)
            tables.hand_over(host)
            states.load(1, place)
        backend.find_rows(tables, states, status, rows)
        assert rows.tolist() == [NO_ROW, tables.rows + 1, NO_ROW, NO_ROW]
        backend.build_rows(tables, states, status, rows)
        if name in ("closed", "flexible", "deep"):  # elsewhere, texts that begin alike have to be followed at once, which is a miss
            assert status.tolist() == [FINE] * 4
        if status[1] == FINE:
            assert allowed(tables.bank[int(rows[1])].cpu().numpy()) == allowed(matcher.mask())
            built += 1
        backend.advance(tables, states, status, torch.tensor([1, token, STOP, 2], device=DEVICE))
        assert status.tolist()[2] == STOPPED
        if token == STOP:
            assert status[1] == (STOPPED if matcher.is_accepting else LOST)
        elif status[1] != FINE:
            built = 0


@BACKENDS
def test_known_masks_are_found(backend: ModuleType) -> None:
    host, tables, states, matcher, place = prepared(GRAMMARS["closed"], known=True)
    status, rows = zeros()
    backend.find_rows(tables, states, status, rows)
    assert rows.tolist() == [NO_ROW, 0, NO_ROW, NO_ROW]
    assert allowed(tables.bank[0].cpu().numpy()) == allowed(matcher.mask())
    token = TOKENS.index(b'{"')
    Ahead(host).look_ahead(place, matcher._arena, matcher.state, 2)
    tables.hand_over(host)
    backend.advance(tables, states, status, torch.tensor([0, token, 0, 0], device=DEVICE))
    matcher.accept(token)
    backend.find_rows(tables, states, status, rows)
    assert 0 <= int(rows[1]) < tables.rows
    assert allowed(tables.bank[int(rows[1])].cpu().numpy()) == allowed(matcher.mask())


@BACKENDS
def test_what_is_not_handed_over_is_a_miss_and_changes_nothing(backend: ModuleType) -> None:
    """Not expanded heads, too deep a stack, two that would have to be followed at once, tokens that are not allowed."""
    _, tables, states, _, place = prepared(GRAMMARS["closed"], known=False, heads=1)
    status, rows = zeros()
    backend.find_rows(tables, states, status, rows)
    backend.build_rows(tables, states, status, rows)
    assert status.tolist() == [FINE, MISSED, FINE, FINE]
    status.zero_()
    for token in (b'{"', b"a"):
        backend.advance(tables, states, status, torch.tensor([5, TOKENS.index(token), 5, 5], device=DEVICE))
        assert status.tolist() == [FINE, LOST, FINE, FINE]
        assert states.place(1) == place
        status.zero_()
    backend.advance(tables, states, status, torch.tensor([5, STOP, 5, 5], device=DEVICE))
    assert status.tolist() == [FINE, LOST, FINE, FINE]
    _, tables, states, _, _ = prepared(GRAMMARS["deep"], known=False, depth=3)
    status.zero_()
    seen = []
    for _ in range(6):
        backend.advance(tables, states, status, torch.tensor([5, TOKENS.index(b"["), 5, 5], device=DEVICE))
        seen.append(int(status[1]))
    assert seen == sorted(seen)
    assert seen[-1] == LOST


@BACKENDS
def test_a_frame_that_begins_like_its_head_ends_up_whole(backend: ModuleType) -> None:
    """[a-z]*abc: at "a" both could read on. A miss at first; placed again, the state is one head, and the way is free."""
    grammar = Grammar.from_regex("[a-z]*abc")
    host, tables, states, matcher, place = prepared(grammar, known=False)
    assert place.frames
    status, rows = zeros()
    token = torch.tensor([0, TOKENS.index(b"a"), 0, 0], device=DEVICE)
    backend.advance(tables, states, status, token)
    assert status[1] == LOST
    assert host.follow(place, b"a") is None
    whole = host.place(matcher._arena, matcher.state)
    assert whole is not None
    assert not whole.frames
    host.expand_near(whole, 100)
    tables.hand_over(host)
    states.load(1, whole)
    status.zero_()
    for text in (b"a", b"xyz", b"abc"):
        backend.advance(tables, states, status, torch.tensor([0, TOKENS.index(text), 0, 0], device=DEVICE))
        matcher.accept(TOKENS.index(text))
    backend.find_rows(tables, states, status, rows)
    backend.build_rows(tables, states, status, rows)
    assert status[1] == FINE
    assert allowed(tables.bank[int(rows[1])].cpu().numpy()) == allowed(matcher.mask())


@BACKENDS
def test_special_tokens_are_symbols(backend: ModuleType) -> None:
    _, tables, states, matcher, _ = prepared(called(), known=False)
    status, rows = zeros()
    for token in (TOKENS.index(b"ab"), CALL, TOKENS.index(b"(")):
        backend.find_rows(tables, states, status, rows)
        backend.build_rows(tables, states, status, rows)
        assert allowed(tables.bank[int(rows[1])].cpu().numpy()) == allowed(matcher.mask())
        backend.advance(tables, states, status, torch.tensor([0, token, 0, 0], device=DEVICE))
        matcher.accept(token)
        assert status.tolist() == [FINE] * 4


def random_tables(rng: np.random.Generator, states: int, depth: int) -> tuple[Pushdown, States]:
    """An automaton that no grammar made: every kind of move, over three bytes, and requests anywhere in it."""
    host = Pushdown(VOCABULARY, states=states, rows=4, depth=depth)
    moves = rng.integers(-2, states, (states, 256, 2), dtype=np.int32)
    moves[..., 0] = np.where(rng.random((states, 256)) < 0.5, -1, moves[..., 0])
    moves[..., 1] = np.where(rng.random((states, 256)) < 0.6, -1, np.maximum(moves[..., 1], 1))
    host.moves[1:, :256], host.nullable[1:] = moves[1:], rng.random(states - 1) < 0.6
    at = States.empty(6, depth, "cpu")
    for b in range(6):
        at.load(b, Place(int(rng.integers(0, states)), tuple(rng.integers(1, states, rng.integers(0, depth + 1)).tolist())))
    return host, at


def copy(states: States) -> States:
    return States(states.heads.clone().to(DEVICE), states.depths.clone().to(DEVICE), states.stacks.clone().to(DEVICE))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_kernels_and_reference_agree_over_random_automata(seed: int) -> None:
    rng = np.random.default_rng(seed)
    host, at = random_tables(rng, 12, 5)
    tokens = torch.tensor([*rng.integers(0, len(TOKENS), 5).tolist(), STOP])
    outcomes = []
    for backend in (reference, kernels):
        tables, states, (status, rows) = Tables.of(host, 6, DEVICE), copy(at), zeros(6)
        backend.find_rows(tables, states, status, rows)
        backend.build_rows(tables, states, status, rows)
        built, missed = tables.bank[tables.rows :][status == FINE].tolist(), status.tolist()
        status.zero_()
        backend.advance(tables, states, status, tokens.to(DEVICE))
        outcomes.append((rows.tolist(), missed, built, status.tolist(), [states.place(b) for b in range(6)]))
    assert outcomes[0] == outcomes[1]


def test_a_full_pushdown_says_so_and_begins_anew() -> None:
    host, matcher = Pushdown(VOCABULARY, states=3, rows=1), GRAMMARS["closed"].matcher(VOCABULARY)
    place = host.place(*moved(matcher))
    assert place is not None
    for head in (1, 2):
        host.expand(head)
    assert host.is_full
    assert MISS in host.moves[1:3, :, 0]
    host.clear()
    assert not host.is_full
    assert host.place(*moved(matcher)) == place
    assert host.know(place, *moved(matcher)) == 0
    matcher.accept(TOKENS.index(b"{"))
    assert host.know(Place(OVER), *moved(matcher)) == MISS
    assert host.is_full


def test_keys_tell_places_apart() -> None:
    places = [Place(h, f) for h in range(4) for f in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (2,))]
    assert len({key_of(p) for p in places}) == len(places)
    assert all(-(1 << 63) <= key_of(p) < 1 << 63 for p in places)


def test_looking_ahead_meets_what_no_token_spells() -> None:
    """After "a" only "b" may come, and no token is "b": the matcher's business, and no place for the device."""
    vocabulary = Vocabulary([b"a", b"bc", None], [2])
    host, matcher = Pushdown(vocabulary, states=50, rows=4), Grammar.from_regex("ab").matcher(vocabulary)
    place = host.place(*moved(matcher))
    assert place is not None
    Ahead(host).look_ahead(place, *moved(matcher), 3)
    matcher.accept(0)
    with pytest.raises(NoTokenPath):
        host.know(Place(OVER), *moved(matcher))


def test_looking_ahead_makes_ready_what_is_forced_and_what_came_before() -> None:
    host, matcher = Pushdown(VOCABULARY, states=500, rows=50), Grammar.from_regex("(?s)[a-g]{1,9}=abc!").matcher(VOCABULARY)
    arena, node = moved(matcher)
    place = host.place(arena, node)
    assert place is not None
    ahead = Ahead(host)
    host.know(place, arena, node)
    ahead.look_ahead(place, arena, node, 2)
    assert len(host.changes.keys) == 1  # too many tokens may come, and too few for a run
    ahead.noted(arena, node, TOKENS.index(b"abc"))
    ahead.look_ahead(place, arena, node, 1)
    assert len(host.changes.keys) == 2
    for text in (b"a", b"="):
        matcher.accept(TOKENS.index(text))
    place, (arena, node) = host.place(*moved(matcher)), moved(matcher)
    assert place is not None
    host.take_changes()
    ahead.look_ahead(place, arena, node, 2)
    assert len(host.changes.keys) >= 3  # a, ab, abc and what follows


def test_looking_ahead_goes_through_the_counters_of_a_string() -> None:
    host, matcher = Pushdown(VOCABULARY, states=500, rows=50), Grammar.from_regex("[a-z]{1,9}=").matcher(VOCABULARY)
    place = host.place(*moved(matcher))
    assert place is not None
    Ahead(host).look_ahead(place, *moved(matcher), 0)
    for text in (b"abc", b"xyz", b"ab"):
        place = host.follow(place, text)
        assert place is not None
        assert host.knows(place)


def test_looking_around_makes_ready_what_is_near_however_many_tokens_may_come() -> None:
    """Names, values and what ends them, that nobody has written before."""
    schema = {"type": "object", "properties": {f"{c}{d}": {"enum": ["w", True, "xyz"]} for c in "bcd" for d in "pqs"}, "additionalProperties": False}
    host, matcher = Pushdown(VOCABULARY, states=5000, rows=500), Grammar.from_json_schema(schema).matcher(VOCABULARY)
    ahead, place = Ahead(host), host.place(*moved(matcher))
    assert place is not None
    ahead.look_ahead(place, *moved(matcher), 0, 2000)
    size = host.size
    for byte in b'{"bp":"xyz","cq":true,"ds":"w"}':
        arena, node = moved(matcher)
        ways = [s for s in range(256) if arena.advance_bytes(node, bytes([s]))]
        assert host.knows(place) or len(ways) == 1, matcher.state  # what is forced the host says
        matcher.accept_bytes(bytes([byte]))
        assert host.moves[place.head, byte, 0] != MISS
        place = host.follow(place, (byte,))
        assert place is not None
    assert host.size == size


def test_successors_by_one_call_are_those_byte_by_byte() -> None:
    for grammar in GRAMMARS.values():
        for matcher, _ in random_walk(grammar, 5, 6):
            each = [matcher.arena.advance_bytes(matcher.state, bytes([byte])) for byte in range(256)]
            assert matcher.arena.successors(matcher.state).tolist() == each
