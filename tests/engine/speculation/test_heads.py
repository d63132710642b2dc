"""Trained heads: shapes, incremental steps equal whole sequences, files, and what the proposers make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentkit.engine.speculation.heads import CONTEXT, EagleHead, Heads, HeadsConfig, MedusaHeads, load_heads, save_heads
from agentkit.engine.speculation.trained import EagleProposer, MedusaProposer
from agentkit.errors import EngineError
from tests.engine.speculation.test_ngram import Asked

E, R, V = 16, 12, 40
CONFIG = HeadsConfig("medusa", "abc", E, R, heads=3, attention_heads=2)


def made(kind: str) -> Heads:
    torch.manual_seed(0)
    ids = torch.randperm(V)[:R].sort().values
    heads = (MedusaHeads if kind == "medusa" else EagleHead)(replace(CONFIG, kind=kind), ids, torch.randn(R, E))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return heads.requires_grad_(False).eval()


def test_medusa_begins_as_the_targets_own_output_layer() -> None:
    output = torch.randn(R, E)
    heads = MedusaHeads(CONFIG, torch.arange(R), output)
    states = torch.randn(5, E)
    assert torch.allclose(heads(states), (states @ output.T).expand(3, 5, R))


def test_eagle_in_steps_is_eagle_over_the_whole() -> None:
    head = made("eagle")
    assert isinstance(head, EagleHead)
    states, embeddings = torch.randn(1, CONTEXT + 20, E), torch.randn(1, CONTEXT + 20, E)
    whole, _ = head(states, embeddings)
    parts, past, at = [], None, 0
    for size in (3, 1, CONTEXT - 10, 1, 1, 20, 4):
        part, past = head(states[:, at : at + size], embeddings[:, at : at + size], past)
        parts.append(part)
        at += size
    assert at == CONTEXT + 20
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_files_come_back_and_foreign_ones_are_refused(kind: str, tmp_path: Path) -> None:
    heads, path = made(kind), tmp_path / "deep" / "heads.safetensors"
    save_heads(heads, path)
    back = load_heads(path, kind, "abc")
    assert back.config == heads.config
    for name, tensor in heads.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(EngineError, match="trained for other weights"):
        load_heads(path, kind, "other")
    with pytest.raises(EngineError, match=f"holds {kind} heads"):
        load_heads(path, {"medusa": "eagle", "eagle": "medusa"}[kind], "abc")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(EngineError, match="not a file of trained heads"):
        load_heads(path, kind, "abc")


@pytest.mark.parametrize("limit", [0, 1, 3, 20])
def test_proposals_keep_the_limit_and_the_draft_vocabulary(limit: int) -> None:
    medusa, eagle = made("medusa"), made("eagle")
    assert isinstance(medusa, MedusaHeads)
    assert isinstance(eagle, EagleHead)
    for proposer in (MedusaProposer(medusa), EagleProposer(eagle, torch.randn(V, E))):
        asked = Asked([1, 2, 3, 4])
        assert len(proposer.propose(asked, limit)) == 0  # no states yet
        asked.features = torch.randn(2, E)
        tree = proposer.propose(asked, limit)
        assert len(tree) <= limit
        assert set(tree.tokens) <= set(medusa.ids.tolist())
        assert (len(tree) > 0) == (limit > 0)


def test_eagle_guesses_from_all_states_it_has_seen() -> None:
    head, embedding = made("eagle"), torch.randn(V, E)
    assert isinstance(head, EagleHead)
    features, tokens = torch.randn(9, E), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    proposer, grown = EagleProposer(head, embedding), Asked(tokens[:3], features=features[:2])
    for known in (3, 4, 7, 10):
        grown.tokens, grown.features = tokens[:known], features[: known - 1]
        tree = proposer.propose(grown, 5)
    assert tree.tokens == EagleProposer(head, embedding).propose(Asked(tokens, features=features), 5).tokens
