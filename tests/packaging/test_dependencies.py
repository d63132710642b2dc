"""The dependencies in pyproject.toml, the imports in the packages and docs/dependencies.md agree."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agentkit", "engine", "grammars", "tools")
KNOWN = {
    "triton": "triton",  # not installed everywhere, so its distribution cannot be looked up
    "pydantic_core": "pydantic",  # pydantic pins the one version that belongs to it
}


@cache
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"])


def declared(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imported_modules(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


def third_party_imports(folders: tuple[str, ...]) -> dict[str, set[str]]:
    """Imported top-level name -> files that import it; without the standard library and agentkit."""
    users: dict[str, set[str]] = {}
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            for name in imported_modules(path) - sys.stdlib_module_names - {"agentkit", "__future__"}:
                users.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return users


def distributions_of(module: str) -> set[str]:
    names = [KNOWN[module]] if module in KNOWN else packages_distributions().get(module, [])
    return {canonicalize_name(name) for name in names}


def test_everything_imported_is_declared() -> None:
    allowed = declared(project()["dependencies"]) | declared(
        [line for name, lines in project()["optional-dependencies"].items() if name != "dev" for line in lines]
    )
    undeclared = {name: sorted(files) for name, files in third_party_imports(FOLDERS).items() if not distributions_of(name) & allowed}
    assert not undeclared


def test_everything_declared_is_imported() -> None:
    used = set().union(*(distributions_of(name) for name in third_party_imports((*FOLDERS, "tests"))))
    assert declared(project()["dependencies"]) - used == set()


def test_every_dependency_is_explained() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = {canonicalize_name(name) for name in re.findall(r"^\| `([\w-]+)", page, re.MULTILINE)}
    extras = [line for lines in project()["optional-dependencies"].values() for line in lines]
    assert explained == declared(project()["dependencies"]) | declared(extras)
