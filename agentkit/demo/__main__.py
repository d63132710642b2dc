"""The command line of the demonstration; see `python -m agentkit.demo --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from agentkit import Agent, Engine, UsageLimits
from agentkit.demo.clock import Stages
from agentkit.demo.run import Record, ask
from agentkit.demo.tools import INSTRUCTIONS, QUESTIONS, TOOLS, examples
from agentkit.demo.twenty import INSTRUCTIONS as RULES
from agentkit.demo.twenty import QuestionSet, find_prompts, judge, load
from agentkit.demo.view import View, call_line
from agentkit.errors import AgentKitError
from agentkit.events import CallEvent, Event

FIRST_CALL = "first validated call"
_MAX_TOKENS = 160  # of one turn
_WIDTH = 110  # columns of tables in files, unless COLUMNS says more


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demonstration. Exit status: 0; 1 if something of agentkit failed or a call was not valid; 2 for wrong arguments."""
    stages = Stages.of_this_process()
    stages.mark("imports")
    parser = _parser()
    options = parser.parse_args(arguments)
    questions = _question_set(parser, options.prompts) if options.all else None
    to_files = options.plain or options.json
    console = Console(stderr=options.json, highlight=False, no_color=True if to_files else None)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    view = View(console, live=console.is_terminal and not to_files)
    try:
        with Engine(options.model) as engine:
            stages.mark("model loaded")
            engine.vocabulary  # noqa: B018  # made here rather than within the first question, so that the table says what it costs
            stages.mark("grammar kernels and vocabulary")
            if questions is not None:
                figures, status = _run_all(engine, questions, view, stages)
            else:
                figures, status = _run_few(engine, options.question or QUESTIONS, view, stages)
    except AgentKitError as error:
        console.print(f"{type(error).__name__}: {error}", style="bold red", markup=False, soft_wrap=True)
        return 1
    if options.json:
        head = {"model": options.model, "machine": _machine(), "stages_s": stages.reached, "stages_from": stages.start}
        sys.stdout.write(json.dumps(head | figures, ensure_ascii=False, indent=1) + "\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentkit.demo", description="Tool calls decoded under a grammar by a model in this process.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or .gguf file, as for Engine (default: %(default)s)")
    parser.add_argument("--question", action="append", metavar="TEXT", help="ask this instead of the prepared questions; may be repeated")
    parser.add_argument("--all", action="store_true", help="all questions of shared/toolcall/prompts.json, with a verdict on each call")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="where that file is (default: beside the project or the working folder)")
    parser.add_argument("--plain", action="store_true", help="no live display and no colours; so anyway where the output is not a terminal")
    parser.add_argument("--json", action="store_true", help="all figures as JSON on the standard output, everything else on the standard error")
    return parser


def _question_set(parser: argparse.ArgumentParser, given: Path | None) -> QuestionSet:
    """The set for --all; ends the program with a message where there is none."""
    path = given or find_prompts()
    if path is None:
        parser.error(
            "--all needs the question set shared/toolcall/prompts.json, which is neither beside the project nor beside this folder: give --prompts FILE"
        )
    try:
        return load(path)
    except (OSError, ValueError) as error:
        parser.error(f"--all: {error}")


def _run_few(engine: Engine, questions: Sequence[str], view: View, stages: Stages) -> tuple[dict[str, Any], int]:
    """Each question through the whole loop: call, result, answer."""
    agent = Agent(engine, tools=TOOLS, instructions=INSTRUCTIONS, max_tokens=_MAX_TOKENS)
    view.console.print(f"[bold]agentkit[/]  {engine.model_name} on {_machine()}\n", highlight=False)
    view.tools(TOOLS)
    history = examples()
    records = []
    for number, question in enumerate(questions, 1):
        view.question(question, number, len(questions))
        limits = UsageLimits(request_limit=4)  # one is needed to call and one to answer; a model that goes on calling is stopped
        record = asyncio.run(
            ask(agent, question, _told(view.event, stages), tool_choice="required", message_history=history, usage_limits=limits),
        )
        view.close(record.error)
        records.append(record)
    view.times(records)
    view.stages(stages)
    return {"questions": [record.figures() for record in records]}, 0 if all(record.calls for record in records) else 1


def _run_all(engine: Engine, questions: QuestionSet, view: View, stages: Stages) -> tuple[dict[str, Any], int]:
    """Each question as one call that is judged, not run."""
    agent = Agent(engine, tools=questions.tools, instructions=RULES, max_tokens=256)
    view.console.print(f"[bold]agentkit[/]  {engine.model_name} on {_machine()}: {len(questions.questions)} questions, {len(questions.tools)} tools\n")
    records: list[Record] = []
    verdicts: list[dict[str, bool]] = []
    for number, question in enumerate(questions.questions):
        record = asyncio.run(ask(agent, question, _told(lambda _: None, stages), tool_choice="required", execute_tools=False))
        verdict = judge(record, number, questions.schemas)
        records.append(record)
        verdicts.append({"valid": verdict.valid, "right_tool": verdict.tool, "right_arguments": verdict.arguments})
        view.verdict(number + 1, question, call_line(record.calls[0]) if record.calls else record.error, verdicts[-1], record.total_s)
    view.times(records)
    view.score(verdicts)
    view.stages(stages)
    scored = [record.figures() | verdict for record, verdict in zip(records, verdicts, strict=True)]
    return {"questions": scored}, 0 if all(verdict["valid"] for verdict in verdicts) else 1


def _told(tell: Callable[[Event], None], stages: Stages) -> Callable[[Event], None]:
    """`tell`, after the moment of the first call has been noted."""

    def both(event: Event) -> None:
        if isinstance(event, CallEvent):
            stages.mark(FIRST_CALL)
        tell(event)

    return both


def _machine() -> str:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:  # not Linux
        pass
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
