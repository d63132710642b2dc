"""Triton's kernels run in its interpreter where there is no GPU; that is settled when a kernel is defined, so before any is imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def _interpreter_works() -> None:
    """Skips where the installed interpreter cannot run a loop: that of Triton 3.6 reads its bounds in a way that numpy 2.4 has taken out."""
    import numpy as np
    import triton

    from tests.engine.gpu import loops

    if torch.cuda.is_available():
        return
    try:
        counted = loops.count(5)
    except triton.runtime.errors.InterpreterError as error:
        pytest.skip(f"the interpreter of Triton {triton.__version__} does not run with numpy {np.__version__}: {error}")
    assert counted == 5
