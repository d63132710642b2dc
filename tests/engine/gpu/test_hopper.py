"""What the kernels take of an H200's processors, from compiling them for one: no GPU is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPILLED = {"rules": 256}
"""Bytes of a thread that may not fit into registers: a window's prefill lacks room for 64, and one in float32, without tensor cores, for more."""
SHARED = {"received": 99 << 10}
"""Bytes of shared memory that a block may have: an H200 has 227 KiB; on smaller GPUs attention takes other tiles, sums of it the same."""
ROOT = Path(__file__).parents[3]


def kernels_of(body: str) -> dict[str, dict[str, int]]:
    """What hopper.py says of the kernels that a function of it launches."""
    triton = pytest.importorskip("triton")
    if not (Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("this build of Triton has no assembler for NVIDIA's GPUs")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.gpu.hopper", body]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels: dict[str, dict[str, int]] = json.loads(done.stdout)
    return kernels


@pytest.mark.slow
def test_steps_of_other_sizes_need_no_other_kernels() -> None:
    names = [name.rpartition("-")[0] for name in kernels_of("shapes")]
    assert sorted(names) == ["_attend", "_attend", "_merge", "_rotate_and_write"]  # two tiles: for few tokens and for more


@pytest.mark.slow
def test_other_numbers_of_requests_need_no_other_kernels() -> None:
    names = [name.rpartition("-")[0] for name in kernels_of("sizes")]
    single = ["_add_biases", "_advance", "_begin", "_build_rows", "_find_rows", "_finish", "_mask", "_measure_kept", "_penalise", "_weigh"]
    assert sorted(names) == sorted([*single, "_search", "_search"])  # for top-k and for top-p


@pytest.mark.slow
@pytest.mark.parametrize("body", ["forwards", "eight_bits", "rules", "received", "beside", "decoding"])
def test_kernels_compile_for_an_h200_and_fit(body: str) -> None:
    kernels = kernels_of(body)
    for name, usage in kernels.items():
        assert usage["spilled"] <= SPILLED.get(body, 16), f"{name} needs more registers than there are: {usage}"
        assert usage["shared"] <= SHARED.get(body, 227 << 10), f"{name}: {usage}"
    products = [usage for name, usage in kernels.items() if name.startswith(("_attend", "_weigh_keys", "_shrink"))]
    assert len(products) >= 4 or body == "decoding"
    assert sum(not usage["asynchronous"] for usage in products) == 4 * (body == "received")
    exact = {"rules": 2, "received": 4}.get(body, 0)  # float32 multiplies exactly, without tensor cores
    assert sum(usage["tensor_cores"] > 0 for usage in products) >= len(products) - exact
