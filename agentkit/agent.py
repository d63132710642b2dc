"""Agents: a model, tools, instructions and the type of the answer, ready to run.

Input: what a developer declares. Output: results, or events while a run goes on. Checks options once and hands a RunPlan to
the loop. Knows nothing of engines, grammars or how calls are written.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from typing_extensions import TypedDict, TypeVar, Unpack

from agentkit.context import DepsT
from agentkit.engine.checks import flag, integer
from agentkit.errors import InvalidOption, ToolDefinitionError, did_you_mean
from agentkit.events import Event, FinalEvent, Step, TextDelta, ToolsEvent, TurnEvent
from agentkit.execute import APPROVE_HELP, Approve
from agentkit.loop import Instructions, Run, RunPlan, Validator
from agentkit.messages import Message, check_history
from agentkit.model import AsyncClosing, ChatModel, Sampling
from agentkit.output import OutputSpec
from agentkit.pending import Pending, run_blocking
from agentkit.result import RunResult
from agentkit.sources import chat_model
from agentkit.streams import StreamBlock
from agentkit.tool import Tool, as_tool
from agentkit.usage import UsageLimits

if TYPE_CHECKING:
    from agentkit.engine import Engine
    from agentkit.protocol import TurnProtocol

__all__ = ["Agent", "RunOptions", "RunStream"]

OutputT = TypeVar("OutputT", default=str)
_Given = TypeVar("_Given")

_CHOICES = ("auto", "required", "none")
_MANY_CALLS = 8  # bound on calls in one turn where parallel_tool_calls=True


class AgentOptions(TypedDict, total=False):
    """Options of an Agent; see there."""

    model: Engine | ChatModel | str | None
    api_key: str | None
    server: str | None
    tools: Sequence[Tool[..., Any] | Callable[..., Any]]
    instructions: Instructions
    retries: int
    name: str | None
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    parallel_tool_calls: bool | int
    max_repeats: int | None
    approve: Approve | None
    output_validators: Sequence[Validator]
    protocol: TurnProtocol | str | None
    adapter: str | None


class Agent(Generic[DepsT, OutputT]):
    """A model with tools and instructions.

    Args:
        source: what serves the model: an Engine, the name of a local model ("smollm2-135m": its engine is made at the first run and shared),
            "openai:MODEL", the address of an OpenAI-compatible server ("http://localhost:8000/v1"), or any ChatModel.
        model: for an address: the model's name on that server; None where it serves only one. (Without `source`: the source itself.)
        api_key: for a server; None: OPENAI_API_KEY for "openai:MODEL", and no key for an address.
        server: the kind of server ("vllm", "sglang", "llamacpp" ...); None: as it says itself. See agentkit.remote.RemoteModel, which takes
            time limits, retries and headers too.
        tools: functions, methods, Pydantic models or Tools. All of them are described to the model in every request.
        instructions: ahead of every conversation; text, or a function of the RunContext that gives it. Not part of the messages.
        output_type: of the final answer: str for free text, or anything Pydantic validates (a list: alternatives).
        deps_type: of `deps`; for type checkers, and checked at run where it is a class.
        retries: how often in a row the model may fail with one tool, or with the answer.
        name: for messages.
        max_tokens: bound on one turn. temperature, top_k, top_p, min_p: how tokens are chosen; 0.0 is greedy.
        parallel_tool_calls: whether one turn may make several calls (a number: at most so many). Small models do better with one.
        max_repeats: a turn that makes the same calls as the one before and gets the same results counts as a repeat; after so many in a
            row the next turn has to answer (tools are switched off by mask). None: no bound, for tools that are polled.
        approve: asked before a tool with approval=True runs.
        output_validators: called in order with (RunContext, value); each gives the value back, or raises ModelRetry.
        protocol: how a local model's family writes calls ("hermes", "qwen", "llama3" ...); None: as its chat template says.
        adapter: name of a low-rank adapter that its engine has loaded (Engine.load_adapter), for all its requests; None: the base model.

    Raises:
        ToolDefinitionError: two tools have the same name, or something cannot be a tool.
        InvalidOption: an option cannot be used.
    """

    @overload
    def __init__(
        self: Agent[DepsT, str], source: Engine | ChatModel | str = ..., /, *, deps_type: type[DepsT] | None = ..., **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(
        self, source: Engine | ChatModel | str = ..., /, *, output_type: type[OutputT], deps_type: type[DepsT] | None = ..., **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload  # a union, a list of alternatives: type checkers cannot tell what comes out
    def __init__(
        self: Agent[DepsT, Any],
        source: Engine | ChatModel | str = ...,
        /,
        *,
        output_type: Any,
        deps_type: type[DepsT] | None = ...,
        **options: Unpack[AgentOptions],
    ) -> None: ...
    def __init__(
        self,
        source: Engine | ChatModel | str | None = None,
        /,
        *,
        model: Engine | ChatModel | str | None = None,
        api_key: str | None = None,
        server: str | None = None,
        tools: Sequence[Tool[..., Any] | Callable[..., Any]] = (),
        instructions: Instructions = "",
        output_type: Any = str,
        deps_type: type[DepsT] | None = None,
        retries: int = 1,
        name: str | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        parallel_tool_calls: bool | int = False,
        max_repeats: int | None = 1,
        approve: Approve | None = None,
        output_validators: Sequence[Validator] = (),
        protocol: TurnProtocol | str | None = None,
        adapter: str | None = None,
    ) -> None:
        self.name = name
        if source is None:
            source, model = model, None
        self.model = chat_model(source, protocol, adapter, {"model": model, "api_key": api_key, "server": server})
        self._owns_model = isinstance(source, str)
        self.tools = _by_name(tools)
        self.instructions = (
            instructions if isinstance(instructions, str) else _callable("instructions", instructions, "text, or a function of the context that gives it")
        )
        self.output = OutputSpec(output_type)
        self.deps_type = deps_type
        self.retries = integer("retries", retries, 0)
        self.sampling = Sampling(max_tokens, temperature, top_k, top_p, min_p)
        self.max_calls = _calls_a_turn(parallel_tool_calls)
        self.max_repeats = None if max_repeats is None else integer("max_repeats", max_repeats, 1)
        self.approve = _callable("approve", approve, APPROVE_HELP) if approve is not None else None
        self.output_validators = tuple(
            _callable("output_validators", v, "callables of (context, value)") for v in _listed("output_validators", output_validators)
        )

    def run(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> Pending[RunResult[OutputT]]:
        """Runs to the final answer: `result = await agent.run("...")`.

        Args:
            prompt: the user's message; None goes on from the history alone.
            options: see RunOptions.

        Raises:
            InvalidOption, HistoryError: at once.
            ToolError, ModelRetryExceeded, UsageLimitExceeded, EngineError, GrammarError, RemoteError: while it runs.
        """
        plan = self._plan(prompt, options)
        return Pending(lambda: _drain(plan), "agent.run()")

    def run_sync(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> RunResult[OutputT]:
        """`run`, waiting here. Works in scripts, in notebooks and inside tools; a running event loop stands still meanwhile."""
        plan = self._plan(prompt, options)
        return run_blocking(lambda: _drain(plan))

    def run_stream(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> StreamBlock[RunStream[OutputT]]:
        """Runs while telling what happens: `async with agent.run_stream("...") as stream: async for event in stream: ...`.

        Leaving the block early cancels the run. Options are checked, and errors in them raised, at once.
        """
        plan = self._plan(prompt, options)

        @asynccontextmanager
        async def stream() -> AsyncIterator[RunStream[OutputT]]:
            async with aclosing(Run(plan).events()) as events:
                yield RunStream(events)

        return StreamBlock(stream, "agent.run_stream()")

    async def iter(self, prompt: str | None = None, **options: Unpack[RunOptions]) -> AsyncGenerator[Step, None]:
        """The run step by step: a TurnEvent after each turn of the model, a ToolsEvent after its calls are answered, a FinalEvent."""
        async with self.run_stream(prompt, **options) as stream:
            async for event in stream:
                if isinstance(event, TurnEvent | ToolsEvent | FinalEvent):
                    yield event

    def close(self) -> None:
        """Closes what the agent opened: connections to a server, prompts pinned in a shared engine. An Engine or ChatModel it was given stays open."""
        if self._owns_model:
            self.model.close()

    async def aclose(self) -> None:
        """The same, and waits for connections of the running event loop to be closed."""
        if self._owns_model and isinstance(self.model, AsyncClosing):
            await self.model.aclose()
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _plan(self, prompt: str | None, options: RunOptions) -> RunPlan:
        unknown = options.keys() - RunOptions.__annotations__.keys()
        if unknown:
            wrong, known = sorted(unknown)[0], RunOptions.__annotations__
            raise TypeError(f"a run has no option {wrong!r}.{did_you_mean(wrong, known)} The options are {', '.join(known)}")
        history = check_history(options.get("message_history") or ())
        _check_prompt(prompt, history)
        execute_tools = flag("execute_tools", options.get("execute_tools", True))
        return RunPlan(
            model=self.model,
            tools=self.tools,
            output=self.output,
            prompt=prompt,
            history=history,
            instructions=self.instructions,
            deps=self._checked_deps(options.get("deps")),
            tool_choice=self._checked_choice(options.get("tool_choice", "auto")),
            execute_tools=execute_tools,
            max_calls=self.max_calls,
            max_repeats=self.max_repeats,
            retries=self.retries,
            limits=_limits(options.get("usage_limits")),
            sampling=self._sampling(options),
            approve=self._checked_approval(execute_tools),
            validators=self.output_validators,
        )

    def _sampling(self, options: RunOptions) -> Sampling:
        own = self.sampling
        max_tokens, temperature, seed = options.get("max_tokens"), options.get("temperature"), options.get("seed")
        return replace(
            own,
            max_tokens=own.max_tokens if max_tokens is None else max_tokens,
            temperature=own.temperature if temperature is None else temperature,
            seed=own.seed if seed is None else seed,
        )

    def _checked_choice(self, choice: Any) -> str:
        if not isinstance(choice, str) or (choice not in _CHOICES and choice not in self.tools):
            names = ", ".join(self.tools) or "there are none"
            raise InvalidOption(f"tool_choice is {choice!r}; it must be 'auto', 'required', 'none' or the name of a tool: {names}")
        if choice == "required" and not self.tools:
            raise InvalidOption("tool_choice is 'required', but the agent has no tools; pass tools=[...]")
        return choice

    def _checked_deps(self, deps: Any) -> Any:
        if inspect.isclass(self.deps_type) and not isinstance(deps, self.deps_type):
            wanted = self.deps_type.__name__
            raise InvalidOption(f"deps is {type(deps).__name__}, but the agent's deps_type is {wanted}; pass deps={wanted}(...) to the run")
        return deps

    def _checked_approval(self, execute: bool) -> Approve | None:
        waiting = [name for name, tool in self.tools.items() if tool.approval]
        if execute and waiting and self.approve is None:
            raise InvalidOption(f"tools that need approval: {', '.join(waiting)}; pass approve=... to the Agent: {APPROVE_HELP}")
        return self.approve

    def __repr__(self) -> str:
        return f"Agent({self.name or self.model.name!r}, tools={list(self.tools)})"


class RunOptions(TypedDict, total=False):
    """Options of one run.

    deps: what tools get as RunContext.deps.
    message_history: an earlier result's all_messages().
    tool_choice: "auto"; "required": some tool first; the name of a tool: that one first; "none": no tools.
    execute_tools: False: calls are validated and returned, none is run.
    usage_limits: default: at most 50 requests.
    max_tokens, temperature: instead of the agent's. seed: makes sampling repeatable.
    """

    deps: Any
    message_history: Sequence[Message | Mapping[str, Any]] | None
    tool_choice: str
    execute_tools: bool
    usage_limits: UsageLimits | None
    max_tokens: int | None
    temperature: float | None
    seed: int | None


class RunStream(Generic[OutputT]):
    """A run in progress: an async iterator of events. `result` is there once the last one has come."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events
        self._result: RunResult[OutputT] | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._events.__anext__()
        if isinstance(event, FinalEvent):
            self._result = event.result
        return event

    async def text(self) -> AsyncGenerator[str, None]:
        """Only the text of the answer, piece by piece."""
        async for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    async def finish(self) -> RunResult[OutputT]:
        """Goes on to the end without looking at the events, and gives the result."""
        async for _ in self:
            continue
        return self.result

    @property
    def result(self) -> RunResult[OutputT]:
        """The result.

        Raises:
            InvalidOption: the run is not over.
        """
        if self._result is None:
            raise InvalidOption("the run is not over, so there is no result yet; iterate to the end, or await stream.finish()")
        return self._result


