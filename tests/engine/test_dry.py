"""An engine over a GPU that is not there: nothing that it does is refused by torch, Triton or the rules of captures."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

needs = pytest.mark.skipif(torch.version.cuda is None or shutil.which("gcc") is None, reason="takes a CUDA build of torch, and gcc")


@pytest.mark.slow
@needs
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU says so itself")
def test_nothing_that_an_engine_does_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRY_DEVICES", "2")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    folder = Path(__file__).parent / "dry"
    done = subprocess.run([sys.executable, str(folder / "run.py"), str(folder / "engine.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "DRY-CUDA" not in done.stderr
