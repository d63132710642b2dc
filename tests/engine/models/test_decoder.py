"""The native decoder against transformers' own implementation, on random weights of every family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentkit.engine.kv import KVPool, KVShape
from agentkit.engine.kv_groups import by_window
from agentkit.engine.kv_policy import reach_of
from agentkit.engine.models.config import ModelConfig
from agentkit.engine.models.decoder import Decoder
from agentkit.engine.models.loader import read_config
from agentkit.engine.models.reference_attention import ReferenceCache, greedy, run
from agentkit.engine.models.tensors import TensorFolder
from agentkit.engine.models.weights import build_decoder
from agentkit.engine.runner import Span, TorchRunner

SMALL = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA = {**SMALL, "head_dim": 24, "query_pre_attn_scalar": 20, "sliding_window": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**SMALL, "tie_word_embeddings": True}),
    "llama-untied-biased": ("LlamaConfig", {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("LlamaConfig", {**SMALL, "rope_parameters": LLAMA3}),
    "linear-rope": ("LlamaConfig", {**SMALL, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "yarn-rope": ("LlamaConfig", {**SMALL, "rope_parameters": YARN}),
    "mistral-window": ("MistralConfig", {**SMALL, "sliding_window": 8, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True}),
    "qwen2-window": ("Qwen2Config", {**SMALL, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 24}),
    "gemma": ("GemmaConfig", {**SMALL, "head_dim": 24}),
    "gemma2": ("Gemma2Config", GEMMA),
    "gemma3": ("Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 6}),
    "gemma3-softcap": ("Gemma3TextConfig", {**GEMMA, "final_logit_softcapping": 3.0, "num_key_value_heads": 1}),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models as small as these lose far more to waiting threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder]:
    """transformers' model and ours, on the same random weights (norms and biases too)."""
    transformers = pytest.importorskip("transformers")
    kind, fields = FAMILIES[request.param]
    config = getattr(transformers, kind)(**fields, attn_implementation="eager")
    torch.manual_seed(sum(request.param.encode()))
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            assert parameter.std() > 0, name
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return theirs, load(folder)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return build_decoder(read_config(folder), TensorFolder(folder), dtype, torch.device("cpu"))


def prompt(seed: int, length: int, vocab: int = 211) -> list[int]:
    return torch.randint(0, vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
def test_logits_equal_the_reference_implementation(pair: tuple[Any, Decoder]) -> None:
    theirs, ours = pair
    ids = prompt(0, 100)
    expected = theirs(torch.tensor([ids])).logits[0]
    assert expected.std() > 0.1
    assert relative(run(ours, ReferenceCache(ours.config, 100), ids), expected) < 1e-3


@torch.no_grad()
def test_pages_by_groups_of_layers_give_the_reference_logits(pair: tuple[Any, Decoder]) -> None:
    """Over the pages of an engine; Gemma 2 and 3 and a Qwen2 with windows in some layers need fewer of them."""
    theirs, ours = pair
    ids, c = prompt(1, 250), ours.config
    groups = by_window(reach_of("auto", c), c.num_layers, 4096)
    pool = KVPool(KVShape(c.num_layers, c.num_kv_heads, c.head_dim), 1 << 22, reach=reach_of("auto", c), groups=groups)
    sequence, runner, rows = pool.start(ids), TorchRunner(ours, pool), []
    for start, end in ((0, 33), (33, 34), (34, 100), (100, 163), (163, 250)):
        assert pool.reserve(sequence, end)
        rows.append(torch.from_numpy(runner.execute([Span(sequence, tuple(ids[start:end]), rows=end - start)])[0]))
        pool.check_invariants()
    assert relative(torch.cat(rows), theirs(torch.tensor([ids])).logits[0]) < 1e-3
    mixed = len(set(c.windows)) > 1
    assert (groups.tables > 1) == mixed
    assert len(sequence.held) == (sum(len(group.tables) * (8 if group.kept is None else 1) for group in groups.groups) if mixed or set(c.windows) == {8} else 8)


@torch.no_grad()
def test_greedy_continuations_equal_the_reference_implementation(pair: tuple[Any, Decoder]) -> None:
    theirs, ours = pair
    prompts = [prompt(seed, 5 + 3 * seed) for seed in range(10)]
    for ids, continuation in zip(prompts, greedy(ours, prompts, 64), strict=True):
        # the reference continues with the same 64 tokens exactly if each is its argmax after those before
        logits = theirs(torch.tensor([ids + continuation[:-1]])).logits[0, len(ids) - 1 :]
        assert logits.argmax(-1).tolist() == continuation


@torch.no_grad()
def test_chunks_equal_the_whole(pair: tuple[Any, Decoder]) -> None:
    _, ours = pair
    ids = prompt(3, 40)
    whole = run(ours, ReferenceCache(ours.config, 40), ids)
    for sizes in ([1] * 40, [7, 13, 20], [39, 1]):
        cache, parts, start = ReferenceCache(ours.config, 40), [], 0
        for size in sizes:
            parts.append(run(ours, cache, ids[start : start + size]))
            start += size
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_chosen_rows_equal_those_of_all(pair: tuple[Any, Decoder]) -> None:
    _, ours = pair
    ids = prompt(4, 12)
    whole = run(ours, ReferenceCache(ours.config, 12), ids)
    for rows in (slice(-1, None), torch.tensor([5, 0, 5]), torch.tensor([], dtype=torch.int64)):
        cache = ReferenceCache(ours.config, 13)
        chosen = run(ours, cache, ids, rows)
        torch.testing.assert_close(chosen, whole[rows], rtol=1e-4, atol=1e-4)
        full = ReferenceCache(ours.config, 13)
        run(ours, full, ids)
        torch.testing.assert_close(run(ours, cache, [7]), run(ours, full, [7]), rtol=1e-4, atol=1e-4)


def test_config_is_immutable(pair: tuple[Any, Decoder]) -> None:
    config = pair[1].config
    with pytest.raises(AttributeError):
        config.vocab_size = 1  # type: ignore[misc]
    assert isinstance(config, ModelConfig)
    assert config.bos_token_id == 1
    assert config.stop_token_ids[0] == 2
