"""Compiles every launch that some code makes for an H200, on a machine without a GPU: what the interpreter cannot show.

Triton needs no GPU to compile for one. Run as a program, in a process of its own without TRITON_INTERPRET: launches are compiled for
compute capability 9.0 and not run, and one line of JSON per kernel says what it takes of a processor.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from agentkit.engine.device import decoder as device_decoder
from agentkit.engine.kernels.gpu import attention, lora, plan, sampler, triton_set, weigh
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.sampling_batch import Sampled, SamplingBatch
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.models.decoder import Decoder, Dense
from agentkit.engine.received import Received
from agentkit.grammars import Vocabulary
from agentkit.grammars.device import Pushdown
from agentkit.grammars.kernels import pushdown
from agentkit.grammars.kernels.tables import States, Tables
from tests.engine.kernels.models import decoder

PROCESSORS = 132


class Hopper:
    """A driver of a GPU that is not there."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


def compiled(body: Callable[[], None]) -> dict[str, dict[str, int]]:
    """Name of each kernel that `body` launches, with its variants' number -> registers, spills (bytes of a thread), shared memory (bytes), mma."""
    found: dict[str, Any] = {}
    run = JITFunction.run

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found[kernel.hash] = (self.__name__, kernel)
        return kernel

    driver.set_active(Hopper())
    JITFunction.run = only_compile
    try:
        body()
    finally:
        JITFunction.run = run
    return {f"{name}-{number}": _usage(kernel) for number, (name, kernel) in enumerate(found.values())}


def _usage(kernel: Any) -> dict[str, int]:
    tool = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        text = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.findall(rf"{name}:(\d+)", text)[-1]) for name in ("REG", "STACK", "LOCAL"))
    ptx = kernel.asm["ptx"]
    return {
        "registers": registers, "spilled": max(stack, local), "shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps,
        "tensor_cores": len(re.findall(r"wgmma\.mma_async|mma\.sync", ptx)), "asynchronous": ptx.count("cp.async.c"),
    }  # fmt: skip


def forwards() -> None:
    """A Qwen2-like decoder in bfloat16: a long prompt, a batch that decodes, a tree of guesses; and Gemma's rules with heads of 256."""
    prompt = [BatchSpan([list(range(16))], 0, [1] * 512)]
    decode = [BatchSpan([list(range(64))], 2000 + i, [1]) for i in range(4)]
    tree = [BatchSpan([list(range(64))], 2000, [1] * 9, 9, [-1, 0, 0, 1, 1, 2, 2, 3])]
    qwen = {"heads": 28, "kv": 4, "dim": 128, "hidden": 256, "inner": 512, "layers": 1, "bias": True}
    gemma = {
        "heads": 4, "kv": 1, "dim": 256, "hidden": 256, "inner": 512, "layers": 1, "windows": (512,), "attention_softcap": 50.0, "sandwich_norms": True,
        "qk_norm": True, "activation": "gelu_tanh",
    }  # fmt: skip
    _compile(qwen, torch.bfloat16, prompt, decode, tree)
    _compile(gemma, torch.bfloat16, prompt, decode)


def eight_bits() -> None:
    """The same over keys and values in whole numbers and in fp8."""
    qwen = {"heads": 28, "kv": 4, "dim": 128, "hidden": 256, "inner": 512, "layers": 1}
    gemma = {"heads": 4, "kv": 1, "dim": 256, "hidden": 256, "inner": 512, "layers": 1, "qk_norm": True}
    _compile(gemma, torch.int8, [BatchSpan([list(range(16))], 0, [1] * 512)], [BatchSpan([list(range(64))], 2000, [1])])
    for dtype in (torch.int8, torch.uint8):
        _compile(qwen, dtype, [BatchSpan([list(range(16))], 0, [1] * 512)], [BatchSpan([list(range(64))], 2000 + i, [1]) for i in range(4)])


