"""Sections of gpu.py on kernels alone: every kernel against its reference in torch, and what attention reaches.

Inputs: a Setup and a time box. Knows nothing of models or engines.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from agentkit.engine.kernels.gpu import reference, triton_set
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.received import Received
from tests.bench.gpu_kit import Box, Figures, Setup, cache_for, clock, pages_of, replayed, spans_for

ERROR = {torch.float32: 2e-4, torch.bfloat16: 4e-2}
"""Of numbers of about one, from the rounding of weights and results."""
CODED = 0.09
"""The same where a number in fp8 may have been rounded the other way: 32 of 448, which is what its largest ones lie apart."""


def checks(setup: Setup, box: Box) -> None:
    """Largest difference between each kernel and its reference, and whether it is what rounding explains. One that fails leaves the others alone."""
    found = box.figures.setdefault("checks", {})
    for name, check in (*_attention_checks(setup).items(), *_other_checks(setup).items()):
        if not box.left(name):
            continue
        try:
            got, want = check(triton_set), check(reference)
            error, largest = float((got.float() - want.float()).abs().max()), float(want.float().abs().max())
            found[name] = {"error": error, "good": error <= (CODED if "fp8" in name else ERROR[setup.dtype]) * max(1.0, largest)}
        except Exception as error:  # noqa: BLE001 - the others are wanted all the same
            setup.sync()  # fails for good where the device is done for
            found[name] = {"error": None, "good": False, "traceback": traceback.format_exc()[-3000:], "raised": repr(error)[:300]}
    wrong = [name for name, row in found.items() if not row["good"]]
    if wrong:
        raise AssertionError(f"kernels that differ from their references: {', '.join(wrong)}")


def _attention_checks(setup: Setup) -> dict[str, Callable[[Any], torch.Tensor]]:
    s = setup.model
    group = s["heads"] // s["kv"]
    tree = BatchSpan([list(range(40, 44))], PAGE, [1] * 7, 7, [-1, 0, 0, 1, 1, 2])
    batches = {
        "prefill": spans_for(setup.pick([(0, 700), (1000, 129), (0, 1), (63, 65)], [(0, 3), (PAGE, 2)])),
        "decode": spans_for(setup.pick([(4000, 1), (0, 1), (31, 1), (129, 1)], [(PAGE, 1), (0, 1)])),
        "tree": [*spans_for(setup.pick([(300, 5)], [(3, 2)])), tree],
        "shared": spans_for(setup.pick([(1100, 1), (1024, 2), (1999, 1)], [(PAGE, 1), (PAGE + 3, 2)]), shared_pages=setup.pick(32, 1)),
    }
    window = setup.pick(100, 5)
    rules: dict[str, Figures] = {
        "": {}, " window": {"window": window}, " capped, sinks": {"softcap": 5.0, "sinks": True}, " streaming": {"window": window, "sink_keys": 4},
        " beginning": {"shared": setup.pick(32, 1)},
    }  # fmt: skip
    types = {"": setup.dtype, " int8": torch.int8} if setup.smoke else {"": setup.dtype, " int8": torch.int8, " fp8": torch.uint8}
    plans = [(b, r, t) for b in batches for r in rules for t in types if (not t or (b == "decode" and not r)) and (b == "shared") == (r == " beginning")]
    plans = [(b, r, t) for b, r, t in plans if b != "tree" or r != " streaming"]  # drafts are a chain there

    def make(batch_name: str, rule: str, kind: str) -> Callable[[Any], torch.Tensor]:
        def check(kernels: Any) -> torch.Tensor:
            spans, torch_rules = batches[batch_name], dict(rules[rule])
            if "sinks" in torch_rules:
                torch_rules["sinks"] = torch.linspace(-2, 2, s["heads"], device=setup.device)
            generator = torch.Generator(setup.device).manual_seed(0)
            layer = KVLayer.empty(s["kv"], pages_of(spans) * PAGE, s["dim"], types[kind], setup.device)
            slots = torch.arange(layer.keys.shape[1], device=setup.device, dtype=torch.int32)
            k, v = torch.randn(2, slots.numel(), s["kv"], s["dim"], generator=generator, device=setup.device)
            reference.write(k, v, layer, slots)
            batch = Batch.of(spans, setup.device)
            q = torch.randn(batch.shape.tokens, s["kv"] * group, s["dim"], generator=generator, device=setup.device).to(setup.dtype)
            out: torch.Tensor
            if "sink_keys" in torch_rules:
                back = torch.randn(q.shape, generator=generator, device=setup.device).to(setup.dtype)
                out = kernels.attend_streaming(q, back, layer, batch, scale=s["dim"] ** -0.5, softcap=None, **torch_rules)
            elif "shared" in torch_rules:
                out = kernels.attend_shared(q, layer, batch, _prefix_of(spans, torch_rules["shared"], setup), scale=s["dim"] ** -0.5)
            else:
                out = kernels.attend(q, layer, batch, scale=s["dim"] ** -0.5, **torch_rules)
            return out

        return check

    return {f"attention, {b}{r}{t}": make(b, r, t) for b, r, t in plans}


def _prefix_of(spans: list[BatchSpan], blocks: int, setup: Setup) -> Prefix:
    """What all of these begin with, as one group."""
    tokens = sum(len(span.tokens) for span in spans)
    tables = [[0, tokens], [blocks * PAGE], [list(spans[0].pages[:blocks])], [blocks * PAGE] * len(spans)]
    starts, lengths, pages, first = (torch.tensor(table, dtype=torch.int32, device=setup.device) for table in tables)
    return Prefix(starts, lengths, pages[None], first, tokens)


def _other_checks(setup: Setup) -> dict[str, Callable[[Any], torch.Tensor]]:
    s = setup.model
    tokens, heads, dim = setup.pick(300, 3), s["heads"] + 2 * s["kv"], s["dim"]

    def random(*shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator(setup.device).manual_seed(seed), device=setup.device).to(dtype or setup.dtype)

    def add_norm(kernels: Any) -> torch.Tensor:
        residual = random(tokens, s["hidden"], seed=1)
        weight = random(s["hidden"], seed=2, dtype=torch.float32)
        out = kernels.add_norm(random(tokens, s["hidden"]), residual, weight, 1e-6, weight)
        return torch.cat((out, residual))

    def rotary(kind: torch.dtype, values: bool) -> Callable[[Any], torch.Tensor]:
        def check(kernels: Any) -> torch.Tensor:
            layer = KVLayer.empty(s["kv"], tokens, dim, kind, setup.device)
            angles = random(tokens, dim // 2, seed=3, dtype=torch.float32)
            weight = random(heads - s["kv"], dim, seed=4, dtype=torch.float32)
            slots = torch.arange(tokens, dtype=torch.int32, device=setup.device)
            q: torch.Tensor = kernels.rotate_and_write(random(tokens, heads, dim), angles.cos(), angles.sin(), layer, slots, weight, 1e-6)
            return torch.stack(layer.read(slots.long())) if values else q

        return check

    def adapters(kernels: Any) -> torch.Tensor:
        batch = Batch.of(spans_for(setup.pick([(0, 200), (9, 1), (3, 70)], [(0, 2), (1, 1)])), setup.device)
        used = torch.tensor([1, -1, 0][: batch.shape.requests], dtype=torch.int32, device=setup.device)
        down, up, out = random(2, 16, s["hidden"]) * s["hidden"] ** -0.5, random(2, 2 * s["inner"], 16, seed=1) / 4, random(batch.shape.tokens, 2 * s["inner"])
        h = kernels.shrink(random(batch.shape.tokens, s["hidden"], seed=2), down, batch, used)
        kernels.expand(h, up, torch.ones(2, device=setup.device), out, batch, used)
        return out

    def received(kernels: Any) -> torch.Tensor:
        spans = spans_for(setup.pick([(1000, 129), (4000, 1)], [(PAGE, 2)]))
        batch, layer = Batch.of(spans, setup.device), KVLayer.empty(s["kv"], pages_of(spans) * PAGE, dim, setup.dtype, setup.device)
        keys = random(2, s["kv"], layer.keys.shape[1], dim, seed=5)
        layer.keys.copy_(keys[0])
        layer.values.copy_(keys[1])
        q, lse = random(batch.shape.tokens, s["heads"], dim), torch.empty(batch.shape.tokens, s["heads"], device=setup.device)
        reference.attend(q, layer, batch, scale=dim**-0.5, lse=lse)
        sums = Received.empty(s["kv"], layer.keys.shape[1], setup.device)
        kernels.weigh(q, layer, batch, lse, sums, begin=True, scale=dim**-0.5)
        return sums.fresh

    found = {
        "sum and norm": add_norm,
        "gate": lambda kernels: kernels.gated(random(tokens, 2 * s["inner"]), "silu"),
        "adapters": adapters,
        "received": received,
    }
    for name, kind in (("", setup.dtype), (" int8", torch.int8), *(() if setup.smoke else ((" fp8", torch.uint8),))):
        found |= {f"rotation{name}": rotary(kind, False), f"keys and values{name}": rotary(kind, True)}
    return found


def attention(setup: Setup, box: Box) -> None:
    """Decoding in bytes of keys and values read per second, prompts in operations per second."""
    s, found = setup.model, box.rows
    for requests, length in setup.pick([(64, 8192), (1, 32768), (256, 1024), (8, 4096), (64, 1024), (256, 4096), (1, 4096)], [(1, 40)]):
        if box.left(f"decode {requests} x {length}"):
            seconds, size = _attention_time(setup, spans_for([(length - 1, 1)] * requests))
            found.append({"decode": requests, "context": length, "seconds": seconds, "bytes_per_s": size / seconds})
    for length in setup.pick([4096, 16384, 1024], [20]):
        if box.left(f"prompt of {length}"):
            seconds, _ = _attention_time(setup, spans_for([(0, length)]))
            found.append({"prompt": length, "seconds": seconds, "flops_per_s": 2 * length**2 * s["heads"] * s["dim"] / seconds})


def _attention_time(setup: Setup, spans: list[BatchSpan]) -> tuple[float, int]:
    """Seconds, and the bytes of the keys and values."""
    s, batch, layer = setup.model, Batch.of(spans, setup.device), cache_for(setup, spans, 1)[0]
    q = torch.randn(batch.shape.tokens, s["heads"], s["dim"], device=setup.device, dtype=setup.dtype)
    size = sum(span.length for span in spans) * 2 * s["kv"] * s["dim"] * setup.dtype.itemsize
    return replayed(setup, partial(triton_set.attend, q, layer, batch, scale=s["dim"] ** -0.5)), size


def flash(setup: Setup, box: Box) -> None:
    """A prompt's attention by this kernel, by torch's flash attention, and by whole matrices of scores: seconds, and bytes beyond what it reads and writes."""
    s, found = setup.model, box.rows
    for length in setup.pick([2048, 8192, 32768], [20]):
        spans = spans_for([(0, length)])
        batch, layer = Batch.of(spans, setup.device), cache_for(setup, spans, 1)[0]
        q, k, v = (torch.randn(1, s["heads"], length, s["dim"], device=setup.device, dtype=setup.dtype) for _ in range(3))
        rows, mask = q[0].transpose(0, 1).contiguous(), torch.ones(length, length, dtype=torch.bool, device=setup.device).tril()
        kinds: dict[str, Callable[[], torch.Tensor]] = {
            "kernel": partial(triton_set.attend, rows, layer, batch, scale=s["dim"] ** -0.5),
            "torch": partial(F.scaled_dot_product_attention, q, k, v, is_causal=True),
            "standard": partial(_standard, q, k, v, mask),
        }
        row: Figures = {"prompt": length}
        found.append(row)
        for name, run in kinds.items():
            if box.left(f"{name} of {length}"):
                try:
                    row[f"{name}_s"], row[f"{name}_bytes"] = _time_and_bytes(setup, run)
                except torch.OutOfMemoryError:
                    row[f"{name}_s"] = None  # does not fit


def _standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention that keeps all scores [1, H, T, T]."""
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill_(~mask, -torch.inf).softmax(-1) @ v


