"""The bank's tokenization cases: masks over small vocabularies, and statements about vocabularies and forced text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from agentkit.engine import Engine
from agentkit.engine.models import tokenizer as engine_tokenizer
from agentkit.engine.models.loader import LoadedModel
from agentkit.grammars import Grammar, Matcher, Vocabulary
from agentkit.grammars.token_bytes import token_bytes
from tests.cases.bank import CASES, Case, Statement, of_kind, statement_id, statements
from tests.cases.collected import Found
from tests.cases.judge import TEXT_FORMS, allowed_ids
from tests.cases.judge import token_bytes as written_bytes
from tests.cases.manifest import LATER
from tests.cases.pointers import check_is_tested
from tests.engine.loaded import loaded_model, raw_tokenizer

BEHAVIOUR = [statement for statement in statements(of_kind("tokenization", "behaviour")) if statement not in LATER]


@pytest.mark.parametrize("statement", BEHAVIOUR, ids=statement_id)
def test_statement_is_tested(statement: Statement, collected: dict[str, Found]) -> None:
    check_is_tested(statement, collected)


def grammar_of(constraint: dict[str, Any]) -> Grammar:
    if "schema" in constraint:
        return Grammar.from_json_schema(constraint["schema"])
    (form,) = (form for form in TEXT_FORMS if form in constraint)
    return TEXT_FORMS[form](constraint)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in of_kind("tokenization", "mask")])
def test_masks(case: Case) -> None:
    given, expect = case["input"], case["expect"]
    vocabulary = Vocabulary([written_bytes(token) for token in given["vocab"]], stop_token_ids=given["eos_ids"])
    grammar = grammar_of(given["constraint"])
    found, wanted = {}, {}
    if "allowed_ids" in expect:
        matcher = grammar.matcher(vocabulary)
        for token in given["prefix_ids"] or ():
            matcher.accept(token)
        found["prefix_ids"], wanted["prefix_ids"] = allowed_ids(matcher), sorted(expect["allowed_ids"])
    for text, ids in expect.get("allowed_by_text", {}).items():
        matcher = grammar.matcher(vocabulary)
        matcher.accept_bytes(text.encode())
        found[text], wanted[text] = allowed_ids(matcher), sorted(ids)
        assert [token for token in range(len(given["vocab"])) if matcher.allows(token)] == found[text]
    assert wanted
    assert found == wanted


def metaspace() -> Tokenizer:
    """The vocabulary of case tok-byte-level-markers, with all bytes to fall back to; "\\n" is an added token."""
    *pieces, added = CASES["tok-byte-level-markers"]["input"]["vocab"]
    vocab = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "e", "th", "the", *pieces]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    raw = Tokenizer(models.BPE({piece: index for index, piece in enumerate(vocab)}, merges, unk_token="<unk>", byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.add_tokens([AddedToken(added, special=False, normalized=False)])
    return raw


def test_the_space_is_read_from_the_decoder() -> None:
    raw = metaspace()
    spelled = {piece: token_bytes(raw)[raw.token_to_id(piece)] for piece in ("▁the", "Ġ", "ĉ")}
    assert spelled == {"▁the": b" the", "Ġ": "Ġ".encode(), "ĉ": "ĉ".encode()}
    assert Vocabulary.from_tokenizer(raw).tokens == token_bytes(raw)


def test_an_added_line_break_is_its_byte() -> None:
    raw = metaspace()
    assert token_bytes(raw)[raw.token_to_id("\n")] == b"\n"
    vocabulary = Vocabulary.from_tokenizer(raw, stop_token_ids=[raw.token_to_id("<unk>")])
    assert allowed_ids(Grammar.from_choices(["\n"]).matcher(vocabulary)) == sorted(raw.token_to_id(t) for t in ("\n", "<0x0A>"))


@pytest.mark.parametrize("text", ["the the", "  the", "ĉ", "Ġ Ġthe", "a\nĉ the\n", "naïve 键 😀", "Ċ", ""])
def test_texts_with_marker_letters_come_back(text: str) -> None:
    tokenizer = engine_tokenizer.Tokenizer(metaspace())
    assert tokenizer.decode(tokenizer.encode(text)) == text


LOGITS = CASES["tok-ids-beyond-len"]["input"]["logit_width"]


def sparse_vocabulary() -> Vocabulary:
    """Ids 0 to 99 and, added, 120; logits of 128 columns."""
    letters = [chr(code) for code in range(ord("0"), ord("0") + 100)]
    raw = Tokenizer(models.BPE({**{letter: index for index, letter in enumerate(letters)}, "added": 120}, []))
    raw.add_tokens([AddedToken("added", special=False)])
    assert raw.get_vocab_size() == 101
    assert raw.token_to_id("added") == 120
    return Vocabulary.from_tokenizer(raw, stop_token_ids=[0], width=LOGITS)


def test_the_mask_covers_the_logits() -> None:
    vocabulary = sparse_vocabulary()
    row = Grammar.from_regex("[a-z]*").matcher(vocabulary).mask()
    assert (vocabulary.width, row.size * 32) == (LOGITS, LOGITS)
    with pytest.raises(ValueError, match="121"):
        Vocabulary(vocabulary.tokens, stop_token_ids=[0], width=120)
    exact = Vocabulary(vocabulary.tokens, stop_token_ids=[0])
    assert exact.width == 121


@pytest.mark.parametrize(("pattern", "allowed"), [("[a-z]{5}", True), ("adde[a-d]x?", True), ("[a-z]{4}", False), ("b[a-z]*", False)])
def test_an_id_beyond_the_vocabulary_is_judged_by_its_text(pattern: str, allowed: bool) -> None:
    matcher = Grammar.from_regex(pattern).matcher(sparse_vocabulary())
    ids = allowed_ids(matcher)
    assert (120 in ids) == matcher.allows(120) == allowed
    assert not [token for token in ids if token >= 100 and token != 120]
    if allowed:
        matcher.accept(120)
        assert matcher.is_accepting


JUMP = CASES["tok-jump-forward-equality"]["input"]["schema"]
NAME = next(iter(JUMP["properties"]))


@pytest.mark.parametrize("value", [True, False])
def test_forcing_changes_no_text(value: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that wants the text in its tokenizer's own tokens writes the same tokens when the grammar never speaks for it."""
    text = json.dumps({NAME: value}, ensure_ascii=False, separators=(",", ":"))
    with Engine(loaded_model(tmp_path, script=text), threads=1) as engine:
        forced = engine.generate("p", schema=JUMP, max_tokens=60)
        monkeypatch.setattr(Matcher, "forced_tokens", lambda self, before=(): [])
        free = engine.generate("q", schema=JUMP, max_tokens=60)
    assert forced.text == free.text == text
    assert list(forced.token_ids) == list(free.token_ids) == raw_tokenizer().encode(text).ids
    assert forced.usage.forced_tokens > free.usage.forced_tokens == 0
    assert forced.usage.forwards < free.usage.forwards


