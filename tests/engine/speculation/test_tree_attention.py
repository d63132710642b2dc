"""Trees in one forward: the logits after each node are those of its path decoded alone, to the bit where kernels attend."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.attention import RANGE
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.runner import Span, TorchRunner
from agentkit.engine.speculation.tree import TokenTree
from agentkit.engine.weights.choose import quantised
from tests.engine.models.synthetic import random_decoder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return random_decoder(tmp_path_factory.mktemp("random"))


def some_tree(seed: int, size: int = 12) -> TokenTree:
    rng, tree = random.Random(seed), TokenTree()
    while len(tree) < size:
        tree.add(rng.randrange(-1, len(tree)), rng.randrange(200))
    return tree


def run(decoder: Decoder, known: list[int], draft: TokenTree | None, late: int) -> torch.Tensor:
    """Logits after the last known token and each node; the last `late` known tokens are computed with the draft."""
    c = decoder.config
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim)
    pool = KVPool(shape, 32 * shape.bytes_per_page)
    runner, other = TorchRunner(decoder, pool), pool.start([9] * 40)
    sequence = pool.start(known)
    assert pool.reserve(other, 40)
    assert pool.reserve(sequence, len(known) + 16)
    if late < len(known):
        runner.execute([Span(sequence, tuple(known[: len(known) - late]), rows=0), Span(other, (9,) * 30)])
    rows = runner.execute([Span(other, (9, 9)), Span(sequence, tuple(known[len(known) - late :]), draft=draft)])[1]
    return torch.from_numpy(rows)


@pytest.mark.parametrize("kind", ["packed", "windows", "plain", "torch"])
@pytest.mark.parametrize("length", [3, 25, RANGE - 14, RANGE])
def test_each_node_is_as_its_path_alone(kind: str, length: int, plain: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = plain
    if kind in ("packed", "windows"):
        if kind == "windows":
            config = replace(plain.config, windows=(4, None))
            decoder = Decoder(config, plain.embedding, plain.layers, plain.final_norm, plain.head)
        decoder = quantised(decoder, None, four=False)
    if kind == "torch":
        monkeypatch.setattr(BatchAttention, "plan", lambda self, group: None)
    known, tree = [random.Random(1).randrange(200) for _ in range(length)], some_tree(length)
    assert not tree.is_chain
    rows = run(decoder, known, tree, late=2)
    assert rows.shape[0] == 1 + len(tree)
    exact = kind in ("packed", "windows") and supported()
    for node in range(len(tree)):
        path = [tree.tokens[i] for i in tree.path(node)]
        alone = run(decoder, known, TokenTree.chain(path), late=1)
        if exact:
            assert torch.equal(rows[node + 1], alone[-1])
        else:
            assert torch.allclose(rows[node + 1], alone[-1], atol=1e-3)
    assert torch.equal(rows[0], run(decoder, known, None, late=2)[0]) or not exact
