"""Random members of a set of texts, for tests that hand them to another judge."""

from __future__ import annotations

import random

from agentkit.grammars.frontends.texts import TextSet


def random_member(texts: TextSet, rng: random.Random, steps: int = 30) -> str:
    """About `steps` random characters that can be completed, then the shortest completion found."""
    node, out = texts.root, ""
    for _ in range(steps):
        ways = [(texts.step(node, code), chars) for code, chars in enumerate(texts.alphabet.classes)]
        ways = [(after, chars) for after, chars in ways if texts.alive(after)]
        if not ways or (texts.nullable(node) and rng.random() < 0.1):
            break
        node, chars = rng.choice(ways)
        low, high = rng.choice(chars.ranges)
        out += chr(rng.randint(low, high))
    texts.root, root = node, texts.root
    try:
        rest = texts.shortest()
    finally:
        texts.root = root
    assert rest is not None, f"no completion of {out!r} was found"
    return out + rest
