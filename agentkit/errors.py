"""The errors of agentkit as one tree; arguments that can never be right are a ValueError or TypeError beside it.

    AgentKitError
    ├── GrammarError                  a constraint cannot be built, or cannot be met
    │   ├── InvalidGrammar            the schema, pattern or grammar text itself is malformed
    │   ├── UnsupportedSchema         well-formed, but a keyword cannot be enforced exactly
    │   ├── UnsatisfiableSchema       nothing can match
    │   ├── GrammarTooComplex         a stated limit was passed while compiling or stepping
    │   ├── CompileCancelled          the caller no longer wants the grammar that is being compiled
    │   ├── GrammarViolation          a token or byte that the grammar does not allow here
    │   ├── NoTokenPath               bytes could go on, but no token of the vocabulary spells them
    │   └── BudgetTooSmall            even the shortest completion does not fit into max_tokens
    ├── EngineError                   the engine cannot take or finish a request
    │   ├── EngineBusy                the queue is full
    │   ├── ContextTooLong            prompt and output do not fit into the model's context
    │   ├── ModelNotFound             no such model here, or it cannot be fetched
    │   ├── AdapterError              an adapter is damaged, of a kind that is not supported, or not for this model
    │   │   └── AdapterNotFound       ... or is not there: no such file, or none loaded under this name
    │   ├── NumericalError            the model produced NaN, or a mask left nothing to sample
    │   └── GenerationTruncated       output was cut before it was complete
    │       └── GenerationTimeout     ... because its timeout passed
    ├── RemoteError                   a remote server did not give a whole answer
    │   ├── RemoteUnavailable         it cannot be reached, is busy or broke down, also after retries
    │   │   └── RemoteTimeout         ... or it took too long
    │   ├── RemoteRefused             it does not accept the request: the key, the model, an option
    │   ├── RemoteProtocolError       what it sent is not what the API says, or ends before it is complete
    │   └── ModelRefusal              the model, or a filter behind it, refused to answer
    ├── ToolError                     a tool is declared wrongly, or failed while running
    │   ├── ToolDefinitionError       a function or model cannot be made a tool
    │   └── ToolTimeout               a tool ran past its time limit
    ├── ModelRetry                    raised BY a tool: tell the model what was wrong and let it try again
    ├── ModelRetryExceeded            the model used up its retries
    ├── InvalidOption                 an option of an engine, an agent or a run that cannot be used
    ├── UsageLimitExceeded            a UsageLimits bound was reached
    └── HistoryError                  a message history cannot be read

Each message says what was wrong, where, and what to do about it. The classes carry the same facts as
attributes, so that programs need not parse texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = [
    "AdapterError",
    "AdapterNotFound",
    "AgentKitError",
    "BudgetTooSmall",
    "CompileCancelled",
    "ContextTooLong",
    "EngineBusy",
    "EngineError",
    "GenerationTimeout",
    "GenerationTruncated",
    "GrammarError",
    "GrammarTooComplex",
    "GrammarViolation",
    "HistoryError",
    "InvalidGrammar",
    "InvalidOption",
    "ModelNotFound",
    "ModelRefusal",
    "ModelRetry",
    "ModelRetryExceeded",
    "NoTokenPath",
    "NumericalError",
    "RemoteError",
    "RemoteProtocolError",
    "RemoteRefused",
    "RemoteTimeout",
    "RemoteUnavailable",
    "ToolDefinitionError",
    "ToolError",
    "ToolTimeout",
    "UnsatisfiableSchema",
    "UnsupportedSchema",
    "UsageLimitExceeded",
]


class AgentKitError(Exception):
    """Root of all errors raised by agentkit."""


class GrammarError(AgentKitError):
    """A constraint cannot be built, or cannot be met."""


class InvalidGrammar(GrammarError, ValueError):
    """The schema, pattern or grammar text is malformed.

    Attributes:
        position: offset in the text (characters) where it went wrong, or None.
        pointer: JSON pointer to the malformed part of a schema, or None.
    """

    def __init__(self, message: str, *, position: int | None = None, pointer: str | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.pointer = pointer


class UnsupportedSchema(GrammarError):
    """A well-formed schema uses something that cannot be enforced exactly; nothing is ever dropped in silence.

    Attributes:
        pointer: JSON pointer to the place, such as "#/properties/a/not".
        keyword: the keyword that cannot be enforced.
    """

    def __init__(self, pointer: str, keyword: str, reason: str = "") -> None:
        detail = f": {reason}" if reason else ""
        super().__init__(f"{pointer}: the keyword {keyword!r} cannot be enforced exactly here{detail}")
        self.pointer = pointer
        self.keyword = keyword
        self.reason = reason


class UnsatisfiableSchema(GrammarError):
    """No text can satisfy the constraint.

    Attributes:
        pointer: JSON pointer to the contradiction.
    """

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: nothing can match: {reason}")
        self.pointer = pointer
        self.reason = reason


class GrammarTooComplex(GrammarError):
    """A stated limit was passed while compiling or stepping.

    Attributes:
        limit: name of the limit, such as "nesting" or "states".
    """

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(f"{message} (limit: {limit})")
        self.limit = limit


class CompileCancelled(GrammarError):
    """Compiling was given up because its `cancel` said so; nothing has been kept."""


class GrammarViolation(GrammarError):
    """A token or byte that the grammar does not allow here; the matcher has not moved."""


class NoTokenPath(GrammarError):
    """The grammar can go on, but no token of this vocabulary spells the bytes that it needs."""


class BudgetTooSmall(GrammarError):
    """Even the shortest completion does not fit into the token budget.

    Attributes:
        needed: tokens that the shortest completion takes (the stop token is not counted).
        budget: tokens that were allowed.
    """

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"the shortest output that satisfies the grammar takes {needed} tokens, but max_tokens is {budget}; raise max_tokens to at least {needed}"
        )
        self.needed = needed
        self.budget = budget


class EngineError(AgentKitError):
    """The engine cannot take or finish a request."""


class EngineBusy(EngineError):
    """The engine's queue is full; try again later or raise its limit."""


