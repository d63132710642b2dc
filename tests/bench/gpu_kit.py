"""What the sections of gpu.py share: a clock for the device, time boxes, random models and batches of a given shape.

Inputs: a Setup. Knows nothing of which figures are wanted.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from agentkit.engine.device.capture import Graphs
from agentkit.engine.device.decoder import DeviceDecoder
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_policy import Reach
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense, Layer
from agentkit.engine.models.rope import Rope
from agentkit.engine.received import Received

Figures = dict[str, Any]
FLUSHED = 256 << 20
"""Bytes: several times the cache of a GPU."""


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
    """Seconds that a section may take; `left` is asked before each further figure.   figures: what it has found so far, kept whatever becomes of it.

    noted: called when something has been found or begun.   doing: the figure that is being measured.
    """

    seconds: float
    noted: Callable[[], None] = lambda: None
    start: float = field(default_factory=time.perf_counter)
    skipped: list[str] = field(default_factory=list)
    figures: Figures = field(default_factory=dict)
    doing: str = ""

    @property
    def rows(self) -> list[Figures]:
        """Figures of a kind, one row after the other."""
        rows: list[Figures] = self.figures.setdefault("rows", [])
        return rows

    def left(self, what: str) -> bool:
        self.doing = what
        self.noted()
        if time.perf_counter() - self.start < self.seconds:
            return True
        self.skipped.append(what)
        return False


def clock(setup: Setup, run: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds of a run on the device, after three that are not counted.

    Before each one memory is written that is several times the cache: it pushes out what the last run read, and keeps the device busy while the host
    prepares, so that the time between the marks is the device's.
    """
    if setup.smoke:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    for _ in range(3):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    other = torch.empty(FLUSHED, dtype=torch.uint8, device=setup.device)
    for before, after in marks:
        other.zero_()
        before.record()
        run()
        after.record()
    setup.sync()
    return statistics.median(before.elapsed_time(after) for before, after in marks) / 1e3


@cache
def _graphs(device: torch.device) -> Graphs:
    return Graphs(device)


def captured(setup: Setup, run: Callable[[], object]) -> Callable[[], None] | None:
    """`run` as one CUDA graph; None without a GPU."""
    return None if setup.smoke else _graphs(setup.device).capture(run, run).replay


def replayed(setup: Setup, run: Callable[[], object]) -> float:
    """Seconds of a run as a graph, which is how kernels run in an engine: launches by the host do not count. In a smoke run as it is."""
    return clock(setup, captured(setup, run) or run)


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
    """Keys and values of each layer for the spans: noise where they are not in 8 bits, since a processor is faster with zeros."""
    kv, s = kv or setup.dtype, setup.model
    made = [KVLayer.empty(s["kv"], pages_of(spans) * PAGE, s["dim"], kv, setup.device) for _ in range(layers)]
    for layer in made if kv.is_floating_point else ():
        layer.keys.normal_()
        layer.values.normal_()
    return made


def forward_times(
    setup: Setup, model: Decoder, spans: Sequence[BatchSpan], kv: torch.dtype | None = None, *, graph: bool = True, reach: Reach | None = None
) -> Figures:
    """Seconds of one forward over the spans, eager and as a graph (null where there is none).   reach: what tokens see; None: everything."""
    layers = cache_for(setup, spans, model.config.num_layers, kv)
    received = None if reach is None or reach.budget is None else Received.empty(layers[0].kv_heads, layers[0].keys.shape[1], setup.device)
    decoder, batch = DeviceDecoder(model, layers, "triton", reach, received), Batch.of(spans, setup.device)
    with torch.inference_mode():
        eager = clock(setup, lambda: decoder.forward(batch), 10)
        replay = captured(setup, lambda: decoder.forward(batch)) if graph else None
        return {"eager_s": eager, "graph_s": None if replay is None else clock(setup, replay)}


def best_of(times: Figures) -> float:
    """The quicker one of both."""
    return min(seconds for seconds in times.values() if seconds)
