"""What an engine offers, over a GPU that is not there (see run.py): each case by itself, those that fail with their traceback.

Nothing is computed, so tokens and masks that come back mean nothing: here a token is any that the request's grammar allows, and logits are zeros.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
import torch

from agentkit.engine import H2O, Engine, Streaming, Window
from agentkit.engine.device import decoding, runner, step
from agentkit.engine.models.decoder import Decoder, Dense
from agentkit.engine.models.loader import LoadedModel
from tests.engine.kernels.models import decoder
from tests.engine.loaded import loaded_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"], "additionalProperties": False}


def pretend() -> None:
    """Tokens, statuses and logits that a device would have computed."""
    take, read, execute = decoding.DeviceDecoding._take, step.DeviceStep.read, runner.DeviceRunner.execute

    def allowed(matcher: Any) -> int:
        return 5 if matcher is None else int(np.flatnonzero(np.unpackbits(np.asarray(matcher.mask()).view(np.uint8), bitorder="little"))[0])

    def taken(self: Any, of: Any, seats: Any, result: Any, burst: Any) -> bool:
        result.status[:] = 0
        for number, seat in enumerate(seats):
            if seat is not None and seat.takes_part and result.launch >= seat.since:
                result.tokens[number] = allowed(seat.request.matcher)
        return take(self, of, seats, result, burst)

    def zeros(self: Any) -> Any:
        result = read(self)
        return replace(result, logprobs=np.zeros_like(result.logprobs), beside=[np.zeros_like(logits) for logits in result.beside])

    decoding.DeviceDecoding._take = taken  # type: ignore[method-assign]
    step.DeviceStep.read = zeros  # type: ignore[method-assign]
    runner.DeviceRunner.execute = lambda self, spans: [np.zeros_like(logits) for logits in execute(self, spans)]  # type: ignore[method-assign]


def model_on(device: str, folder: Path, dtype: torch.dtype = torch.bfloat16, **shape: Any) -> LoadedModel:
    """A small decoder on the device."""
    plain = loaded_model(folder)
    sizes = {"vocabulary": plain.config.vocab_size, "heads": 4, "kv": 2, "dim": 64, "hidden": 128, "inner": 256, "layers": 2, **shape}
    made = decoder(**sizes)  # type: ignore[arg-type]

    def moved(x: Any) -> Any:
        if isinstance(x, Dense):
            return Dense(x.weight.to(device, dtype), None if x.bias is None else x.bias.to(device, dtype))
        return x.to(device) if isinstance(x, torch.Tensor) else x

    layers = [replace(layer, **{field.name: moved(getattr(layer, field.name)) for field in fields(layer)}) for layer in made.layers]
    config = replace(made.config, stop_token_ids=plain.tokenizer.stop_token_ids)
    model = Decoder(config, made.embedding.to(device, dtype), layers, moved(made.final_norm), moved(made.head))
    return replace(plain, model=model, config=config)


def generate(loaded: LoadedModel, options: dict[str, Any], requests: int = 5, **wanted: Any) -> list[str]:
    """Why each of some requests ended."""

    async def together(engine: Engine) -> list[Any]:
        prompts = (f"a beginning for all of them {i} " * (i + 1) for i in range(requests))
        return await asyncio.gather(*(engine.agenerate(prompt, **{"max_tokens": 60, **wanted}) for prompt in prompts))

    with Engine(loaded, **{"kv_memory": 1 << 26, "speculation": "off", "max_running": 8, **options}) as engine:
        return [generation.finish_reason for generation in asyncio.run(together(engine))]


def two_at_once(folder: Path) -> list[list[str]]:
    """Engines on two devices (or one) of one process, each captured while the other runs."""
    devices, ended = [f"cuda:{i % torch.cuda.device_count()}" for i in range(2)], list[list[str]]()
    models = [model_on(device, folder) for device in devices]
    threads = [threading.Thread(target=lambda model=model: ended.append(generate(model, {}, schema=SCHEMA))) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 2
    return ended


def cases(folder: Path) -> dict[str, Callable[[], object]]:
    loaded = model_on("cuda", folder)
    sampling = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "presence_penalty": 0.3, "logit_bias": {3: 1.0}, "seed": 3}
    engines: dict[str, dict[str, Any]] = {
        **{f"kv={kv}": {"kv": kv} for kv in ("int8", "fp8", "fp16", Window(64), Streaming(4, 64))}, "over the host": {"cuda_graphs": False},
        "h2o": {"kv": H2O(128, recent=64), "prefix_caching": False}, **{name: {"speculation": name} for name in ("ngram", "lookahead", "self")},
    }  # fmt: skip
    gemma = {"sandwich_norms": True, "attention_softcap": 50.0, "windows": (64, None), "activation": "gelu_tanh"}
    return {
        "plain": lambda: generate(loaded, {}),
        "sampled": lambda: generate(loaded, {}, **sampling),
        "log-probabilities": lambda: generate(loaded, {}, logprobs=3),
        "several": lambda: generate(loaded, {}, n=3, temperature=0.7),
        "forced": lambda: generate(loaded, {}, regex="(twelve forced[ab]{8}){2}", max_tokens=90),
        **{name: lambda options=options: generate(loaded, options, schema=SCHEMA) for name, options in engines.items()},  # type: ignore[misc]
        "gemma": lambda: generate(model_on("cuda", folder, **gemma), {}),
        "float32": lambda: generate(model_on("cuda", folder, torch.float32), {}, schema=SCHEMA),
        "two engines": lambda: two_at_once(folder),
    }


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    pretend()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            if len(sys.argv) < 2 or name in sys.argv[1:]:
                try:
                    say(f"{name}: {case()}")
                except Exception:  # noqa: BLE001 - the others are wanted all the same
                    good = False
                    say(f"{name}: {traceback.format_exc()}")
    assert torch.cuda.current_device() == 0, "an engine has changed its caller's device"
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
