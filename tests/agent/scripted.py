"""A model that says what a script tells it, so that the whole loop is tested without weights.

Turns are replayed in small pieces, as tokens arrive, through the real protocol's reader. Each turn that holds well-formed
calls only is also run through the turn grammar, so a script cannot say what a constrained model could not; scripts that
mean to break the form pass `constrained=False`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from agentkit import grammars
from agentkit.model import ModelEvent, ModelToken, TurnEnd, TurnRequest
from agentkit.protocol import FormatProtocol, call_text, compact
from agentkit.usage import RequestUsage

PIECE = 4  # characters to a token

TurnScript = str | Callable[[TurnRequest], str]


def calls(*named: tuple[str, Any]) -> str:
    """The text of a turn that makes these calls; arguments given as text are used as they are."""
    return "\n".join(call_text(name, arguments if isinstance(arguments, str) else compact(arguments)) for name, arguments in named)


# Made here, once, rather than inside a test that looks at the clock.
VOCABULARY = grammars.Vocabulary([bytes([byte]) for byte in range(256)] + [None], stop_token_ids=[256])
FIRST_MATCHER = grammars.Grammar.from_choices(["x"]).matcher(VOCABULARY)


class ScriptedModel:
    """Replays turns.

    Args:
        turns: one text for each request, or a function of the request that gives it. One more request than turns is an error.
        constrained: check each turn against the turn grammar.
        finish_reason: of every turn.
        delay_s: between tokens.
    """

    name = "scripted"

    def __init__(self, *turns: TurnScript, constrained: bool = True, finish_reason: str = "stop", delay_s: float = 0.0) -> None:
        self.turns = list(turns)
        self.constrained, self.finish_reason, self.delay_s = constrained, finish_reason, delay_s
        self.requests: list[TurnRequest] = []
        self.cancelled = 0
        self.protocol = FormatProtocol()

    async def stream_turn(self, request: TurnRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        assert self.turns, f"the script has no turn for request {len(self.requests)}"
        turn = self.turns.pop(0)
        text = turn(request) if callable(turn) else turn
        if self.constrained:
            check_turn(request, text)
        reader = self.protocol.reader(request)
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        ended = False
        try:
            for piece in pieces:
                await asyncio.sleep(self.delay_s)
                yield ModelToken(piece, (len(piece),), forced=piece.startswith("<"))
                for event in reader.feed(piece):
                    yield event
            yield TurnEnd(reader.finish(self.finish_reason), self.usage(request, len(pieces)))
            ended = True
        finally:
            self.cancelled += not ended

    def usage(self, request: TurnRequest, tokens: int) -> RequestUsage:
        number = len(self.requests)
        return RequestUsage(10 * number, tokens, number - 1, 1, 2, 1, tokens + 1, 0.5 * number, 0.01 * number)

    def close(self) -> None:
        """Nothing to free."""

    def prompt(self, index: int = -1) -> list[dict[str, Any]]:
        """The chat messages of a request, as a template would get them."""
        return self.protocol.render(self.requests[index])


def check_turn(request: TurnRequest, text: str) -> None:
    """Fails if the turn grammar does not accept the text (skipped where anything goes)."""
    if not request.tools and request.output_schema is None:
        return
    matcher = _turn_matcher(request)
    matcher.accept_bytes(text.encode())
    assert matcher.is_accepting, f"the turn may not stop here: {text!r}"


def _turn_matcher(request: TurnRequest) -> Any:
    tools = [{"name": tool.name, "parameters": tool.accepted or tool.parameters} for tool in request.tools]
    parallel = request.max_calls if request.max_calls > 1 else False
    grammar = grammars.Grammar.from_tools(tools, choice=request.tool_choice, parallel=parallel, output_schema=request.output_schema, format="hermes")
    return grammar.matcher(VOCABULARY)
