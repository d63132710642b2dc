"""Code point sets against Python sets; their spellings against the json module and UTF-8."""

from __future__ import annotations

import json
import random

import pytest

from agentkit.grammars.expr import Builder
from agentkit.grammars.frontends.chars import JSON, JSON_FULL, SCALARS, UTF8, CharSet, json_char, json_escape, utf8_class
from tests.grammars.reference import Reference, accepts, language

EDGES = [0, 0x1F, 0x20, 0x7E, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]


def random_set(rng: random.Random, top: int) -> CharSet:
    cuts = sorted(rng.sample(range(top), 2 * rng.randint(1, 4)))
    return CharSet.from_ranges(zip(cuts[::2], cuts[1::2], strict=True))


def members(chars: CharSet) -> set[int]:
    return {c for lo, hi in chars.ranges for c in range(lo, hi + 1)}


@pytest.mark.parametrize("seed", range(20))
def test_set_algebra(seed):
    rng = random.Random(seed)
    a, b = random_set(rng, 60), random_set(rng, 60)
    assert members(a | b) == members(a) | members(b)
    assert members(a & b) == members(a) & members(b)
    assert members(a - b) == members(a) - members(b)
    assert ~~a == a
    assert members(~a & CharSet.of((0, 99))) == set(range(100)) - members(a)
    assert a.size == len(members(a))
    for chars in (a | b, a & b, a - b, ~a):  # sorted, disjoint, not touching
        assert all(x[1] + 1 < y[0] for x, y in zip(chars.ranges, chars.ranges[1:], strict=False))


def hex_spellings(char: str) -> list[str]:
    units = char.encode("utf-16-be")
    words = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return ["".join(rf"\u{w:04x}" for w in words), "".join(rf"\u{w:04X}" for w in words)]


@pytest.mark.parametrize("seed", range(30))
def test_spellings(seed):
    rng = random.Random(seed)
    chars = random_set(rng, rng.choice([0x60, 0x300, 0x3000, 0x110000]))
    refs = {}
    for name, node in (("utf8", utf8_class), ("canonical", json_char), ("full", lambda b, c: json_char(b, c, "full"))):
        b = Builder()
        refs[name] = Reference(b.program(node(b, chars)))
    near = [c + d for pair in chars.ranges for c in pair for d in (-1, 0, 1)]
    for c in (*near, *EDGES, *(rng.randrange(0x110000) for _ in range(20))):
        if not 0 <= c <= 0x10FFFF or 0xD800 <= c < 0xE000:
            continue
        char, within = chr(c), c in chars
        canonical = json.dumps(char, ensure_ascii=False)[1:-1]
        assert json_escape(char) == canonical.encode()
        assert accepts(refs["utf8"], char.encode()) == within
        assert accepts(refs["canonical"], canonical.encode()) == within
        every = {canonical, json.dumps(char)[1:-1], *hex_spellings(char)}
        assert {s for s in every if accepts(refs["canonical"], s.encode())} == ({canonical} if within else set())
        assert {s for s in every if accepts(refs["full"], s.encode())} == (every if within else set())


@pytest.mark.parametrize(
    "text",
    [rb"\ud83d", rb"\ude00\ud83d", rb"\ud83dx", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\n", b'"', b"\\", rb"\q", rb"\u12g4"],
)
def test_what_no_character_spells(text):
    for universe in ("canonical", "full"):
        b = Builder()
        assert not accepts(b.program(json_char(b, SCALARS, universe)), text)


def test_full_includes_the_escaped_slash():
    b = Builder()
    ref = Reference(b.program(json_char(b, CharSet.of("/"), "full")))
    assert accepts(ref, rb"\/")
    assert accepts(ref, b"/")


def test_every_short_full_spelling_decodes_to_one_character():
    b = Builder()
    for text in language(b.program(json_char(b, SCALARS, "full")), 6, b'\\"ud8cD0f/na'):
        assert len(json.loads(b'"' + text + b'"')) == 1, text


def test_nodes_are_made_once_per_builder():
    b = Builder()
    first = json_char(b, SCALARS, "full")
    size = len(b._nodes)
    assert all(json_char(b, SCALARS, "full") == first for _ in range(100))
    assert len(b._nodes) == size


def test_alphabets():
    b = Builder()
    assert UTF8.text(b, 'a"é') == b.literal('a"é'.encode())
    assert JSON.text(b, 'a"é') == b.literal('a\\"é'.encode())
    ref = Reference(b.program(JSON_FULL.text(b, "/é")))
    assert accepts(ref, rb"\/\u00E9")
    assert not JSON_FULL.one_spelling
