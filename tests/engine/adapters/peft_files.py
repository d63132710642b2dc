"""Adapters in PEFT's layout for tests: random ones as files, and the model into which they are merged as PEFT would, W + scale * B A."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder, Dense

ALL = ("q", "k", "v", "o", "gate", "up", "down")


def module(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{'self_attn' if part in 'qkvo' else 'mlp'}.{part}_proj"


def sizes(c: ModelConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer."""
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    return {
        "q": (c.hidden_size, queries), "k": (c.hidden_size, keys), "v": (c.hidden_size, keys), "o": (queries, c.hidden_size),
        "gate": (c.hidden_size, c.intermediate_size), "up": (c.hidden_size, c.intermediate_size), "down": (c.intermediate_size, c.hidden_size),
    }  # fmt: skip


@dataclass(frozen=True)
class RandomAdapter:
    """One for a model of these shapes. ranks, alphas: of single modules, where they differ; fields: further ones of adapter_config.json.

    strength: of B, against which A has entries of about 1 / sqrt(inputs).
    """

    config: ModelConfig
    rank: int = 8
    alpha: float = 16.0
    targets: Sequence[str] = ALL
    seed: int = 0
    strength: float = 0.3
    rslora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def pairs(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """module -> A [r, in], B [out, r]."""
        generator, found = torch.Generator().manual_seed(self.seed), {}
        for layer in range(self.config.num_layers):
            for part in self.targets:
                (inputs, outputs), rank = sizes(self.config)[part], self.ranks.get(part, self.rank)
                a = torch.randn(rank, inputs, generator=generator) / inputs**0.5
                found[module(layer, part)] = a, torch.randn(outputs, rank, generator=generator) * self.strength / rank**0.5
        return found

    def scaling(self, part: str) -> float:
        rank, alpha = self.ranks.get(part, self.rank), self.alphas.get(part, self.alpha)
        return alpha / (rank**0.5 if self.rslora else rank)

    def write(self, folder: Path) -> Path:
        """As `model.save_pretrained(folder)` of PEFT."""
        tensors = {}
        for name, (a, b) in self.pairs().items():
            tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = a, b
        described = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": self.rank, "lora_alpha": self.alpha, "use_rslora": self.rslora, "bias": "none",
            "lora_dropout": 0.05, "target_modules": [f"{part}_proj" for part in self.targets], "init_lora_weights": True,
            "rank_pattern": {f"{part}_proj": rank for part, rank in self.ranks.items()},
            "alpha_pattern": {f"self_attn.{part}_proj": alpha for part, alpha in self.alphas.items()}, **self.fields,
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(folder / "adapter_model.safetensors"))
        (folder / "adapter_config.json").write_text(json.dumps(described))
        return folder

    def merged(self, model: Decoder, scale: float = 1.0) -> Decoder:
        """The plain model with the adapter in its weights, summed in float64."""
        pairs, layers = self.pairs(), []
        for index, layer in enumerate(model.layers):
            changed = {}
            for name, parts in (("qkv", "q k v"), ("out", "o"), ("gate_up", "gate up"), ("down", "down")):
                dense = getattr(layer, name)
                assert isinstance(dense, Dense)
                deltas = [self._delta(pairs, index, part) for part in parts.split()]
                changed[name] = Dense((dense.weight.double() + scale * torch.cat(deltas)).float(), dense.bias)
            layers.append(replace(layer, **changed))
        return Decoder(model.config, model.embedding, layers, model.final_norm, model.head)

    def _delta(self, pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], layer: int, part: str) -> torch.Tensor:
        inputs, outputs = sizes(self.config)[part]
        if part not in self.targets:
            return torch.zeros(outputs, inputs, dtype=torch.float64)
        a, b = pairs[module(layer, part)]
        return self.scaling(part) * b.double() @ a.double()
