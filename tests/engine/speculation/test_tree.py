"""Token trees: merging, order, ancestry."""

from __future__ import annotations

import random

import numpy as np

from agentkit.engine.speculation.tree import ROOT, TokenTree, ancestry


def random_tree(rng: random.Random, size: int) -> TokenTree:
    tree = TokenTree()
    while len(tree) < size:
        tree.add(rng.randrange(-1, len(tree)), rng.randrange(4))
    return tree


def test_shared_beginnings_are_one_branch() -> None:
    tree = TokenTree.chain([5, 6, 7])
    assert tree.is_chain
    last = tree.extend(ROOT, [5, 6, 8, 9])
    assert (tree.tokens, tree.parents, tree.depths) == ([5, 6, 7, 8, 9], [-1, 0, 1, 1, 3], [1, 2, 3, 3, 4])
    assert not tree.is_chain
    assert tree.path(last) == [0, 1, 3, 4]
    assert tree.children(1) == [2, 3]
    assert (tree.child(ROOT, 5), tree.child(1, 8), tree.child(1, 9)) == (0, 3, None)
    assert tree.path(ROOT) == []
    assert tree.extend(ROOT, []) == ROOT


def test_every_beginning_of_the_nodes_is_a_tree() -> None:
    rng = random.Random(1)
    for _ in range(50):
        tree = random_tree(rng, rng.randrange(1, 20))
        assert all(parent < i for i, parent in enumerate(tree.parents))
        for size in range(len(tree) + 2):
            part = tree.trimmed(size)
            assert part.tokens == tree.tokens[:size]
            assert part.parents == tree.parents[:size]


def test_ancestry_is_the_union_of_paths() -> None:
    rng = random.Random(2)
    for _ in range(50):
        tree = random_tree(rng, rng.randrange(0, 24))
        wanted = np.zeros((len(tree), len(tree)), dtype=bool)
        for node in range(len(tree)):
            wanted[node, tree.path(node)] = True
        assert (tree.visible() == wanted).all()
    assert (ancestry([-1, -1]) == np.eye(2, dtype=bool)).all()