class ContextTooLong(EngineError):
    """Prompt and output do not fit into the model's context.

    Attributes:
        tokens: tokens asked for (prompt, and output where it was counted).
        limit: tokens the model or the engine's cache can hold.
    """

    def __init__(self, tokens: int, limit: int, message: str = "") -> None:
        super().__init__(message or f"{tokens} tokens do not fit into the context of {limit}; shorten the prompt or lower max_tokens")
        self.tokens = tokens
        self.limit = limit


class ModelNotFound(EngineError):
    """No such model in the cache, and it could not be fetched."""


class AdapterError(EngineError):
    """A low-rank adapter cannot be loaded: it is damaged, of a kind that is not supported, or does not fit the model."""


class AdapterNotFound(AdapterError):
    """No adapter of this name is loaded, or there is none where it was said to be."""


class NumericalError(EngineError):
    """The model produced NaN, or a mask left nothing to sample."""


class GenerationTruncated(EngineError):
    """Output was cut before it was complete (only possible with the budget guard off, or by a deadline or stop string).

    Attributes:
        text: what had been generated.
    """

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class GenerationTimeout(GenerationTruncated, TimeoutError):
    """The request's `timeout` passed before its output was complete; also a TimeoutError."""


class RemoteError(AgentKitError):
    """A remote server did not give a whole answer; nothing of it counts.

    Attributes:
        status: HTTP status of the answer; None where there was none, or where the error came inside a stream.
        code: the server's own name for the error, if it gave one ("rate_limit_exceeded").
        request_id: the server's number for the request, for its operators; None if it gave none.
        retry_after: seconds after which the server asked to be tried again, or None.
        text: the part of the answer that had come.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        text: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.text = text


class RemoteUnavailable(RemoteError):
    """The server cannot be reached, is busy (429) or broke down (5xx), also after the retries that were allowed."""


class RemoteTimeout(RemoteUnavailable, TimeoutError):
    """No connection, no further data, or no complete answer in time; also a TimeoutError."""


class RemoteRefused(RemoteError):
    """The server does not accept the request as it is: trying again would not help."""


class RemoteProtocolError(RemoteError):
    """What came is not what the API says, or its stream ended before the turn was complete."""


class ModelRefusal(RemoteError):
    """The model, or a content filter behind it, refused to answer; `text` holds what it said."""


class ToolError(AgentKitError):
    """A tool is declared wrongly, or failed while running."""


class ToolDefinitionError(ToolError, TypeError):
    """A function or model cannot be made a tool; raised where the tool is defined."""


class ToolTimeout(ToolError, TimeoutError):
    """A tool ran past its time limit."""


class ModelRetry(AgentKitError):
    """Raised by a tool (or output validator) to tell the model what was wrong and let it try again.

    Args:
        message: shown to the model as it is.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ModelRetryExceeded(AgentKitError):
    """The model used up its retries without a valid result."""


class InvalidOption(AgentKitError, ValueError):
    """An option of an engine, an agent or a run that cannot be used: which, why, and what is possible instead."""


class UsageLimitExceeded(AgentKitError):
    """A bound of UsageLimits was reached.

    Attributes:
        limit: name of the bound, such as "request_limit".
    """

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


class HistoryError(AgentKitError, ValueError):
    """A message history cannot be read: what was wrong and where."""

    def __init__(self, message: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.errors = list(errors)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for the known name that is most like `word`, or "" if none is; to be put into a message."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.strip().lower(), by_lower, 1)
    return f" Did you mean {by_lower[close[0]]!r}?" if close else ""
