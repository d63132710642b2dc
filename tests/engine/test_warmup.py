"""Kernels are compiled once on a machine: what says so is true afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agentkit.engine.kernels.library import supported

RUN = """
from agentkit.engine import warmup
from agentkit.engine.kernels.library import ENGINE
warmup.compile_kernels()
print(warmup.kernels_cached(), [k.py_func.__name__ for k in ENGINE._entries if not k.signatures])
"""


def test_every_kernel_is_compiled_ahead() -> None:
    """One left out would be compiled within a request, and every start would announce that kernels are compiled."""
    if not supported():
        pytest.skip("this processor does not run the kernels")
    found = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True []"
