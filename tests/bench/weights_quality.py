"""What each representation of the weights, and of keys and values, costs in quality, on the text of this repository's own documentation.

    python tests/bench/weights_quality.py [--model smollm2-135m] [--tokens 2048]

Against float32 with the same tokens before: perplexity, Kullback-Leibler divergence per token, how often the most likely token is
the same, and the largest difference of any logit. "as stored" takes the blocks of the model's GGUF file, "rounded" makes them; keys and
values are float32 where nothing else is said.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from agentkit.engine.attention import BatchAttention
from agentkit.engine.kernels.layout import PAGE
from agentkit.engine.kv_format import row_size
from agentkit.engine.kv_groups import together
from agentkit.engine.kv_policy import Reach
from agentkit.engine.models.loader import LoadedModel, load_model
from agentkit.engine.weights.choose import with_weights
from agentkit.engine.weights.half import half_precision

TEXTS = ("docs/grammars.md", "docs/guide.md")
WINDOW = 512


def logits(model: Any, ids: torch.Tensor, kv: torch.dtype) -> torch.Tensor:
    """[T, V], each window of 512 tokens by itself."""
    c = model.config
    data = torch.zeros(c.num_layers, 2, c.num_kv_heads, WINDOW, row_size(kv, c.head_dim), dtype=kv)
    pool: Any = SimpleNamespace(data=data, groups=together(c.num_layers), reach=Reach(), sums=None)
    sequence: Any = SimpleNamespace(tables=[list(range(WINDOW // PAGE))])
    with torch.inference_mode():
        parts = [model.forward(part, torch.arange(len(part)), BatchAttention(pool, [(sequence, 0, len(part))]), None) for part in ids.split(WINDOW)]
    return torch.cat(parts)


def variants(loaded: LoadedModel) -> Iterator[tuple[str, Any, torch.dtype]]:
    yield "fp32", loaded.model, torch.float32
    yield "fp16", half_precision(loaded.model), torch.float32
    if loaded.gguf is not None:
        stored = with_weights(loaded, "int8").model
        yield "int8/int4 as stored", stored, torch.float32
        yield "int8/int4 as stored, kv fp16", stored, torch.float16
        yield "int8/int4 as stored, activations int8", with_weights(loaded, "int8", "int8").model, torch.float32
        yield "int8/int4 as stored, kv bf16", stored, torch.bfloat16
        yield "int8/int4 as stored, kv int8", stored, torch.int8
        yield "int8/int4 as stored, kv fp8", stored, torch.uint8
    for weights in ("int8", "int4"):
        yield f"{weights}, rounded", with_weights(replace(loaded, gguf=None), weights).model, torch.float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    loaded = load_model(options.model, device="cpu", dtype="float32")
    root = Path(__file__).parents[2]
    text = "\n".join((root / name).read_text() for name in TEXTS)
    ids = torch.tensor(loaded.tokenizer.encode(text)[: options.tokens])
    print(f"{platform.machine()}, torch {torch.__version__}; {options.model}, {len(ids)} tokens of {', '.join(TEXTS)}\n")
    print("| weights | MB of matrices | perplexity | KL to fp32 | same argmax | largest difference of a logit |\n|---|---|---|---|---|---|")
    target = ids.roll(-1)
    counted = torch.ones(len(ids), dtype=torch.bool)
    counted[WINDOW - 1 :: WINDOW] = counted[-1] = False
    reference = plain = torch.empty(0)
    for name, model, kv in variants(loaded):
        raw = logits(model, ids, kv)
        log = raw.log_softmax(-1)
        if name == "fp32":
            reference, plain = log, raw
        perplexity = -log.gather(1, target.unsqueeze(1)).squeeze(1)[counted].mean()
        divergence = (reference.exp() * (reference - log)).sum(-1).mean()
        same = (log.argmax(-1) == reference.argmax(-1)).float().mean()
        size = model.nbytes if hasattr(model, "nbytes") else (4 if name == "fp32" else 2) * sum(t.numel() for t in matrices(loaded))
        print(f"| {name} | {size / 1e6:.0f} | {perplexity.exp():.4f} | {divergence:.1e} | {same:.2%} | {(raw - plain).abs().max():.2g} |")


def matrices(loaded: LoadedModel) -> list[torch.Tensor]:
    linears: list[Any] = [getattr(layer, name) for layer in loaded.model.layers for name in ("qkv", "out", "gate_up", "down")]
    return [linear.weight for linear in [*linears, loaded.model.head]]


if __name__ == "__main__":
    main()
