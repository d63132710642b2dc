"""The demonstration, from its command line to its exit status, on the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit.demo.__main__ import main
from agentkit.demo.tools import TOOLS
from tests.engine.models.fixtures import smollm2_folder  # noqa: F401  # a fixture


@pytest.mark.usefixtures("smollm2_folder")
def test_a_question_ends_in_a_validated_call_its_result_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plain", "--question", "What is the weather in Oslo?"]) == 0
    shown = capsys.readouterr().out
    for part in ("valid call  get_weather(city=", "result ", "answer ", "Times and tokens", "first validated call"):
        assert part in shown
    assert "«" in shown  # forced tokens are marked


@pytest.mark.usefixtures("smollm2_folder")
def test_figures_as_json_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentkit.demo", "--json", "--question", "Convert 250 EUR to CHF."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, env=os.environ)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["questions"][0]["forwards"] < figures["questions"][0]["output_tokens"]  # forced tokens cost no forward of their own
    assert list(figures["stages_s"].values()) == sorted(figures["stages_s"].values())


def test_the_tools_are_at_least_four_and_one_takes_nested_arguments() -> None:
    assert len(TOOLS) >= 4
    assert any("$ref" in str(tool.parameters) or "'type': 'object'" in str(tool.parameters["properties"]) for tool in TOOLS)


def test_a_missing_question_set_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--all", "--prompts", str(tmp_path / "nowhere.json")])
    assert stopped.value.code == 2
    assert "nowhere.json" in capsys.readouterr().err
