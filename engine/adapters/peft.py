"""What the adapter_config.json of PEFT (github.com/huggingface/peft) says of a LoRA adapter, and what of it cannot be computed here.

Input: the file's fields. Knows nothing of tensors or models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentkit.errors import AdapterError

__all__ = ["PeftConfig"]

_OTHER_ARITHMETIC = {
    "use_dora": "DoRA scales each row by its norm (weight-decomposed adapters)",
    "lora_bias": "the second matrix has a bias",
    "modules_to_save": "whole modules were trained beside the adapter",
    "trainable_token_indices": "rows of the embedding were trained beside the adapter",
    "target_parameters": "parameters outside of linear layers were adapted",
    "layer_replication": "layers are repeated",
    "alora_invocation_tokens": "an activated adapter applies only behind certain tokens",
    "use_qalora": "QA-LoRA pools what the first matrix reads",
    "use_bdlora": "block-diagonal adapters have other shapes",
    "arrow_config": "Arrow mixes adapters token by token",
}
"""Fields that, where they are set, make an adapter mean something else than x A^T B^T, and what that is."""
_OTHER_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights that changed the base model's own weights when training began."""


@dataclass(frozen=True)
class PeftConfig:
    """r, lora_alpha, use_rslora, rank_pattern, alpha_pattern and target_modules, as PEFT means them."""

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: tuple[str, ...]

    @classmethod
    def of(cls, fields: Mapping[str, Any], where: str) -> PeftConfig:
        """Raises AdapterError for what is no LoRA adapter, or one of a kind that is not supported. where: the file, for messages."""
        kind = fields.get("peft_type")
        if kind != "LORA":
            raise AdapterError(f"{where}: peft_type is {kind!r}; only 'LORA' is supported")
        for field, meaning in _OTHER_ARITHMETIC.items():
            if fields.get(field):
                raise AdapterError(f"{where}: {field}={fields[field]!r} is not supported: {meaning}; train without it, or merge the adapter into the model")
        if fields.get("bias", "none") != "none":
            raise AdapterError(f"{where}: bias={fields['bias']!r} is not supported: biases of the base model were trained; use bias='none'")
        start = fields.get("init_lora_weights", True)
        if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
            raise AdapterError(
                f"{where}: init_lora_weights={start!r} is not supported: it changed the base model's weights; save the adapter with "
                "path_initial_model_for_weight_conversion, which makes a plain one of it"
            )
        try:
            targets = fields.get("target_modules") or ()
            return cls(
                rank=_positive(fields, "r"),
                alpha=_finite(fields, "lora_alpha"),
                rslora=_flag(fields, "use_rslora"),
                rank_pattern={key: _positive(fields["rank_pattern"], key) for key in _expressions(fields.get("rank_pattern"))},
                alpha_pattern={key: _finite(fields["alpha_pattern"], key) for key in _expressions(fields.get("alpha_pattern"))},
                targets=() if isinstance(targets, str) else tuple(map(str, targets)),  # a text is an expression, or "all-linear"
            )
        except KeyError as error:
            raise AdapterError(f"{where} has no field {error.args[0]!r}; the file is incomplete") from error
        except (TypeError, ValueError, OverflowError, re.error) as error:
            raise AdapterError(f"{where}: a field has the wrong form: {error}") from error

    def rank_of(self, module: str) -> int:
        """module: its name in the base model, such as "model.layers.0.self_attn.q_proj"."""
        return self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank)

    def scaling(self, module: str) -> float:
        """What the product of the two matrices is multiplied by: alpha / r, or alpha / sqrt(r) with rsLoRA (arXiv:2312.03732)."""
        alpha, rank = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha), self.rank_of(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def _positive(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _finite(fields: Mapping[str, Any], name: str) -> float:
    value = float(fields[name])
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    return value


def _expressions(pattern: Mapping[str, Any] | None) -> list[str]:
    for key in pattern or ():
        re.compile(_ending(key))
    return list(pattern or ())


def _ending(key: str) -> str:
    """An expression for the names of modules that end as `key` says."""
    return rf"(.*\.)?({key})$"


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name) or False
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _matching(pattern: Mapping[str, Any], module: str) -> str:
    """The first key that, as an expression, is the end of the module's name; "" where none is."""
    return next((key for key in pattern if re.match(_ending(key), module)), "")
