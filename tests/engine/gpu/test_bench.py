"""tests/bench/gpu.py, the one script that is run where there is a GPU, as far as it can be run without one."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench import gpu
from tests.bench.gpu_kit import Box, Setup


def bench(root: Path, *arguments: str) -> str:
    command = [sys.executable, str(root / "tests" / "bench" / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
def test_without_a_gpu_it_says_so(root: Path, tmp_path: Path) -> None:
    assert "no NVIDIA GPU here" in bench(root, "--out", str(tmp_path / "gpu.json"))
    assert not (tmp_path / "gpu.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton would not be interpreted")
def test_every_section_runs_through_the_interpreter(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    bench(root, "--smoke", "--out", str(out))
    sections = json.loads(out.read_text())["sections"]
    assert len(sections) >= 10
    assert not any("error" in section or section["skipped"] for section in sections.values())
    assert all(row["good"] for row in sections["kernels"]["checks"].values())
    assert all(sections[name]["rows"] for name in ("cascade", "decode", "prefill", "drafts", "policies", "steps", "mixed", "flash", "transformers"))


def fails(_: Any, box: Box) -> None:
    box.rows.append({"found": 1})
    if box.left("the second figure"):
        raise ZeroDivisionError("no second figure")


def test_a_section_that_fails_keeps_what_it_has_found_and_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "Bench", lambda *_: None)
    sections = {"first": (fails, 9.0), "late": (fails, 0.0), "last": (lambda _, box: box.figures.update(speed=2), 9.0)}
    monkeypatch.setattr(gpu, "SECTIONS", sections)
    out = tmp_path / "gpu.json"
    assert gpu.run(Setup(torch.device("cpu"), torch.float32, True), list(sections), gpu.Report(out, goes_on=False), 99.0) == 1
    found = json.loads(out.read_text())["sections"]
    assert found["first"]["rows"] == [{"found": 1}]
    assert found["first"]["error"] == "ZeroDivisionError: no second figure"
    assert "in fails" in found["first"]["traceback"]
    assert found["first"]["doing"] == "the second figure"
    assert "the time is up" in found["late"]["skipped"][0]
    assert found["last"]["speed"] == 2
    assert not any("running" in section for section in found.values())


WORKER = """
import json, os, sys, time
out, names = sys.argv[1], sys.argv[2:]
result = json.load(open(out)) if os.path.exists(out) else {"sections": {}}
def write():
    json.dump(result, open(out + ".part", "w")); os.replace(out + ".part", out)
for name in names:
    result["sections"][name] = {"rows": [1], "running": "a figure"}; write()
    if name == "hangs": time.sleep(60)
    if name == "crashes": os._exit(11)
    result["sections"][name] = {"rows": [1, 2]}; write()
    if name == "breaks": sys.exit(3)
"""
"""Behaves as the process of the sections may."""


def test_a_process_that_hangs_crashes_or_breaks_the_device_costs_one_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    popen, names = subprocess.Popen, ["good", "hangs", "crashes", "breaks", "last"]

    def worker(command: list[str]) -> Any:
        return popen([sys.executable, "-c", WORKER, command[command.index("--out") + 1], *command[command.index("--only") + 1 :]])

    monkeypatch.setattr(gpu.subprocess, "Popen", worker)
    monkeypatch.setattr(gpu, "SECTIONS", dict.fromkeys(names, (None, 0.5)))
    monkeypatch.setattr(gpu, "LATE", 1.0)
    out = tmp_path / "gpu.json"
    out.write_text("of an earlier run")
    assert gpu.watch(names, Namespace(out=out, seconds=99.0)) == 1
    found = json.loads(out.read_text())["sections"]
    assert {name: section["rows"] for name, section in found.items()} == {name: [1] if name in ("hangs", "crashes") else [1, 2] for name in names}
    assert "given up after" in found["hangs"]["error"]
    assert found["hangs"]["error"].endswith("at: a figure")
    assert "the process ended with 11" in found["crashes"]["error"]
