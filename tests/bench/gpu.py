"""Everything about the GPU path in one run: kernels against their references, and what attention, decoding and prompts reach.

    python tests/bench/gpu.py [--out gpu.json] [--only kernels decode ...] [--seconds 480] [--smoke]

Needs an NVIDIA GPU and says so where there is none. Every section has a time box, and all of them --seconds together; what did not fit is
named, and the file is written after each section. A section that fails, for want of a package say, leaves the others alone. The model is a
random one in the shape of Qwen2-7B, in bfloat16. The grammars' kernels, which a new machine compiles for half a minute, are compiled by
another process meanwhile. --smoke runs the same code tiny on the CPU, through Triton's interpreter: it shows that the script works, and its
figures mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.models.decoder import Decoder
from agentkit.grammars.warmup import begin_compiling, compile_kernels
from tests.bench import gpu_kernels
from tests.bench.gpu_kit import Box, Figures, Setup, clock, forward_times, matrix_bytes, random_model, spans_for

if TYPE_CHECKING:
    from agentkit.engine import Engine

BATCHES = (1, 8, 64, 256)
AIMS = {
    "attention": "decode 0.8 of_copy",
    "decode": "0.75 of_floor at batch 1",
    "engine": "with a grammar under 1 % slower than without at batch 64",
    "steps": "constrained_costs under 0.01",
    "transformers": "decode is faster at every batch",
}
"""What the figures of a section are to be compared with."""


class Bench:
    """What later sections need of earlier ones: the ceilings, and one model for all."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.ceiling: Figures = {}
        self._model: Decoder | None = None
        begin_compiling()

    def wait_for_grammars(self) -> float:
        """Until the grammars' kernels are compiled; seconds waited."""
        start = time.perf_counter()
        compile_kernels()
        return round(time.perf_counter() - start, 1)

    @property
    def model(self) -> Decoder:
        if self._model is None:
            self._model = random_model(self.setup)
        return self._model

    def share(self, of: str, value: float) -> float | None:
        """A value as a fraction of a ceiling."""
        return round(value / self.ceiling[of], 4) if self.ceiling.get(of) else None

    # -- sections: each takes its box and returns what goes into the file -----------------------------------------

    def ceilings(self, box: Box) -> Figures:
        """Bytes per second of a copy (read and written), and operations per second of a large product of matrices."""
        s = self.setup
        source = torch.zeros(s.pick(1 << 30, 1 << 10), dtype=torch.float32, device=s.device)
        target, size = torch.empty_like(source), s.pick(8192, 64)
        a, b = (torch.randn(size, size, device=s.device, dtype=s.dtype) for _ in range(2))
        self.ceiling = {
            "copy_bytes_per_s": 2 * source.nbytes / clock(s, lambda: target.copy_(source)),
            "matmul_flops_per_s": 2 * size**3 / clock(s, lambda: a @ b),
        }
        return self.ceiling

    def kernels(self, box: Box) -> Figures:
        return gpu_kernels.checks(self.setup, box)

    def attention(self, box: Box) -> Figures:
        found = gpu_kernels.attention(self.setup, box)
        for row in found["decode"]:
            row["of_copy"] = self.share("copy_bytes_per_s", row["bytes_per_s"])
        for row in found["prefill"]:
            row["of_matmul"] = self.share("matmul_flops_per_s", row["flops_per_s"])
        return found

    def cascade(self, box: Box) -> Figures:
        return gpu_kernels.cascade(self.setup, box)

    def decode(self, box: Box) -> Figures:
        """Tokens per second of one forward per token, against reading every weight, key and value once at the speed of a copy."""
        s, found = self.setup, []
        c, before = self.model.config, s.pick(1024, 33)
        for requests in s.pick(BATCHES, (1, 2)):
            if box.left(f"batch {requests}"):
                times = forward_times(s, self.model, spans_for([(before, 1)] * requests))
                read = matrix_bytes(self.model) + requests * before * 2 * c.num_layers * c.num_kv_heads * c.head_dim * s.dtype.itemsize
                best = min(t for t in times.values() if t)
                found.append(
                    {"batch": requests, "context": before, **times, "tokens_per_s": requests / best, "of_floor": self.share("copy_bytes_per_s", read / best)}
                )
        return {"rows": found}

    def prefill(self, box: Box) -> Figures:
        """Operations per second of a prompt, against a large product of matrices."""
        s, found, c = self.setup, [], self.model.config
        for length in s.pick((512, 2048, 8192), (20,)):
            if box.left(f"prompt of {length}"):
                seconds = forward_times(s, self.model, spans_for([(0, length)]), graph=False)["eager_s"]
                products = 2 * length * matrix_bytes(self.model, head=False) / s.dtype.itemsize
                flops = products + 2 * length**2 * c.num_heads * c.head_dim * c.num_layers
                found.append(
                    {"tokens": length, "seconds": seconds, "flops_per_s": flops / seconds, "of_matmul": self.share("matmul_flops_per_s", flops / seconds)}
                )
        return {"rows": found}

    def drafts(self, box: Box) -> Figures:
        """C(k): a forward of k tokens per request, with the logits of each, against one of a single token."""
        s, found = self.setup, []
        for requests in s.pick((1, 8, 64), (1,)):
            base = 0.0
            for tokens in s.pick((1, 2, 4, 8, 16), (1, 2)):
                if box.left(f"{tokens} tokens of {requests}"):
                    times = forward_times(s, self.model, spans_for([(s.pick(1024, 33), tokens)] * requests, rows=tokens))
                    best = min(t for t in times.values() if t)
                    base = base or best
                    found.append({"batch": requests, "tokens": tokens, "seconds": best, "against_one": best / base})
        return {"rows": found}

    def formats(self, box: Box) -> Figures:
        """A forward over keys and values of each type, and the bytes of a position."""
        s, found = self.setup, []
        spans, c = spans_for([(s.pick(4096, 33), 1)] * s.pick(64, 1)), self.model.config
        for name, kv in (("model's own", s.dtype), ("int8", torch.int8), *(() if s.smoke else (("fp8", torch.uint8),))):
            if box.left(name):
                row = c.head_dim * kv.itemsize + (0 if kv.is_floating_point else 16)
                found.append({"format": name, "bytes_per_position": 2 * c.num_layers * c.num_kv_heads * row, **forward_times(s, self.model, spans, kv)})
        return {"rows": found}

    def sampling(self, box: Box) -> Figures:
        from tests.bench import gpu_step

        return gpu_step.sampling(self.setup, box)

    def masks(self, box: Box) -> Figures:
        from tests.bench import gpu_step

        box.start += (waited := self.wait_for_grammars())
        return {**gpu_step.masks(self.setup, box), "waited": waited}

    def steps(self, box: Box) -> Figures:
        from tests.bench import gpu_step

        box.start += self.wait_for_grammars()
        return gpu_step.steps(self.setup, self.model, box)

    def mixed(self, box: Box) -> Figures:
        from tests.bench import gpu_step

        return gpu_step.mixed(self.setup, self.model, box)

    def engine(self, box: Box) -> Figures:
        """Output tokens per second through the public interface, without and with a grammar, in captured steps and over the host."""
        from agentkit.engine import Engine
        from tests.engine.loaded import loaded_model

        box.start += self.wait_for_grammars()
        s, found = self.setup, []
        count = s.pick(64, 2)
        with tempfile.TemporaryDirectory() as folder:
            plain = loaded_model(Path(folder))
        loaded = replace(plain, model=self.model, config=replace(self.model.config, stop_token_ids=plain.tokenizer.stop_token_ids))
        if s.smoke:
            return {"rows": [], "note": "through the interpreter tests/engine/gpu/test_device_runner.py runs the engine"}
        kinds = {"none": None, "text": f"[ab]{{{2 * count}}}", "forced": "(twelve forced[ab]{8}){16}"}  # 12 of 20 tokens of the last are forced
        for graphs, requests, (kind, regex) in product((True, False), (64, 1, 8, 256), kinds.items()):
            if box.left(f"{kind} of {requests}, {'captured' if graphs else 'over the host'}"):
                with Engine(loaded, max_running=requests, speculation="off", kv_memory=24 << 30, cuda_graphs=graphs) as engine:
                    rate = asyncio.run(_rate(engine, requests, count, regex))
                    found.append({"batch": requests, "captured": graphs, "grammar": kind, "tokens_per_s": rate})
        return {"rows": found}

    def transformers(self, box: Box) -> Figures:
        """generate() of transformers on a model of the same shape."""
        from transformers import Qwen2Config, Qwen2ForCausalLM

        s, found = self.setup, []
        m, count, before = s.model, s.pick(64, 2), s.pick(1024, 5)
        config = Qwen2Config(
            hidden_size=m["hidden"], intermediate_size=m["inner"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
            num_key_value_heads=m["kv"], vocab_size=m["vocabulary"], tie_word_embeddings=False,
        )  # fmt: skip
        with torch.device(s.device):
            model = Qwen2ForCausalLM(config).to(s.dtype).eval()
        for requests in s.pick((1, 8, 64), (1,)):
            if box.left(f"batch {requests}"):
                ids = torch.ones(requests, before, dtype=torch.long, device=s.device)
                options: Any = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
                times = []
                for tokens in (1, count + 1):  # their difference is decoding alone
                    s.sync()
                    start = time.perf_counter()
                    model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, **options)
                    s.sync()
                    times.append(time.perf_counter() - start)
                found.append({"batch": requests, "context": before, "tokens_per_s": requests * count / (times[1] - times[0])})
        return {"rows": found}


