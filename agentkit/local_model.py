"""The in-process engine as a ChatModel: renders the conversation, constrains the turn with a grammar, reads it as it streams.

How the model's family writes calls is read off its chat template, unless it is given.

Input: an engine, or the name of a model whose engine is made at the first turn and shared by all agents of this process.
torch is imported no earlier than that. Knows nothing of running tools.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from agentkit.errors import EngineError
from agentkit.grammars.frontends.turn_formats import FORMATS
from agentkit.model import ModelEvent, ModelToken, TurnEnd, TurnRequest
from agentkit.protocol import FormatProtocol, TurnProtocol, compact, family_of
from agentkit.streams import closing_source
from agentkit.turn_reader import Reasoning
from agentkit.usage import RequestUsage

if TYPE_CHECKING:
    from agentkit.engine import Engine, Pin
    from agentkit.engine.models.tokenizer import Tokenizer
    from agentkit.engine.request import TokenEvent, Usage
    from agentkit.grammars import Grammar

__all__ = ["LocalModel", "shared_engine"]

_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()
_GRAMMARS_KEPT = 64
_PINS_KEPT = 4


def shared_engine(name: str) -> Engine:
    """The process's engine for a model name; made, and its model loaded, the first time.

    Raises:
        ModelNotFound: no such model.
    """
    with _engines_lock:
        if name not in _engines:
            from agentkit.engine import Engine

            _engines[name] = Engine(name)
        return _engines[name]


class LocalModel:
    """An engine behind the ChatModel protocol.

    Args:
        engine: an Engine, or a model name (see shared_engine).
        protocol: how the model's family writes calls: a name ("qwen", "llama3" ..., see docs/guide.md) or a TurnProtocol; None: as
            its chat template says.
        adapter: name of an adapter that the engine has loaded, for all turns and what is pinned for them; None: the base model.

    Raises:
        InvalidOption: no such protocol.
    """

    def __init__(self, engine: Engine | str, protocol: TurnProtocol | str | None = None, adapter: str | None = None) -> None:
        self._engine = engine
        self._adapter = adapter
        if isinstance(protocol, str):
            FormatProtocol(protocol)  # refuses an unknown name at once
        self._protocol = protocol
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._grammars_lock = threading.Lock()
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._pins_lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _release, self._pins)

    @property
    def name(self) -> str:
        return self._engine if isinstance(self._engine, str) else self._engine.model_name

    async def stream_turn(self, request: TurnRequest) -> AsyncIterator[ModelEvent]:
        """Streams one turn; see ChatModel."""
        from agentkit.engine.request import FinishEvent

        engine = await asyncio.to_thread(shared_engine, self._engine) if isinstance(self._engine, str) else self._engine
        protocol, reasoning, prompt, grammar = await asyncio.to_thread(self._prepare, engine, request)
        reader = protocol.reader(request, reasoning)
        spelling = _Spelling(engine.tokenizer, protocol)
        events = engine.astream(prompt, grammar=grammar, adapter=self._adapter, **asdict(request.sampling))
        async with aclosing(closing_source(events)) as stream:
            async for event in stream:
                if isinstance(event, FinishEvent):
                    for piece in reader.feed(spelling.rest()):
                        yield piece
                    yield TurnEnd(reader.finish(event.generation.finish_reason), _request_usage(event.generation.usage))
                else:
                    yield ModelToken(event.text, tuple(event.token_ids), event.forced)
                    for piece in reader.feed(spelling.of(event)):
                        yield piece

    def close(self) -> None:
        """Gives back what it pinned, and closes the engine unless it is shared by name."""
        _release(self._pins)
        if not isinstance(self._engine, str):
            self._engine.close()

    def protocol_of(self, engine: Engine) -> TurnProtocol:
        """How the engine's model writes calls."""
        if self._protocol is None or isinstance(self._protocol, str):
            template = engine.chat_template
            source = "" if template is None else f"{template.source}{template.tool_source or ''}"
            family = family_of(source, engine.tokenizer.special_tokens)
            format = self._protocol or family or "hermes"
            # a template shows calls in its own family's form; where they are written in another, it is not told of them
            native = template.tool_support if template is not None and format == family else None
            self._protocol = FormatProtocol(format, native)
        return self._protocol

    def _prepare(self, engine: Engine, request: TurnRequest) -> tuple[TurnProtocol, Reasoning, list[int], Grammar | None]:
        """How to read the turn, token ids of the conversation, and the grammar of the turn; may take a while the first time."""
        protocol = self.protocol_of(engine)
        tools = protocol.tools(request)
        messages = protocol.render(request)
        prompt = engine.encode_chat(messages) if tools is None else engine.encode_chat(messages, tools=tools)
        self._pin(engine, messages, tools)
        reasoning = _reasoning(engine, protocol, prompt)
        return protocol, reasoning, prompt, self._grammar(protocol, reasoning, request)

    def _pin(self, engine: Engine, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
        """Keeps instructions and tools computed from their first turn on, whatever else the engine does."""
        after = next((place for place, message in enumerate(messages) if message["role"] not in ("system", "developer")), len(messages))
        head = messages[:after]
        if not head and not tools:
            return
        loaded = engine.adapters.get(self._adapter) if self._adapter is not None else None
        key = compact([head, tools, loaded and loaded.load_number])  # what was computed with an adapter that is replaced serves nobody
        with self._pins_lock:
            if key not in self._pins or self._pins[key].refused:
                self._pins.pop(key, None)
                try:
                    self._pins[key] = engine.pin(head, tools, adapter=self._adapter, wait=False)
                except EngineError:
                    return  # too long to be pinned, or caching is off: the turn needs no pin to run
                while len(self._pins) > _PINS_KEPT:
                    self._pins.popitem(last=False)[1].release()
            self._pins.move_to_end(key)

    def _grammar(self, protocol: TurnProtocol, reasoning: Reasoning, request: TurnRequest) -> Grammar | None:
        """The grammar of the turn, compiled once for the same tools and options; None where anything goes."""
        form = FORMATS[protocol.format]
        if not request.tools and request.output_schema is None and not form.final and (form.reasoning is None or reasoning == "none"):
            return None
        tools = [{"name": tool.name, "parameters": tool.accepted or tool.parameters} for tool in request.tools]
        request = replace(request, output_schema=request.output_accepted or request.output_schema)
        key = compact([protocol.format, reasoning, tools, request.tool_choice, request.output_schema, request.max_calls])
        with self._grammars_lock:
            if key not in self._grammars:
                self._grammars[key] = self._compile(tools, request, protocol.format, reasoning)
                while len(self._grammars) > _GRAMMARS_KEPT:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(key)
            return self._grammars[key]

    def _compile(self, tools: list[dict[str, Any]], request: TurnRequest, format: str, reasoning: Reasoning) -> Grammar:
        from agentkit.grammars import Grammar

        parallel = request.max_calls if request.max_calls > 1 else False
        return Grammar.from_tools(tools, choice=request.tool_choice, parallel=parallel, output_schema=request.output_schema, format=format, reasoning=reasoning)


class _Spelling:
    """The text of a turn with the format's special tokens spelled out, which the engine's own text leaves out."""

    def __init__(self, tokenizer: Tokenizer, protocol: TurnProtocol) -> None:
        self._names = special_names(tokenizer, protocol)
        self._detokenizer = tokenizer.detokenizer(continuation=True) if self._names else None

    def of(self, event: TokenEvent) -> str:
        if self._detokenizer is None:
            return event.text
        return "".join(self._detokenizer.finish() + self._names[t] if t in self._names else self._detokenizer.push(t) for t in event.token_ids)

    def rest(self) -> str:
        """What had been held back at the end: a character that is not whole."""
        return "" if self._detokenizer is None else self._detokenizer.finish()


def special_names(tokenizer: Tokenizer, protocol: TurnProtocol) -> dict[int, str]:
    """Id -> text of the format's markers that are special tokens of this tokenizer."""
    known = tokenizer.special_tokens
    return {known[name]: name for name in FORMATS[protocol.format].specials if name in known}


def _reasoning(engine: Engine, protocol: TurnProtocol, prompt: list[int]) -> Reasoning:
    """Whether the model may reason before it answers: the end of the prompt shows whether it does already, or has been told not to."""
    form = FORMATS[protocol.format]
    if form.reasoning is None or form.final:
        return "allowed"
    opening, closing = form.reasoning
    names = special_names(engine.tokenizer, protocol)
    end = "".join(names[token] if token in names else engine.tokenizer.decode([token], continuation=True) for token in prompt[-16:]).rstrip()
    if end.endswith(opening):
        return "begun"
    template = engine.chat_template
    return "none" if end.endswith(closing) or template is None or opening not in template.source else "allowed"


def _request_usage(usage: Usage) -> RequestUsage:
    return RequestUsage(**{name: getattr(usage, name) for name in RequestUsage.__dataclass_fields__ if name != "reasoning_tokens"})


def _release(pins: OrderedDict[str, Pin]) -> None:
    while pins:
        pins.popitem()[1].release()
