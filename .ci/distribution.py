"""Build sdist and wheel into a folder: python .ci/distribution.py OUT [--wheel-only].

Works on a copy of the sources, so that nothing left over in the tree (build/, *.egg-info, removed modules) can get into the
result and two builds may run at once. Inputs: the project folder; needs the packages `build` and `setuptools` (extra dev),
and no network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_sources(target: Path) -> None:
    """Copy what a distribution is made of (metadata files and the mapped folders) to `target`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"].values()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, target / name)
    for folder in folders:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))


def build(out: Path, wheel_only: bool = False) -> list[Path]:
    """Build into `out` and return the files made. RuntimeError with the build's output if it fails."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy_sources(Path(temporary))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out.resolve())]
        done = subprocess.run([*command, *(["--wheel"] if wheel_only else []), temporary], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the build failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return sorted(out.iterdir())


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--wheel-only"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    for path in build(Path(arguments[0]), wheel_only="--wheel-only" in sys.argv):
        print(path)
