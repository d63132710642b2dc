"""Heavy hitters: outputs and what is kept against a text computed token by token with explicit sums of attention; what cannot work is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agentkit.engine import Engine, SamplingParams
from agentkit.engine.kernels.library import supported
from agentkit.engine.kv import pages_for
from agentkit.engine.kv_policy import H2O, STEP, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.errors import EngineError
from tests.engine.kernels.models import VARIANTS, decoder, quantised, tokens
from tests.engine.loaded import loaded_model
from tests.engine.test_kv_policy import Machine, in_ragged_spans


class Naive:
    """The `attend` of one text, one token a call, with lists: the keys and values that are left, and the attention that each has received."""

    def __init__(self, policy: H2O, layers: int) -> None:
        self.policy = policy
        self.keys: list[list[torch.Tensor]] = [[] for _ in range(layers)]
        self.values: list[list[torch.Tensor]] = [[] for _ in range(layers)]
        self.positions: list[int] = []
        self.received: list[float] = []
        self.tokens = 0

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: Any, scale: float, softcap: float | None) -> torch.Tensor:
        if layer == 0:
            self.positions.append(self.tokens)
            self.received.append(0.0)
            self.tokens += 1
        self.keys[layer].append(k[0].double())
        self.values[layer].append(v[0].double())
        group = q.shape[1] // k.shape[1]
        keys, values = (torch.stack(x[layer]).repeat_interleave(group, 1) for x in (self.keys, self.values))
        scores = torch.einsum("hd,shd->hs", q[0].double(), keys) * scale
        weights = (scores if softcap is None else softcap * torch.tanh(scores / softcap)).softmax(-1)
        self.received = [a + float(b) for a, b in zip(self.received, weights.sum(0), strict=True)]
        return torch.einsum("hs,shd->hd", weights, values).float()[None]

    def thin(self) -> None:
        assert self.policy.recent is not None
        if len(self.positions) < self.policy.budget:
            return
        older = range(len(self.positions) - self.policy.recent)
        gone = set(sorted(older, key=lambda i: self.received[i])[:STEP])
        for cells in (*self.keys, *self.values, self.positions, self.received):
            cells[:] = [x for i, x in enumerate(cells) if i not in gone]


def naive_logits(model: Decoder, policy: H2O, ids: list[int]) -> tuple[torch.Tensor, Naive]:
    attend, rows = Naive(policy, model.config.num_layers), []
    with torch.inference_mode():
        for at, token in enumerate(ids):
            rows.append(model.forward(torch.tensor([token]), torch.tensor([at]), attend))
            attend.thin()
    return torch.cat(rows), attend


@pytest.mark.parametrize(("variant", "policy"), [("llama", H2O(128)), ("llama", H2O(130, recent=20)), ("gemma", H2O(140, recent=76))], ids=str)
def test_outputs_are_those_of_sums_made_token_by_token(variant: str, policy: H2O, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel of the whole forward, by that of attention alone, and by torch; what each position has received is the same, too."""
    packed, plain = quantised(decoder(**dict(VARIANTS[variant], windows=(None,) * 3)))
    texts = [tokens(240, 128, 1), tokens(150, 128, 2)]
    naive = [naive_logits(plain, policy, ids) for ids in texts]
    for model, kernels in ((packed, True), (plain, True), (plain, False)):
        if kernels and not supported():
            continue
        with monkeypatch.context() as patch:
            if not kernels:
                patch.setattr("agentkit.engine.attention.supported", lambda: False)
            machine = Machine(model, policy, pages=2 * pages_for(policy.budget), prefix_caching=False)
            sequences = [machine.pool.start(ids, room=240) for ids in texts]
            found = in_ragged_spans(machine, sequences, texts, lambda _: pages_for(policy.budget))
        for sequence, rows, (wanted, attend) in zip(sequences, found, naive, strict=True):
            assert (rows - wanted).abs().max() < 2e-3 * wanted.abs().max()
            assert machine.pool.received is not None
            slots = torch.cat([torch.arange(*run) for run in sequence.slots(0, sequence.place)])
            sums = machine.pool.received.at(slots, sequence.place)
            assert torch.allclose(sums, torch.tensor(attend.received), rtol=1e-3, atol=2e-3)


def test_an_engine_keeps_to_its_budget_and_preempted_requests_come_out_the_same(tmp_path: Any) -> None:
    def make(**options: Any) -> Engine:
        return Engine(loaded_model(tmp_path / "model"), kv=H2O(128, recent=32), prefix_caching=False, threads=1, seed=0, **options)

    prompts = [[i, *range(i, 110 + 40 * i)] for i in range(4)]
    roomy = make()
    wanted = [roomy.generate(prompt, max_tokens=120).token_ids for prompt in prompts]
    tight = make(kv_memory=7 * roomy._scheduler.pool.shape.bytes_per_page)
    streams = [tight.stream(prompt, max_tokens=120) for prompt in prompts]
    found = [list(stream)[-1].generation for stream in streams]  # type: ignore[union-attr]
    assert [g.token_ids for g in found] == wanted
    assert sum(g.usage.preemptions for g in found) > 0
    with pytest.raises(ValueError, match="n=2"):
        roomy.generate(prompts[0], n=2, temperature=1.0)
    with pytest.raises(EngineError, match="only speculation='off'"):
        roomy.speculate("ngram")
    with pytest.raises(EngineError, match="prefix_caching is off"):
        roomy.pin(prompt=prompts[0])
    roomy.close()
    tight.close()


@pytest.mark.parametrize(
    ("options", "named"), [({}, "prefix_caching=False"), ({"speculation": "ngram"}, "speculation='ngram'"), ({"deterministic": True}, "deterministic=True")]
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Engine(loaded_model(tmp_path / "model"), kv=H2O(128), **{"prefix_caching": bool(options) is False, **options})


def test_models_and_values_that_do_not_suit() -> None:
    with pytest.raises(EngineError, match="windows of their own"):
        reach_of(H2O(128), decoder(windows=(None, 40, None)).config)
    for wrong in ({"budget": 127}, {"budget": 128, "recent": 65}, {"budget": 128, "recent": 0}, {"format": "q4"}):
        with pytest.raises(ValueError, match="kv: "):
            H2O(**wrong)  # type: ignore[arg-type]
    assert H2O(512).recent == 256
    assert SamplingParams().n == 1
