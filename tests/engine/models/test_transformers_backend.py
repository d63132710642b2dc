"""Architectures that transformers runs with our attention: random weights of each through the whole engine, against their own generate()."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel, Field

from agentkit.engine import Engine, Generation, Streaming, Window
from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import LoadedModel, load_model
from agentkit.engine.runner import Span, TorchRunner
from agentkit.engine.speculation.pace import StepCosts
from agentkit.errors import ContextTooLong, EngineError
from tests.engine.models.synthetic import VOCABULARY, byte_tokenizer
from tests.engine.speculation.test_speculator import Eager

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_key_value_heads": 4}
EXPERTS = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
SINKS_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}
FALCON = {"alibi": False, "parallel_attn": True}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("Phi3Config", {"sliding_window": 16}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {"logits_scaling": 2.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}),
    "falcon": ("FalconConfig", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon-multi-query": ("FalconConfig", {**FALCON, "multi_query": True, "new_decoder_architecture": False}),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "gpt2": ("GPT2Config", {"n_inner": 96}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": 16}),
    "qwen3-moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}),
    "qwen2-moe": ("Qwen2MoeConfig", {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "cohere2": ("Cohere2Config", {"sliding_window": 16, "head_dim": 16, "num_hidden_layers": 4, "logit_scale": 0.3}),
    "deepseek-v3": ("DeepseekV3Config", {**MLA, **EXPERTS}),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 4, "sliding_window": 16, "head_dim": 16, "rope_parameters": SINKS_ROPE}),
    "llama-dynamic-rope": ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
}


class Point(BaseModel):
    x: int = Field(ge=0, le=99)
    label: str = Field(max_length=5)


@dataclass(frozen=True)
class Case:
    """theirs: transformers' model with its own attention; engine: ours, over the folder that it was saved to."""

    theirs: Any
    engine: Engine
    folder: Path


