"""The loop of a run: ask the model, answer its calls, ask again, until there is an answer.

Input: a `RunPlan` (fixed) and a ChatModel. Output: events, the last a FinalEvent. Every rule about retries, limits and when a
run ends is here; how a call is executed is in execute.py, how a conversation is written in protocol.py.
Knows nothing of engines, tokens or grammars.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from agentkit.context import RunContext
from agentkit.errors import GenerationTruncated, InvalidOption, ModelRetry, ModelRetryExceeded, ToolTimeout
from agentkit.events import CallEvent, Event, FinalEvent, ReasoningDelta, RetryEvent, TextDelta, TokenEvent, ToolResultEvent, ToolsEvent, TurnEvent
from agentkit.execute import Approve, approval_refusal, run_call
from agentkit.messages import AssistantMessage, CallPart, Message, RetryMessage, ToolMessage, UserMessage
from agentkit.model import CallClosed, ChatModel, ModelToken, ParsedCall, ReasoningPiece, Sampling, TextPiece, ToolSpec, Turn, TurnEnd, TurnRequest
from agentkit.output import OutputSpec
from agentkit.result import RunResult, ToolCall
from agentkit.streams import closing_source
from agentkit.tool import Tool, validation_message
from agentkit.usage import RunUsage, UsageLimits

__all__ = ["Run", "RunPlan"]

Instructions = str | Callable[[RunContext[Any]], str | Awaitable[str]]
Validator = Callable[..., Any]
_Answers = dict[str, ToolCall | RetryMessage]  # by call id
_Failures = dict[str, Exception | None]  # what failed in a turn, and why

_UNCOUNTED = ""  # key of a refusal that is no failure of the model
_UNKNOWN, _OUTPUT = "(a tool that was not offered)", "(the answer)"


@dataclass(frozen=True)
class RunPlan:
    """Everything a run is given; see Agent and Agent.run for what each means."""

    model: ChatModel
    tools: Mapping[str, Tool[..., Any]]
    output: OutputSpec
    prompt: str | None = None
    history: Sequence[Message] = ()
    instructions: Instructions = ""
    deps: Any = None
    tool_choice: str = "auto"
    execute_tools: bool = True
    max_calls: int = 1
    max_repeats: int | None = 1
    retries: int = 1
    limits: UsageLimits = field(default_factory=UsageLimits)
    sampling: Sampling = field(default_factory=Sampling)
    approve: Approve | None = None
    validators: Sequence[Validator] = ()


@dataclass(frozen=True)
class _Received:
    """A call of the current turn: valid (call), or refused (refusal, counted under key)."""

    part: CallPart
    call: ToolCall | None = None
    refusal: str = ""
    key: str = ""
    cause: Exception | None = None


class Run:
    """One run. `events()` may be iterated once."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.messages: list[Message] = list(plan.history)
        if plan.prompt is not None:
            self.messages.append(UserMessage(content=plan.prompt))
        self.usage = RunUsage()
        self.calls: list[ToolCall] = []
        self.step = 0
        self._failures: Counter[str] = Counter()
        self._last: list[tuple[str, str, str | None]] = []  # what the last turn called, and what came of it
        self._repeats = 0  # turns in a row that only repeated the one before
        self._specs = tuple(ToolSpec(tool.name, tool.description, tool.parameters, tool.accepted) for tool in plan.tools.values())
        self._choice = plan.tool_choice
        self._turn: Turn | None = None
        self._received: list[_Received] = []

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything that happens, as it happens; the last event is a FinalEvent."""
        while True:
            self.plan.limits.before_request(self.usage)
            async with aclosing(self._ask()) as asked:
                async for event in asked:
                    yield event
            turn = self._finished_turn()
            async with aclosing(self._answer_calls() if self._received else self._accept(turn)) as answers:
                async for answer in answers:
                    yield answer
                    if isinstance(answer, FinalEvent):
                        return

    # asking the model

    async def _ask(self) -> AsyncGenerator[Event, None]:
        """One request; leaves the turn and its calls behind, and the assistant's message."""
        self.step += 1
        self._turn, self._received = None, []
        request = await self._request()
        self._choice = request.tool_choice
        async with aclosing(closing_source(self.plan.model.stream_turn(request))) as stream:
            async for event in stream:
                if isinstance(event, ModelToken):
                    yield TokenEvent(event.text, event.token_ids, event.forced)
                elif isinstance(event, TextPiece):
                    yield TextDelta(event.text)
                elif isinstance(event, ReasoningPiece):
                    yield ReasoningDelta(event.text)
                elif isinstance(event, CallClosed):
                    received = self._receive(event.call)
                    self._received.append(received)
                    if received.call is not None:
                        yield CallEvent(received.call)
                else:
                    yield self._end(event)
        self._finished_turn()
        self.plan.limits.after_request(self.usage)

    async def _request(self) -> TurnRequest:
        plan = self.plan
        instructions = plan.instructions
        if callable(instructions):
            made = instructions(self._context())
            instructions = await made if inspect.isawaitable(made) else made
            if not isinstance(instructions, str):
                raise InvalidOption(f"the function given as instructions returned {instructions!r}; it must return text")
        choice = plan.tool_choice if plan.tool_choice == "none" or not self.calls else "auto"  # a demand is met by one valid call
        stuck = plan.max_repeats is not None and self._repeats >= plan.max_repeats
        choice = "none" if stuck or not self._specs else choice
        output = plan.output
        return TurnRequest(tuple(self.messages), instructions, self._specs, choice, output.schema, output.accepted, plan.max_calls, plan.sampling)

    def _end(self, end: TurnEnd) -> TurnEvent:
        self._turn = end.turn
        self.usage = replace(self.usage, per_request=(*self.usage.per_request, end.usage))
        message = AssistantMessage(content=end.turn.text or None, tool_calls=tuple(received.part for received in self._received))
        self.messages.append(message)
        return TurnEvent(message, end.usage, end.turn.finish_reason)

    def _finished_turn(self) -> Turn:
        turn = self._turn
        if turn is None:
            raise GenerationTruncated(f"the model {self.plan.model.name} ended its stream without ending its turn", "")
        if turn.unfinished and turn.finish_reason != "stop":
            message = f"the model's turn was cut inside a tool call (finish reason {turn.finish_reason!r}); raise max_tokens"
            raise GenerationTruncated(message, turn.text + turn.unfinished)
        return turn

    def _receive(self, parsed: ParsedCall) -> _Received:
        """Validates a call. No near-match of a name is ever run."""
        part = CallPart(id=parsed.id or f"call_{uuid.uuid4().hex[:16]}", name=parsed.name, arguments=parsed.arguments)
        uncalled = self._uncalled_for(parsed.name)
        if uncalled is not None:
            return _Received(part, refusal=uncalled[0], key=uncalled[1])
        tool = self.plan.tools.get(parsed.name)
        if tool is None:
            offered = ", ".join(self.plan.tools) or "none"
            return _Received(part, refusal=f"There is no tool named {parsed.name!r}. The tools are: {offered}.", key=_UNKNOWN)
        try:
            arguments = tool.validate(parsed.arguments)
        except ValidationError as error:
            refusal = f"The arguments of {tool.name} are not valid:\n{validation_message(error)}"
            return _Received(part, refusal=refusal, key=tool.name, cause=error)
        return _Received(part, ToolCall(part.id, tool.name, arguments, parsed.arguments))

    def _uncalled_for(self, name: str) -> tuple[str, str] | None:
        """(why, key) where a call is not what the turn was asked for, which a grammar rules out and a server may not."""
        if len(self._received) >= self.plan.max_calls:
            return f"Not run: no more than {self.plan.max_calls} in one turn. Make this call in the next turn, if it is still needed.", _UNCOUNTED
        key = name if name in self.plan.tools else _UNKNOWN  # names that are made up would each be a first failure
        if self._choice == "none":
            return "No tool can be called in this turn. Answer.", key
        if self._choice in self.plan.tools and name != self._choice:
            return f"Call {self._choice} first.", key
        return None

    # answering calls

    async def _answer_calls(self) -> AsyncGenerator[Event, None]:
        """Runs the valid calls together, refuses the others; ends the run if its calls are what was wanted."""
        valid = [received.call for received in self._received if received.call is not None]
        to_run = [call for call in valid if self.plan.execute_tools and self.plan.tools[call.name].has_body]
        self.plan.limits.before_tools(self.usage, len(to_run))
        answers: _Answers = {call.id: call for call in valid}
        failed: _Failures = {}
        for received in self._received:
            if received.call is None:
                answers[received.part.id] = _refusal(received.part, received.refusal)
                if received.key != _UNCOUNTED:
                    failed[received.key] = received.cause
        async with aclosing(self._run_all(to_run, answers, failed)) as ran:
            async for event in ran:
                yield event
        done = [answers[received.part.id] for received in self._received]
        self.messages.extend(message for message in map(_message, done) if message is not None)
        self.calls.extend(answer for answer in done if isinstance(answer, ToolCall))
        for refused in (answer for answer in done if isinstance(answer, RetryMessage)):
            yield RetryEvent(refused)
        self._count_failures(failed, {call.name for call in valid})
        self._count_repeats([answer for answer in done if isinstance(answer, ToolCall)] if not failed else [])
        yield ToolsEvent(tuple(answer for answer in done if isinstance(answer, ToolCall)))
        bodiless = any(not self.plan.tools[call.name].has_body for call in valid)
        if not failed and (bodiless or not self.plan.execute_tools):
            yield self._final(None)

    async def _run_all(self, calls: Sequence[ToolCall], answers: _Answers, failed: _Failures) -> AsyncGenerator[Event, None]:
        """Runs calls concurrently, putting what came of each into `answers` (and `failed`); the first ToolError ends them all."""
        tasks = [asyncio.create_task(self._run_one(call)) for call in calls]
        try:
            for finished in asyncio.as_completed(tasks):
                call, outcome = await finished
                if isinstance(outcome, ToolCall):
                    answers[call.id] = outcome
                    if outcome.executed:
                        self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
                    yield ToolResultEvent(outcome)
                else:
                    message = outcome.message if isinstance(outcome, ModelRetry) else f"{outcome}. Try again in another way, or answer without it."
                    answers[call.id] = _refusal(CallPart(id=call.id, name=call.name, arguments=call.arguments_json), message)
                    failed[call.name] = outcome
                    self.usage = replace(self.usage, tool_calls=self.usage.tool_calls + 1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one(self, call: ToolCall) -> tuple[ToolCall, ToolCall | ModelRetry | ToolTimeout]:
        tool = self.plan.tools[call.name]
        context = self._context(call)
        refusal = await approval_refusal(tool, call, context, self.plan.approve)
        if refusal is not None:
            return call, replace(call, content=refusal)
        try:
            return call, await run_call(tool, call, context)
        except (ModelRetry, ToolTimeout) as failure:
            return call, failure

    # ending

    async def _accept(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """A turn without calls: the answer, unless it is refused."""
        try:
            if turn.unfinished:
                raise ModelRetry("A tool call was not well-formed. Write it whole, in exactly the form that was described.")
            if self.plan.tool_choice not in ("auto", "none") and not self.calls:
                raise ModelRetry("Call one of the tools before you answer.")
            value = self.plan.output.validate(turn.text)
            for validator in self.plan.validators:
                made = validator(self._context(), value)
                value = await made if inspect.isawaitable(made) else made
        except (ValidationError, ModelRetry) as error:
            if turn.finish_reason == "length" and self.plan.output.schema is not None:
                raise GenerationTruncated("the answer was cut by max_tokens and is not valid; raise max_tokens", turn.text) from error
            text = error.message if isinstance(error, ModelRetry) else f"The answer is not valid:\n{validation_message(error)}"
            refusal = RetryMessage(content=_unicode(text))
            self.messages.append(refusal)
            yield RetryEvent(refusal)
            self._count_failures({_OUTPUT: error}, set())
        else:
            yield self._final(value)

    def _count_repeats(self, calls: Sequence[ToolCall]) -> None:
        """A model that calls the same again and gets the same result will go on like that; see Agent(max_repeats=...)."""
        now = [(call.name, call.arguments_json, call.content) for call in calls]
        self._repeats = self._repeats + 1 if now and now == self._last else 0
        self._last = now

    def _count_failures(self, failed: Mapping[str, Exception | None], succeeded: set[str]) -> None:
        """One failure for each name and turn, whatever the number of calls; a success starts the count again."""
        for name in succeeded - failed.keys():
            self._failures.pop(name, None)
        for name, cause in failed.items():
            self._failures[name] += 1
            tool = self.plan.tools.get(name)
            allowed = self.plan.retries if tool is None or tool.retries is None else tool.retries
            if self._failures[name] > allowed:
                last = next((message.content for message in reversed(self.messages) if isinstance(message, RetryMessage)), "")
                what = f"tool {name!r}" if tool is not None else name
                times = f"{self._failures[name]} times in a row, and {allowed} retries are allowed"
                raise ModelRetryExceeded(f"{what} failed {times}; the last message to the model was: {last}") from cause

    def _context(self, call: ToolCall | None = None) -> RunContext[Any]:
        retry = self._failures[call.name] if call is not None else self._failures[_OUTPUT]
        name, call_id = (call.name, call.id) if call is not None else (None, None)
        return RunContext(self.plan.deps, self.usage, tuple(self.messages), self.plan.prompt, retry, name, call_id, self.step)

    def _final(self, output: Any) -> FinalEvent:
        reason = self._turn.finish_reason if self._turn is not None else "stop"
        return FinalEvent(RunResult(output, tuple(self.calls), self.usage, reason, tuple(self.messages), len(self.plan.history)))


def _refusal(part: CallPart, content: str) -> RetryMessage:
    return RetryMessage(content=_unicode(content), tool_call_id=part.id, name=part.name)


def _unicode(text: str) -> str:
    """A reason quotes what was wrong, lone surrogates included; a message must have a UTF-8 form."""
    return text.encode(errors="replace").decode()


def _message(answer: ToolCall | RetryMessage) -> Message | None:
    """What the model is shown of an answer to its call; a call that was not run has none."""
    if isinstance(answer, RetryMessage):
        return answer
    return None if answer.content is None else ToolMessage(tool_call_id=answer.id, name=answer.name, content=answer.content)
