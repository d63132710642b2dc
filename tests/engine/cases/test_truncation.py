"""Failure cases of subkind truncation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkit.engine import Engine
from agentkit.errors import BudgetTooSmall, GenerationTruncated
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"], "additionalProperties": False}
TEXT = '{"t":"' + "long " * 20 + '"}'


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    with Engine(loaded_model(tmp_path, script=TEXT), threads=1) as engine:
        yield engine


@case("tok-truncated-by-limit")
@pytest.mark.parametrize("max_tokens", [4, 5, 12])
def test_guard_on_completes_or_refuses_at_once(case_id: str, engine: Engine, max_tokens: int) -> None:
    """The tiny vocabulary spells {"t":""} with 5 tokens as SmolLM2 does: {" t ": " "} ."""
    if max_tokens < 5:
        with pytest.raises(BudgetTooSmall) as caught:
            engine.generate("p", schema=SCHEMA, max_tokens=max_tokens)
        assert (caught.value.needed, caught.value.budget) == (5, max_tokens)
        return
    g = engine.generate("p", schema=SCHEMA, max_tokens=max_tokens)
    assert set(g.value) == {"t"}
    assert len(g.token_ids) <= max_tokens


@case("tok-truncated-by-limit")
@pytest.mark.parametrize("max_tokens", [4, 5, 12])
def test_guard_off_is_a_typed_error_or_partial_text(case_id: str, engine: Engine, max_tokens: int) -> None:
    options: dict[str, Any] = {"schema": SCHEMA, "max_tokens": max_tokens, "budget_guard": False}
    with pytest.raises(GenerationTruncated, match="max_tokens") as caught:
        engine.generate("p", **options)
    partial = engine.generate("p", allow_truncated=True, **options)
    assert (partial.finish_reason, partial.value, partial.text) == ("length", None, caught.value.text)
    assert TEXT.startswith(partial.text)
