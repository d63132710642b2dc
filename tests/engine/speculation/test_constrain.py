"""What a grammar leaves of a tree: nothing it forbids, everything it forces."""

from __future__ import annotations

import random

import numpy as np

from agentkit.engine.speculation.constrain import constrain, masks_after
from agentkit.engine.speculation.tree import ROOT, TokenTree
from agentkit.grammars import Grammar, Matcher, Vocabulary

TOKENS = [b"a", b"b", b"ab", b"c", b"{", b"}", b'"', b"abc", None]
VOCABULARY = Vocabulary(TOKENS, stop_token_ids=[8])


def matcher_of(pattern: str) -> Matcher:
    return Grammar.from_regex(pattern).matcher(VOCABULARY)


def spelled(tree: TokenTree, node: int) -> bytes:
    return b"".join(TOKENS[tree.tokens[n]] or b"" for n in tree.path(node))


def test_every_node_can_be_decoded_and_forced_runs_are_in_it() -> None:
    rng = random.Random(3)
    for pattern in ("[ab]*c", 'a"[abc]{2,4}"}', "(ab|ac)+", '\\{"a*"\\}'):
        matcher = matcher_of(pattern)
        for _ in range(100):
            tree = TokenTree()
            for _ in range(rng.randrange(1, 14)):
                tree.add(rng.randrange(-1, len(tree)), rng.randrange(9))
            limit = rng.randrange(1, 16)
            kept = constrain(tree, matcher, [], limit)
            assert len(kept) <= limit
            assert matcher.completion_tokens() == matcher_of(pattern).completion_tokens()  # it stands where it stood
            for node in range(len(kept)):
                check = matcher_of(pattern)
                text: list[int] = []
                path = [kept.tokens[n] for n in kept.path(node)]
                while path:
                    token = path.pop(0)
                    check.accept(token)
                    text.append(token)
                    for forced in check.forced_tokens(text)[: len(path)]:
                        assert path.pop(0) == forced
                        check.accept(forced)
                        text.append(forced)


def test_forbidden_guesses_cost_nothing() -> None:
    tree = TokenTree.chain([0, 4, 0])  # a { a
    tree.extend(ROOT, [1, 3])  # b c
    kept = constrain(tree, matcher_of("[ab]*c"), [], 8)
    assert sorted(spelled(kept, n) for n in range(len(kept))) == [b"a", b"b", b"bc"]


def test_stop_tokens_are_not_drafted() -> None:
    assert len(constrain(TokenTree.chain([8, 0]), matcher_of("a*"), [], 8)) == 0


def test_masks_behind_the_nodes_of_a_tree() -> None:
    tree = TokenTree.chain([0, 1, 1])  # a b b
    tree.extend(0, [3])  # a c
    matcher = matcher_of("a[bc]{1,3}d?")  # no token spells a d
    found, mask = masks_after(tree, matcher), matcher.mask().copy()
    assert np.array_equal(matcher.mask(), mask)
    assert np.array_equal(mask, matcher_of("a[bc]{1,3}d?").mask())
    for node in range(len(tree)):
        check = matcher_of("a[bc]{1,3}d?")
        for step in tree.path(node):
            check.accept(tree.tokens[step])
        assert np.array_equal(found[node], check.mask())


def test_where_nothing_spells_what_follows_no_token_is_allowed() -> None:
    matcher = Grammar.from_regex("ax").matcher(Vocabulary([b"a", b"xy", None], stop_token_ids=[2]))
    assert not masks_after(TokenTree.chain([0]), matcher)[0].any()
    assert matcher.allows(0)
