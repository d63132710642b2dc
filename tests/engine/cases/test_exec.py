"""Failure cases of subkind exec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentkit.engine import Engine
from agentkit.errors import GrammarError
from tests.engine.cases.support import case
from tests.engine.loaded import loaded_model

REQUESTS: list[dict[str, Any]] = [
    {"schema": {"type": "boolean"}},
    {"grammar": 'start: "a" | "b"'},
    {"regex": "[xy]{2}"},
    {"schema": {"enum": ["p", "q"]}},
]


def outcome(engine: Engine, options: dict[str, Any]) -> str:
    """The text, or the name of the typed error."""
    try:
        return engine.generate("p", max_tokens=20, **options).text
    except GrammarError as error:
        return type(error).__name__


@case("eng-backend-latch")
def test_each_request_is_served_on_its_own_merits(case_id: str, tmp_path: Path) -> None:
    alone = []
    for options in REQUESTS:
        with Engine(loaded_model(tmp_path), threads=1) as engine:
            alone.append(outcome(engine, options))
    assert alone[0] in ("true", "false")
    assert set(alone[2]) <= set("xy")
    assert alone[3] in ('"p"', '"q"')
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 1, 2], [2, 3, 0, 1]):
        with Engine(loaded_model(tmp_path), threads=1) as engine:
            assert [outcome(engine, REQUESTS[i]) for i in order] == [alone[i] for i in order]
