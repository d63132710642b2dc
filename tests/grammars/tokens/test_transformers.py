"""The logits processor in transformers' own `generate`, on a tiny random model: every way of decoding stays in the grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from agentkit.errors import BudgetTooSmall, GrammarError
from agentkit.grammars import Grammar, Vocabulary
from agentkit.grammars.integrations.transformers import GrammarLogitsProcessor
from tests.grammars.tokens.built import FAMILIES, SPECIALS

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": -99, "maximum": 99}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
IPV4 = r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=FAMILIES["smollm"](), bos_token=SPECIALS[0], eos_token=SPECIALS[1], pad_token=SPECIALS[0], padding_side="left"
    )


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    return Vocabulary.from_tokenizer(tokenizer, width=600)


def tiny(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=600, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=0, **sizes)).eval()


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return tiny(0)


class Generate:
    """Calls generate and gives back the texts; keeps the processor of the last call."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self.model, self.tokenizer = model, tokenizer

    def __call__(self, processor: GrammarLogitsProcessor, prompts: str | Sequence[str] = "The weather", **options: Any) -> list[str]:
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        torch.manual_seed(1)
        options = {"max_new_tokens": 60, "do_sample": False, **options}
        with torch.no_grad():
            out = self.model.generate(**inputs, logits_processor=[processor], **options)
        return self.tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.fixture(scope="module")
def generate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Generate:
    return Generate(model, tokenizer)


