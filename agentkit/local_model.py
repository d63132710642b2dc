"""The in-process engine as a ChatModel: renders the conversation, constrains the turn with a grammar, reads it as it streams.

Input: an engine, or the name of a model whose engine is made at the first turn and shared by all agents of this process.
torch is imported no earlier than that. Knows nothing of running tools.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agentkit.model import ModelEvent, ModelToken, TurnEnd, TurnRequest
from agentkit.protocol import HermesProtocol, TurnProtocol, compact
from agentkit.streams import closing_source
from agentkit.usage import RequestUsage

if TYPE_CHECKING:
    from agentkit.engine import Engine
    from agentkit.engine.request import Usage
    from agentkit.grammars import Grammar

__all__ = ["LocalModel", "shared_engine"]

_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()
_GRAMMARS_KEPT = 64


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
        protocol: how this model family writes calls.
    """

    def __init__(self, engine: Engine | str, protocol: TurnProtocol | None = None) -> None:
        self._engine = engine
        self.protocol: TurnProtocol = protocol or HermesProtocol()
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._grammars_lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._engine if isinstance(self._engine, str) else self._engine.model_name

    async def stream_turn(self, request: TurnRequest) -> AsyncIterator[ModelEvent]:
        """Streams one turn; see ChatModel."""
        from agentkit.engine.request import FinishEvent

        engine = await asyncio.to_thread(shared_engine, self._engine) if isinstance(self._engine, str) else self._engine
        prompt, grammar = await asyncio.to_thread(self._prepare, engine, request)
        reader = self.protocol.reader(request)
        events = engine.astream(prompt, grammar=grammar, **asdict(request.sampling))
        async with aclosing(closing_source(events)) as stream:
            async for event in stream:
                if isinstance(event, FinishEvent):
                    yield TurnEnd(reader.finish(event.generation.finish_reason), _request_usage(event.generation.usage))
                else:
                    yield ModelToken(event.text, tuple(event.token_ids), event.forced)
                    for piece in reader.feed(event.text):
                        yield piece

    def close(self) -> None:
        """Closes the engine, unless it is shared by name."""
        if not isinstance(self._engine, str):
            self._engine.close()

    def _prepare(self, engine: Engine, request: TurnRequest) -> tuple[list[int], Grammar | None]:
        """Token ids of the conversation, and the grammar of the turn; may take a while the first time."""
        return engine.encode_chat(self.protocol.render(request)), self._grammar(request)

    def _grammar(self, request: TurnRequest) -> Grammar | None:
        """The grammar of the turn, compiled once for the same tools and options; None where anything goes."""
        if not request.tools and request.output_schema is None:
            return None
        tools: list[dict[str, Any]] = [asdict(tool) for tool in request.tools]
        key = compact([tools, request.tool_choice, request.output_schema, request.max_calls])
        with self._grammars_lock:
            if key not in self._grammars:
                self._grammars[key] = self._compile(tools, request)
                while len(self._grammars) > _GRAMMARS_KEPT:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(key)
            return self._grammars[key]

    def _compile(self, tools: list[dict[str, Any]], request: TurnRequest) -> Grammar:
        from agentkit.grammars import Grammar

        parallel = request.max_calls if request.max_calls > 1 else False
        return Grammar.from_tools(tools, choice=request.tool_choice, parallel=parallel, output_schema=request.output_schema, format=self.protocol.format)


def _request_usage(usage: Usage) -> RequestUsage:
    return RequestUsage(**{name: getattr(usage, name) for name in RequestUsage.__dataclass_fields__})
