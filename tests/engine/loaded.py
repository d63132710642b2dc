"""A tiny model as the engine's public API takes it: random decoder, byte-level tokenizer, chat template. No files, no download."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers

from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import RowSelection
from agentkit.engine.models.loader import LoadedModel
from agentkit.engine.models.rope import Rope
from agentkit.engine.models.tokenizer import Tokenizer
from tests.engine.tiny import TinyDecoder

MERGES = [("{", '"'), ('"', ":"), ("t", "r"), ("tr", "u"), ("tru", "e"), ("a", "b"), ("1", "2"), ("}", "}"), ('"', "}")]
SPECIALS = ["<|im_start|>", "<|im_end|>"]


TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def raw_tokenizer(specials: Sequence[str] = ()) -> RawTokenizer:
    """Byte-level BPE with 256 bytes, a few merges and two special tokens (and more)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate([*alphabet, *("".join(m) for m in MERGES)])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=MERGES))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([*SPECIALS, *specials])
    return raw


class Model(TinyDecoder):
    """A TinyDecoder with what the engine asks of a loaded one. `script`: wanted token ids by output place, as in ScriptedDecoder."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self, width: int, seed: int = 0, *, stop: int, script: Sequence[int] | None = None, prompt: int = 1, delay: float = 0.0,
        windows: tuple[int | None, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(seed, width, windows=windows)
        self.script, self.prompt, self.stop, self.delay = script, prompt, stop, delay

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Any, logits_for: RowSelection) -> torch.Tensor:
        import time

        time.sleep(self.delay)
        logits = super().forward(ids, positions, attend, logits_for)
        for row, position in enumerate(positions[logits_for].tolist()):
            at = position - self.prompt + 1
            if self.script is None:
                logits[row, self.stop] -= 100.0  # random models stop at random otherwise
            elif at >= 0:
                logits[row, self.script[at] if at < len(self.script) else self.stop] += 100.0
        return logits


def loaded_model(folder: Path, *, specials: Sequence[str] = (), template: str = TEMPLATE, context: int = 4096, **options: Any) -> LoadedModel:
    """A LoadedModel; `folder`: where its tokenizer.json is written. Options: see Model; `script` may be text."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = raw_tokenizer(specials)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    stop = raw.token_to_id("<|im_end|>")
    tokenizer = Tokenizer.from_folder(folder, stop_token_ids=(stop,), bos_token_id=None)
    width = raw.get_vocab_size() + 9
    if isinstance(options.get("script"), str):
        options["script"] = raw.encode(options["script"]).ids
    model = Model(width, stop=stop, **options)
    config = ModelConfig(
        architecture="tiny", vocab_size=width, hidden_size=32, intermediate_size=32, num_layers=model.layers, num_heads=model.heads,
        num_kv_heads=model.kv, head_dim=model.dim, max_position=context, norm_eps=1e-5, activation="silu", tie_embeddings=False,
        attention_scale=model.dim**-0.5, windows=model.windows, ropes=(Rope(tuple(1 / 10**i for i in range(model.dim // 2))),),
        rope_of_layer=(0,) * model.layers, stop_token_ids=(stop,),
    )  # fmt: skip
    from agentkit.engine.models.chat_template import ChatTemplate

    return LoadedModel("tiny", config, model, tokenizer, ChatTemplate.from_folder(folder, tokenizer), folder, None)  # type: ignore[arg-type]
