"""Random native decoders with adapters for them: as a runner takes them, and as the public API does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from agentkit.engine.adapters.adapter import Adapter, AdapterForm, AdapterUse, Layered
from agentkit.engine.adapters.files import read_adapter
from agentkit.engine.adapters.packed import PackedLowRank
from agentkit.engine.adapters.whole import WholeAdapter
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.request import domain_of
from agentkit.engine.runner import Logits, Runner, Span
from agentkit.engine.speculation.tree import TokenTree
from tests.engine.adapters.peft_files import RandomAdapter
from tests.engine.kernels.models import decoder, tokens
from tests.engine.loaded import loaded_model


def native(folder: Path, **options: Any) -> LoadedModel:
    """A loaded model whose decoder is the native one, random."""
    plain = loaded_model(folder)
    model = decoder(vocabulary=plain.config.vocab_size, **{"layers": 2, **options})
    return replace(plain, model=model, config=replace(model.config, stop_token_ids=plain.tokenizer.stop_token_ids))


def use_of(made: RandomAdapter, folder: Path, *, number: int = 1, scale: float = 1.0, form: str = "torch") -> AdapterUse:
    """An adapter as a request holds it, by way of its files. form: "torch", "kernel", or "whole"."""
    rank, places = read_adapter(made.write(folder), made.config, torch.float32, torch.device("cpu"))
    layered = Layered({place: PackedLowRank.of(low) if form == "kernel" else low for place, low in places.items()})
    made_of: AdapterForm = WholeAdapter.of(places, made.config) if form == "whole" else layered
    return AdapterUse(Adapter("one", number, str(folder), rank, made_of), scale)


def pool_for(model: Decoder) -> KVPool:
    c = model.config
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, torch.float32)
    return KVPool(shape, 60 * shape.bytes_per_page)


def some_steps(model: Decoder, runner: Runner, pool: KVPool, uses: Sequence[AdapterUse | None]) -> tuple[list[Logits], list[torch.Tensor]]:
    """Logits and states of prompts in chunks, decoding, guesses in a chain and in a tree, and spans without rows; sequence i uses uses[i]."""
    v, states = model.config.vocab_size, list[torch.Tensor]()
    texts = [tokens(size, v, i) for i, size in enumerate((37, 3, 6, 40, 1))]
    sequences = [pool.start(text, domain_of(use, str(i))) for i, (text, use) in enumerate(zip(texts, uses, strict=True))]
    assert all(pool.reserve(s, 64) for s in sequences)
    tree = TokenTree()
    for parent, token in ((-1, 3), (-1, 4), (0, 5), (1, 6)):
        tree.add(parent, token)

    def span(i: int, ids: Sequence[int], **more: Any) -> Span:
        return Span(sequences[i], tuple(ids), adapter=uses[i], **more)

    steps = [
        [span(0, texts[0][:30], rows=0), span(1, texts[1], rows=2), span(2, texts[2]), span(4, texts[4])],
        [span(3, texts[3]), span(0, texts[0][30:], states=3, on_states=states.append), span(1, (1,)), span(4, (2,))],
        [span(1, (9, 2), draft=tree), span(0, (5,), draft=TokenTree.chain([1, 2])), span(2, (5,), rows=0), span(3, (8,))],
    ]
    return [rows for step in steps for rows in runner.execute(step)], states
