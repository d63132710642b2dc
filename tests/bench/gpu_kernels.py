"""Sections of gpu.py on kernels alone: every kernel against its reference in torch, and what attention reaches.

Inputs: a Setup and a time box. Knows nothing of models or engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from agentkit.engine.kernels.gpu import reference, triton_set
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.plan import Prefix
from agentkit.engine.kernels.layout import PAGE
from tests.bench.gpu_kit import Box, Figures, Setup, cache_for, clock, pages_of, spans_for

ERROR = {torch.float32: 2e-4, torch.bfloat16: 4e-2}
"""Of numbers of about one, from the rounding of weights and results."""


def checks(setup: Setup, box: Box) -> Figures:
    """Largest difference between each kernel and its reference, and whether it is what rounding explains."""
    found: Figures = {}
    for name, check in (*_attention_checks(setup).items(), *_other_checks(setup).items()):
        if box.left(name):
            got, want = check(triton_set), check(reference)
            error = float((got.float() - want.float()).abs().max())
            found[name] = {"error": error, "good": error <= ERROR[setup.dtype] * max(1.0, float(want.float().abs().max()))}
    wrong = [name for name, row in found.items() if not row["good"]]
    if wrong:
        raise AssertionError(f"kernels that differ from their references: {', '.join(wrong)}: {found}")
    return {"checks": found}


def _attention_checks(setup: Setup) -> dict[str, Callable[[Any], torch.Tensor]]:
    s = setup.model
    group = s["heads"] // s["kv"]
    tree = BatchSpan([list(range(40, 44))], PAGE, [1] * 7, 7, [-1, 0, 0, 1, 1, 2])
    batches = {
        "prefill": spans_for(setup.pick([(0, 700), (1000, 129), (0, 1), (63, 65)], [(0, 3), (PAGE, 2)])),
        "decode": spans_for(setup.pick([(4000, 1), (0, 1), (31, 1), (129, 1)], [(PAGE, 1), (0, 1)])),
        "tree": [*spans_for(setup.pick([(300, 5)], [(3, 2)])), tree],
    }
    rules: dict[str, Figures] = {"": {}, " window": {"window": 100 if not setup.smoke else 5}, " capped, sinks": {"softcap": 5.0, "sinks": True}}
    types = {"": setup.dtype, " int8": torch.int8} if setup.smoke else {"": setup.dtype, " int8": torch.int8, " fp8": torch.uint8}
    plans = [(b, r, t) for b in batches for r in rules for t in types if not t or (b == "decode" and not r)]

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
            out: torch.Tensor = kernels.attend(q, layer, batch, scale=s["dim"] ** -0.5, **torch_rules)
            return out

        return check

    return {f"attention, {b}{r}{t}": make(b, r, t) for b, r, t in plans}


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

    found = {"sum and norm": add_norm, "gate": lambda kernels: kernels.gated(random(tokens, 2 * s["inner"]), "silu")}
    for name, kind in (("", setup.dtype), (" int8", torch.int8), *(() if setup.smoke else ((" fp8", torch.uint8),))):
        found |= {f"rotation{name}": rotary(kind, False), f"keys and values{name}": rotary(kind, True)}
    return found


def attention(setup: Setup, box: Box) -> Figures:
    """Decoding in bytes of keys and values read per second, prompts in operations per second."""
    s, decode, prefill = setup.model, [], []
    for requests, length in setup.pick([(1, 4096), (1, 32768), (8, 4096), (64, 1024), (64, 8192), (256, 1024), (256, 4096)], [(1, 40)]):
        if box.left(f"decode {requests} x {length}"):
            seconds, size = _attention_time(setup, spans_for([(length - 1, 1)] * requests))
            decode.append({"batch": requests, "context": length, "seconds": seconds, "bytes_per_s": size / seconds})
    for length in setup.pick([1024, 4096, 16384], [20]):
        if box.left(f"prompt of {length}"):
            seconds, _ = _attention_time(setup, spans_for([(0, length)]))
            prefill.append({"tokens": length, "seconds": seconds, "flops_per_s": 2 * length**2 * s["heads"] * s["dim"] / seconds})
    return {"decode": decode, "prefill": prefill}


def _attention_time(setup: Setup, spans: list[BatchSpan]) -> tuple[float, int]:
    """Seconds, and the bytes of the keys and values."""
    s, batch, layer = setup.model, Batch.of(spans, setup.device), cache_for(setup, spans, 1)[0]
    q = torch.randn(batch.shape.tokens, s["heads"], s["dim"], device=setup.device, dtype=setup.dtype)
    size = sum(span.length for span in spans) * 2 * s["kv"] * s["dim"] * setup.dtype.itemsize
    return clock(setup, lambda: triton_set.attend(q, layer, batch, scale=s["dim"] ** -0.5)), size


def cascade(setup: Setup, box: Box) -> Figures:
    """Decoding of requests that share a long beginning: each by itself, and the beginning once for all."""
    s, found = setup.model, []
    for requests, shared in setup.pick([(8, 4096), (64, 4096), (64, 16384), (256, 4096)], [(2, PAGE)]):
        if not box.left(f"{requests} x {shared}"):
            continue
        spans = spans_for([(shared + setup.pick(127, 3), 1)] * requests, shared_pages=shared // PAGE)
        batch, layer = Batch.of(spans, setup.device), cache_for(setup, spans, 1)[0]
        tables = [[0, requests], [shared], [[list(range(shared // PAGE))]], [shared] * requests]
        prefix = Prefix(*(torch.tensor(table, dtype=torch.int32, device=setup.device) for table in tables), queries=requests)
        q, scale = torch.randn(requests, s["heads"], s["dim"], device=setup.device, dtype=setup.dtype), s["dim"] ** -0.5
        alone = clock(setup, lambda: triton_set.attend(q, layer, batch, scale=scale))  # noqa: B023 - run at once
        together = clock(setup, lambda: triton_set.attend_shared(q, layer, batch, prefix, scale=scale))  # noqa: B023
        found.append({"batch": requests, "shared": shared, "alone_s": alone, "together_s": together, "faster": alone / together})
    return {"rows": found}
