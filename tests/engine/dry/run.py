"""Runs a program with a GPU that is not there: what torch, Triton and CUDA refuse comes to light, what kernels compute does not.

    python tests/engine/dry/run.py tests/bench/gpu.py --worker --only steps engine
    DRY_DEVICES=2 python tests/engine/dry/run.py tests/engine/dry/engine.py [case ...]

Needs a CUDA build of torch with its libraries (pip install torch, on Linux), Triton and gcc. cuda.c beside this is compiled and takes the place
of CUDA; Triton's kernels are really compiled, by its own assembler. Numbers that come back mean nothing, so checks of them fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def build(folder: Path) -> Path:
    """cuda.c as libcuda.so.1 in `folder`. Raises CalledProcessError with what gcc says."""
    import torch
    import triton

    own = next(Path(torch.__path__[0]).parent.glob("nvidia/*/include/driver_types.h")).parent  # those of torch's version; what is missing there has Triton
    headers = [own, Path(triton.__path__[0]) / "backends" / "nvidia" / "include"]
    library, source = folder / "libcuda.so.1", Path(__file__).with_name("cuda.c")
    include = [f"-I{header}" for header in headers]
    subprocess.run(["gcc", "-w", "-O1", "-shared", "-fPIC", *include, "-include", "vector_types.h", "-o", library, source, "-ldl", "-lpthread"], check=True)
    (folder / "libcuda.so").symlink_to(library.name)
    return library


def environment(library: Path) -> dict[str, str]:
    """For a process that is to see the GPU. The library has one name for all, so that it is loaded once."""
    folder = str(library.parent)
    return {**os.environ, "LD_PRELOAD": str(library), "TRITON_LIBCUDA_PATH": folder, "LD_LIBRARY_PATH": folder, "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([sys.executable, *sys.argv[1:]], env=environment(build(Path(folder))), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
