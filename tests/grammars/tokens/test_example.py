"""examples/constrained_decoding.py: runs as it is, on a tiny model here and on the embedded one where it is at hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkit.engine import Engine
from agentkit.grammars.settings import settings
from tests.engine.loaded import loaded_model


@pytest.fixture
def example(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("constrained_decoding", root / "examples" / "constrained_decoding.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(settings, "disk", settings.disk)  # it switches the cache on disk off
    monkeypatch.setattr(settings, "_disk_chosen", settings._disk_chosen)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def check(example: Any, costs: dict[str, Any], out: str) -> None:
    assert list(costs) == [task.name for task in example.TASKS]
    assert out.count("an independent reader takes it") == len(costs)
    assert "REFUSED" not in out
    lines = [line for line in out.splitlines() if " allowed " in line]
    assert sum("  forced  " in line for line in lines) == sum(cost.forced for cost in costs.values()) > 0
    assert len(lines) == sum(cost.tokens for cost in costs.values())
    for cost in costs.values():
        assert len(cost.clock.masks) >= 1
    assert "grammar's share" in out


def test_it_runs(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = example.main(["--plain"], Engine(loaded_model(tmp_path), threads=1))
    out = capsys.readouterr().out
    check(example, costs, out)
    assert "\x1b" not in out
    assert out.isascii()


@pytest.mark.slow
def test_it_runs_on_the_embedded_model(smollm2_folder: Path, example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    costs = example.main(["--plain"])
    out = capsys.readouterr().out
    check(example, costs, out)
    assert "=> positive" in out
