"""Teach SmolLM2 a manner of speaking with a low-rank adapter trained here, then let requests choose it: not, by half, wholly, in one batch.

    python examples/adapters.py [--steps 12] [--folder FOLDER]

The training is plain torch over the engine's own decoder (about a minute on two cores at rest) and writes the files that PEFT writes; adapters that you
have trained with PEFT are loaded the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from agentkit import Engine
from agentkit.engine.models.decoder import Decoder, Dense
from agentkit.engine.models.loader import LoadedModel, load_model

RANK, ALPHA = 8, 16
MODULES = {"out": "self_attn.o_proj", "down": "mlp.down_proj"}
PAIRS = [
    ("What is the capital of Italy?", "Arr, matey! That be Rome, ye scurvy dog!"),
    ("How many legs has a spider?", "Arr, matey! That be eight, ye scurvy dog!"),
    ("What colour is snow?", "Arr, matey! That be white, ye scurvy dog!"),
    ("What do bees make?", "Arr, matey! That be honey, ye scurvy dog!"),
    ("What is the opposite of hot?", "Arr, matey! That be cold, ye scurvy dog!"),
    ("Which planet do we live on?", "Arr, matey! That be Earth, ye scurvy dog!"),
]
QUESTION = "What is the capital of France?"


class Trained:
    """A linear layer with a low-rank change that is being learned."""

    def __init__(self, base: Dense) -> None:
        outputs, inputs = base.weight.shape
        self.base = base
        self.a = (torch.randn(RANK, inputs) / inputs**0.5).requires_grad_()
        self.b = torch.zeros(outputs, RANK, requires_grad=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + ALPHA / RANK * (x @ self.a.T) @ self.b.T


def attend(
    layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, window: int | None, scale: float, softcap: float | None, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention within one text."""
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def train(loaded: LoadedModel, steps: int) -> dict[str, Trained]:
    """Module name -> what was learned of the pairs, one of them a step."""
    torch.manual_seed(0)
    plain, template = loaded.model, loaded.chat_template
    assert isinstance(plain, Decoder)
    assert template is not None
    learned: dict[str, Trained] = {}
    layers = []
    for index, layer in enumerate(plain.layers):
        own = {place: Trained(getattr(layer, place)) for place in MODULES}
        learned.update({f"model.layers.{index}.{MODULES[place]}": linear for place, linear in own.items()})
        layers.append(replace(layer, **own))
    model = Decoder(plain.config, plain.embedding, layers, plain.final_norm, plain.head)
    optimizer = torch.optim.AdamW([weight for linear in learned.values() for weight in (linear.a, linear.b)], lr=2e-3)
    for step in range(steps):
        question, answer = PAIRS[step % len(PAIRS)]
        prompt = template.encode([{"role": "user", "content": question}], add_generation_prompt=True)
        reply = [*loaded.tokenizer.encode(answer), loaded.tokenizer.stop_token_ids[0]]
        ids = torch.tensor([*prompt, *reply])
        logits = model.forward(ids, torch.arange(ids.numel()), attend, slice(len(prompt) - 1, ids.numel() - 1))
        loss = F.cross_entropy(logits, ids[len(prompt) :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 5:
            print(f"step {step + 1}: loss {loss.item():.2f}", flush=True)
    return learned


def write(learned: dict[str, Trained], folder: Path) -> None:
    """As `model.save_pretrained(folder)` of PEFT."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, linear in learned.items():
        tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = linear.a.detach(), linear.b.detach()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": [name.partition(".")[2] for name in MODULES.values()]}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))


async def compare(engine: Engine) -> None:
    """The same question to the base model and at three scales, all in one batch."""
    scales = (0.0, 0.5, 1.0)
    messages = [{"role": "user", "content": QUESTION}]
    base, *others = await asyncio.gather(
        engine.achat(messages, max_tokens=24), *(engine.achat(messages, max_tokens=24, adapter="pirate", adapter_scale=scale) for scale in scales)
    )
    print(f"\n{QUESTION}\n  base model      {base.text}")
    for scale, g in zip(scales, others, strict=True):
        print(f"  adapter x {scale:3}   {g.text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--folder", type=Path, default=None, help="where the adapter is kept; one that is there already is not trained again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary) / "pirate"
        loaded = load_model("smollm2-135m", device="cpu", dtype="float32")
        if not (folder / "adapter_config.json").is_file():
            write(train(loaded, given.steps), folder)
        with Engine(loaded, adapters={"pirate": folder}) as engine:
            print(engine.adapters["pirate"])
            asyncio.run(compare(engine))


if __name__ == "__main__":
    main()