async def _rate(engine: Engine, requests: int, count: int, regex: str | None) -> float:
    options: Any = {"max_tokens": count} if regex is None else {"max_tokens": count, "regex": regex, "budget_guard": False, "allow_truncated": True}
    prompts = [[7 + i % 200] * (PAGE + 1) for i in range(requests)]
    await asyncio.gather(*(engine.agenerate(prompt, max_tokens=2) for prompt in prompts))  # compiles and fills the cache
    start = time.perf_counter()
    done = await asyncio.gather(*(engine.agenerate(prompt, **options) for prompt in prompts))
    return sum(len(generation.token_ids) for generation in done) / (time.perf_counter() - start)


SECTIONS: dict[str, tuple[Callable[[Bench, Box], Figures], float]] = {
    "ceilings": (Bench.ceilings, 15), "kernels": (Bench.kernels, 60), "attention": (Bench.attention, 50), "cascade": (Bench.cascade, 15),
    "decode": (Bench.decode, 50), "prefill": (Bench.prefill, 25), "drafts": (Bench.drafts, 40), "formats": (Bench.formats, 25),
    "sampling": (Bench.sampling, 20), "masks": (Bench.masks, 20), "steps": (Bench.steps, 40), "mixed": (Bench.mixed, 20), "engine": (Bench.engine, 70),
    "transformers": (Bench.transformers, 35),
}  # fmt: skip
"""Name -> function and seconds, in the order they run."""


