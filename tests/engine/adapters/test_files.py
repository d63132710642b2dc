"""Files of adapters: what is read of them, and that whatever does not fit or is not supported is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentkit.engine.adapters.adapter import LowRank
from agentkit.engine.adapters.files import folder_of, read_adapter
from agentkit.engine.adapters.peft import PeftConfig
from agentkit.errors import AdapterError, AdapterNotFound
from tests.engine.adapters.peft_files import RandomAdapter, module, sizes
from tests.engine.kernels.models import decoder

CONFIG = decoder(layers=2).config
LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}


def read(folder: Path) -> tuple[int, dict[Any, LowRank]]:
    return read_adapter(folder, CONFIG, torch.float32, torch.device("cpu"))


def described(folder: Path, **fields: Any) -> Path:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def altered(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(str(folder / "adapter_model.safetensors"))
    change(tensors)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder


@pytest.mark.parametrize("rslora", [False, True])
def test_matrices_are_those_of_the_files_scaled_as_peft_does(rslora: bool, tmp_path: Path) -> None:
    made = RandomAdapter(CONFIG, rank=4, ranks={"k": 6, "down": 2}, alphas={"q": 5.0, "k": 7.0}, targets=("q", "k", "up", "down"), rslora=rslora)
    largest, places = read(made.write(tmp_path))
    assert largest == 6
    assert set(places) == {(layer, name) for layer in range(2) for name in ("qkv", "gate_up", "down")}
    pairs, columns = made.pairs(), {"q": 0, "k": CONFIG.num_heads * CONFIG.head_dim, "up": CONFIG.intermediate_size, "down": 0}
    for (layer, name), low in places.items():
        for part in {"qkv": ("q", "k"), "gate_up": ("up",), "down": ("down",)}[name]:
            a, b = pairs[module(layer, part)]
            up, rank, column = next(each for each in low.parts if each.column == columns[part])
            torch.testing.assert_close(up @ low.down[rank : rank + up.shape[1]], made.scaling(part) * b @ a, atol=1e-6, rtol=1e-5)
            assert column + up.shape[0] <= {"qkv": columns["k"] * 2, "gate_up": 2 * CONFIG.intermediate_size, "down": CONFIG.hidden_size}[name]


def test_patterns_are_expressions_at_the_end_of_a_modules_name() -> None:
    fields = {**LORA, "rank_pattern": {r"layers\.1\..*_proj": 2, "q_proj": 3}, "alpha_pattern": {"self_attn.q_proj": 6}}
    config = PeftConfig.of(fields, "file")
    assert [config.rank_of(f"model.layers.{layer}.self_attn.{part}_proj") for layer, part in ((0, "q"), (0, "k"), (1, "q"), (1, "k"))] == [3, 8, 2, 2]
    assert config.scaling("model.layers.0.self_attn.q_proj") == 2.0
    assert config.scaling("model.layers.0.xq_proj") == 2.0  # 16 / 8: another module's name
    assert PeftConfig.of({**LORA, "use_rslora": True}, "file").scaling("x") == 16 / 8**0.5


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora=True is not supported: DoRA"),
        ({"bias": "lora_only"}, "bias='lora_only' is not supported"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\] is not supported"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1], [0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4' is not supported"),
        ({"target_modules": ["q_proj", "lm_head"]}, "names 'lm_head'; adapters of the embedding"),
        ({"target_modules": ["embed_tokens"]}, "names 'embed_tokens'"),
        ({"r": 0}, "r must be a whole number"),
        ({"r": "8"}, "r must be a whole number"),
        ({"lora_alpha": None}, "a field has the wrong form"),
        ({"rank_pattern": {"q_proj": 2.5}}, "q_proj must be a whole number"),
        ({"use_rslora": "no"}, "use_rslora must be true or false, not 'no'"),
        ({"rank_pattern": {"(?i)q_proj": 8}}, "a field has the wrong form: global flags"),
        ({"rank_pattern": {"(q_proj": 2}}, "a field has the wrong form: missing \\)"),
        ({"alpha_pattern": {"q_proj": math.nan}}, "q_proj must be finite"),
        ({"alpha_pattern": ["q_proj"]}, "a field has the wrong form"),
        ({"lora_alpha": math.inf}, "lora_alpha must be finite"),
        ({"lora_alpha": 10**400}, "a field has the wrong form"),
        ({"lora_alpha": 1e300}, "lora_B of .* infinite as float32"),
        ({"r": 7}, r"lora_A of model.layers.0.mlp.down_proj is float32 \[8, 96\]; the model and rank 7 need numbers of the shape \[7, 96\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_config_asks_for_and_is_not_there(fields: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=text):
        read(described(RandomAdapter(CONFIG).write(tmp_path), **fields))


def test_what_makes_no_difference_is_taken(tmp_path: Path) -> None:
    """Other spellings of the targets, and fields that were for training only."""
    for fields in ({"target_modules": "all-linear"}, {"target_modules": r".*\.(q|k)_proj"}, {"init_lora_weights": "gaussian"}, {"lora_dropout": 0.5}):
        assert read(described(RandomAdapter(CONFIG).write(tmp_path), **fields))[0] == 8


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("base_model.model.lm_head.lora_A.weight", "'base_model.model.lm_head.lora_A.weight' is not supported; adapters may change self_attn.q_proj"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "lora_embedding_A' is not supported"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "lora_magnitude_vector' is not supported"),
        ("base_model.model.model.layers.0.block.experts.lora_A.weight", "block.experts.lora_A.weight' is not supported"),
        ("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "is of layer 2, and the model has 2"),
        (f"base_model.model.model.layers.{'9' * 5000}.self_attn.q_proj.lora_A.weight", "is not supported"),
        ("base_model.model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight", "vision_tower"),
    ],
)
def test_tensors_without_a_place(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=text):
        read(altered(RandomAdapter(CONFIG).write(tmp_path), lambda tensors: tensors.update({name: torch.zeros(8, 64)})))


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    first = f"base_model.model.{module(0, 'k')}.lora_"

    def refused(change: Callable[[dict[str, torch.Tensor]], object], text: str) -> None:
        with pytest.raises(AdapterError, match=text):
            read(altered(RandomAdapter(CONFIG).write(tmp_path), change))

    refused(lambda t: t.pop(first + "B.weight"), "k_proj has no lora_B; the file is incomplete")
    refused(lambda t: t.update({first + "B.weight": torch.zeros(96, 8)}), r"lora_B of model.layers.0.self_attn.k_proj is float32 \[96, 8\]")
    refused(lambda t: t.update({first + "A.weight": torch.zeros(8, 64, dtype=torch.int32)}), "is int32")
    refused(lambda t: t.update({first + "A.weight": torch.full((8, 64), torch.nan)}), "holds NaN")
    refused(lambda t: t.update({f"{module(0, 'k')}.lora_B.weight": t[first + "B.weight"].clone()}), "are for the same matrix")
    refused(lambda t: t.update({first.replace("layers", "language_model.layers") + "A.weight": torch.zeros(8, 64)}), "are for the same matrix")
    refused(lambda t: t.clear(), "holds no tensors")


def test_numbers_in_few_bits_are_taken(tmp_path: Path) -> None:
    file = f"base_model.model.{module(0, 'k')}.lora_A.weight"
    folder = altered(RandomAdapter(CONFIG).write(tmp_path), lambda t: t.update({file: torch.ones(8, 64).to(torch.float8_e4m3fn)}))
    assert read(folder)[0] == 8


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    folder = RandomAdapter(CONFIG).write(tmp_path)
    (folder / "adapter_model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(AdapterError, match="not a whole safetensors file"):
        read(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterError, match="pickled files are not read"):
        read(folder)
    for text in ("{", "[" * 100_000):
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(AdapterError, match="is not JSON"):
            read(folder)
    (folder / "adapter_config.json").unlink()
    with pytest.raises(AdapterError, match=r"holds no adapter_config.json"):
        read(folder)


def test_where_adapters_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_of(str(tmp_path), None) == folder_of(tmp_path, None) == tmp_path
    (tmp_path / "file").touch()
    for source, text in ((tmp_path / "file", "is a file"), (tmp_path / "a" / "b", "there is no folder"), ("", "there is no folder")):
        with pytest.raises(AdapterNotFound, match=text):
            folder_of(source, None)
    with pytest.raises(TypeError, match="an adapter is a folder"):
        folder_of(3, None)  # type: ignore[arg-type]
    monkeypatch.setattr("agentkit.engine.adapters.files.local_snapshot", lambda name, wanted: tmp_path if name == "org/here" else None)
    monkeypatch.setattr("agentkit.engine.adapters.files.hub_unreachable", lambda: "HF_HUB_OFFLINE is set")
    assert folder_of("org/here", None) == tmp_path
    with pytest.raises(AdapterNotFound, match="the model hub: HF_HUB_OFFLINE is set"):
        folder_of("org/elsewhere", None)


def test_shapes_of_the_helper_are_those_of_the_model() -> None:
    assert sizes(CONFIG)["k"] == (CONFIG.hidden_size, CONFIG.num_kv_heads * CONFIG.head_dim)
