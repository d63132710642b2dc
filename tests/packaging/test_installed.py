"""The installed wheel, used from an application's folder that has its own tools.py, engine/ and grammars/."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

IMPORTS = """
import json, sys
import agentkit, agentkit.engine, agentkit.grammars, agentkit.tools
print(json.dumps({module.__name__: module.__file__ for module in (agentkit, agentkit.engine, agentkit.grammars, agentkit.tools)}))
"""

USE = """
import json
from agentkit import tool
from agentkit.grammars import Grammar, Vocabulary

@tool
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b

vocabulary = Vocabulary([bytes([i]) for i in range(256)] + [None], stop_token_ids=[256])
matcher = Grammar.from_json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}).matcher(vocabulary)
text = b'{"a":12}'
for byte in text:
    assert matcher.allows(byte), byte
    matcher.accept(byte)
print(json.dumps({"sum": add(2, 3), "accepting": matcher.is_accepting, "blank": matcher.allows(ord(" "))}))
"""


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(foreign_folder: Path, plain_environment: dict[str, str]) -> Run:
    """Runs a command in the foreign folder."""

    def run_there(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(part) for part in command], cwd=foreign_folder, env=plain_environment, capture_output=True, text=True, check=False)

    return run_there


def test_own_modules_of_an_application_are_not_picked_up(clean_python: Path, run: Run) -> None:
    done = run(clean_python, "-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    site = next(clean_python.parent.parent.glob("lib/python3*/site-packages"))
    assert set(files) == {"agentkit", "agentkit.engine", "agentkit.grammars", "agentkit.tools"}
    for file in files.values():
        assert Path(file).is_relative_to(site)


@pytest.mark.parametrize("name", ["tools", "engine", "grammars"])
def test_the_trap_works(clean_python: Path, run: Run, name: str) -> None:
    assert "the application's own" in run(clean_python, "-c", f"import {name}").stderr


def test_tools_and_grammars_work_there(clean_python: Path, run: Run) -> None:
    done = run(clean_python, "-c", USE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"sum": 5, "accepting": True, "blank": False}


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["models", "--help"], ["models", "list"]])
def test_command_line_works_there(clean_python: Path, run: Run, arguments: list[str]) -> None:
    done = run(clean_python.parent / "agentkit", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
