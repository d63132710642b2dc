"""Random context-free grammars in Lark's notation, and lark's own verdict on texts. Knows nothing of agentkit."""

from __future__ import annotations

import itertools
import random

import lark

LETTERS = "ab"
TEXTS = ["".join(letters) for size in range(4) for letters in itertools.product(LETTERS, repeat=size)]


def random_grammar(rng: random.Random) -> str:
    """A few rules that call each other in every way: left, right, hidden and mutual recursion, empty and useless rules."""
    names = ["start", *(f"r{i}" for i in range(rng.randint(1, 4)))]
    lines = [f"{name}: {_choices(rng, names, 2)}" for name in names]
    if rng.random() < 0.3:
        lines += [f"twice{{x}}: x {_item(rng, names, 0)} x", f"{names[-1]}x: twice{{{rng.choice(names)}}} | twice{{A}}", 'A: "a"']
        lines[0] += f" | {names[-1]}x"
    if rng.random() < 0.2:
        lines.append('%ignore "b"')
    return "\n".join(lines) + "\n"


def _choices(rng: random.Random, names: list[str], depth: int) -> str:
    return " | ".join(" ".join(_item(rng, names, depth) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))) for _ in range(rng.randint(1, 3)))


def _item(rng: random.Random, names: list[str], depth: int) -> str:
    kind = rng.random()
    if kind < 0.4 or (depth == 0 and kind >= 0.75):
        return rng.choice(['"a"', '"b"', '"ab"', "/[ab]/", "/a+/", "/b?a/"])
    if kind < 0.75:
        return rng.choice(names)
    if kind < 0.85:
        return f"[{_choices(rng, names, depth - 1)}]"
    inner = f"({_choices(rng, names, depth - 1)})"
    return inner + rng.choice(["?", "*", "+", "~2", "~1..2", "~0..3", ""])


def lark_parser(text: str) -> lark.Lark | None:
    """lark's Earley parser; None where lark refuses the grammar itself (equal alternatives, for instance) or would be too slow with it."""
    try:
        parser = lark.Lark(text, parser="earley", lexer="dynamic", ambiguity="forest")
    except lark.exceptions.LarkError:
        return None
    return parser if len(parser.rules) <= 20 else None


def takes(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    except RuntimeError as error:
        if "multiple start symbol" not in str(error):
            raise
        # lark has found the text in two ways that it cannot join
    return True
