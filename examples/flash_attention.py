"""Flash attention against standard attention over one prompt of growing length: time, memory, and the largest error.

    python examples/flash_attention.py [--lengths 2048 8192 32768] [--heads 9] [--key-heads 3] [--size 64] [--device auto]

Standard attention holds the scores of all pairs of tokens at once, so its memory grows with the square of the length. Flash attention
goes over the keys in blocks with a running softmax and holds a block of scores. Three of it are measured: torch's (SDPA), the engine's
own over pages of keys and values (a numba kernel on the CPU, a Triton kernel on a GPU), which is what Engine(attention="flash"), the
default, decodes with, and the textbook's as attention="standard". The error is the largest one against sums in float64, over some rows.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from agentkit.engine.attention import BatchAttention
from agentkit.engine.device.attention import PagedAttention
from agentkit.engine.kernels.gpu.batch import Batch, BatchSpan
from agentkit.engine.kernels.gpu.cache import KVLayer
from agentkit.engine.kernels.gpu.choose import kernel_set
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.memory import available_host_bytes
from agentkit.engine.models.decoder import Attend

ROWS = 48  # of the float64 sums
STEP = {"cpu": 512, "cuda": 8192}  # tokens of a forward, as in the engine
SHORT = 0.3  # seconds below which a run is repeated


@dataclass(frozen=True)
class Prompt:
    """q [T, H, D], k and v [T, KV, D] of one prompt; each token sees itself and those before it."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def random(cls, length: int, heads: int, key_heads: int, size: int, device: torch.device) -> "Prompt":
        generator = torch.Generator().manual_seed(length)
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        return cls(*(torch.randn(length, h, size, generator=generator).to(device, dtype) for h in (heads, key_heads, key_heads)))

    @property
    def group(self) -> int:
        return self.q.shape[1] // self.k.shape[1]

    def whole(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v [1, H, T, D], keys repeated for their group."""
        q, k, v = (x.transpose(0, 1).repeat_interleave(n, 0)[None] for x, n in ((self.q, 1), (self.k, self.group), (self.v, self.group)))
        return q, k, v


def standard(prompt: Prompt) -> torch.Tensor:
    """softmax(q k^T) v with every score in memory."""
    q, k, v = prompt.whole()
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5  # [1, H, T, T]
    length = scores.shape[-1]
    scores.masked_fill_(torch.ones(length, length, dtype=torch.bool, device=q.device).triu_(1), -torch.inf)
    return (scores.softmax(-1) @ v)[0].transpose(0, 1)


def sdpa(prompt: Prompt) -> torch.Tensor:
    """torch's own flash attention."""
    return F.scaled_dot_product_attention(*prompt.whole(), is_causal=True)[0].transpose(0, 1)


def paged(prompt: Prompt) -> torch.Tensor:
    """The engine's, over pages, in steps of some tokens as a long prompt is computed; writing keys and values into the pages is part of it."""
    length, key_heads, size = prompt.k.shape
    pages, step = list(range(-(-length // PAGE))), STEP[prompt.k.device.type]
    shape = KVShape(1, key_heads, size, prompt.k.dtype, prompt.k.device)
    pool, out = KVPool(shape, len(pages) * shape.bytes_per_page), torch.empty_like(prompt.q)
    for start in range(0, length, step):
        part = slice(start, min(start + step, length))
        attend = _attend(pool, pages, start, part.stop - start)
        out[part] = attend(0, prompt.q[part], prompt.k[part], prompt.v[part], window=None, scale=size**-0.5, softcap=None)
    return out


def _attend(pool: KVPool, pages: list[int], start: int, count: int) -> Attend:
    """The engine's attention for `count` tokens behind the `start` that are in the pages."""
    device = pool.data.device
    if device.type == "cpu":
        sequence: Any = SimpleNamespace(tables=[pages])
        return BatchAttention(pool, [(sequence, start, count)])
    batch = Batch.of([BatchSpan(pages, start, [0] * count)], device)
    return PagedAttention(batch, [KVLayer.of(pool.data[0])], kernel_set("triton", device), pool.reach)


METHODS: dict[str, Callable[[Prompt], torch.Tensor]] = {"standard": standard, "flash (torch)": sdpa, "flash (engine)": paged}


@dataclass(frozen=True)
class Figures:
    """seconds; memory: bytes beyond what was there before, at the peak (None: this system does not tell); error: the largest one."""

    seconds: float
    memory: int | None
    error: float


def measure(method: Callable[[Prompt], torch.Tensor], prompt: Prompt) -> Figures:
    method(Prompt(prompt.q[:PAGE], prompt.k[:PAGE], prompt.v[:PAGE]))  # compiles what has to be
    before = _reset_peak(prompt.q.device)
    out, first = _timed(method, prompt)
    peak = _peak(prompt.q.device)
    memory = None if before is None or peak is None else peak - before
    times = [first] if first > SHORT else [_timed(method, prompt)[1] for _ in range(5)]
    rows, want = exact(prompt)
    return Figures(statistics.median(times), memory, float((out[rows].double() - want).abs().max()))


def exact(prompt: Prompt) -> tuple[torch.Tensor, torch.Tensor]:
    """Some rows, the last ones among them, and attention of those in float64 [rows, H, D]."""
    length = prompt.q.shape[0]
    rows = torch.linspace(0, length - 1, min(ROWS, length)).long().to(prompt.q.device)
    q, k, v = (x.double() for x in prompt.whole())
    scores = (q[:, :, rows] @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.arange(length, device=q.device) > rows[:, None], -torch.inf)
    return rows, (scores.softmax(-1) @ v)[0].transpose(0, 1)


def needed(length: int, heads: int, element: int) -> int:
    """Bytes of standard attention: scores, their softmax beside them, and the mask."""
    return length * length * (2 * heads * element + 1)


def free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_host_bytes()


def compare(lengths: Sequence[int], heads: int, key_heads: int, size: int, device: torch.device) -> dict[int, dict[str, Figures | int]]:
    """Per length and method its figures, or the bytes it would need where those are not free."""
    found: dict[int, dict[str, Figures | int]] = {}
    for length in lengths:
        prompt, found[length] = Prompt.random(length, heads, key_heads, size, device), {}
        for name, method in METHODS.items():
            wanted = needed(length, heads, prompt.q.element_size()) if method is standard else 0
            with torch.inference_mode():
                found[length][name] = measure(method, prompt) if wanted < free_bytes(device) else wanted
    return found


def _timed(method: Callable[[Prompt], torch.Tensor], prompt: Prompt) -> tuple[torch.Tensor, float]:
    _wait(prompt.q.device)
    start = time.perf_counter()
    out = method(prompt)
    _wait(prompt.q.device)
    return out, time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reset_peak(device: torch.device) -> int | None:
    """Memory in use; the peak counts from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status("VmHWM")


def _status(field: str) -> int | None:
    file = Path("/proc/self/status")
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines()) if file.exists() else {}
    return int(lines[field].split()[0]) * 1024 if field in lines else None


def table(found: dict[int, dict[str, Figures | int]]) -> list[str]:
    lines = [f"{'tokens':>7}  {'attention':<15} {'ms':>9} {'faster':>7} {'memory, MB':>11} {'largest error':>14}"]
    for length, methods in found.items():
        base = methods["standard"]
        for name, figures in methods.items():
            if isinstance(figures, int):
                lines.append(f"{length:>7}  {name:<15} does not fit: it needs {figures / 1e9:.1f} GB")
                continue
            faster = f"{base.seconds / figures.seconds:.1f}x" if isinstance(base, Figures) else "-"
            memory = "-" if figures.memory is None else f"{figures.memory / 1e6:.0f}"
            lines.append(f"{length:>7}  {name:<15} {figures.seconds * 1e3:>9.1f} {faster:>7} {memory:>11} {figures.error:>14.1e}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--key-heads", type=int, default=3)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    device = torch.device(chosen)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{machine}; {options.heads} query heads and {options.key_heads} key heads of {options.size}, one prompt, causal")
    print("\n".join(table(compare(options.lengths, options.heads, options.key_heads, options.size, device))))


if __name__ == "__main__":
    main()
