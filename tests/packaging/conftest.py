"""Distributions built once per run, and a clean environment with the wheel installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The built files: "wheel" and "sdist"."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run([sys.executable, str(root / ".ci" / "distribution.py"), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="session")
def clean_python(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment that holds the wheel and nothing else of this project; it sees the dependencies of the running one.

    A folder named by a .pth file is searched, but .pth files inside it are not read: so the editable install of the running
    environment is not seen, and nothing is downloaded again.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python3*/site-packages"))
    known = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join([sysconfig.get_path("purelib"), *known]) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
    done = subprocess.run([*command, str(distributions["wheel"])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def foreign_folder(tmp_path: Path) -> Path:
    """An application's folder whose own modules have the names of our top-level folders, and fail if anything imports them."""
    trap = "raise RuntimeError('the application\\'s own {name} was imported')\n"
    (tmp_path / "tools.py").write_text(trap.format(name="tools.py"), encoding="utf-8")
    for name in ("engine", "grammars"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(trap.format(name=name + "/"), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def plain_environment() -> dict[str, str]:
    """The environment variables without those that would let this project's tree be found."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
