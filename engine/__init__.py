"""The embedded engine: requests in, tokens out. It knows nothing of tools or agents.

Importing this package is cheap: torch is loaded when `Engine` is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.engine.adapters.adapter import Adapter
    from agentkit.engine.config import EngineConfig, SamplingParams
    from agentkit.engine.engine import Engine
    from agentkit.engine.kv_policy import H2O, Streaming, Window
    from agentkit.engine.metrics import EngineStats
    from agentkit.engine.pins import Pin
    from agentkit.engine.request import Event, FinishEvent, Generation, TokenEvent, TokenLogprob, Usage

__all__ = [
    "H2O",
    "Adapter",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "Event",
    "FinishEvent",
    "Generation",
    "Pin",
    "SamplingParams",
    "Streaming",
    "TokenEvent",
    "TokenLogprob",
    "Usage",
    "Window",
]

_HOMES = {
    "Adapter": "agentkit.engine.adapters.adapter",
    "Engine": "agentkit.engine.engine",
    "EngineConfig": "agentkit.engine.config",
    "H2O": "agentkit.engine.kv_policy",
    "Streaming": "agentkit.engine.kv_policy",
    "Window": "agentkit.engine.kv_policy",
    "Pin": "agentkit.engine.pins",
    "SamplingParams": "agentkit.engine.config",
    "EngineStats": "agentkit.engine.metrics",
    "Event": "agentkit.engine.request",
    "FinishEvent": "agentkit.engine.request",
    "Generation": "agentkit.engine.request",
    "TokenEvent": "agentkit.engine.request",
    "TokenLogprob": "agentkit.engine.request",
    "Usage": "agentkit.engine.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
