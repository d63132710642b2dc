"""What the sections of gpu.py share: a clock for the device, time boxes, random models and batches of a given shape.

Inputs: a Setup. Knows nothing of which figures are wanted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentkit.engine.device.decoder import DeviceDecoder
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.rope import Rope

Figures = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """device and dtype of the figures; smoke: sizes that the interpreter can do, whose times mean nothing."""

    device: torch.device
    dtype: torch.dtype
    smoke: bool

    def pick(self, real: Any, small: Any) -> Any:
        return small if self.smoke else real

    @property
    def model(self) -> dict[str, int]:
        """Sizes of a Qwen2-7B."""
        sizes: dict[str, int] = self.pick(
            {"hidden": 3584, "inner": 18944, "layers": 28, "heads": 28, "kv": 4, "dim": 128, "vocabulary": 152064},
            {"hidden": 32, "inner": 48, "layers": 1, "heads": 2, "kv": 1, "dim": 16, "vocabulary": 300},
        )
        return sizes

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass
class Box:
    """Seconds that a section may take; `left` is asked before each further figure."""

    seconds: float
    start: float = field(default_factory=time.perf_counter)
    skipped: list[str] = field(default_factory=list)

    def left(self, what: str) -> bool:
        if time.perf_counter() - self.start < self.seconds:
            return True
        self.skipped.append(what)
        return False


def clock(setup: Setup, run: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds of a run on the device, after three that are not counted."""
    if setup.smoke:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    for _ in range(3):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for before, after in marks:
        before.record()
        run()
        after.record()
    setup.sync()
    return statistics.median(before.elapsed_time(after) for before, after in marks) / 1e3


def captured(setup: Setup, run: Callable[[], object]) -> Callable[[], None] | None:
    """`run` as one CUDA graph; None without a GPU."""
    if setup.device.type != "cuda":
        return None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def random_model(setup: Setup) -> Decoder:
    """Weights of about the size of trained ones, made on the device."""
    s, device, dtype = setup.model, setup.device, setup.dtype
    heads, kv, dim, hidden = s["heads"], s["kv"], s["dim"], s["hidden"]

    def dense(rows: int, columns: int, *, bias: bool = False) -> Dense:
        weight = torch.randn(rows, columns, device=device, dtype=dtype).mul_(columns**-0.5)
        return Dense(weight, torch.zeros(rows, device=device, dtype=dtype) if bias else None)

    ones = torch.ones(hidden, device=device)
    layers = [
        Layer(
            ones, dense((heads + 2 * kv) * dim, hidden, bias=True), dense(hidden, heads * dim), ones, dense(2 * s["inner"], hidden), dense(hidden, s["inner"])
        )
        for _ in range(s["layers"])
    ]
    config = ModelConfig(
        architecture="qwen2", vocab_size=s["vocabulary"], hidden_size=hidden, intermediate_size=s["inner"], num_layers=s["layers"], num_heads=heads,
        num_kv_heads=kv, head_dim=dim, max_position=32768, norm_eps=1e-6, activation="silu", tie_embeddings=False, attention_scale=dim**-0.5,
        windows=(None,) * s["layers"], ropes=(Rope.from_hf({"rope_theta": 1e6}, dim, 32768),), rope_of_layer=(0,) * s["layers"],
    )  # fmt: skip
    embedding = torch.randn(s["vocabulary"], hidden, device=device, dtype=dtype)
    return Decoder(config, embedding, layers, ones, dense(s["vocabulary"], hidden))


def matrix_bytes(model: Decoder, *, head: bool = True) -> int:
    """Of all matrices that a token goes through. head: with the one that makes logits, which a prompt's tokens do without but for the last."""
    linears: list[Any] = [getattr(layer, part) for layer in model.layers for part in ("qkv", "out", "gate_up", "down")]
    if head:
        linears.append(model.head)
    return sum(linear.weight.nbytes for linear in linears)


def spans_for(sizes: Sequence[tuple[int, int]], rows: int = 1, shared_pages: int = 0) -> list[BatchSpan]:
    """One span per (tokens before, tokens now), pages scattered; all begin with the same `shared_pages`."""
    numbers = list(range(shared_pages + sum(-(-(a + b) // PAGE) - shared_pages for a, b in sizes)))
    common, rest = numbers[:shared_pages], numbers[shared_pages:]
    random.Random(0).shuffle(rest)
    spans = []
    for before, now in sizes:
        own = [rest.pop() for _ in range(-(-(before + now) // PAGE) - shared_pages)]
        spans.append(BatchSpan([[*common, *own]], before, [1] * now, min(rows, now)))
    return spans


def pages_of(spans: Sequence[BatchSpan]) -> int:
    return max(page for span in spans for page in span.pages) + 1


def cache_for(setup: Setup, spans: Sequence[BatchSpan], layers: int, kv: torch.dtype | None = None) -> list[KVLayer]:
    """Keys and values of each layer for the spans; what they hold is of no importance to the time."""
    kv, s = kv or setup.dtype, setup.model
    return [KVLayer.empty(s["kv"], pages_of(spans) * PAGE, s["dim"], kv, setup.device) for _ in range(layers)]


def forward_times(setup: Setup, model: Decoder, spans: Sequence[BatchSpan], kv: torch.dtype | None = None, *, graph: bool = True) -> Figures:
    """Seconds of one forward over the spans, eager and as a graph (null where there is none)."""
    decoder = DeviceDecoder(model, cache_for(setup, spans, model.config.num_layers, kv))
    batch = Batch.of(spans, setup.device)
    with torch.inference_mode():
        eager = clock(setup, lambda: decoder.forward(batch), 10)
        replay = captured(setup, lambda: decoder.forward(batch)) if graph else None
        return {"eager_s": eager, "graph_s": None if replay is None else clock(setup, replay)}
