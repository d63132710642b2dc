"""Builds the grammar that a case asks for and judges texts and masks by it.

Inputs: cases of the bank. Knows nothing of pytest, and of the grammars only their public names.
"""

from __future__ import annotations

import codecs
import json
import time
import typing
from collections.abc import Callable
from typing import Any

import pydantic

from agentkit import errors
from agentkit.grammars import Grammar, Matcher, Vocabulary
from tests.cases.bank import Case

STOP = 256
BYTES = Vocabulary([bytes([i]) for i in range(256)] + [None], stop_token_ids=[STOP])
"""One token per byte and a stop token."""

REFUSALS: dict[str, tuple[type[errors.GrammarError], ...]] = {
    "ok": (),
    "ok_or_explicit_unsupported": (errors.UnsupportedSchema,),
    "ok_or_too_complex": (errors.GrammarTooComplex,),
    "ok_or_reject_invalid": (errors.InvalidGrammar, errors.UnsupportedSchema, errors.UnsatisfiableSchema),
    "reject_unsatisfiable": (errors.UnsatisfiableSchema,),
    "reject_unsatisfiable_or_unsupported": (errors.UnsatisfiableSchema, errors.UnsupportedSchema),
    "reject_invalid": (errors.InvalidGrammar, errors.UnsupportedSchema),
    "reject_too_complex": (errors.GrammarTooComplex,),
}
"""expect.compile -> the errors with which a grammar may be refused; those that begin with "reject" must be."""


def schema_of(given: dict[str, Any]) -> Any:
    """The JSON Schema, or the Pydantic model, of a case's input."""
    if "schema" in given:
        return given["schema"]
    if "schema_text" in given:
        return json.loads(given["schema_text"])
    if "schema_expr" in given:
        return eval(given["schema_expr"])
    names = {**vars(typing), **{name: getattr(pydantic, name) for name in pydantic.__all__}}
    exec(given["python"], names)
    model = names[given["entry"]]
    model.model_rebuild(_types_namespace=names)
    return model


def schema_grammar(schema: Any) -> Grammar:
    """In the style in which most spellings are possible."""
    if isinstance(schema, dict | bool):
        return Grammar.from_json_schema(schema, whitespace="flexible", key_order="any")
    return Grammar.from_pydantic(schema, whitespace="flexible", key_order="any")


TEXT_FORMS: dict[str, Callable[[dict[str, Any]], Grammar]] = {
    "regex": lambda given: Grammar.from_regex(given["regex"]),
    "regex_expr": lambda given: Grammar.from_regex(eval(given["regex_expr"])),
    "lark": lambda given: Grammar.from_lark(given["lark"]),
    "ebnf": lambda given: Grammar.from_gbnf(given["ebnf"]),
    "ebnf_expr": lambda given: Grammar.from_gbnf(eval(given["ebnf_expr"])),
    "choices": lambda given: Grammar.from_choices(given["choices"]),
}
"""The key that a text case's input has for each way of writing the grammar down."""


def compiled(make: Callable[[], Grammar], vocabulary: Vocabulary = BYTES) -> tuple[Grammar, float]:
    """A grammar that has built its first mask, and the CPU seconds that this took."""
    start = time.thread_time()
    grammar = make()
    grammar.matcher(vocabulary).mask()
    return grammar, time.thread_time() - start


def check_budget(case: Case, seconds: float) -> None:
    """Three times the case's budget: for machines slower than the one it was set on."""
    limit = 3 * case["expect"].get("budget", {}).get("compile_s", 20)
    assert seconds <= limit, f"compiling took {seconds:.1f} s of CPU time, allowed are {limit} s"


def accepts(grammar: Grammar, text: str) -> bool:
    """Is `text` in the language? Asked twice: fed as bytes, and token by token along the masks, which must agree."""
    data = text.encode("utf-8", "surrogatepass")
    whole = grammar.matcher(BYTES)
    try:
        whole.accept_bytes(data)
        verdict = whole.is_accepting
    except errors.GrammarViolation:
        verdict = False
    assert along_masks(grammar.matcher(BYTES), data) == verdict, f"masks and accept_bytes disagree about {text[:80]!r}"
    return verdict


def along_masks(matcher: Matcher, data: bytes) -> bool:
    """Would a sampler that obeys the masks be able to write `data` and stop?"""
    for byte in data:
        if not has(matcher.mask(), byte):
            return False
        matcher.accept(byte)
    return has(matcher.mask(), STOP)


def has(row: Any, token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def allowed_ids(matcher: Matcher) -> list[int]:
    row = matcher.mask()
    return [token for token in range(matcher.vocabulary.width) if has(row, token)]


def wrongly_judged(grammar: Grammar, accept: list[str], reject: list[str]) -> list[str]:
    """What the grammar says against the lists: one line for each text."""
    refused = [f"refuses {text[:80]!r}" for text in accept if not accepts(grammar, text)]
    return refused + [f"accepts {text[:80]!r}" for text in reject if accepts(grammar, text)]


def token_bytes(written: str | None) -> bytes | None:
    """A token of a mask case: unicode_escape of latin-1 bytes; None is a special token."""
    return None if written is None else codecs.decode(written.encode("latin-1"), "unicode_escape").encode("latin-1")
