"""Training heads: they learn a habit of the texts, go on after an interruption, and refuse too little."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentkit.engine.models.decoder import Decoder
from agentkit.engine.speculation.heads import load_heads
from agentkit.engine.speculation.training import Plan, Text, output_rows, train_heads
from agentkit.errors import EngineError
from tests.engine.models.synthetic import random_decoder

PLAN = Plan(vocabulary=24, heads=2, epochs=6, batch=4, learning_rate=3e-3, checkpoint=5)


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def habits(count: int) -> list[Text]:
    """Texts that count upwards from anywhere, modulo 20."""
    rng = random.Random(5)
    starts = [rng.randrange(20) for _ in range(count)]
    return [Text(tuple((start + i) % 20 for i in range(24)), 4) for start in starts]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return random_decoder(tmp_path_factory.mktemp("random"))


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_habit_is_learnt(kind: str, decoder: Decoder, tmp_path: Path) -> None:
    path, score = train_heads(kind, decoder, "digest", habits(60), tmp_path, PLAN, quiet)
    assert min(score) > 0.8
    heads = load_heads(path, kind, "digest")
    assert heads.config.score == score[0]
    assert set(heads.ids.tolist()) == set(range(20))


def test_an_interrupted_training_goes_on_where_it_was(decoder: Decoder, tmp_path: Path) -> None:
    texts, steps = habits(40), []

    def interrupting(what: str, done: int, total: int) -> None:
        if what.startswith("training"):
            steps.append(done)
            if len(steps) == 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_heads("medusa", decoder, "digest", texts, tmp_path, PLAN, interrupting)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "states").iterdir())
    train_heads("medusa", decoder, "digest", texts, tmp_path, PLAN, interrupting)
    assert steps[12] == 11  # the last checkpoint was after 10
    assert sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "states").iterdir()) == before
    whole, _ = train_heads("medusa", decoder, "digest", texts, tmp_path / "again", PLAN, quiet)
    for name, tensor in load_heads(whole, "medusa", "digest").state_dict().items():
        assert torch.allclose(tensor, load_heads(tmp_path / "medusa.safetensors", "medusa", "digest").state_dict()[name], atol=1e-6)


def test_too_few_texts_are_refused(decoder: Decoder, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="too few"):
        train_heads("eagle", decoder, "digest", habits(9), tmp_path, PLAN, quiet)


def test_rows_of_the_output_layer_are_those_of_its_matrix(decoder: Decoder) -> None:
    ids = torch.tensor([3, 1, 7])
    expected = decoder.embedding[ids] if decoder.config.tie_embeddings else decoder.head.weight[ids]  # type: ignore[attr-defined]
    assert torch.allclose(output_rows(decoder, ids), expected)
    untied = Decoder(replace(decoder.config, tie_embeddings=False), decoder.embedding, decoder.layers, decoder.final_norm, decoder.head)
    assert torch.allclose(output_rows(untied, ids), expected, atol=1e-6)
