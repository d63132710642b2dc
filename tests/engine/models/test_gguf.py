"""GGUF conversion on files made here: names, row order, quantised values, tokenizer, template, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer

from agentkit.engine.models import gguf_tokenizer
from agentkit.engine.models.convert import convert_gguf
from agentkit.engine.models.gguf_file import GgufFile
from agentkit.engine.models.loader import load_model, read_config
from agentkit.engine.models.progress import silent
from agentkit.engine.models.reference_attention import ReferenceCache, run
from agentkit.engine.models.tensors import TensorFolder
from agentkit.engine.models.weights import build_decoder
from agentkit.errors import EngineError, ModelNotFound
from tests.engine.models.corpus import texts
from tests.engine.models.synthetic import HEADS, HIDDEN, KEYS, SIZE, TEMPLATE, VOCABULARY, byte_tokenizer, llama_weights, write_llama_gguf

KIND = gguf.GGMLQuantizationType
CPU = torch.device("cpu")


def convert(tmp_path: Path, **options: object) -> Path:
    source, target = tmp_path / "m.gguf", tmp_path / "m"
    write_llama_gguf(source, **options)  # type: ignore[arg-type]
    target.mkdir()
    convert_gguf(source, target, silent)
    return target


def read(folder: Path, name: str) -> torch.Tensor:
    tensors = TensorFolder(folder)
    weight = torch.from_numpy(llama_weights()[name])
    return tensors.take([name], tuple(weight.shape), torch.float32, CPU)


@pytest.mark.parametrize("kind", [KIND.F32, KIND.F16, KIND.BF16])
def test_unquantised_weights_come_back_exactly(tmp_path: Path, kind: KIND) -> None:
    folder = convert(tmp_path, kind=kind)
    half = {KIND.F32: torch.float32, KIND.F16: torch.float16, KIND.BF16: torch.bfloat16}[kind]
    for name, weight in llama_weights().items():
        expected = torch.from_numpy(weight)
        expected = expected if weight.ndim == 1 else expected.to(half).float()
        assert torch.equal(read(folder, name), expected), name


@pytest.mark.parametrize(("kind", "bound"), [(KIND.Q8_0, 0.01), (KIND.Q4_0, 0.2), (KIND.Q4_1, 0.2), (KIND.Q5_0, 0.1), (KIND.Q5_1, 0.1)])
def test_quantised_weights_are_the_reference_dequantisation(tmp_path: Path, kind: KIND, bound: float) -> None:
    folder = convert(tmp_path, kind=kind)
    for name, weight in llama_weights().items():
        stored = read(folder, name)
        assert float((stored - torch.from_numpy(weight)).abs().max()) < bound, name
        if weight.ndim == 2 and "q_proj" not in name and "k_proj" not in name:
            expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
            assert np.array_equal(stored.numpy(), expected), name


def test_fused_groups_are_views_of_the_file(tmp_path: Path) -> None:
    folder = convert(tmp_path, kind=KIND.Q8_0)
    tensors = TensorFolder(folder)
    decoder = build_decoder(read_config(folder), tensors, torch.float32, CPU)
    base, size = tensors._entries["model.norm.weight"].data.data_ptr(), (folder / "model.safetensors").stat().st_size
    for layer in decoder.layers:
        for dense in (layer.qkv, layer.gate_up, layer.out, layer.down):
            assert base <= dense.weight.data_ptr() < base + size  # type: ignore[attr-defined]
    weights = llama_weights()
    fused = np.concatenate([weights[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"])
    assert decoder.layers[1].qkv.weight.shape == ((HEADS + 2 * KEYS) * SIZE, HIDDEN)  # type: ignore[attr-defined]
    assert np.allclose(decoder.layers[1].qkv.weight.numpy(), fused, atol=0.01)  # type: ignore[attr-defined]


def test_converted_folder_is_an_ordinary_one_for_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = convert(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(folder, device="cpu").model
    ids = list(range(3, 43))
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert torch.allclose(run(ours, ReferenceCache(ours.config, 40), ids), expected, atol=1e-4)
    assert theirs.generation_config.eos_token_id == [2, 0]


def test_tokenizer_equals_one_built_by_hand(tmp_path: Path) -> None:
    folder = convert(tmp_path)
    ours, theirs = RawTokenizer.from_file(str(folder / "tokenizer.json")), byte_tokenizer()
    assert ours.get_vocab() == theirs.get_vocab() == {token: index for index, token in enumerate(VOCABULARY)}
    for text in [*texts(), "hello  a 12 <|im_end|><tool_call>"]:
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(text, add_special_tokens=False).ids, text


def test_config_stops_and_template_are_taken_over(tmp_path: Path) -> None:
    folder = convert(tmp_path)
    config = read_config(folder)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.max_position) == (HEADS, KEYS, SIZE, 128)
    assert config.norm_eps == 1e-5
    assert config.tie_embeddings
    assert config.stop_token_ids == (2, 0)
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


def test_unknown_pre_tokenizers_and_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="weird-pre"):
        convert(tmp_path, pre="weird-pre")
    (tmp_path / "b").mkdir()
    with pytest.raises(EngineError, match="falcon"):
        convert(tmp_path / "b", arch="falcon")


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_llama_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    for size in (10, 200, len(whole) // 2):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(EngineError, match=r"cut\.gguf"):
            GgufFile(tmp_path / "cut.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelNotFound, match="not a GGUF file"):
        load_model(tmp_path / "text.gguf", cache_dir=tmp_path / "cache")


def sentencepiece(tmp_path: Path, *, add_space_prefix: bool) -> RawTokenizer:
    """A tiny SentencePiece vocabulary with byte fallback, as a GGUF file and then as a tokenizer."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab", "  "]
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 1, 4]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -2.0, -1.0, -3.0, -1000.0]
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(add_space_prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return RawTokenizer.from_str(json.dumps(gguf_tokenizer.tokenizer_json(GgufFile(tmp_path / "s.gguf"))))


def test_sentencepiece_joins_the_best_scored_pair_first(tmp_path: Path) -> None:
    raw = sentencepiece(tmp_path, add_space_prefix=False)
    assert raw.encode("ab ab", add_special_tokens=False).tokens == ["ab", "▁ab"]
    assert raw.encode(" a", add_special_tokens=False).tokens == ["▁a"]
    assert raw.encode("é", add_special_tokens=False).tokens == ["<0xC3>", "<0xA9>"]
    assert raw.encode("a  b", add_special_tokens=False).tokens == ["a", "▁▁", "b"]
    assert raw.encode("a").tokens == ["<s>", "a"]
    for text in ["ab  é a", " a", "a\n b", "日本"]:
        assert raw.decode(raw.encode(text, add_special_tokens=False).ids) == text


def test_sentencepiece_with_a_blank_before_the_text(tmp_path: Path) -> None:
    raw = sentencepiece(tmp_path, add_space_prefix=True)
    assert raw.encode("ab", add_special_tokens=False).tokens == ["▁ab"]
    for text in ["ab", " ab", "a b é"]:
        assert raw.decode(raw.encode(text, add_special_tokens=False).ids) == text


def test_half_precision_stays_close_and_devices_and_dtypes_are_checked(tmp_path: Path) -> None:
    folder = convert(tmp_path)
    wide, half = load_model(folder, device="cpu").model, load_model(folder, device="cpu", dtype="bfloat16").model
    assert (wide.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    ids = list(range(3, 23))
    expected = run(wide, ReferenceCache(wide.config, 20), ids)
    ours = run(half, ReferenceCache(half.config, 20, dtype=torch.bfloat16), ids)
    assert ours.dtype == torch.float32
    assert float((ours - expected).abs().max() / expected.abs().max()) < 0.1
    with pytest.raises(EngineError, match="int3"):
        load_model(folder, device="cpu", dtype="int3")
    with pytest.raises(EngineError, match="no-such-device"):
        load_model(folder, device="no-such-device")