async def _drain(plan: RunPlan) -> RunResult[Any]:
    async with aclosing(Run(plan).events()) as events:
        return await RunStream[Any](events).finish()


def _check_prompt(prompt: Any, history: Sequence[Message]) -> None:
    if prompt is None:
        if not history:
            raise InvalidOption("there is neither a prompt nor a message_history; give one of them")
        return
    if not isinstance(prompt, str):
        raise InvalidOption(f"the prompt is {type(prompt).__name__}; give text, or pass messages as message_history=")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidOption(f"the prompt has a lone surrogate at {error.start}, which has no UTF-8 form; give valid Unicode") from error


def _limits(limits: Any) -> UsageLimits:
    if limits is None:
        return UsageLimits()
    if not isinstance(limits, UsageLimits):
        raise InvalidOption(f"usage_limits must be a UsageLimits, such as UsageLimits(request_limit=3), not {limits!r}")
    return limits


def _callable(name: str, value: _Given, wanted: str) -> _Given:
    if not callable(value):
        raise InvalidOption(f"{name} must be {wanted}, not {value!r}")
    return value


def _listed(name: str, values: Any) -> Iterable[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str | type):
        raise InvalidOption(
            f"{name} must be a list, such as {name}=[{getattr(values, '__name__', 'my_' + name.removesuffix('s'))}], not {type(values).__name__}"
        )
    return values


def _by_name(tools: Any) -> dict[str, Tool[..., Any]]:
    named: dict[str, Tool[..., Any]] = {}
    for target in _listed("tools", tools):
        tool = as_tool(target)
        if tool.name in named:
            raise ToolDefinitionError(f"two tools are named {tool.name!r}; give one of them another name: Tool(target, name=...)")
        named[tool.name] = tool
    return named


def _calls_a_turn(parallel: bool | int) -> int:
    if isinstance(parallel, bool):
        return _MANY_CALLS if parallel else 1
    return integer("parallel_tool_calls", parallel, 1, hint="or True or False")
