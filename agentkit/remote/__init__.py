"""Agents on remote servers that speak OpenAI's chat completions API: OpenAI itself, vLLM, SGLang, llama.cpp, Ollama, LM Studio.

`RemoteModel` is a ChatModel (agentkit/model.py); Agent makes one of "openai:MODEL" and of an address. httpx is imported when
the first request is made.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.remote.model import RemoteModel

__all__ = ["RemoteModel"]


def __getattr__(name: str) -> Any:
    """The model is imported when it is asked for: whether a name means a server is known without it."""
    if name == "RemoteModel":
        from agentkit.remote.model import RemoteModel

        return RemoteModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