def _time_and_bytes(setup: Setup, run: Callable[[], object]) -> tuple[float, int]:
    """Seconds of a run, and the bytes that it takes on top of what is there; 0 on the CPU."""
    if setup.smoke:
        return clock(setup, run), 0
    torch.cuda.reset_peak_memory_stats(setup.device)
    before = torch.cuda.memory_allocated(setup.device)
    run()
    setup.sync()
    taken = torch.cuda.max_memory_allocated(setup.device) - before
    return clock(setup, run, 5), taken


def cascade(setup: Setup, box: Box) -> None:
    """Decoding of requests that share a long beginning: each by itself, and the beginning once for all."""
    s, found = setup.model, box.rows
    for requests, shared in setup.pick([(64, 4096), (8, 4096), (64, 16384), (256, 4096)], [(2, PAGE)]):
        if box.left(f"{requests} x {shared}"):
            spans = spans_for([(shared + setup.pick(127, 3), 1)] * requests, shared_pages=shared // PAGE)
            batch, layer, prefix = Batch.of(spans, setup.device), cache_for(setup, spans, 1)[0], _prefix_of(spans, shared // PAGE, setup)
            q, scale = torch.randn(requests, s["heads"], s["dim"], device=setup.device, dtype=setup.dtype), s["dim"] ** -0.5
            alone = replayed(setup, partial(triton_set.attend, q, layer, batch, scale=scale))
            together = replayed(setup, partial(triton_set.attend_shared, q, layer, batch, prefix, scale=scale))
            found.append({"batch": requests, "shared": shared, "alone_s": alone, "together_s": together, "faster": alone / together})