def rules() -> None:
    """Windows, sinks that stay, and float32 and float16 throughout."""
    attention.processors_of = lambda device: PROCESSORS  # type: ignore[assignment]
    prompt, decode = [BatchSpan([list(range(32))], 512, [1] * 512)], [BatchSpan([list(range(64))], 2000 + i, [1]) for i in range(4)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        layer = KVLayer.empty(4, 64 * PAGE, 128, dtype)
        for spans in (prompt, decode):
            batch = Batch.of(spans, "cpu")
            q = torch.zeros(batch.shape.tokens, 28, 128, dtype=dtype)
            attention.attend(q, layer, batch, scale=1.0, window=None if dtype != torch.bfloat16 else 512)
            if dtype == torch.bfloat16:
                attention.attend_streaming(q, q, layer, batch, scale=1.0, window=512, sink_keys=4)


def received() -> None:
    """What keys receive, for a long prompt and a batch that decodes: whole numbers, fp8, half and full precision, capped, narrow and wide heads."""
    weigh.processors_of = lambda device: PROCESSORS  # type: ignore[assignment]
    prompt, decode = [BatchSpan([list(range(32))], 512, [1] * 512)], [BatchSpan([list(range(32))], 900 + i, [1]) for i in range(4)]
    kinds = [(torch.bfloat16, kv, 128) for kv in (torch.bfloat16, torch.int8, torch.uint8)] + [
        (torch.float16, torch.float16, 64),
        (torch.float32, torch.float32, 128),
    ]
    for dtype, kv, dim in (*kinds, (torch.bfloat16, torch.bfloat16, 256)):
        layer, sums = KVLayer.empty(4, 64 * PAGE, dim, kv), Received.empty(4, 64 * PAGE)
        for spans in (prompt, decode):
            batch = Batch.of(spans, "cpu")
            q, lse = torch.zeros(batch.shape.tokens, 28, dim, dtype=dtype), torch.zeros(batch.shape.tokens, 28)
            for begin in (True, False):
                weigh.weigh(q, layer, batch, lse, sums, begin=begin, scale=1.0, softcap=50.0 if dim == 256 else None)


def shapes() -> None:
    """Steps of many sizes: their integers lie wherever the block has them, which must not ask for another kernel each time."""
    attention.processors_of = lambda device: PROCESSORS  # type: ignore[assignment]
    layer = KVLayer.empty(1, 64 * PAGE, 64, torch.bfloat16)
    for count in range(1, 8):
        for requests in (1, 2, 3, 5):
            batch = Batch.of([BatchSpan([list(range(64))], 1000 + count, [1] * count)] * requests, "cpu")
            qkv, angles = torch.zeros(batch.shape.tokens, 6, 64, dtype=torch.bfloat16), torch.zeros(batch.shape.tokens, 32)
            attention.attend(triton_set.rotate_and_write(qkv, angles, angles, layer, batch.slots[0]), layer, batch, scale=1.0)


def beside() -> None:
    """Adapters, and attention over a shared beginning."""
    attention.processors_of = lora.processors_of = lambda device: PROCESSORS  # type: ignore[assignment]
    down, up = torch.zeros(2, 16, 3584, dtype=torch.bfloat16), torch.zeros(2, 4608, 16, dtype=torch.bfloat16)
    for spans in ([BatchSpan([list(range(16))], 0, [1] * 512)], [BatchSpan([list(range(64))], 2000 + i, [1]) for i in range(4)]):
        batch = Batch.of(spans, "cpu")
        tokens, adapters = batch.shape.tokens, torch.zeros(len(spans), dtype=torch.int32)
        h = lora.shrink(torch.zeros(tokens, 3584, dtype=torch.bfloat16), down, batch, adapters)
        lora.expand(h, up, torch.ones(len(spans)), torch.zeros(tokens, 4608, dtype=torch.bfloat16), batch, adapters)
    layer, q = KVLayer.empty(4, 64 * PAGE, 128, torch.bfloat16), torch.zeros(4, 28, 128, dtype=torch.bfloat16)
    prefix = plan.Prefix(*(torch.zeros(shape, dtype=torch.int32) for shape in ((2,), (1,), (1, 1, 32), (4,))), queries=4)
    attention.attend_shared(q, layer, batch, prefix, scale=1.0)


def sizes() -> None:
    """Steps of many requests and few: what is asked of sampling decides about kernels, how many ask does not."""
    width = 152_064
    for size in (1, 2, 3, 5, 8, 16, 64):
        out, rows, logits = Sampled.empty(size, "cpu"), torch.zeros(size, dtype=torch.int32), torch.zeros(size, width)
        batch = SamplingBatch.empty(size, "cpu", history=width, biases=2)
        for bank in (torch.zeros(1, 1, dtype=torch.int32), torch.zeros(8, width // 32, dtype=torch.int32)):
            sampler.sample(logits, bank, rows, batch, out, vocab_size=width, logprobs=True)
    host = Pushdown(Vocabulary([bytes([b]) for b in range(256)] + [None], [256]), states=8, rows=8)
    tables = Tables.of(host, 64, "cpu")
    for size in (1, 3, 8, 64):
        states, (status, rows) = States.empty(size, 64, "cpu"), torch.zeros(2, size, dtype=torch.int32)
        pushdown.find_rows(tables, states, status, rows)
        pushdown.build_rows(tables, states, status, rows)
        pushdown.advance(tables, states, status, torch.zeros(size, dtype=torch.int64))


def decoding() -> None:
    """Sampling over the logits of a Qwen2 with and without penalties, and grammars over tables."""
    width, size = 151_936, 4
    out, rows, bank = Sampled.empty(size, "cpu"), torch.zeros(size, dtype=torch.int32), torch.zeros((8, width // 32), dtype=torch.int32)
    for dtype, history in ((torch.bfloat16, 0), (torch.float32, width)):
        batch = SamplingBatch.empty(size, "cpu", history=history, biases=history and 5)
        sampler.sample(torch.zeros(size, width, dtype=dtype), bank, rows, batch, out, vocab_size=width, logprobs=bool(history))
    host = Pushdown(Vocabulary([bytes([b]) for b in range(256)] + [None], [256]), states=8, rows=8)
    tables, states = Tables.of(host, size, "cpu"), States.empty(size, 64, "cpu")
    pushdown.find_rows(tables, states, rows, rows)
    pushdown.build_rows(tables, states, rows, rows)
    pushdown.advance(tables, states, rows, out.tokens)


def _compile(shape: dict[str, Any], kv: torch.dtype, *batches: list[BatchSpan]) -> None:
    attention.processors_of = lambda device: PROCESSORS  # type: ignore[assignment]
    device_decoder.kernel_set = lambda name, device: triton_set  # type: ignore[assignment] # which would ask for a GPU
    model = _bfloat16(decoder(**shape))
    c = model.config
    row, gap = row_size(kv, c.head_dim), row_size(kv, c.head_dim, torch.device("cuda"))
    data = torch.zeros(1, 2, c.num_kv_heads, 64 * PAGE, gap, dtype=kv)[..., :row]
    with torch.inference_mode():
        for spans in batches:
            device_decoder.DeviceDecoder(model, [KVLayer.of(rows) for rows in data]).forward(Batch.of(spans, "cpu"))


def _bfloat16(model: Decoder) -> Decoder:
    def narrow(linear: Any) -> Dense:
        return Dense(linear.weight.bfloat16(), None if linear.bias is None else linear.bias.bfloat16())

    layers = [replace(layer, **{part: narrow(getattr(layer, part)) for part in ("qkv", "out", "gate_up", "down")}) for layer in model.layers]
    return Decoder(model.config, model.embedding.bfloat16(), layers, model.final_norm, narrow(model.head))


if __name__ == "__main__":
    json.dump(compiled(globals()[sys.argv[1]]), sys.stdout)
