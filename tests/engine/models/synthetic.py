"""Small models made on the spot: GGUF files as llama.cpp would write them, and byte-level tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import read_config
from agentkit.engine.models.tensors import TensorFolder
from agentkit.engine.models.weights import build_decoder

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ a", "h e", "Ġ Ġ", "l l", "he ll", "hell o"]
VOCABULARY = [*SPECIAL, *LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<tool_call>"]
HIDDEN, HEADS, KEYS, SIZE, MLP, LAYERS = 64, 4, 2, 16, 96, 2


def byte_tokenizer() -> Tokenizer:
    """The byte-level tokenizer that `write_llama_gguf` describes, built by hand."""
    vocab = {token: index for index, token in enumerate(VOCABULARY)}
    raw = Tokenizer(models.BPE(vocab, [(left, right) for left, right in (merge.split() for merge in MERGES)]))
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    raw.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return raw


def llama_weights(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random float32 weights under Hugging Face names."""
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(VOCABULARY), HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= {at + f"self_attn.{part}_proj.weight": (heads * SIZE, HIDDEN) for part, heads in (("q", HEADS), ("k", KEYS), ("v", KEYS))}
        shapes |= {at + "self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE), at + "mlp.down_proj.weight": (HIDDEN, MLP)}
        shapes |= {at + f"mlp.{part}_proj.weight": (MLP, HIDDEN) for part in ("gate", "up")}
    return {name: draw.normal(0.0, 0.3, shape).astype(np.float32) + (len(shape) == 1) for name, shape in shapes.items()}


_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of the rows of q and k: halves of each head become pairs."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_llama_gguf(path: Path, *, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, pre: str = "smollm", arch: str = "llama") -> None:
    """A whole GGUF file: metadata, tokenizer, chat template and the weights of `llama_weights`, matrices quantised as `kind`."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    control, user, normal = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.NORMAL
    writer.add_token_types([control] * 3 + [normal] * (len(VOCABULARY) - 4) + [user])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in llama_weights().items():
        heads = HEADS if "q_proj" in name else KEYS if "k_proj" in name else 0
        values = interleaved(weight, heads) if heads else weight
        if weight.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_decoder(folder: Path) -> Decoder:
    """A decoder of the Llama family with `llama_weights`, written to `folder` in hub layout and loaded from it."""
    names = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "head_dim": SIZE, "intermediate_size": MLP}
    sizes: dict[str, Any] = {"num_hidden_layers": LAYERS, "vocab_size": len(VOCABULARY), "max_position_embeddings": 512, "tie_word_embeddings": True}
    sizes |= {"eos_token_id": 0, "rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **names, **sizes}))
    save_file(llama_weights(), folder / "model.safetensors")
    return build_decoder(read_config(folder), TensorFolder(folder), torch.float32, torch.device("cpu"))
