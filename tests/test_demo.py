"""The demonstration without a model (scripted turns), and on SmolLM2 where it is in the cache."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from agentkit import Agent, UsageLimits
from agentkit.demo import __main__ as program
from agentkit.demo import clock, expected, twenty
from agentkit.demo.clock import Stages
from agentkit.demo.expected import EXPECTED, Maybe, in_any_order, matches, one_of, words
from agentkit.demo.run import Record, ask
from agentkit.demo.tools import QUESTIONS, TOOLS, examples, get_weather
from agentkit.demo.view import View
from agentkit.errors import ModelNotFound, ToolError
from agentkit.messages import check_history
from agentkit.usage import RunUsage
from tests.agent.scripted import ScriptedModel, calls

WEATHER = calls(("get_weather", {"city": "Oslo"}))


class ScriptedEngine(ScriptedModel):
    """A ScriptedModel in the place of an Engine."""

    model_name = "scripted"
    vocabulary = None

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def record_of(*turns: str, console: Console | None = None, live: bool = False, **options: Any) -> Record:
    view = View(console or Console(file=io.StringIO()), live=live)
    agent = Agent(ScriptedModel(*turns), tools=TOOLS)
    record = await ask(agent, "Weather in Oslo?", view.event, tool_choice="required", **options)
    view.close(record.error)
    return record


# -- one question ---------------------------------------------------------------------------------------------------


async def test_a_record_holds_calls_answer_and_times() -> None:
    record = await record_of(WEATHER, "Snow.")
    assert (record.output, record.error, len(record.calls)) == ("Snow.", "", 1)
    assert record.calls[0].result == {"city": "Oslo", "sky": "snow", "temperature": -3, "unit": "celsius"}
    assert record.call_s is not None
    assert 0 < record.call_s <= record.total_s
    figures = json.loads(json.dumps(record.figures()))
    assert figures["calls"] == [{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}, "result": record.calls[0].content}]
    assert (figures["requests"], figures["input_tokens"], figures["forced_tokens"]) == (2, 30, 2)


async def test_what_ends_a_run_early_is_part_of_its_record() -> None:
    output = io.StringIO()
    record = await record_of(WEATHER, WEATHER, console=Console(file=output, width=200), usage_limits=UsageLimits(request_limit=2))
    assert record.error.startswith("UsageLimitExceeded: ")
    assert (record.output, len(record.calls), record.usage.requests) == (None, 2, 2)
    assert "ended       UsageLimitExceeded" in output.getvalue()


async def test_a_bug_is_not_a_record() -> None:
    def broken(event: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ask(Agent(ScriptedModel(WEATHER, "Snow."), tools=TOOLS), "?", broken)


# -- what is shown --------------------------------------------------------------------------------------------------


async def test_plain_output_shows_each_turn_once_and_marks_forced_tokens() -> None:
    output = io.StringIO()
    await record_of(WEATHER, "[Snow] in Oslo.", console=Console(file=output, width=200))
    assert "\x1b" not in output.getvalue()
    lines = output.getvalue().splitlines()
    assert "«<too»l_call>" in lines  # scripted tokens that begin with < count as forced
    assert "valid call  get_weather(city='Oslo', unit='celsius')" in lines
    assert 'result      {"city":"Oslo","sky":"snow","temperature":-3,"unit":"celsius"}' in lines
    assert "answer      [Snow] in Oslo." in lines
    assert output.getvalue().count("«") == output.getvalue().count("»") > 0


async def test_live_output_styles_forced_tokens_and_ends_with_the_whole_turn() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True, color_system="standard", _environ={"TERM": "xterm"})
    await record_of(WEATHER, "Snow.", console=console, live=True)
    shown = output.getvalue()
    assert "\x1b[2;4m<too\x1b[0m" in shown
    assert "\x1b[1ml_ca" in shown
    assert "the model writes" in shown
    assert "tokens, 1 forced" in shown.replace("\x1b[0m\x1b[2m", "")
    assert "valid call" in shown
    assert "\x1b[?25h" in shown  # the cursor is back


async def test_a_call_that_is_refused_is_shown() -> None:
    output = io.StringIO()
    agent = Agent(ScriptedModel(calls(("no_such_tool", {})), WEATHER, "Snow.", constrained=False), tools=TOOLS)
    view = View(Console(file=output, width=200), live=False)
    record = await ask(agent, "?", view.event)
    assert record.output == "Snow."
    assert "refused     There is no tool named 'no_such_tool'" in output.getvalue()


def test_tables_have_medians_and_no_figure_where_nothing_was_measured() -> None:
    output = io.StringIO()
    view = View(Console(file=output, width=200), live=False)
    empty = Record("q", (), None, "EngineError: x", RunUsage(), None, 1.0)
    view.times([empty, Record("q", (), None, "", empty.usage, 2.0, 3.0)])
    rows = [line.split() for line in output.getvalue().splitlines()]
    assert ["1", "-", "-", "0", "0", "0", "0", "0", "-", "1.00", "s"] in rows
    assert ["median", "-", "-", "0", "0", "0", "0", "0", "2.00", "s", "2.00", "s"] in rows


# -- tools and examples ---------------------------------------------------------------------------------------------


def test_the_examples_are_a_sound_conversation_with_every_tool() -> None:
    history = check_history(examples())
    assert {message.name for message in history if message.role == "tool"} == {tool.name for tool in TOOLS}
    assert len(TOOLS) >= 4
    assert any(part.get("type") == "object" for tool in TOOLS for part in tool.parameters["properties"].values())
    assert len(QUESTIONS) >= 4


def test_tools_compute() -> None:
    by_name = {tool.name: tool for tool in TOOLS}
    assert get_weather("Paris", "fahrenheit")["temperature"] == 48
    assert by_name["convert_currency"].invoke({"amount": 250, "from_currency": "EUR", "to_currency": "CHF"})["result"] == 233.64
    event = by_name["create_event"].invoke({"title": "T", "start": {"date": "2026-12-04", "time": "14:00"}, "attendees": []})
    assert event["start"] == "2026-12-04 14:00"


# -- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the age of a process is read from /proc")
def test_the_age_of_a_process_includes_its_start() -> None:
    before = time.monotonic()
    code = "import time; time.sleep(0.3); from agentkit.demo.clock import process_age; print(process_age())"
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)
    assert 0.3 < age < time.monotonic() - before + 0.05


def test_without_proc_the_first_line_counts_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "process_age", lambda: None)
    stages = Stages.of_this_process()
    stages.mark("a")
    first = stages.reached["a"]
    stages.mark("a")
    assert stages.reached == {"a": first}
    assert stages.start == "the program's first line"
    assert Stages.of_this_process().exact is False


# -- the twenty questions -------------------------------------------------------------------------------------------


def test_the_expected_calls_are_valid_under_the_schemas_of_the_set(shared: Path) -> None:
    questions = twenty.load(shared / "toolcall" / "prompts.json")
    assert len(questions.questions) == len(EXPECTED) == 20
    for number, wanted in enumerate(EXPECTED):
        arguments = example_of(wanted.arguments)
        assert matches(wanted.arguments, arguments), number
        Draft202012Validator(dict(questions.schemas[wanted.tool])).validate(arguments)
        next(tool for tool in questions.tools if tool.name == wanted.tool).validate(arguments)


def test_the_models_of_the_set_say_what_its_schemas_say(shared: Path) -> None:
    questions = twenty.load(shared / "toolcall" / "prompts.json")
    assert len(questions.tools) == 12
    assert all(not tool.has_body and tool.description for tool in questions.tools)
    for tool in questions.tools:
        assert tidy(tool.parameters) == tidy(questions.schemas[tool.name])


def example_of(wanted: Any) -> Any:
    """A value that is as expected."""
    if isinstance(wanted, expected.OneOf | expected.InAnyOrder):
        values = [example_of(value) for value in wanted.values]
        return values[0] if isinstance(wanted, expected.OneOf) else values[::-1]
    if isinstance(wanted, expected.Words):
        return f"about {' and '.join(wanted.words)}"
    if isinstance(wanted, dict):
        return {key: example_of(value) for key, value in wanted.items() if not isinstance(value, Maybe)}
    return wanted


def tidy(schema: Any) -> Any:
    """Without what makes no difference: descriptions, an empty `required`, the order of keys."""
    if isinstance(schema, dict):
        return {key: tidy(value) for key, value in sorted(schema.items()) if key != "description" and (key, value) != ("required", [])}
    return schema


@pytest.mark.parametrize(
    ("wanted", "actual", "good"),
    [
        ("Oat milk", " oat  MILK.", True),
        ("a", "b", False),
        (3, 3, True),
        (3, 3.0, False),
        (True, 1, False),
        (one_of("a", 1), 1, True),
        (one_of("a", 1), 2, False),
        (words("late", "report"), "The REPORT is late", True),
        (words("late"), "on time", False),
        (words(), " ", False),
        (in_any_order(1, one_of(1, 2)), [2, 1], True),
        (in_any_order(one_of(1, 2), 1), [1, 2], True),
        (in_any_order(1, 1), [1, 2], False),
        (in_any_order(1), [1, 1], False),
        (in_any_order(), [], True),
        ({"a": 1, "b": Maybe(2)}, {"a": 1}, True),
        ({"a": 1, "b": Maybe(2)}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": Maybe(2)}, {"a": 1, "b": 3}, False),
        ({"a": 1}, {"a": 1, "c": 1}, False),
        ({"a": 1}, {}, False),
        ({"a": {"b": "x"}}, {"a": {"b": "X"}}, True),
        ({"a": 1}, [1], False),
    ],
)
def test_arguments_are_compared_by_what_was_asked(wanted: Any, actual: Any, good: bool) -> None:
    assert matches(wanted, actual) == good


SET = {
    "tools": [
        {
            "name": tool,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"location": {"type": "string", "maxLength": 40}, "days": {"type": "integer", "minimum": 1}},
                "required": ["location"],
                "additionalProperties": False,
            },
        }
        for tool in ("get_weather", "create_event")
    ],
    "messages": ["What's the weather in Paris for the next 3 days?", "Set up a meeting."],
}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(SET), encoding="utf-8")
    return path


def scripted(monkeypatch: pytest.MonkeyPatch, *turns: str) -> None:
    monkeypatch.setattr(program, "Engine", lambda model: ScriptedEngine(*turns))


def test_all_judges_every_call(prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(monkeypatch, calls(("get_weather", {"location": "paris", "days": 3})), calls(("create_event", {"location": "x"})))
    assert program.main(["--all", "--prompts", str(prompts), "--json"]) == 0
    out, err = capsys.readouterr()
    questions = json.loads(out)["questions"]
    assert [(q["valid"], q["right_tool"], q["right_arguments"]) for q in questions] == [(True, True, True), (True, True, False)]
    assert "valid 2 of 2, right tool 2 of 2, right arguments 1 of 2" in err
    assert "get_weather(location='paris', days=3)" in err


def test_a_call_that_is_not_valid_is_counted_and_fails_the_run(prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "Engine", lambda model: ScriptedEngine("No call.", "No call.", WEATHER.replace("city", "location"), constrained=False))
    assert program.main(["--all", "--prompts", str(prompts)]) == 1
    shown = capsys.readouterr().out
    assert "valid 1 of 2, right tool 0 of 2, right arguments 0 of 2" in shown
    assert "ModelRetryExceeded" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("[", "Expecting value"),
        ("{}", "is not a question set: KeyError: 'tools'"),
        ('{"tools": [{"name": "a"}], "messages": []}', "KeyError: 'parameters'"),
        (json.dumps(SET).replace("maxLength", "pattern"), "the keyword 'pattern' is not among"),
        (json.dumps(SET).replace('"string"', '"number"'), "the type 'number' is not among"),
        (json.dumps(SET).replace("false", "true"), "additionalProperties must be false"),
    ],
)
def test_a_file_that_is_no_question_set_is_refused(text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        program.main(["--all", "--prompts", str(path)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_without_the_set_all_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "find_prompts", lambda: None)
    with pytest.raises(SystemExit):
        program.main(["--all"])
    assert "--prompts FILE" in capsys.readouterr().err


# -- the whole program ----------------------------------------------------------------------------------------------


def test_the_prepared_questions_or_one_of_your_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(monkeypatch, *[WEATHER, "Snow."] * len(QUESTIONS))
    assert program.main(["--plain"]) == 0
    shown = capsys.readouterr().out
    assert all(question in shown for question in QUESTIONS)
    assert all(tool.name in shown for tool in TOOLS)
    assert "first validated call" in shown
    scripted(monkeypatch, WEATHER, "Snow.")
    assert program.main(["--question", "Cold [in] Oslo?", "--json"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert [question["answer"] for question in figures["questions"]] == ["Snow."]
    assert list(figures["stages_s"]) == ["imports", "model loaded", "grammar kernels and vocabulary", "first validated call"]
    assert sorted(figures["stages_s"].values()) == list(figures["stages_s"].values())
    assert "Question 1 of 1  Cold [in] Oslo?" in err


def test_an_error_of_agentkit_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(model: str) -> None:
        raise ModelNotFound(f"no model {model!r}")

    monkeypatch.setattr(program, "Engine", missing)
    assert program.main(["--model", "[x]"]) == 1
    assert capsys.readouterr().out.strip() == "ModelNotFound: no model '[x]'"


def test_a_question_without_a_call_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "Engine", lambda model: ScriptedEngine("No.", "No.", constrained=False))
    assert program.main(["--question", "?"]) == 1
    assert "ModelRetryExceeded" in capsys.readouterr().out


def test_examples_are_errors_of_their_own_where_a_tool_has_no_body() -> None:
    with pytest.raises(ToolError):
        twenty.Tool(twenty.model_of("t", SET["tools"][0]["parameters"])).invoke({"location": "x"})


@pytest.mark.usefixtures("smollm2_folder")
def test_a_call_on_a_real_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentkit.demo", "--json", "--question", "What is the weather in Oslo?"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=280)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    (question,) = figures["questions"]
    assert question["calls"][0]["name"] in {tool.name for tool in TOOLS}
    assert question["calls"][0]["result"]
    assert question["forwards"] < question["output_tokens"]  # forced tokens cost no forward of their own
    assert "«" in ran.stderr
    assert 0 < figures["stages_s"]["imports"] < figures["stages_s"]["first validated call"]
