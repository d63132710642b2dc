"""The model's own first layers guess: outputs unchanged, nothing left behind in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine.models.decoder import Decoder
from agentkit.engine.speculation.pace import StepCosts
from agentkit.engine.speculation.self_draft import SelfDraftProposer, first_layers
from agentkit.engine.speculation.setting import check_speculation
from agentkit.engine.speculation.speculator import Speculator
from tests.engine.models.synthetic import LAYERS, random_decoder
from tests.engine.speculation.test_speculator import Eager
from tests.engine.tiny import STOP, TOKENS, Bench, TinyDecoder


def drafting(layers: int, **options: Any) -> Bench:
    bench = Bench(TinyDecoder(3, layers=3), **options)
    less = TinyDecoder(3, layers=3)
    less.weights = less.weights[:layers]
    proposer = SelfDraftProposer(less, bench.pool, torch.device("cpu"), len(TOKENS), [STOP])
    bench.scheduler._speculator = Speculator(proposer, Eager(StepCosts()), most=5)
    return bench


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("pages", [12, 2048])
def test_outputs_are_those_of_plain_decoding(options: dict[str, Any], layers: int, pages: int) -> None:
    prompts = [b"hello", b"AB" * 40, b"x" * 37]
    plain = Bench(TinyDecoder(3, layers=3))
    expected = [plain.complete(p, max_tokens=40, **options) for p in prompts]
    bench = drafting(layers, pages=pages)
    requests = [bench.submit(p, max_tokens=40, **options) for p in prompts]
    bench.run(*requests)
    assert [r.tokens for r in requests] == [r.tokens for r in expected]
    if layers == 3 and pages == 2048:  # all layers: every guess holds
        assert all(r.accepted == r.drafted > 0 for r in requests)


def test_first_layers_share_the_weights(tmp_path_factory: pytest.TempPathFactory) -> None:
    decoder = random_decoder(tmp_path_factory.mktemp("random"))
    less = first_layers(decoder, 1)
    assert isinstance(less, Decoder)
    assert less.layers[0] is decoder.layers[0]
    assert less.head is decoder.head
    for count in (0, LAYERS):
        with pytest.raises(ValueError, match="first layers"):
            first_layers(decoder, count)


@pytest.mark.parametrize("setting", ["off", "auto", "ngram", "lookahead", "self", "self:4", "draft:org/name", "medusa", "eagle:/a/file"])
def test_settings(setting: str) -> None:
    check_speculation(setting)


@pytest.mark.parametrize("setting", ["", "n-gram", "draft", "draft:", "self:x", "self:", "ngram:3"])
def test_other_settings_are_refused_with_the_list(setting: str) -> None:
    with pytest.raises(ValueError, match="choose one of 'auto'"):
        check_speculation(setting)
