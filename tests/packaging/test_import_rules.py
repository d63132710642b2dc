"""Who may import whom, and that nothing imports the bare folder names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# folder -> what it may import of agentkit besides itself (prefixes); None: everything
ALLOWED: dict[str, tuple[str, ...]] = {
    "grammars": ("agentkit.errors", "agentkit.cache_folder", "agentkit.grammars"),
    "engine": ("agentkit.errors", "agentkit.cache_folder", "agentkit.engine", "agentkit.grammars"),
    "tools": ("agentkit.errors", "agentkit.tools", "agentkit.tool"),
}


def imports_of(path: Path) -> set[str]:
    """Absolute dotted names that a file imports (for `from a import b`: a.b), anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_a_package_imports_only_what_lies_below_it(folder: str) -> None:
    wrong = {}
    for path in (ROOT / folder).rglob("*.py"):
        names = {name for name in imports_of(path) if within(name, ("agentkit",)) and not within(name, ALLOWED[folder])}
        if names:
            wrong[path.relative_to(ROOT).as_posix()] = sorted(names)
    assert not wrong


def test_ruff_refuses_bare_folder_names(tmp_path: Path) -> None:
    lines = ["import engine", "import tools", "from grammars.expr import Builder", "from engine.models import store"]
    (tmp_path / "bad.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ["--config", str(ROOT / "pyproject.toml"), "--select", "TID251", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("TID251") == len(lines), done.stdout
