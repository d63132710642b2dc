"""The sections of gpu.py, in the order they run, and what they have in common: the ceilings and one model for all.

Inputs: a Setup and a time box for each. What a section has found goes into its box as it is found.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_policy import H2O, Streaming, Window, reach_of
from agentkit.engine.models.decoder import Decoder
from agentkit.grammars.warmup import begin_compiling, compile_kernels
from tests.bench import gpu_kernels
from tests.bench.gpu_kit import Box, Figures, Setup, best_of, clock, forward_times, matrix_bytes, random_model, spans_for

if TYPE_CHECKING:
    from agentkit.engine import Engine

BATCHES = (1, 64, 8, 256)
AIMS = {
    "attention": "decode 0.8 of_copy",
    "decode": "0.75 of_floor at batch 1",
    "engine": "with a grammar under 1 % slower than without at batch 64",
    "steps": "constrained_costs under 0.01",
    "transformers": "decode is faster at every batch",
}
"""What the figures of a section are to be compared with."""


class Bench:
    """What later sections need of earlier ones. ceiling: what the device has been seen to do, by name; of an earlier process, if there was one."""

    def __init__(self, setup: Setup, ceiling: Figures) -> None:
        self.setup = setup
        self.ceiling = ceiling
        self._model: Decoder | None = None
        begin_compiling()

    def wait_for_grammars(self, box: Box) -> None:
        """Until the grammars' kernels are compiled; that does not count."""
        start = time.perf_counter()
        compile_kernels()
        box.figures["waited"] = round(time.perf_counter() - start, 1)
        box.start += time.perf_counter() - start

    @property
    def model(self) -> Decoder:
        if self._model is None:
            self._model = random_model(self.setup)
        return self._model

    def share(self, of: str, value: float) -> float | None:
        """A value as a fraction of a ceiling."""
        return round(value / self.ceiling[of], 4) if self.ceiling.get(of) else None

    # -- sections: each takes its box and puts what it finds there -------------------------------------------------

    def ceilings(self, box: Box) -> None:
        """Bytes per second of a copy (read and written), and operations per second of a large product of matrices."""
        s = self.setup
        source = torch.zeros(s.pick(1 << 30, 1 << 10), dtype=torch.float32, device=s.device).normal_()
        target, size = torch.empty_like(source), s.pick(8192, 64)
        a, b = (torch.randn(size, size, device=s.device, dtype=s.dtype) for _ in range(2))
        box.figures["copy_bytes_per_s"] = 2 * source.nbytes / clock(s, lambda: target.copy_(source))
        box.figures["matmul_flops_per_s"] = 2 * size**3 / clock(s, lambda: a @ b)
        self.ceiling.update(box.figures)

    def kernels(self, box: Box) -> None:
        gpu_kernels.checks(self.setup, box)

    def attention(self, box: Box) -> None:
        gpu_kernels.attention(self.setup, box)
        for row in box.rows:
            if "decode" in row:
                row["of_copy"] = self.share("copy_bytes_per_s", row["bytes_per_s"])
            else:
                row["of_matmul"] = self.share("matmul_flops_per_s", row["flops_per_s"])

    def cascade(self, box: Box) -> None:
        gpu_kernels.cascade(self.setup, box)

    def flash(self, box: Box) -> None:
        gpu_kernels.flash(self.setup, box)

    def decode(self, box: Box) -> None:
        """Tokens per second of one forward per token, against reading every weight, key and value once at the speed of a copy."""
        s, c, before = self.setup, self.model.config, self.setup.pick(1024, 33)
        for requests in s.pick(BATCHES, (1, 2)):
            if box.left(f"batch {requests}"):
                times = forward_times(s, self.model, spans_for([(before, 1)] * requests))
                read = matrix_bytes(self.model) + requests * before * 2 * c.num_layers * c.num_kv_heads * c.head_dim * s.dtype.itemsize
                share = self.share("copy_bytes_per_s", read / best_of(times))
                box.rows.append({"batch": requests, "context": before, **times, "tokens_per_s": requests / best_of(times), "of_floor": share})

    def prefill(self, box: Box) -> None:
        """Operations per second of a prompt, against a large product of matrices."""
        s, c = self.setup, self.model.config
        for length in s.pick((2048, 8192, 512), (20,)):
            if box.left(f"prompt of {length}"):
                seconds = forward_times(s, self.model, spans_for([(0, length)]), graph=False)["eager_s"]
                products = 2 * length * matrix_bytes(self.model, head=False) / s.dtype.itemsize
                flops = products + 2 * length**2 * c.num_heads * c.head_dim * c.num_layers
                share = self.share("matmul_flops_per_s", flops / seconds)
                box.rows.append({"tokens": length, "seconds": seconds, "flops_per_s": flops / seconds, "of_matmul": share})

    def drafts(self, box: Box) -> None:
        """C(k): a forward of k tokens per request, with the logits of each, against one of a single token."""
        s = self.setup
        for requests in s.pick((1, 8, 64), (1,)):
            base = 0.0
            for tokens in s.pick((1, 2, 4, 8, 16), (1, 2)):
                if box.left(f"{tokens} tokens of {requests}"):
                    best = best_of(forward_times(s, self.model, spans_for([(s.pick(1024, 33), tokens)] * requests, rows=tokens)))
                    base = base or best
                    box.rows.append({"batch": requests, "tokens": tokens, "seconds": best, "against_one": best / base})

    def policies(self, box: Box) -> None:
        """A forward over keys and values of each type, and under each policy: seconds, and the bytes of a position or the positions that are kept."""
        s, c = self.setup, self.model.config
        spans = spans_for([(s.pick(4096, 200), 1)] * s.pick(64, 1))
        for name, kv in (("model's own", s.dtype), ("int8", torch.int8), *(() if s.smoke else (("fp8", torch.uint8),))):
            if box.left(name):
                row = c.head_dim * kv.itemsize + (0 if kv.is_floating_point else 16)
                size = 2 * c.num_layers * c.num_kv_heads * row
                box.rows.append({"format": name, "bytes_per_position": size, **forward_times(s, self.model, spans, kv)})
        for policy in (Window(s.pick(1024, 64)), Streaming(4, s.pick(1024, 64)), H2O(s.pick(1024, 128), recent=s.pick(512, 64))):
            if box.left(str(policy)):
                kept = policy.budget if isinstance(policy, H2O) else policy.window
                seen = spans_for([(kept, 1)] * len(spans)) if isinstance(policy, H2O) else spans  # it drops the others from its pages
                box.rows.append({"policy": str(policy), "kept": kept, **forward_times(s, self.model, seen, reach=reach_of(policy, c))})

    def sampling(self, box: Box) -> None:
        from tests.bench import gpu_step

        gpu_step.sampling(self.setup, box)

    def masks(self, box: Box) -> None:
        from tests.bench import gpu_step

        self.wait_for_grammars(box)
        gpu_step.masks(self.setup, box)

    def steps(self, box: Box) -> None:
        from tests.bench import gpu_step

        self.wait_for_grammars(box)
        gpu_step.steps(self.setup, self.model, box)

    def mixed(self, box: Box) -> None:
        from tests.bench import gpu_step

        gpu_step.mixed(self.setup, self.model, box)

    def engine(self, box: Box) -> None:
        """Output tokens per second through the public interface, without and with a grammar, in captured steps and over the host."""
        from agentkit.engine import Engine
        from tests.engine.loaded import loaded_model

        self.wait_for_grammars(box)
        s, count = self.setup, self.setup.pick(64, 2)
        with tempfile.TemporaryDirectory() as folder:
            plain = loaded_model(Path(folder))
        loaded = replace(plain, model=self.model, config=replace(self.model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
        if s.smoke:
            box.figures["note"] = "through the interpreter tests/engine/gpu/test_device_runner.py runs the engine"
            return
        kinds = {"none": None, "text": f"[ab]{{{2 * count}}}", "forced": "(twelve forced[ab]{8}){16}"}  # 12 of 20 tokens of the last are forced
        for graphs, requests in ((True, 64), (True, 1), (False, 64), (True, 8), (True, 256), (False, 1), (False, 8), (False, 256)):
            how = "captured" if graphs else "over the host"
            if box.left(f"{requests}, {how}"):
                with Engine(loaded, max_running=requests, speculation="off", kv_memory=24 << 30, cuda_graphs=graphs) as engine:
                    for kind, regex in kinds.items():
                        if box.left(f"{kind} of {requests}, {how}"):
                            rate = asyncio.run(_rate(engine, requests, count, regex))
                            box.rows.append({"batch": requests, "captured": graphs, "grammar": kind, "tokens_per_s": rate})
                gc.collect()  # its pages make room for the next one's

    def transformers(self, box: Box) -> None:
        """generate() of transformers on a model of the same shape."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        s, m, count, before = self.setup, self.setup.model, self.setup.pick(64, 2), self.setup.pick(1024, 5)
        config = Qwen2Config(
            hidden_size=m["hidden"], intermediate_size=m["inner"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
            num_key_value_heads=m["kv"], vocab_size=m["vocabulary"], tie_word_embeddings=False, eos_token_id=None, bos_token_id=None, dtype=s.dtype,
        )  # fmt: skip
        with torch.device(s.device):
            model = Qwen2ForCausalLM(config).to(s.dtype).eval()
        for requests in s.pick((1, 8, 64), (1,)):
            if box.left(f"batch {requests}"):
                ids = torch.ones(requests, before, dtype=torch.long, device=s.device)
                options: Any = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
                times = []
                for tokens in (1, 1, count + 1):  # the first time does not count; the difference of the others is decoding alone
                    s.sync()
                    start = time.perf_counter()
                    model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, **options)
                    s.sync()
                    times.append(time.perf_counter() - start)
                box.rows.append({"batch": requests, "context": before, "tokens_per_s": requests * count / (times[2] - times[1])})


async def _rate(engine: Engine, requests: int, count: int, regex: str | None) -> float:
    """Output tokens per second of so many requests at once; the first time everything is compiled, captured and cached."""
    options: Any = {"max_tokens": count} if regex is None else {"max_tokens": count, "regex": regex, "budget_guard": False, "allow_truncated": True}
    prompts = [[7 + i % 200] * (PAGE + 1) for i in range(requests)]
    rate = 0.0
    for _ in range(2):
        start = time.perf_counter()
        done = await asyncio.gather(*(engine.agenerate(prompt, **options) for prompt in prompts))
        rate = sum(len(generation.token_ids) for generation in done) / (time.perf_counter() - start)
    return rate


SECTIONS: dict[str, tuple[Callable[[Bench, Box], None], float]] = {
    "ceilings": (Bench.ceilings, 15), "kernels": (Bench.kernels, 75), "decode": (Bench.decode, 40), "steps": (Bench.steps, 50),
    "attention": (Bench.attention, 35), "engine": (Bench.engine, 80), "transformers": (Bench.transformers, 30), "prefill": (Bench.prefill, 20),
    "cascade": (Bench.cascade, 15), "masks": (Bench.masks, 15), "sampling": (Bench.sampling, 20), "policies": (Bench.policies, 30),
    "drafts": (Bench.drafts, 30), "mixed": (Bench.mixed, 15), "flash": (Bench.flash, 15),
}  # fmt: skip
"""Name -> function and seconds, in the order they run: what matters most comes first."""
