"""tests/bench/gpu.py, the one script that is run where there is a GPU, as far as it can be run without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch


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
    assert all(sections[name]["rows"] for name in ("cascade", "decode", "prefill", "drafts", "formats", "steps", "mixed", "transformers"))