def save(folder: Path, kind: str, fields: dict[str, Any]) -> Any:
    """A random model (norms, biases and sinks too) and a tokenizer in a folder in hub layout."""
    config = getattr(transformers, kind)(**{**SMALL, **fields})
    torch.manual_seed(sum(kind.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * (2.0 if "sinks" in name else 0.3))
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    before = torch.get_num_threads()
    folder = tmp_path_factory.mktemp(request.param)
    theirs = save(folder, *FAMILIES[request.param])
    with Engine(folder, threads=1, kv_memory=1 << 24) as engine:
        engine._scheduler._limits = replace(engine._scheduler._limits, step_tokens=24, mixed_step_tokens=16)  # every prompt below in chunks
        yield Case(theirs, engine, folder)
    torch.set_num_threads(before)


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(3, len(VOCABULARY), (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def continuation(model: Any, ids: list[int], count: int) -> list[int]:
    """transformers' own generate(), greedy, without the stop token."""
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=count, do_sample=False)[0].tolist()
    new: list[int] = out[len(ids) :]
    return new[:-1] if new[-1] == SMALL["eos_token_id"] else new


def generate_all(engine: Engine, prompts: list[list[int]], **options: Any) -> list[Generation]:
    """All at once."""
    streams = [engine.stream(ids, **options) for ids in prompts]
    return [list(stream)[-1].generation for stream in streams]  # type: ignore[union-attr]


def test_greedy_output_of_a_batch_equals_generate(family: Case) -> None:
    prompts = [prompt(seed, 3 + 17 * seed) for seed in range(5)]
    got = [list(g.token_ids) for g in generate_all(family.engine, prompts, max_tokens=32)]
    expected = [continuation(family.theirs, ids, 32) for ids in prompts]
    assert [g[: len(e)] for g, e in zip(got, expected, strict=True)] == expected
    assert all(len(g) - len(e) in (0, 1) for g, e in zip(got, expected, strict=True))  # the stop token itself
    assert len({tuple(e) for e in expected}) == len(expected)
    assert max(map(len, expected)) > 16


def test_a_reused_prefix_changes_nothing(family: Case) -> None:
    base = prompt(100, 70)
    family.engine.generate(base, max_tokens=1)
    for seed in (1, 2):
        ids = base + prompt(seed, 9)
        got = family.engine.generate(ids, max_tokens=16)
        assert got.usage.cached_tokens >= 64
        expected = continuation(family.theirs, ids, 16)
        assert list(got.token_ids)[: len(expected)] == expected


def test_output_keeps_to_a_schema(family: Case) -> None:
    for got in generate_all(family.engine, [prompt(7, 5), prompt(8, 40)], schema=Point, max_tokens=60):
        assert isinstance(got.value, Point)
        assert Point.model_validate_json(got.text) == got.value


@torch.no_grad()
def test_logits_equal_the_models_own_attention(family: Case) -> None:
    loaded: LoadedModel = family.engine._loaded
    c = loaded.config
    pool = KVPool(KVShape(c.num_layers, c.num_kv_heads, c.head_dim), 1 << 22)
    runner = TorchRunner(loaded.model, pool)
    texts = [prompt(20, 90), prompt(21, 60)]
    sequences = [pool.start(ids) for ids in texts]
    assert all(pool.reserve(sequence, len(ids)) for sequence, ids in zip(sequences, texts, strict=True))
    rows: list[list[torch.Tensor]] = [[], []]
    for start, end in ((0, 33), (33, 34), (34, 60), (60, 90)):  # chunks, side by side as long as both last
        spans = [Span(s, tuple(ids[start:end]), rows=end - start) for s, ids in zip(sequences, texts, strict=True) if start < len(ids)]
        for kept, logits in zip(rows, runner.execute(spans), strict=False):
            kept.append(torch.from_numpy(logits))
    for ids, kept in zip(texts, rows, strict=True):
        expected = family.theirs(torch.tensor([ids])).logits[0]
        assert expected.std() > 0.05
        assert float((torch.cat(kept) - expected).abs().max() / expected.abs().max()) < 1e-4


@torch.no_grad()
def test_windows_and_eight_bits_work_and_streaming_is_refused_by_name(tmp_path: Path) -> None:
    theirs = save(tmp_path, "Olmo2Config", {})
    ids = prompt(5, 150)
    distance = torch.arange(150)[:, None] - torch.arange(150)
    mask = torch.zeros(1, 1, 150, 150).masked_fill_((distance < 0) | (distance >= 48), -torch.inf)
    wanted = theirs(torch.tensor([ids]), attention_mask=mask).logits[0]
    for kv, bound in ((Window(48), 1e-4), (Window(48, format="int8"), 0.1)):
        with Engine(str(tmp_path), kv=kv, prefix_caching=False) as engine:
            pool, runner = engine._scheduler.pool, engine._scheduler._runner
            sequence, rows = pool.start(ids), []
            for start, end in ((0, 70), (70, 71), (71, 150)):
                assert pool.reserve(sequence, end)
                rows.append(torch.from_numpy(runner.execute([Span(sequence, tuple(ids[start:end]), rows=end - start)])[0]))
            assert float((torch.cat(rows) - wanted).abs().max() / wanted.abs().max()) < bound
            assert len(sequence.held) <= 3
    with pytest.raises(EngineError, match="runs through transformers"):
        Engine(str(tmp_path), kv=Streaming(4, 48))


def test_says_that_transformers_runs_it_and_the_native_decoder_where_there_is_one(tmp_path: Path) -> None:
    said: list[str] = []
    save(tmp_path / "neox", "GPTNeoXConfig", {})
    load_model(tmp_path / "neox", device="cpu", progress=lambda stage, done, total: said.append(stage))
    assert any("runs through transformers: the architecture 'gpt_neox'" in line for line in said)
    save(tmp_path / "llama", "LlamaConfig", {})
    said.clear()
    assert isinstance(load_model(tmp_path / "llama", device="cpu", progress=lambda stage, done, total: said.append(stage)).model, Decoder)
    assert not said


def test_models_that_read_the_output_of_attention_as_one_block(tmp_path: Path) -> None:
    save(tmp_path, "JetMoeConfig", {"kv_channels": 16, "num_local_experts": 4})  # takes a view of it, which other strides would not allow
    assert load_model(tmp_path, device="cpu").config.num_layers == 2


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "alibi": ("BloomConfig", {"n_head": 4, "n_layer": 2}, r"'bloom' computes its attention itself \(ALiBi"),
    "alibi-falcon": ("FalconConfig", {"alibi": True}, r"'falcon' computes its attention itself \(ALiBi"),
    "state": ("MambaConfig", {}, "'mamba' has layers of the type 'linear_attention'"),
    "chunks": ("Llama4TextConfig", {"attention_chunk_size": 16, "num_local_experts": 2, "head_dim": 16}, "of the type 'chunked_attention'"),
    "encoder": ("BertConfig", {}, "'bert' attends in a pattern that is neither causal nor a sliding window"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_paged_is_refused_by_name(what: str, tmp_path: Path) -> None:
    kind, fields, message = REFUSED[what]
    save(tmp_path, kind, fields)
    with pytest.raises(EngineError, match=message):
        Engine(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "'t5' is not a decoder-only language model"),
        ({"model_type": "homemade", "auto_map": {"AutoModelForCausalLM": "modeling.Homemade"}}, r"code of its own \(auto_map\), which is never run"),
        ({"model_type": "homemade"}, "'homemade' has no native decoder and is not in transformers"),
    ],
)
def test_other_models_are_refused_before_their_weights_are_read(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(EngineError, match=message):
        Engine(tmp_path)


def test_a_layer_that_mixes_tokens_besides_attention_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.olmo2 import modeling_olmo2 as olmo2

    save(tmp_path, "Olmo2Config", {})
    plain = olmo2.Olmo2MLP.forward

    def mixing(self: Any, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = plain(self, x + torch.nn.functional.pad(x, (0, 0, 1, -1)))  # each token sees the one before it in the row
        return out

    monkeypatch.setattr(olmo2.Olmo2MLP, "forward", mixing)
    with pytest.raises(EngineError, match="'olmo2' does not compute the same with paged attention as with its own"):
        load_model(tmp_path, device="cpu")


def test_options_that_need_the_native_decoder_name_it(tmp_path: Path) -> None:
    save(tmp_path, "Olmo2Config", {})
    for weights in ("int8", "int4", "fp16"):
        with pytest.raises(EngineError, match=f"weights='{weights}': this model runs through transformers"):
            Engine(tmp_path, weights=weights)
    for speculation in ("self", "medusa", "eagle"):
        with pytest.raises(EngineError, match=f"speculation='{speculation}' needs the native decoder.*olmo2"):
            Engine(tmp_path, speculation=speculation)


def take_every_guess(engine: Engine) -> None:
    """Whether a guess pays is a matter of time, and tests are not."""
    assert engine._scheduler._speculator is not None
    engine._scheduler._speculator.pace = Eager(StepCosts())


def test_drafts_change_nothing(tmp_path: Path) -> None:
    theirs = save(tmp_path, "GPTNeoXConfig", {})
    ids = prompt(3, 12) * 4
    for speculation in ("ngram", "lookahead", f"draft:{tmp_path}"):
        with Engine(tmp_path, threads=1, kv_memory=1 << 24, speculation=speculation) as engine:
            take_every_guess(engine)
            got = engine.generate(ids, max_tokens=24)
            assert got.usage.drafted_tokens > 0
            assert list(got.token_ids)[:20] == continuation(theirs, ids, 24)[:20]


def test_a_draft_model_of_shorter_context_stops_guessing_at_its_end(tmp_path: Path) -> None:
    theirs = save(tmp_path / "target", "GPTNeoXConfig", {})
    save(tmp_path / "draft", "GPT2Config", {"max_position_embeddings": 48})  # learned positions: a 49th does not exist
    ids = prompt(3, 30)
    with Engine(tmp_path / "target", threads=1, kv_memory=1 << 24, speculation=f"draft:{tmp_path / 'draft'}") as engine:
        take_every_guess(engine)
        got = engine.generate(ids, max_tokens=40)
        assert got.usage.drafted_tokens > 0
    expected = continuation(theirs, ids, 40)
    assert len(expected) > 30
    assert list(got.token_ids)[: len(expected)] == expected


def test_weights_that_do_not_belong_are_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path, "Olmo2Config", {})
    tensors = load_file(tmp_path / "model.safetensors")
    lost = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineError, match=r"missing keys model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(tmp_path, device="cpu")
    save_file({**tensors, "model.layers.1.mlp.up_proj.weight": lost, "model.extra": lost.clone()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineError, match=r"unexpected keys model\.extra"):
        load_model(tmp_path, device="cpu")


def test_a_saved_prefix_serves_the_next_engine_of_the_same_model_only(tmp_path: Path) -> None:
    save(tmp_path / "a", "GraniteConfig", {})
    save(tmp_path / "b", "GraniteConfig", {"attention_multiplier": 0.9})
    ids = prompt(5, 80)
    with Engine(tmp_path / "a", threads=1, kv_memory=1 << 24) as engine:
        first = engine.generate(ids, max_tokens=8)
        assert engine.prefix.save(tmp_path / "prefix", pinned_only=False) >= 64
    with Engine(tmp_path / "a", threads=1, kv_memory=1 << 24) as engine:
        assert engine.prefix.load(tmp_path / "prefix") >= 64
        again = engine.generate(ids, max_tokens=8)
        assert again.usage.cached_tokens >= 64
        assert again.token_ids == first.token_ids
    with Engine(tmp_path / "b", threads=1, kv_memory=1 << 24) as engine, pytest.raises(EngineError, match="another model"):
        engine.prefix.load(tmp_path / "prefix")


def test_contexts_end_where_rotary_frequencies_would_change(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 96}
    theirs = save(tmp_path, "Phi3Config", {"original_max_position_embeddings": 96, "rope_parameters": factors})
    with Engine(tmp_path, threads=1, kv_memory=1 << 24) as engine:
        assert engine.max_context == 96
        ids = prompt(9, 60)
        expected = continuation(theirs, ids, 30)
        assert list(engine.generate(ids, max_tokens=30).token_ids)[: len(expected)] == expected
        with pytest.raises(ContextTooLong):
            engine.generate(prompt(9, 97), max_tokens=1)
    with Engine(tmp_path, threads=1, kv_memory=1 << 24, max_context=300) as engine:
        ids = prompt(9, 100)
        expected = continuation(theirs, ids, 30)
        assert list(engine.generate(ids, max_tokens=30).token_ids)[: len(expected)] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, tmp_path: Path) -> None:
    save(tmp_path, "MixtralConfig", {"num_local_experts": 4})
    loaded = load_model(tmp_path, device="cpu", dtype=dtype)
    assert loaded.model.dtype == getattr(torch, dtype)
    with Engine(loaded, threads=1, kv_memory=1 << 24) as engine:
        assert isinstance(engine.generate(prompt(1, 30), schema=Point, max_tokens=60).value, Point)