def machine(setup: Setup) -> Figures:
    import triton

    name = torch.cuda.get_device_name(setup.device) if setup.device.type == "cuda" else platform.processor()
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__, "smoke": setup.smoke}


def run(setup: Setup, names: list[str], out: Path, limit: float) -> bool:
    """Runs the sections within `limit` seconds and writes the file after each; False if one failed."""
    bench, start, good = Bench(setup), time.perf_counter(), True
    result: Figures = {"machine": machine(setup), "sections": {}}
    for name in names:
        function, seconds = SECTIONS[name]
        box = Box(min(seconds, limit - (time.perf_counter() - start)))
        if box.seconds <= 0:
            result["sections"][name] = {"skipped": ["all of it: the time is up"]}
            continue
        try:
            figures = function(bench, box)
        except Exception as error:  # noqa: BLE001 - one section must not take the figures of the others with it
            figures, good = {"error": f"{type(error).__name__}: {error}"}, False
        aim = {"aim": AIMS[name]} if name in AIMS else {}
        result["sections"][name] = {**figures, **aim, "seconds": round(time.perf_counter() - box.start, 2), "skipped": box.skipped}
        result["seconds"] = round(time.perf_counter() - start, 1)
        out.write_text(json.dumps(result, indent=1))
        print(f"{name}: {json.dumps(result['sections'][name])}", flush=True)
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
    out.write_text(json.dumps(result, indent=1))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=480.0, help="after so many no further section or figure begins")
    parser.add_argument("--smoke", action="store_true", help="tiny, on the CPU, through the interpreter; figures mean nothing")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        print("no NVIDIA GPU here, so nothing is measured; --smoke runs the script itself on the CPU")
        return 0
    setup = Setup(torch.device("cpu"), torch.float32, True) if options.smoke else Setup(torch.device("cuda"), torch.bfloat16, False)
    return 0 if run(setup, [name for name in SECTIONS if name in options.only], options.out, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
