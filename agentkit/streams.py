"""Async iterators that end when their reader leaves, and the block that such a reader stands in. Knows nothing of what flows through."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

__all__ = ["StreamBlock", "closing_source"]

T = TypeVar("T")


async def closing_source(source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The same items; closing this generator (contextlib.aclosing) closes the source too, at once, where it can be closed."""
    try:
        async for item in source:
            yield item
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


class StreamBlock(AbstractAsyncContextManager[T], Generic[T]):
    """What `async with` takes once to give a stream; any other use says how to write it.

    Args:
        make: makes the context manager proper, when the block is entered.
        label: what the caller wrote, such as "agent.run_stream()".
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]], label: str) -> None:
        self._make = make
        self._label = label
        self._entered: AbstractAsyncContextManager[T] | None = None

    async def __aenter__(self) -> T:
        if self._entered is not None:
            raise RuntimeError(f"this {self._label} has been entered before; call it again for another run")
        self._entered = self._make()
        return await self._entered.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool | None:
        assert self._entered is not None
        return await self._entered.__aexit__(kind, error, traceback)

    def __del__(self) -> None:
        if self.__dict__.get("_entered", self) is None:
            warnings.warn(f"{self._label} was never entered, so nothing ran. {self._usage}", RuntimeWarning, stacklevel=2, source=self)

    @property
    def _usage(self) -> str:
        call = self._label.removesuffix("()")
        return f"Write: async with {call}(...) as stream: async for event in stream: ... (for the result alone: await {call.rpartition('.')[0]}.run(...))"

    if not TYPE_CHECKING:  # a type checker refuses these by itself

        def _refuse(self, *_: object) -> NoReturn:
            self._entered = self._entered or self  # told once is enough: no warning when it is dropped
            raise TypeError(f"{self._label} is a block to be entered. {self._usage}")

        __await__ = __aiter__ = __iter__ = __enter__ = __exit__ = _refuse

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self._label} has no {name!r} before it is entered. {self._usage}")
