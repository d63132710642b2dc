"""The decisions of .ci/setup and .ci/setup_env.py, without a network: pip and the machine are replaced."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_env(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with pip replaced by a list of its calls (`calls`)."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / ".ci" / "setup_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.calls = []  # type: ignore[attr-defined]

    def pip(*arguments: str, hint: str, quiet: bool = True) -> None:
        module.calls.append(arguments)

    monkeypatch.setattr(module, "pip", pip)
    monkeypatch.setattr(module, "torch_version", lambda: "2.13.0")
    return module


def run_setup(venv: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VENV": str(venv), **variables}
    return subprocess.run(["sh", str(ROOT / ".ci" / "setup"), "base"], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", ["missing", "old"])
def test_a_python_that_will_not_do_is_named(tmp_path: Path, kind: str) -> None:
    python = tmp_path / "python-under-test"
    if kind == "old":
        python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        python.chmod(0o755)
    done = run_setup(tmp_path / "venv", PYTHON=str(python))
    assert done.returncode == 1
    assert str(python) in done.stderr
    assert "3.11" in done.stderr


def test_no_python_at_all_says_where_to_get_one(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "dirname"):
        (tmp_path / "bin" / tool).symlink_to(Path("/bin") / tool)
    done = run_setup(tmp_path / "venv", PYTHON="", PATH=str(tmp_path / "bin"))
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stderr
    assert "python.org" in done.stderr


def test_a_broken_environment_is_named(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    done = run_setup(tmp_path / "venv")
    assert done.returncode == 1
    assert f"rm -r {tmp_path / 'venv'}" in done.stderr


@pytest.mark.parametrize(
    ("there", "wanted", "suits"),
    [
        (None, "", False),
        ("2.10.1", "", False),
        ("2.11.0", "", True),
        ("3.0.0+cpu", "", True),
        ("2.13.0+cpu", "torch==2.13.0", True),
        ("2.13.0+cu130", "torch==2.13.0", True),
        ("2.13.0", "torch==2.13.0", True),
        ("2.12.0", "torch==2.13.0", False),
        ("2.13.0+cpu", "torch==2.13.0+cu130", False),
        ("2.13.0", "./torch.whl", False),
    ],
)
def test_when_a_torch_that_is_there_is_kept(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, there: str | None, wanted: str, suits: bool) -> None:
    monkeypatch.setattr(setup_env, "torch_version", lambda: there)
    assert setup_env.torch_suits(wanted) is suits


@pytest.mark.parametrize(
    ("platform", "gpu", "cuda", "index", "expected"),
    [
        ("linux", False, True, "", "cpu"),  # pip would take CUDA without a GPU: the CPU index
        ("linux", False, False, "", None),  # pip takes a CPU build anyway
        ("linux", True, True, "", None),
        ("darwin", False, True, "", None),
        ("linux", False, True, "default", None),
        ("linux", False, True, "https://example.org/simple", "https://example.org/simple"),
    ],
)
def test_where_torch_is_taken_from(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, platform: str, gpu: bool, cuda: bool, index: str, expected: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(setup_env, "pip_would_take_cuda", lambda _: cuda)
    setup_env.install_torch("", index)
    (call,) = setup_env.calls
    assert call[-1] == "torch==2.13.0"
    address = setup_env.CPU_INDEX if expected == "cpu" else expected
    assert call[:-1] == (("--index-url", address) if address else ())


@pytest.mark.parametrize(
    ("version", "needs", "cuda"),
    [
        ("2.13.0", ["sympy", "nvidia-cublas==13.1; platform_system == 'Linux'"], True),
        ("2.13.0", ["sympy", "nvidia-cublas==13.1; platform_system == 'Elsewhere'"], False),
        ("2.13.0", ["sympy", "nvidia-cublas==13.1; extra == 'opt'"], False),
        ("2.13.0+cu130", ["sympy"], True),
        ("2.13.0+cpu", ["sympy"], False),
    ],
)
def test_a_cuda_build_is_told_from_its_metadata(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, version: str, needs: list[str], cuda: bool) -> None:
    def pip(*arguments: str, hint: str, quiet: bool = True) -> None:
        report = Path(arguments[arguments.index("--report") + 1])
        report.write_text(json.dumps({"install": [{"metadata": {"version": version, "requires_dist": needs}}]}), encoding="utf-8")

    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(setup_env, "pip", pip)
    assert setup_env.pip_would_take_cuda("torch==2.13.0") is cuda


def test_a_missing_venv_module_is_named(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(SystemExit, match=r"ensurepip.*python3-venv"):
        setup_env.create(tmp_path / "venv")
    assert not (tmp_path / "venv").exists()


def test_a_second_setup_does_nothing(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in ("TORCH", "TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    setup_env.set_up("base")
    assert len(setup_env.calls) == 1
    setup_env.set_up("base")
    assert len(setup_env.calls) == 1
    setup_env.set_up("dev")  # more is wanted
    assert len(setup_env.calls) == 2
    setup_env.set_up("base")  # dev includes it
    assert len(setup_env.calls) == 2
    monkeypatch.setattr(setup_env, "stamp_key", lambda: "pyproject.toml has changed")
    setup_env.set_up("base")
    assert len(setup_env.calls) == 3