KEYS = ["é", "è"]  # their first bytes are the same, so the grammar forces half a character


@pytest.mark.parametrize("halves", [True, False], ids=["tokens for the bytes", "whole characters only"])
def test_forced_tokens_end_inside_a_character_only_where_tokens_do(halves: bool) -> None:
    pieces = [*("{", '"', ":", "0", "}"), *KEYS]
    tokens: list[bytes | None] = [piece.encode() for piece in pieces]
    tokens += [bytes([byte]) for byte in sorted(set("".join(KEYS).encode()))] if halves else []
    vocabulary = Vocabulary([*tokens, None], stop_token_ids=[len(tokens)])
    matcher = Grammar.from_choices([f'{{"{key}":0}}' for key in KEYS]).matcher(vocabulary)
    spelled = b""
    while forced := matcher.forced_tokens():
        for token in forced:
            assert matcher.allows(token)
            matcher.accept(token)
            spelled += tokens[token] or b""
    assert '{"é'.encode()[: len(spelled)] == spelled
    if not halves:
        assert spelled.decode() == '{"'[: len(spelled)]
        assert {pieces.index(key) for key in KEYS} <= set(allowed_ids(matcher)) or len(spelled) < 2


@pytest.fixture
def seen(tmp_path: Path) -> tuple[LoadedModel, list[int]]:
    """A model, and every token id that its forwards have been given."""
    script = json.dumps({NAME: True}, ensure_ascii=False, separators=(",", ":"))
    loaded = loaded_model(tmp_path, script=script)
    ids: list[int] = []
    forward = loaded.model.forward

    def recording(token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        ids.extend(token_ids.tolist())
        return forward(token_ids, *rest)

    loaded.model.forward = recording  # type: ignore[method-assign]
    return loaded, ids


def test_usage_counts_the_tokens_in_the_context(seen: tuple[LoadedModel, list[int]]) -> None:
    loaded, ids = seen
    with Engine(loaded, threads=1) as engine:
        g = engine.generate("p", schema=JUMP, max_tokens=60)
        prompt = engine.tokenizer.encode("p", special=True)
        assert json.loads(g.text) == {NAME: True}
        assert (g.usage.input_tokens, g.usage.output_tokens) == (len(prompt), len(g.token_ids))
        assert engine.tokenizer.decode(g.token_ids) == g.text
        context = [*prompt, *g.token_ids]
        assert ids == context[: len(ids)]  # nothing else was in the context, nothing twice
        computed = len(ids)
        assert computed > len(prompt)
        after = engine.generate(context, max_tokens=1)
    assert after.usage.input_tokens == len(context)
    assert after.usage.cached_tokens == computed
