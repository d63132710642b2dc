"""What serves an agent's model, out of what a developer gives: an engine, a name, an address, or a ChatModel.

Imports what each needs only when it is asked for. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentkit.errors import InvalidOption
from agentkit.model import ChatModel
from agentkit.remote.address import is_remote

if TYPE_CHECKING:
    from agentkit.protocol import TurnProtocol

__all__ = ["chat_model"]


def chat_model(source: Any, protocol: TurnProtocol | str | None, adapter: str | None, remote: Mapping[str, Any]) -> ChatModel:
    """The ChatModel that `source` means.

    Args:
        source: an Engine, a name, an address, or a ChatModel.   protocol, adapter: for local models.
        remote: options for a server, None where not given.

    Raises:
        InvalidOption: it means none, or an option does not go with it.
    """
    if adapter is not None and not isinstance(adapter, str):
        raise InvalidOption(f"adapter must be the name of a loaded adapter or None, not {adapter!r}")
    if isinstance(source, str) and is_remote(source):
        if adapter is not None:
            raise InvalidOption(f"adapter={adapter!r} is for local models; servers take an adapter's name as that of the model")
        if protocol is not None:
            raise InvalidOption("protocol is for local models; a server writes calls in its own way")
        from agentkit.remote import RemoteModel

        return RemoteModel(source, **remote)
    given = next((name for name, value in remote.items() if value is not None), None)
    if given is not None:
        raise InvalidOption(f"{given}= is for a server: 'openai:MODEL' or an address, such as 'http://localhost:8000/v1', and not for {source!r}")
    if isinstance(source, str):
        _refuse_kind(source)
        return _local(source, protocol, adapter)
    if isinstance(source, ChatModel):
        if protocol is not None:
            raise InvalidOption("protocol is for local models; a ChatModel writes calls in its own way")
        if adapter is not None:
            raise InvalidOption(f"adapter={adapter!r} is for local models; give the Engine that has loaded it, or leave it out")
        return source
    if hasattr(source, "encode_chat") and hasattr(source, "astream"):
        return _local(source, protocol, adapter)
    raise InvalidOption(
        f"the model is {type(source).__name__}; give an Engine, the name of a local model, the address of a server, or a ChatModel (agentkit.model)"
    )


def _refuse_kind(name: str) -> None:
    """Kinds of servers are no prefixes of model names."""
    kind, _, model = name.partition(":")
    if not model:
        return
    from agentkit.remote.servers import SERVERS

    if kind in SERVERS:
        raise InvalidOption(f"{name!r} does not say where the server is; write Agent('http://localhost:8000/v1', model={model!r}, server={kind!r})")


def _local(engine: Any, protocol: TurnProtocol | str | None, adapter: str | None) -> ChatModel:
    from agentkit.local_model import LocalModel

    return LocalModel(engine, protocol, adapter)
