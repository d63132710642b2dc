"""What is in the wheel and in the sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

FOLDERS = {"agentkit": "agentkit", "engine": "agentkit/engine", "grammars": "agentkit/grammars", "tools": "agentkit/tools"}


def sources(root: Path) -> dict[str, str]:
    """Every Python file of the four folders: path in the tree -> path in the wheel."""
    found = {}
    for folder, installed in FOLDERS.items():
        for path in (root / folder).rglob("*.py"):
            found[path.relative_to(root).as_posix()] = f"{installed}/{path.relative_to(root / folder).as_posix()}"
    return found


def test_wheel_holds_all_four_packages_and_nothing_else(root: Path, distributions: dict[str, Path]) -> None:
    names = zipfile.ZipFile(distributions["wheel"]).namelist()
    modules = {name for name in names if name.endswith(".py")}
    assert modules == set(sources(root).values())
    assert "agentkit/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"agentkit", distributions["wheel"].name.split("-py3")[0] + ".dist-info"}


def test_wheel_metadata(distributions: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(distributions["wheel"])
    (dist_info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(f"{dist_info}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {"server", "mcp", "ray", "dev"}
    assert "Apache License" in wheel.read(f"{dist_info}/licenses/LICENSE").decode()
    assert wheel.read(f"{dist_info}/entry_points.txt").decode().split() == ["[console_scripts]", "agentkit", "=", "agentkit.cli:main"]
    assert wheel.read(f"{dist_info}/top_level.txt").decode().split() == ["agentkit"]


def test_sdist_holds_the_folders_as_they_are_and_no_tests(root: Path, distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(sources(root)) <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(("tests", "shared", ".ci"))]


def test_listed_packages_are_those_in_the_folders(root: Path) -> None:
    done = subprocess.run([sys.executable, str(root / ".ci" / "packages.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
