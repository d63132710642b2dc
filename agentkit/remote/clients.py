"""HTTP clients, one for each event loop, since connections belong to the loop that opened them.

A client is closed when its loop ends (asyncio.run closes what async generators hold), and when its owner is closed. Knows
nothing of what is sent.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from agentkit.errors import InvalidOption

if TYPE_CHECKING:
    import httpx

    Forget = weakref.WeakMethod[Callable[[asyncio.AbstractEventLoop], None]]

__all__ = ["Clients"]


class Clients:
    """make: makes a client; called in the loop that it is for."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._kept: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None, None]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._kept)

    async def here(self) -> httpx.AsyncClient:
        """The running loop's client.

        Raises:
            InvalidOption: closed.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise InvalidOption("the connection to the server has been closed (by close(), or by leaving the agent's block); make a new Agent")
            for ended in [each for each in self._kept if each.is_closed()]:
                del self._kept[ended]
            if loop in self._kept:
                return self._kept[loop][0]
            client = self._make()
            keeper = _keep(client, weakref.WeakMethod(self._forget), loop)
            self._kept[loop] = client, keeper
        await anext(keeper)  # from here on the loop closes it when it ends
        return client

    async def aclose(self) -> None:
        """Closes all clients; waits for those of the running loop."""
        here = asyncio.get_running_loop()
        for loop, keeper in self._taken().items():
            if loop is here:
                await keeper.aclose()
            else:
                _close_there(loop, keeper)

    def close(self) -> None:
        """Closes all clients, from any thread; those of running loops as soon as these come to it."""
        for loop, keeper in self._taken().items():
            _close_there(loop, keeper)

    def _taken(self) -> dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]]:
        with self._lock:
            self._closed = True
            taken = {loop: keeper for loop, (_, keeper) in self._kept.items()}
            self._kept.clear()
        return taken

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._kept.pop(loop, None)


async def _keep(client: httpx.AsyncClient, forget: Forget, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
    """Suspended as long as the client is open. Loops close their async generators before they end."""
    try:
        yield
    finally:
        owner = forget()
        if owner is not None:
            owner(loop)
        await client.aclose()


def _close_there(loop: asyncio.AbstractEventLoop, keeper: AsyncGenerator[None, None]) -> None:
    if loop.is_running():
        closing = _closed(keeper)
        try:
            asyncio.run_coroutine_threadsafe(closing, loop)
        except RuntimeError:  # the loop has ended in between, and closed it
            closing.close()


async def _closed(keeper: AsyncGenerator[None, None]) -> None:
    await keeper.aclose()
