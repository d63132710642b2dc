"""The command `agentkit`, in this process, over an empty model cache."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import agentkit
from agentkit import cli
from agentkit.engine.models import store
from agentkit.engine.models.registry import KNOWN_MODELS


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTKIT_CACHE", str(tmp_path))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit status of `agentkit ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["agentkit", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


def test_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "version") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"agentkit {version('agentkit')}"
    assert agentkit.__version__ == version("agentkit")


def test_list_shows_known_models_and_that_none_is_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "models", "list") == 0
    lines = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert {name: lines[name] for name in KNOWN_MODELS} == dict.fromkeys(KNOWN_MODELS, "no")


@pytest.mark.parametrize("command", ["path", "rm"])
def test_a_model_that_is_not_here_is_one_line_and_status_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(monkeypatch, "models", command, "smollm2-135m") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("agentkit: ")
    assert "smollm2-135m" in captured.err
    assert "Traceback" not in captured.err


def test_pull_prints_the_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pulled: list[str] = []

    def pull(name: str, progress: object = None) -> Path:
        pulled.append(name)
        return tmp_path / name

    monkeypatch.setattr(store, "pull", pull)
    assert run(monkeypatch, "models", "pull", "some-model") == 0
    assert pulled == ["some-model"]
    assert capsys.readouterr().out.strip() == str(tmp_path / "some-model")


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "list_models", broken)
    monkeypatch.setattr(sys, "argv", ["agentkit", "models", "list"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(("cached", "told"), [(True, "running the kernels of grammars (compiled before)"), (False, "compiling the kernels of grammars (once")])
def test_warmup_says_whether_it_compiles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cached: bool, told: str) -> None:
    monkeypatch.setattr("agentkit.grammars.warmup.kernels_cached", lambda: cached)
    monkeypatch.setattr("agentkit.grammars.warmup.compile_kernels", lambda: None)
    monkeypatch.setattr("agentkit.grammars.warmup.begin_compiling", lambda: None)
    assert run(monkeypatch, "warmup") == 0
    assert told in capsys.readouterr().err
