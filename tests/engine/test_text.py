"""Stop strings and hold-back against the plain definition, over random splits of a text into tokens."""

from __future__ import annotations

import random

import pytest

from agentkit.engine.text import OutputText


class Pieces:
    """A detokenizer whose token i is pieces[i]; `tail` is what is left at the end."""

    def __init__(self, pieces: list[str], tail: str = "") -> None:
        self.pieces, self.tail = pieces, tail

    def push(self, token: int, /) -> str:
        return self.pieces[token]

    def finish(self) -> str:
        return self.tail


def wanted(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The text up to the match that ends first; of those the longest."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@pytest.mark.parametrize("seed", range(100))
def test_random_splits(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("abc") for _ in range(rng.randrange(25)))
    stops = ["".join(rng.choice("abc") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(4))]
    include = rng.random() < 0.5
    pieces, rest = [], text
    while rest:
        size = rng.randrange(0, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    tail = pieces.pop() if pieces and rng.random() < 0.3 else ""
    output = OutputText(Pieces(pieces, tail), stops, include)
    deltas = []
    for token in range(len(pieces)):
        deltas.append(output.push(token))
        shown, so_far = "".join(deltas), "".join(pieces[: token + 1])
        held = so_far[len(shown) :]
        assert so_far.startswith(shown)
        if output.stopped is not None:
            break
        assert not held or any(s.startswith(held) for s in stops)  # nothing is held back without need
    deltas.append(output.finish())
    assert ("".join(deltas), output.stopped) == wanted(text, stops, include)
    assert output.text == "".join(deltas)


def wanted_outside(text: str, stops: list[str], outside: tuple[str, str], inside: bool) -> tuple[str, str | None]:
    """Character by character: a stop string or a marker is found where it ends first."""
    begun = 0  # what was seen before a marker cannot be part of a match after it
    for end in range(1, len(text) + 1):
        seen = text[begun:end]
        found = [] if inside else [s for s in stops if seen.endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
        if seen.endswith(outside[inside]):
            inside, begun = not inside, end
    return text, None


@pytest.mark.parametrize("seed", range(60))
def test_stop_strings_count_outside_only_however_the_text_is_split(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab<>/") for _ in range(rng.randrange(40)))
    stops, outside = ["ab", "<a", "//b"], ("<", ">") if seed % 2 else ("</", "/>")
    inside = rng.random() < 0.3
    cuts = sorted(rng.choices(range(len(text) + 1), k=8))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    output = OutputText(Pieces(pieces), stops, outside=outside, inside=inside)
    deltas = []
    for token in range(len(pieces)):
        deltas.append(output.push(token))
        if output.stopped is not None:
            break
    deltas.append(output.finish())
    assert ("".join(deltas), output.stopped) == wanted_outside(text, stops, outside, inside)
    assert output.text == "".join(deltas)


def test_markers_that_have_no_text() -> None:
    pieces = ["a", "", "END", "", "b E", "ND", "c"]
    marks = {1: "<think>", 3: "</think>"}
    output = OutputText(Pieces(pieces), ["END"], outside=("<think>", "</think>"), marks=marks)
    assert [output.push(token) for token in range(6)] == ["a", "", "END", "", "b ", ""]
    assert (output.text, output.stopped) == ("aENDb ", "END")
