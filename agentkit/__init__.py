"""agentkit: agents whose tool calls cannot be malformed.

    from agentkit import Agent, Engine, tool

Everything is loaded when it is first asked for: `import agentkit` takes no torch, no numba, no transformers, not even pydantic.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.agent import Agent, RunOptions, RunStream
    from agentkit.context import RunContext
    from agentkit.engine import Engine
    from agentkit.errors import (
        AdapterError,
        AdapterNotFound,
        AgentKitError,
        BudgetTooSmall,
        ContextTooLong,
        EngineBusy,
        EngineError,
        GenerationTruncated,
        GrammarError,
        GrammarTooComplex,
        GrammarViolation,
        HistoryError,
        InvalidGrammar,
        InvalidOption,
        ModelNotFound,
        ModelRetry,
        ModelRetryExceeded,
        NoTokenPath,
        NumericalError,
        RemoteError,
        ToolDefinitionError,
        ToolError,
        ToolTimeout,
        UnsatisfiableSchema,
        UnsupportedSchema,
        UsageLimitExceeded,
    )
    from agentkit.messages import Message, messages_from_json, messages_to_json
    from agentkit.partial import Partial
    from agentkit.result import RunResult, ToolCall
    from agentkit.tool import Tool, tool
    from agentkit.usage import RequestUsage, RunUsage, UsageLimits

__version__ = "0.1.0"

_HOMES = {
    "agentkit.agent": ("Agent", "RunOptions", "RunStream"),
    "agentkit.context": ("RunContext",),
    "agentkit.engine": ("Engine",),
    "agentkit.errors": (
        "AgentKitError",
        "AdapterError",
        "AdapterNotFound",
        "BudgetTooSmall",
        "ContextTooLong",
        "EngineBusy",
        "EngineError",
        "GenerationTruncated",
        "GrammarError",
        "GrammarTooComplex",
        "GrammarViolation",
        "HistoryError",
        "InvalidGrammar",
        "InvalidOption",
        "ModelNotFound",
        "ModelRetry",
        "ModelRetryExceeded",
        "NoTokenPath",
        "NumericalError",
        "RemoteError",
        "ToolDefinitionError",
        "ToolError",
        "ToolTimeout",
        "UnsatisfiableSchema",
        "UnsupportedSchema",
        "UsageLimitExceeded",
    ),
    "agentkit.messages": ("Message", "messages_from_json", "messages_to_json"),
    "agentkit.partial": ("Partial",),
    "agentkit.result": ("RunResult", "ToolCall"),
    "agentkit.tool": ("Tool", "tool"),
    "agentkit.usage": ("RequestUsage", "RunUsage", "UsageLimits"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdapterError",
    "AdapterNotFound",
    "Agent",
    "AgentKitError",
    "BudgetTooSmall",
    "ContextTooLong",
    "Engine",
    "EngineBusy",
    "EngineError",
    "GenerationTruncated",
    "GrammarError",
    "GrammarTooComplex",
    "GrammarViolation",
    "HistoryError",
    "InvalidGrammar",
    "InvalidOption",
    "Message",
    "ModelNotFound",
    "ModelRetry",
    "ModelRetryExceeded",
    "NoTokenPath",
    "NumericalError",
    "Partial",
    "RemoteError",
    "RequestUsage",
    "RunContext",
    "RunOptions",
    "RunResult",
    "RunStream",
    "RunUsage",
    "Tool",
    "ToolCall",
    "ToolDefinitionError",
    "ToolError",
    "ToolTimeout",
    "UnsatisfiableSchema",
    "UnsupportedSchema",
    "UsageLimitExceeded",
    "UsageLimits",
    "messages_from_json",
    "messages_to_json",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`agentkit.tool` is the decorator. Importing the module of that name would put the module in its place, as Python does for submodules."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.tool if name == "tool" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
