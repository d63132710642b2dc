"""Trained heads: shapes, incremental steps equal whole sequences, files, and what the proposers make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentkit.engine.speculation.features import Features, extended
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
        asked.features = Features(torch.randn(2, E), 3)
        tree = proposer.propose(asked, limit)
        assert len(tree) <= limit
        assert set(tree.tokens) <= set(medusa.ids.tolist())
        assert (len(tree) > 0) == (limit > 0)


def test_eagle_guesses_from_all_states_it_has_seen() -> None:
    head, embedding = made("eagle"), torch.randn(V, E)
    assert isinstance(head, EagleHead)
    states, tokens = torch.randn(9, E), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    proposer, grown = EagleProposer(head, embedding), Asked()
    for known in (3, 4, 7, 10):
        grown.tokens, grown.features = tokens[:known], Features(states[: known - 1], known - 1)
        tree = proposer.propose(grown, 5)
    assert tree.tokens == EagleProposer(head, embedding).propose(Asked(tokens, features=Features(states, 9)), 5).tokens


def test_medusa_leaves_out_heads_whose_tokens_are_known() -> None:
    heads = made("medusa")
    assert isinstance(heads, MedusaHeads)
    states = torch.randn(3, E)
    best = heads.ids[heads(states[-1]).argmax(-1)].tolist()
    for forced in range(3):
        tree = MedusaProposer(heads).propose(Asked([7] * (4 + forced), features=Features(states, 3)), 9)
        assert tree.tokens[0] == best[forced]
    assert len(MedusaProposer(heads).propose(Asked([7] * 7, features=Features(states, 3)), 9)) == 0


def test_eagle_steps_over_forced_tokens_by_itself() -> None:
    head, embedding = made("eagle"), torch.randn(V, E)
    assert isinstance(head, EagleHead)
    states, tokens = torch.randn(4, E), [3, 1, 4, 1, 5, 9, 2]
    following, past = head(states[None], embedding[torch.tensor(tokens[1:5])][None])
    for token in tokens[5:]:
        following, past = head(following[:, -1:], embedding[token][None, None], past)
    expected = int(head.ids[head.logits(following[0, -1]).argmax()])
    assert EagleProposer(head, embedding).propose(Asked(tokens, features=Features(states, 4)), 3).tokens[0] == expected


def test_features_are_one_run_without_gaps() -> None:
    first = extended(None, torch.zeros(3, E), 5, 4)
    more = extended(first, torch.ones(2, E), 8, 4)
    assert (more.end, more.states[:, 0].tolist()) == (10, [0, 0, 1, 1])
    assert extended(more, torch.ones(1, E), 12, 4).states.shape == (1, E)  # a gap
    rewound = extended(more, torch.full((1, E), 2.0), 9, 4)
    assert (rewound.end, rewound.states[:, 0].tolist()) == (10, [0, 0, 1, 2])
    assert more.until(3).states.shape == (0, E)
