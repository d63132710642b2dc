"""Failure cases of subkind batch: with kernels of one summation order, neighbours, chunks and caches change no bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from agentkit.engine import Engine
from agentkit.engine.advance import Advancer
from agentkit.engine.kernels.library import supported
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.rope import Rope
from agentkit.engine.request import Request
from agentkit.engine.runner import Logits
from agentkit.engine.scheduler import Limits
from agentkit.engine.weights.choose import quantised
from agentkit.errors import EngineError
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model
from tests.engine.tiny import STOP, TOKENS, WIDTH, Bench, TinyDecoder

HIDDEN, INNER, LAYERS, HEADS, KEYS, SIZE = 64, 96, 2, 4, 2, 16


class Packed(TinyDecoder):
    """A random Llama in 8-bit blocks with the shape that Bench asks for."""

    def __init__(self) -> None:
        super().__init__(layers=LAYERS, heads=HEADS, kv=KEYS, dim=SIZE)
        generator = torch.Generator().manual_seed(5)
        ones = torch.ones(HIDDEN)

        def dense(rows: int, columns: int) -> Dense:
            return Dense(torch.randn(rows, columns, generator=generator) / columns**0.5)

        width = (HEADS + 2 * KEYS) * SIZE
        layers = [Layer(ones, dense(width, HIDDEN), dense(HIDDEN, HIDDEN), ones, dense(2 * INNER, HIDDEN), dense(HIDDEN, INNER)) for _ in range(LAYERS)]
        config = ModelConfig(
            architecture="llama", vocab_size=WIDTH, hidden_size=HIDDEN, intermediate_size=INNER, num_layers=LAYERS, num_heads=HEADS, num_kv_heads=KEYS,
            head_dim=SIZE, max_position=2048, norm_eps=1e-5, activation="silu", tie_embeddings=False, attention_scale=SIZE**-0.5, windows=(None,) * LAYERS,
            ropes=(Rope.from_hf({"rope_theta": 10000.0}, SIZE, 2048),), rope_of_layer=(0,) * LAYERS,
        )  # fmt: skip
        plain = Decoder(config, torch.randn(WIDTH, HIDDEN, generator=generator), layers, ones, Dense(torch.randn(WIDTH, HIDDEN, generator=generator)))
        self.packed = quantised(plain, None, four=False)
        self.forward = self.packed.forward  # type: ignore[method-assign,assignment]


class Recorder(Advancer):
    """Keeps every row of logits that a request was advanced by."""

    def __init__(self) -> None:
        super().__init__(len(TOKENS), [STOP])
        self.rows: dict[int, list[bytes]] = {}

    def advance(self, request: Request, logits: Logits) -> None:
        self.rows.setdefault(id(request), []).append(logits.tobytes())
        super().advance(request, logits)


@case("eng-batch-invariance")
def test_logits_are_equal_to_the_bit_beside_any_neighbours(case_id: str) -> None:
    if not supported():
        pytest.skip("this processor lacks what the kernels need")
    model, rng = Packed(), random.Random(2)
    prompt = [rng.randrange(250) for _ in range(150)]
    wanted = None
    for others, step, pages in ((0, 512, 200), (1, 512, 200), (3, 40, 200), (7, 33, 200), (7, 64, 14), (3, 16, 9)):
        bench = Bench(model, pages=pages, limits=Limits(max_running=others + 1, step_tokens=step, mixed_step_tokens=step))
        recorder = Recorder()
        bench.scheduler._advancer = recorder
        early = [
            bench.submit([rng.randrange(250) for _ in range(rng.randrange(1, 90))], max_tokens=rng.randrange(1, 20), temperature=1.0) for _ in range(others)
        ]
        for _ in range(rng.randrange(4)):
            bench.step()
        subject = bench.submit(prompt, max_tokens=12)
        late = [bench.submit([*prompt[: rng.randrange(150)], 1], max_tokens=rng.randrange(1, 20), temperature=1.0) for _ in range(others)]
        if others > 1:
            early[0].cancel()
        bench.run(subject, *early, *late)
        rows = recorder.rows[id(subject)]
        wanted = wanted or rows
        assert rows == wanted
        again = bench.complete(prompt, max_tokens=12)  # from the cache, which also others have filled
        assert recorder.rows[id(again)] == wanted


@case("eng-batch-invariance")
def test_what_cannot_promise_it_refuses(case_id: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="deterministic=True needs"):
        Engine(loaded_model(tmp_path), deterministic=True)
