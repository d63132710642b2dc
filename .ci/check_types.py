"""Type-check agentkit as it is installed: build the wheel, unpack it, run mypy (strict) over the package `agentkit`.

The four top-level folders are one package only once they are installed, so mypy cannot run over the tree. Arguments go to mypy.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from distribution import ROOT, build


def main(arguments: list[str]) -> int:
    unpacked = ROOT / "build" / "types"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tempfile.TemporaryDirectory() as out:
        (wheel,) = build(Path(out), wheel_only=True)
        zipfile.ZipFile(wheel).extractall(unpacked)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    return subprocess.run([*command, *arguments, "-p", "agentkit"], cwd=unpacked, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
