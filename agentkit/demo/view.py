"""What a terminal shows of runs: tokens as they arrive, calls, results, answers, and tables of times.

Two ways: live (a terminal that can redraw: each turn is a panel that grows) and plain (pipes and logs: each turn once, when it
is complete, forced tokens between « and »). Input: events and records. Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from agentkit.demo.clock import Stages
from agentkit.demo.run import Record
from agentkit.events import CallEvent, Event, FinalEvent, RetryEvent, TokenEvent, ToolResultEvent, TurnEvent
from agentkit.result import ToolCall
from agentkit.tool import Tool
from agentkit.usage import RequestUsage

__all__ = ["View", "call_line", "seconds"]

FORCED, SAMPLED = "dim underline", "bold"
_REDRAWS = 12  # a second


def seconds(value: float | None, *, milli: bool = False) -> str:
    """A time for people; "-" where there was nothing to measure."""
    if value is None:
        return "-"
    return f"{1000 * value:.1f} ms" if milli else f"{value:.2f} s"


def call_line(call: ToolCall) -> str:
    """The validated call as Python: its name and its arguments, without those that are None."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments if value is not None)})"


class View:
    """Shows one run after the other.

    Args:
        console: where to.
        live: redraw while tokens arrive.
    """

    def __init__(self, console: Console, *, live: bool) -> None:
        self.console = console
        self._live_wanted = live
        self._live: Live | None = None
        self._turn = Text()
        self._notes: list[RenderableType] = []
        self._forced = False

    def tools(self, tools: Iterable[Tool[..., Any]]) -> None:
        """The tools, with what they take."""
        table = Table(title="Tools", title_justify="left", box=None, pad_edge=False)
        for heading in ("name", "arguments", "description"):
            table.add_column(heading, style="cyan" if heading == "name" else "", overflow="fold")
        for tool in tools:
            properties = tool.parameters.get("properties", {})
            needed = tool.parameters.get("required", ())
            table.add_row(tool.name, ", ".join(name if name in needed else f"[dim]{escape(name)}[/dim]" for name in properties), escape(tool.description))
        self.console.print(table)
        self.console.print("Each conversation begins with one example of each tool; the first turn must be a call (tool_choice='required').", style="dim")
        legend = Text("\nTokens: ")
        legend.append("sampled by the model", SAMPLED).append(", ").append("forced by the grammar" if self._live_wanted else "«forced by the grammar»", FORCED)
        self.console.print(legend)

    def question(self, text: str, number: int, of: int) -> None:
        """A new run begins."""
        self.console.print(f"\n[bold magenta]Question {number} of {of}[/]  {escape(text)}", soft_wrap=True)
        self._draw()

    def event(self, event: Event) -> None:
        """Something has happened in the run."""
        if isinstance(event, TokenEvent):
            self._token(event)
        elif isinstance(event, CallEvent):
            self._notes.append(Text.assemble(("valid call  ", "bold green"), call_line(event.call)))
            self._draw()
        elif isinstance(event, TurnEvent):
            self._end_turn(event.usage)
        elif isinstance(event, ToolResultEvent):
            self._say("result      ", "bold green", event.call.content or "")
            self._draw()
        elif isinstance(event, RetryEvent):
            self._say("refused     ", "bold yellow", event.message.content)
        elif isinstance(event, FinalEvent) and event.result.output is not None:
            cut = " … (cut at max_tokens)" if event.result.finish_reason == "length" else ""
            self._say("answer      ", "bold blue", f"{event.result.output}{cut}")

    def verdict(self, number: int, question: str, call: str, verdict: Mapping[str, bool], took_s: float) -> None:
        """One judged call. `call`: as Python, or what went wrong instead."""
        self.console.print(f"\n[bold magenta]{number:2}[/]  {escape(question)}", soft_wrap=True)
        marks = [(f"{what.replace('_', ' ')} {'yes' if good else 'no'}", "green" if good else "red") for what, good in verdict.items()]
        line = Text("    ").append(call, "bold").append(f"\n    {took_s:.2f} s")
        for text, style in marks:
            line.append("  ").append(text, style)
        self.console.print(line, soft_wrap=True)

    def score(self, verdicts: Sequence[Mapping[str, bool]]) -> None:
        """How many calls were right, of all."""
        parts = [f"{what.replace('_', ' ')} {sum(verdict[what] for verdict in verdicts)} of {len(verdicts)}" for what in verdicts[0]]
        self.console.print(f"\n[bold]{', '.join(parts)}[/]")

    def close(self, error: str = "") -> None:
        """The run is over; `error`: what ended it early."""
        self._stop()
        if error:
            self._say("ended       ", "bold red", error)

    def times(self, records: Sequence[Record]) -> None:
        """One row of times and counts for each question, and their medians."""
        table = Table(title="\nTimes and tokens", title_justify="left", box=None, pad_edge=False)
        for heading in ("", "TTFT", "TPOT", "input", "cached", "output", "forced", "forwards", "to call", "in all"):
            table.add_column(heading, justify="right", no_wrap=True)
        for number, record in enumerate(records, 1):
            table.add_row(str(number), *_row(record))
        if len(records) > 1:
            table.add_row("median", *_medians(records), style="bold")
        self.console.print(table)
        self.console.print("TTFT: to the first sampled token of the first request. TPOT: for each token after it, over all requests.", style="dim")

    def stages(self, stages: Stages) -> None:
        """When the start reached what."""
        table = Table(title=f"\nSeconds from {stages.start}", title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for stage, reached in stages.reached.items():
            table.add_row(stage, f"{reached:.2f} s", style="bold" if stage == "first validated call" else "")
        self.console.print(table)

    def _token(self, event: TokenEvent) -> None:
        marks = not self._live_wanted
        if marks and event.forced != self._forced:
            self._turn.append("«" if event.forced else "»")
        self._forced = event.forced
        self._turn.append(event.text, FORCED if event.forced else SAMPLED)
        self._draw()

    def _draw(self) -> None:
        if not self._live_wanted:
            return
        if self._live is None:
            self._live = Live(console=self.console, refresh_per_second=_REDRAWS, vertical_overflow="visible")
            self._live.start()
        self._live.update(self._panel(""))

    def _panel(self, counts: str) -> RenderableType:
        if not self._turn:
            return Spinner("dots", Text("the model reads", "dim"))
        return Group(Panel(self._turn, title="the model writes", title_align="left", subtitle=counts, subtitle_align="right", border_style="dim"), *self._notes)

    def _end_turn(self, usage: RequestUsage) -> None:
        counts = f"{usage.output_tokens} tokens, {usage.forced_tokens} forced, {usage.forwards} forwards"
        if self._live is not None:
            self._live.update(self._panel(counts))
        elif self._turn:
            if self._forced:
                self._turn.append("»")
            self.console.print(self._turn, f"[{counts}]", *self._notes, sep="\n", soft_wrap=True, markup=False)
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            if not self._turn:
                self._live.update("")
            self._live.stop()
        self._live, self._turn, self._notes, self._forced = None, Text(), [], False

    def _say(self, what: str, style: str, text: str) -> None:
        self.console.print(Text.assemble((what, style), text), soft_wrap=True)


def _row(record: Record) -> list[str]:
    usage = record.usage
    counts = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.forced_tokens, usage.forwards)
    return [seconds(usage.ttft_s), seconds(usage.tpot_s, milli=True), *map(str, counts), seconds(record.call_s), seconds(record.total_s)]


def _medians(records: Sequence[Record]) -> list[str]:
    def middle(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    usages = [record.usage for record in records]
    counts = ("input_tokens", "cached_tokens", "output_tokens", "forced_tokens", "forwards")
    return [
        seconds(middle(usage.ttft_s for usage in usages)),
        seconds(middle(usage.tpot_s for usage in usages), milli=True),
        *(f"{median(getattr(usage, count) for usage in usages):g}" for count in counts),
        seconds(middle(record.call_s for record in records)),
        seconds(middle(record.total_s for record in records)),
    ]