def check(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["city", "days"]
    assert len(value["city"]) <= 8
    assert -99 <= value["days"] <= 99


WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "greedy": ({}, 1),
    "sampling": ({"do_sample": True, "temperature": 1.5}, 1),
    "top-k and top-p": ({"do_sample": True, "top_k": 5, "top_p": 0.5}, 1),
    "several sequences": ({"do_sample": True, "num_return_sequences": 4}, 4),
    "beams": ({"num_beams": 4, "num_return_sequences": 2}, 2),
    "sampled beams": ({"num_beams": 3, "do_sample": True, "early_stopping": True}, 1),
    "prompt lookup": ({"prompt_lookup_num_tokens": 3}, 1),
    "without a cache": ({"use_cache": False}, 1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompts", [["The weather"], ["The weather", '{"name":"get_weather","arguments":', "milk"]], ids=["one", "batch"])
def test_every_way_of_decoding_stays_in_the_grammar(generate: Generate, vocabulary: Vocabulary, way: str, prompts: list[str]) -> None:
    if way == "prompt lookup" and len(prompts) > 1:
        pytest.skip("transformers looks prompts up for one prompt at a time")
    options, each = WAYS[way]
    texts = generate(GrammarLogitsProcessor(Grammar.from_json_schema(SCHEMA), vocabulary), prompts, **options)
    assert len(texts) == each * len(prompts)
    for text in texts:
        check(text)


@pytest.mark.parametrize("sample", [False, True])
def test_assisted_generation_stays_in_the_grammar(generate: Generate, vocabulary: Vocabulary, sample: bool) -> None:
    processor = GrammarLogitsProcessor(Grammar.from_json_schema(SCHEMA), vocabulary)
    texts = generate(processor, assistant_model=tiny(5), do_sample=sample)
    check(texts[0])
    if not sample:
        assert texts == generate(GrammarLogitsProcessor(Grammar.from_json_schema(SCHEMA), vocabulary))


def test_each_prompt_has_its_own_grammar(generate: Generate, vocabulary: Vocabulary) -> None:
    grammars = [Grammar.from_json_schema(SCHEMA), Grammar.from_regex(IPV4), None, Grammar.from_choices(["positive", "negative"])]
    prompts = ["The weather", "10.0.0.255 is", "milk", "good"]
    for options, each in (({}, 1), ({"num_beams": 2, "num_return_sequences": 2}, 2)):
        texts = generate(GrammarLogitsProcessor(grammars, vocabulary), prompts, **options)
        for start in range(each):
            check(texts[start])
            assert re.fullmatch(IPV4, texts[each + start])
        assert texts[3 * each] in ("positive", "negative")
        assert sorted({*texts[3 * each :]})[0] in ("negative", "positive")
    free = generate(GrammarLogitsProcessor([None], vocabulary), "milk")
    assert free == Generate(generate.model, generate.tokenizer)(GrammarLogitsProcessor([None] * 1, vocabulary), "milk")


def test_beams_find_the_likeliest_texts(generate: Generate, vocabulary: Vocabulary) -> None:
    """Three texts, five beams: they are all there is, in the order of the model's own probabilities."""
    choices = ["a", "b", "c"]
    texts = generate(GrammarLogitsProcessor(Grammar.from_choices(choices), vocabulary), num_beams=5, num_return_sequences=3, length_penalty=0.0)
    assert sorted(texts) == choices
    ids = generate.tokenizer("The weather", return_tensors="pt").input_ids
    with torch.no_grad():
        logits = generate.model(ids).logits[0, -1]
    assert texts[0] == max(choices, key=lambda c: float(logits[generate.tokenizer.convert_tokens_to_ids(c)]))


def test_one_processor_serves_one_call_after_another(generate: Generate, vocabulary: Vocabulary) -> None:
    processor = GrammarLogitsProcessor(Grammar.from_json_schema(SCHEMA), vocabulary)
    first = generate(processor)
    assert generate(processor) == first
    assert generate(processor, "milk") == generate(GrammarLogitsProcessor(Grammar.from_json_schema(SCHEMA), vocabulary), "milk")
    longer = f"The weather{first[0]} and"  # begins as the prompt and its output did
    generate(processor)
    check(generate(processor, longer)[0])
    generate(processor)
    processor.reset()
    check(generate(processor, f"The weather{first[0]}x")[0])


def test_a_limit_is_kept_to(generate: Generate, vocabulary: Vocabulary) -> None:
    grammar = Grammar.from_json_schema({"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False})
    for limit in (6, 9, 20):
        processor = GrammarLogitsProcessor(grammar, vocabulary, max_new_tokens=limit)
        for options in ({}, {"do_sample": True, "num_return_sequences": 3}):
            for text in generate(processor, max_new_tokens=limit, **options):
                assert set(json.loads(text)) == {"t"}
    with pytest.raises(BudgetTooSmall):
        GrammarLogitsProcessor(grammar, vocabulary, max_new_tokens=2)


def scores_after(processor: GrammarLogitsProcessor, *tokens: int) -> set[int]:
    """Ids that the processor leaves, after a prompt of two tokens."""
    given = torch.zeros(1, 600)
    masked = processor(torch.tensor([[5, 6, *tokens]]), given)  # type: ignore[arg-type]
    assert not given.any()  # the caller's scores stay as they are
    return set(np.flatnonzero(np.isfinite(masked[0].numpy())).tolist())


def test_ended_and_impossible_rows_are_left_the_stop_token(vocabulary: Vocabulary) -> None:
    processor = GrammarLogitsProcessor(Grammar.from_choices(["ab", "a"]), vocabulary)
    a, b, x = (vocabulary.encode_text(letter)[0] for letter in "abx")
    assert a in scores_after(processor)
    assert scores_after(processor, a) == {b, 1}
    assert scores_after(processor, a, 1) == {1}
    assert scores_after(processor, a, 1, 0) == {1}  # padded
    assert scores_after(processor, a, x) == {1}  # a draft that will be refused
    assert scores_after(processor, a) == {b, 1}
    assert scores_after(processor, a, b) == {1}


def test_bad_arguments_are_typed_errors(vocabulary: Vocabulary) -> None:
    grammar = Grammar.from_choices(["a"])
    with pytest.raises(TypeError, match="str"):
        GrammarLogitsProcessor(["a"], vocabulary)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="nothing"):
        GrammarLogitsProcessor([], vocabulary)
    with pytest.raises(TypeError, match="from_tokenizer"):
        GrammarLogitsProcessor(grammar, "gpt2")  # type: ignore[arg-type]
    with pytest.raises(GrammarError, match="stop"):
        GrammarLogitsProcessor(grammar, Vocabulary([b"a"]))
    with pytest.raises(ValueError, match="2 grammars"):
        GrammarLogitsProcessor([grammar, grammar], vocabulary)(torch.tensor([[1], [2], [3]]), torch.zeros(3, 600))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_real_model(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, [0, 2], width=model.config.vocab_size)
    processor = GrammarLogitsProcessor([Grammar.from_json_schema(SCHEMA), Grammar.from_regex(IPV4)], vocabulary)
    for options in ({}, {"num_beams": 2}, {"do_sample": True}):
        city, address = Generate(model, tokenizer)(processor, ["A trip as JSON:", "The address of the router is "], **options)
        check(city)
        assert re.fullmatch(IPV4, address)


def test_vocabularies_of_fast_and_slow_tokenizers(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert vocabulary.stop_token_ids == (tokenizer.eos_token_id,)
    assert vocabulary.tokens == Vocabulary.from_tokenizer(tokenizer.backend_tokenizer).tokens
    assert Vocabulary.from_tokenizer(tokenizer, [0, 1]).stop_token_ids == (0, 1)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n")
    with pytest.raises(GrammarError, match="BertTokenizerLegacy"):
        Vocabulary.from_tokenizer(BertTokenizerLegacy(str(tmp_path / "vocab.txt")))
    with pytest.raises(GrammarError, match="ByT5Tokenizer"):
        Vocabulary.from_tokenizer(ByT5Tokenizer())
