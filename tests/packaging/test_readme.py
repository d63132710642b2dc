"""The README and the pages it points to say nothing that is not there."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not link.startswith(("http://", "https://")) and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert mentioned <= targets


def test_commands_exist() -> None:
    from agentkit.cli import app, models

    names = {f"agentkit {command.name or command.callback.__name__}" for command in app.registered_commands if command.callback}
    names |= {f"agentkit models {command.name}" for command in models.registered_commands}
    shown = re.findall(r"^(agentkit [a-z ]+?)(?: +[A-Z#]|$)", "\n".join(blocks("sh")), re.MULTILINE)
    assert shown
    assert set(shown) <= names


@pytest.mark.parametrize("code", blocks("python"), ids=range(len(blocks("python"))))
def test_what_examples_import_exists(code: str) -> None:
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("agentkit")]
    assert imports
    for node in imports:
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            assert getattr(module, alias.name) is not None
