"""A GGUF file into a folder in Hugging Face layout, once, so that every later start only maps files.

Writes config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja and model.safetensors, in
which q, k, v and gate, up lie side by side, so that the loader sees each group as one matrix without copying.

Precision: tensors that were never quantised keep their dtype. Quantised ones are widened to float32, in which dequantisation is
defined (a Q4_1 value d·q + m needs more mantissa than float16 or bfloat16 have), so nothing is lost and the CPU starts without
a conversion. Above a billion parameters float32 would cost too much disk and memory: there they are
rounded to float16, whose 2^-11 lies far below the quantisation's own error. The GGUF file is left as it is, for kernels that
take its blocks unwidened. Knows nothing of caches, downloads or locks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentkit.engine.models import gguf_tokenizer
from agentkit.engine.models.gguf_file import Array, GgufFile, GgufTensor
from agentkit.engine.models.progress import Progress
from agentkit.engine.models.tensors import TensorSpec, write_safetensors

__all__ = ["convert_gguf"]

_STORED = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
_NUMPY: dict[str, type] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_EXACT_BELOW = 1_000_000_000  # parameters


def convert_gguf(source: Path, target: Path, progress: Progress) -> None:
    """Converts `source` into the existing, empty folder `target`. Raises EngineError for what cannot be represented."""
    file = GgufFile(source)
    progress("reading the tokenizer", 0, None)
    _write_json(target / "config.json", file.config())
    generation = {"bos_token_id": file.get("tokenizer.ggml.bos_token_id"), "eos_token_id": gguf_tokenizer.stop_token_ids(file)}
    _write_json(target / "generation_config.json", generation)
    _write_json(target / "tokenizer.json", gguf_tokenizer.tokenizer_json(file))
    _write_json(target / "tokenizer_config.json", gguf_tokenizer.tokenizer_config(file))
    template, tool_template = gguf_tokenizer.chat_templates(file)
    if template is not None:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    if tool_template is not None:
        (target / "additional_chat_templates").mkdir()
        (target / "additional_chat_templates" / "tool_use.jinja").write_text(tool_template, encoding="utf-8")
    wide = "F32" if file.parameters < _EXACT_BELOW else "F16"
    specs = [TensorSpec(tensor.name, _dtype(file, tensor, wide), tensor.shape) for tensor in file.tensors]
    write_safetensors(target / "model.safetensors", specs, _arrays(file, specs, progress), {"format": "pt"})


def _dtype(file: GgufFile, tensor: GgufTensor, wide: str) -> str:
    if len(tensor.shape) == 1:
        return "F32"  # norms and biases: little, and Gemma's need the room
    return _STORED.get(tensor.kind, wide)


def _arrays(file: GgufFile, specs: list[TensorSpec], progress: Progress) -> Iterator[Array]:
    total, done = sum(spec.nbytes for spec in specs), 0
    for tensor, spec in zip(file.tensors, specs, strict=True):
        progress("converting the weights", done, total)
        yield file.array(tensor, _NUMPY[spec.dtype])
        done += spec.nbytes
    progress("converting the weights", total, total)


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, ensure_ascii=False, indent=None if path.name == "tokenizer.json" else 2), encoding="utf-8")
